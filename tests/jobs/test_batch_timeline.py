"""The batches of a job on a time line: what each did when, and nothing that is not recorded."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve, fields_dict

from smartbatch.jobs.batch_timeline import timeline_rows
from smartbatch.jobs.incident_titles import incident_title
from smartbatch.jobs.records import IncidentRow, ShardRow, ShardState
from smartbatch.jobs.versioned_records import RemoteProgress

NOW = 1000.0


def shard(**changes: Any) -> ShardRow:
    plain: dict[str, Any] = dict.fromkeys(fields_dict(ShardRow))
    plain |= {"no": 1, "state": ShardState.PLANNED, "size": 2, "remote": RemoteProgress(), "cancelled": False}
    return evolve(ShardRow(**plain), **changes)


def spans(**changes: Any) -> list[tuple[str, float, float]]:
    """What a batch of a job that was accepted at 0 did until now."""
    (row,) = timeline_rows(0.0, [shard(**changes)], NOW)
    return [(span.what, span.start, span.end) for span in row.spans]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [("not created yet", 0.0, NOW)]),
        (
            {"state": ShardState.SUBMITTED, "submitted_at": 10.0},
            [("not created yet", 0.0, 10.0), ("running", 10.0, NOW)],
        ),
        (
            {"state": ShardState.SETTLED, "submitted_at": 10.0, "ended_at": 60.0, "settled_at": 70.0},
            [("not created yet", 0.0, 10.0), ("running", 10.0, 60.0), ("collected", 60.0, 70.0)],
        ),
        (
            {
                "state": ShardState.SETTLED,
                "submitted_at": 10.0,
                "ended_at": 60.0,
                "settled_at": 70.0,
                "remote": RemoteProgress(cancel_sent_at=40.0),
            },
            [
                ("not created yet", 0.0, 10.0),
                ("running", 10.0, 40.0),
                ("rescued", 40.0, 60.0),
                ("collected", 60.0, 70.0),
            ],
        ),
        (
            {"state": ShardState.UNCERTAIN, "submitted_at": 10.0, "uncertain_since": 15.0},
            [("not created yet", 0.0, 10.0), ("creation unknown", 15.0, NOW)],
        ),
        (
            {"state": ShardState.DEAD, "submitted_at": 10.0, "uncertain_since": 15.0, "died_at": 90.0},
            [("not created yet", 0.0, 10.0), ("creation unknown", 15.0, 90.0)],
        ),
    ],
)
def test_a_batch_shows_what_it_did_when(
    changes: dict[str, Any], expected: list[tuple[str, float, float]]
) -> None:
    assert spans(**changes) == expected


def test_a_row_names_its_batch_and_its_end() -> None:
    (row,) = timeline_rows(0.0, [shard(no=3, state=ShardState.SETTLED, size=1200, cancelled=True)], NOW)
    assert (row.name, row.note) == ("batch 3", "settled, 1,200 requests, cancelled")


def test_every_kind_of_incident_has_its_words() -> None:
    """Those that the record names; a kind of a newer release is told as it is."""
    import re

    named = re.findall(r"``(\w+)``", str(IncidentRow.__doc__))
    assert len(named) >= 8
    assert all(incident_title(kind) != kind.replace("_", " ") for kind in named)
    assert incident_title("of_tomorrow") == "of tomorrow"
