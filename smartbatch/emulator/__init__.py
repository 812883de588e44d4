"""The providers' APIs, offline: calls, files and batches, with latency, limits, faults and a ledger.

The real SDKs accept it: point ``OPENAI_BASE_URL`` at :attr:`Emulator.base_url`, ``ANTHROPIC_BASE_URL`` and
``GOOGLE_GEMINI_BASE_URL`` at :attr:`Emulator.url`.
"""

from __future__ import annotations

from smartbatch.emulator.batches.batch_ledger import BatchLine, BatchRecord
from smartbatch.emulator.batches.batch_settings import BATCH_FAULTS, LINE_FAULTS
from smartbatch.emulator.composed_answers import answer_for
from smartbatch.emulator.http.server import Emulator
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.emulator.settings import FAULTS, EmulatorSettings

__all__ = [
    "BATCH_FAULTS",
    "FAULTS",
    "LINE_FAULTS",
    "BatchLine",
    "BatchRecord",
    "Call",
    "Emulator",
    "EmulatorSettings",
    "Ledger",
    "answer_for",
]
