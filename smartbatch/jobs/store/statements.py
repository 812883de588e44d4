"""What several statements of the store have in common; for the words in braces see :mod:`.database`.

States stand in statements by the values of their enums: jobs and shards keep a text, items the number of
their state, because there may be millions of them.
"""

from __future__ import annotations

import enum

from attrs import fields_dict

from smartbatch.jobs.records import ItemState, JobRow, JobState, ShardRow

__all__ = ["DONE", "IN_FLIGHT", "JOBS", "OPEN", "REALTIME", "SHARDED", "SHARD_COLUMNS", "WAITING", "literal"]


def literal(*states: enum.Enum) -> str:
    """Return states as SQL: one literal, or several with commas between them."""
    return ", ".join(repr(state.value) for state in states)


DONE = literal(JobState.DONE)
OPEN, REALTIME, IN_FLIGHT, SHARDED = (literal(state) for state in list(ItemState)[:4])
WAITING = f"state < {SHARDED}"
"""Items with something left to do, in the words of the index ``item_waiting``: only then is it used."""

_ELSEWHERE = {
    "key": "j.user_key",
    "params": "p.body",
    "job_id": "(SELECT j.id FROM job j WHERE j.no = shard.job)",
}
"""Fields of records that are no column of the same name."""
_JOB_COLUMNS = ", ".join(_ELSEWHERE.get(name, f"j.{name}") for name in fields_dict(JobRow))
JOBS = f"SELECT {_JOB_COLUMNS}, j.lease_until FROM job j JOIN job_params p ON p.no = j.no "
"""Rows for :data:`.rows.job_row`, and behind it when the owner's lease ends."""
SHARD_COLUMNS = ", ".join(_ELSEWHERE.get(name, name) for name in fields_dict(ShardRow))
"""Columns for :data:`.rows.shard_row`."""
