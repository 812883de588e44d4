"""Rows as stored requests: whoever asks them again, in any process, goes on with what the store has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from attrs import define, field
from jobs.remote import Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.plan import Plan
from smartbatch.runs.row_requests import InputRequests, PromptMaker
from smartbatch.runs.run_identity import RunIdentity
from smartbatch.runs.stored_rows import StoredRows
from smartbatch.tables.row_source import RowSource
from smartbatch.types import Generation

ClientOf = Callable[..., BatchingClient]


@define(eq=False)
class Runs:
    client_of: ClientOf
    clock: VirtualClock
    store: str
    path: Path
    remote: Remote
    said: list[str] = field(factory=list)
    made: int = 0

    @property
    def batches(self) -> list[int]:
        assert self.remote.api is not None
        return [len(batch.lines) for batch in self.remote.api.made.values()]

    def answers(
        self, prompts: Sequence[str], *, strategy: str, written: frozenset[int] = frozenset(), most: int = 99
    ) -> dict[int, str | None]:
        self.made += 1
        self.path.write_text("".join(f"{prompt}\n" for prompt in prompts))
        client = self.client_of(self.remote, store=self.store, seed_of_rng=self.made, parallelism=1)
        found: dict[int, str | None] = {}
        with RowSource(str(self.path)) as source:
            rows = InputRequests(source, PromptMaker(), model="remote:default", params=Generation())
            keys = rows.check()
            stored = StoredRows(
                client,
                rows,
                RunIdentity(str(self.path) + ".out", "remote:default", keys),
                lambda place: place in written,
                self.clock,
                to_file=True,
                stopped=lambda: False,
                say=self.said.append,
            )

            def planned(needed: bytearray) -> Plan:
                asked = rows.prompts(skip=lambda place: not needed[place], stopped=lambda: False)
                return client.forecast(asked, count=sum(needed), strategy=strategy)

            stored.take_up(batches_only=strategy == "batch")
            stored.submit_missing(planned)
            stored.follow(lambda _: None).refresh()
            for group in stored.row_results(lambda _: None):
                for row, outcome in group:
                    found[row.place] = outcome.result.text
                if len(found) >= most:
                    break
        client.stop(30.0, cancel_waiting=True)
        return found


@pytest.fixture
def runs(client_of: ClientOf, clock: VirtualClock, store: str, tmp_path: Path) -> Runs:
    return Runs(client_of, clock, store, tmp_path / "in.txt", Remote(clock, latency=1.0))


PROMPTS = [f"p{n}" for n in range(12)]


@pytest.mark.parametrize("strategy", ["individual", "batch"])
def test_rows_are_answered_once_whoever_asks_them_again(runs: Runs, strategy: str) -> None:
    first = runs.answers(PROMPTS, strategy=strategy)
    assert sorted(first) == list(range(12))
    assert runs.answers(PROMPTS, strategy=strategy) == first
    assert (len(runs.remote.asked), runs.batches) == ((12, []) if strategy == "individual" else (0, [12]))


def test_a_run_that_ended_early_goes_on_with_what_is_left(runs: Runs) -> None:
    begun = runs.answers(PROMPTS, strategy="individual", most=4)
    assert 4 <= len(begun) < 12
    rest = runs.answers(PROMPTS, strategy="individual", written=frozenset(begun))
    assert sorted([*begun, *rest]) == list(range(12))
    assert sorted(runs.remote.asked) == sorted(PROMPTS)
    assert any("continues; " in line for line in runs.said)


def test_of_an_input_that_grew_only_the_new_rows_are_sent(runs: Runs) -> None:
    runs.answers(PROMPTS[:7], strategy="individual")
    assert sorted(runs.answers(PROMPTS, strategy="individual")) == list(range(12))
    assert sorted(runs.remote.asked) == sorted(PROMPTS)


@pytest.mark.full
def test_rows_that_wait_for_real_time_go_by_batch_where_that_is_wanted(runs: Runs) -> None:
    begun = runs.answers(PROMPTS, strategy="individual", most=1)
    rest = runs.answers(PROMPTS, strategy="batch", written=frozenset(begun))
    assert sorted([*begun, *rest]) == list(range(12))
    assert sum(runs.batches) + len(runs.remote.asked) == 12
    assert any("the rest is sent as a batch now" in line for line in runs.said)
