"""The emulator in a process of its own, with the faults the kill loop is run with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.harness import emulator

LATEST = 1.5  # seconds after which a late create exists
LIST_LAG = 0.8  # seconds after which every batch is in the list

_BATCH_FAULTS = {
    "lost_create": 0.1,
    "dropped_create": 0.08,
    "late_create": 0.12,
    "list_lag": 0.3,
    "get_lag": 0.2,
    "shuffled": 0.9,
}
_CALL_FAULTS = {"reset": 0.01, "reset_before": 0.01, "500": 0.01}


@contextmanager
def faulty_emulator(
    seed: int,
    *,
    turnaround: float = 0.1,
    sigma: float = 0.5,
    share: float = 1.0,
    latest: float = LATEST,
    exchanged: float = 0.0,
    dialect: str | None = None,
) -> Iterator[str]:
    """Serve all three APIs, or the ``dialect`` of a host; a third of the creates gets no answer, or a
    ``share`` of that. Yield the address, without a path."""
    options: dict[str, object] = {
        "seed": seed,
        "latency": 0,
        "batch-turnaround": turnaround,
        "batch-turnaround-sigma": sigma,
        "batch-late-seconds": latest,
        "batch-list-lag": LIST_LAG,
        "batch-get-lag": 0.3,
        "batch-faults": _rates({**_BATCH_FAULTS, "swapped_answers": exchanged}, share),
        "faults": _rates(_CALL_FAULTS, share),
    }
    if dialect is not None:
        options["dialect"] = dialect
    with emulator(*(f"--{name}={value}" for name, value in options.items())) as url:
        yield url.partition("//")[0] + "//" + url.partition("//")[2].partition("/")[0]


def _rates(faults: dict[str, float], share: float) -> str:
    return ",".join(f"{name}={min(1.0, share * rate):.4f}" for name, rate in faults.items())
