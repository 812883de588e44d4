"""Helpers for users' own tests: an emulator of the three APIs, a mock provider, and a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from smartbatch._clock import VirtualClock
from smartbatch.emulator import Emulator, answer_for
from smartbatch.emulator.prompt_caching import PromptCaching
from smartbatch.emulator.settings import EmulatorParams
from smartbatch.providers.mock import MockCall, MockProvider

__all__ = ["Emulator", "MockCall", "MockProvider", "PromptCaching", "VirtualClock", "answer_for", "emulator"]


def emulator(
    *, port: int = 0, ledger_file: str | Path | None = None, **settings: Unpack[EmulatorParams]
) -> Emulator:
    """Return an emulator of the three APIs, to be used as ``with emulator(latency=0.01) as emu: …``.

    It serves real-time calls, files and batches. Set the base URL of a client to ``emu.base_url`` (for
    Anthropic and Gemini to ``emu.url``), with any key. ``emu.ledger`` has the requests that arrived and what
    was billed; ``emu.configure(faults=0.02)`` changes settings. Without ``batch_turnaround`` batches end
    immediately.

    ``emulator(dialect="mistral")`` serves the API of another host instead, at ``emu.base_url``.

    Args:
        port: 0 selects a free one.
        ledger_file: receives a JSON line for each request and each event of a batch.
        settings: see :class:`smartbatch.emulator.EmulatorSettings`.

    Raises:
        ConfigError: a setting is unknown or out of range, or the port is in use.
    """
    return Emulator(port=port, ledger_file=ledger_file, **settings)
