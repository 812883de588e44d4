"""The contract of every store about interrupts, on both databases: no lock and no transaction stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from types import CodeType

import pytest
from ctrl_c import interrupted_at_every_moment
from jobs.stores import Bench, bench, started, store

from smartbatch.jobs.records import JobLease
from smartbatch.jobs.store import SqlStore

__all__ = ["bench", "store"]  # fixtures


Operation = Callable[[SqlStore, JobLease], object]
OPERATIONS: dict[str, Operation] = {
    "a read": lambda store, _: store.facts.recall("k"),
    "a write": lambda store, _: store.facts.remember("k", 2),
    "a write under a lease": lambda store, lease: store.jobs.note(lease, "waits"),
}


def foreign(bench: Bench) -> Collection[CodeType]:
    if bench.kind == "sqlite":
        return ()
    from psycopg import Connection

    return {Connection.connect.__func__.__code__, Connection._notice_handler.__code__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("operate", OPERATIONS.values(), ids=OPERATIONS)
def test_what_is_interrupted_at_any_moment_leaves_the_store_to_others(
    bench: Bench, operate: Operation
) -> None:
    store, other = bench.open(), bench.open(busy_timeout=0.5)
    _, lease = started(store, bench)
    store.facts.remember("k", 1)
    for at in interrupted_at_every_moment(lambda: operate(store, lease), spared=foreign(bench)):
        going_on = threading.Thread(target=store.jobs.note, args=(lease, None), daemon=True)
        going_on.start()
        going_on.join(10)
        assert not going_on.is_alive(), f"blocked after an interrupt at moment {at}"
        other.facts.remember("of another process", at)
