"""Emulates the providers' APIs offline: calls, files and batches, with latency, limits, faults and a ledger.

The real SDKs work with it: set ``OPENAI_BASE_URL`` to :attr:`Emulator.base_url`, and ``ANTHROPIC_BASE_URL``
and ``GOOGLE_GEMINI_BASE_URL`` to :attr:`Emulator.url`. Public names are loaded at first use, because
``sim:`` needs no server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smartbatch._fork import names_on_demand

if TYPE_CHECKING:
    from smartbatch.emulator.batches.batch import BatchLine as BatchLine
    from smartbatch.emulator.batches.batch import BatchRecord as BatchRecord
    from smartbatch.emulator.batches.batch_settings import BATCH_FAULTS as BATCH_FAULTS
    from smartbatch.emulator.batches.batch_settings import LINE_FAULTS as LINE_FAULTS
    from smartbatch.emulator.batches.batch_settings import WEBHOOK_FAULTS as WEBHOOK_FAULTS
    from smartbatch.emulator.composed_answers import answer_for as answer_for
    from smartbatch.emulator.http.server import Emulator as Emulator
    from smartbatch.emulator.ledger import Call as Call
    from smartbatch.emulator.ledger import Ledger as Ledger
    from smartbatch.emulator.settings import FAULTS as FAULTS
    from smartbatch.emulator.settings import EmulatorSettings as EmulatorSettings

_MODULE_OF = {
    "BATCH_FAULTS": "batches.batch_settings",
    "BatchLine": "batches.batch",
    "BatchRecord": "batches.batch",
    "Call": "ledger",
    "Emulator": "http.server",
    "EmulatorSettings": "settings",
    "FAULTS": "settings",
    "LINE_FAULTS": "batches.batch_settings",
    "Ledger": "ledger",
    "WEBHOOK_FAULTS": "batches.batch_settings",
    "answer_for": "composed_answers",
}

__all__ = list(_MODULE_OF)

__getattr__ = names_on_demand(__name__, _MODULE_OF)
