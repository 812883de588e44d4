"""The providers' real-time APIs, offline: latency, limits, faults and a ledger, for tests and benchmarks.

The real SDKs accept it: point ``OPENAI_BASE_URL`` at :attr:`Emulator.base_url`, ``ANTHROPIC_BASE_URL`` and
``GOOGLE_GEMINI_BASE_URL`` at :attr:`Emulator.url`.
"""

from __future__ import annotations

from smartbatch.emulator.answers import answer_for
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.emulator.server import Emulator
from smartbatch.emulator.settings import FAULTS, Settings

__all__ = ["FAULTS", "Call", "Emulator", "Ledger", "Settings", "answer_for"]
