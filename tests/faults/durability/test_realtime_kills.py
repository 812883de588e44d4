"""A kill makes calls in flight be paid again, and answers that were not stored yet; nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import emulator
from tests.faults.durability.fork_server import ForkServer
from tests.faults.durability.realtime_kills import REALTIME, KilledRows, kill_rows

PARALLELISM = 2


def killed(folder: Path, seeds: range, *, capped: bool = False) -> list[KilledRows]:
    latency = "--latency=0.03", "--latency-sigma=0.7"
    with emulator(*latency) as url, ForkServer(folder / "workers.log") as fork_server:
        return [
            kill_rows(
                reading,
                seed,
                url=url.removesuffix("/v1"),
                folder=folder,
                fork_server=fork_server,
                parallelism=PARALLELISM,
                capped=capped,
            )
            for seed in seeds
            for reading in REALTIME
            if not (capped and reading == "singles")
        ]


def check(lists: list[KilledRows], *, most: int | None) -> None:
    for rows in lists:
        assert rows.never == [], rows
        assert rows.unexplained == 0, rows
        assert max(rows.in_flight) <= PARALLELISM, rows
        assert most is None or max(rows.again) <= most, rows
    assert sum(sum(rows.again) for rows in lists) > 0  # the kills met rows under way


@pytest.mark.full
@pytest.mark.parametrize("capped", [False, True])
def test_no_more_calls_in_flight_are_paid_again_than_there_may_be(capped: bool, tmp_path: Path) -> None:
    check(killed(tmp_path, range(2), capped=capped), most=PARALLELISM if capped else None)


@pytest.mark.soak
@pytest.mark.parametrize("capped", [False, True])
def test_hundreds_of_kills(capped: bool, tmp_path: Path) -> None:
    check(killed(tmp_path, range(100, 140), capped=capped), most=PARALLELISM if capped else None)
