"""For users' own tests: a service to talk to, offline, and a clock whose time a test decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from smartbatch._clock import VirtualClock
from smartbatch.emulator import Emulator, answer_for
from smartbatch.providers.mock import MockCall, MockProvider

__all__ = ["Emulator", "MockCall", "MockProvider", "VirtualClock", "answer_for", "emulator"]


def emulator(*, port: int = 0, ledger_file: str | Path | None = None, **settings: Any) -> Emulator:
    """Return the providers' APIs, offline, to be used as ``with emulator(latency=0.01) as emu: …``.

    Real-time calls, files and batches. Point a client at ``emu.base_url`` (Anthropic's and Gemini's at
    ``emu.url``) with any key; ask ``emu.ledger`` what arrived and what was billed; change settings with
    ``emu.configure(faults=0.02)``. Batches end at once unless ``batch_turnaround`` gives them seconds.

    Args:
        port: 0 takes a free one.
        ledger_file: gets a JSON line for each request and for all that happens to batches.
        settings: see :class:`smartbatch.emulator.Settings`.

    Raises:
        ConfigError: for an unknown setting, a value out of its range, or a port in use.
    """
    return Emulator(port=port, ledger_file=ledger_file, **settings)
