"""What a provider may do to the results of a batch: rows C5 and C8 to C13 of the failure catalogue."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest

from smartbatch._words import money
from smartbatch.core.preparation.tokens import estimate
from smartbatch.jobs.shard_records import ShardRow, parse_wire_id
from smartbatch.jobs.steps import collect
from smartbatch.jobs.steps.step import Step
from tests.faults.world import MINUTE, PROVIDERS, Seen, in_batch, texts
from tests.levels import sampled

pytestmark = pytest.mark.parametrize("provider", sampled(PROVIDERS, first=1))

in_both_ways = pytest.mark.parametrize(
    "held", [collect.MAX_BUFFERED_BYTES, 0], ids=["read once", "read in both passes"]
)
"""Small files are held from the first pass to the second one, large ones are not."""


@in_both_ways
def test_c5_exchanged_answers_are_reported_and_not_paid_again(held, monkeypatch, new_world):
    monkeypatch.setattr(collect, "MAX_BUFFERED_BYTES", held)
    rng = random.Random(5)
    prompts = [f"{number}: " + "lorem ipsum " * rng.randint(5, 900) for number in range(200)]
    lengths = [estimate(prompt) for prompt in prompts]
    w = new_world(batch_faults={"swapped_answers": 0.05})
    job = w.process().submit_batch(prompts)
    results = w.results(job)
    assert all(result.ok and result.text for result in results)
    exchanged = [line.position for line in w.creates[0].lines.values() if line.lost]
    wrong = [at for at, text in enumerate(w.right(prompts)) if results[at].text != text]
    assert wrong == sorted(exchanged)  # the answers are kept as they came
    far = [at for at in exchanged if _differ(lengths[at], lengths[(at + 1) % len(prompts)], by=0.05)]
    [incident] = job.incidents()
    assert incident.kind == "token_mismatch"
    assert "answers were billed for prompts of a different length" in incident.detail
    assert len(far) <= int(incident.detail.split()[0]) <= len(exchanged)
    assert "All are stored" in incident.detail
    assert not w.requests("ask")
    assert len(w.creates) == 1


def test_c5_rows_in_another_script_are_not_paid_twice(new_world):
    """The server counts each Japanese character as one token, far above the estimate."""
    english = [
        f"{number}: How was your stay at the hotel by the sea?" * (1 + number % 4) for number in range(40)
    ]
    japanese = [f"{number}: 海辺のホテルでの滞在はいかがでしたか。" * 4 for number in range(10)]
    prompts = english + japanese
    names = ("input_tokens", "prompt_tokens", "promptTokenCount")
    w = new_world()

    def count(position: int, answer: dict[str, Any]) -> None:
        prompt = prompts[position]
        tokens = len(prompt) // 4 if prompt.isascii() else len(prompt) * 3
        for usage in (answer.get("usage"), answer.get("usageMetadata")):
            for name in names:
                if usage and name in usage:
                    usage[name] = tokens

    w.edit_answers(count)
    job = w.answered_job(prompts)
    assert w.incidents(job) == {"token_mismatch": 1}
    assert not w.requests("ask")
    assert len(w.creates) == 1
    assert job.status().wasted == 0


def _differ(one: int, other: int, *, by: float) -> bool:
    return abs(one - other) > by * min(one, other)


def test_c9_results_deleted_while_they_are_read_are_downloaded_again(monkeypatch, new_world):
    """A process that takes over the job deletes them while a frozen process reads them."""
    w = new_world()
    usual, cleared = collect.store_results, []

    def store_results(work: Step, shard: ShardRow, paths: list[Path]) -> Any:
        if not cleared:
            cleared.extend(paths)
            for path in paths:
                path.unlink()
        return usual(work, shard, paths)

    monkeypatch.setattr(collect, "store_results", store_results)
    prompts = texts(4)
    job = w.process().submit_batch(prompts)
    with warnings.catch_warnings(record=True) as warned:
        assert [result.text for result in w.results(job)] == w.right(prompts)
    assert cleared
    assert not warned  # nothing went wrong that a person had to know
    assert not w.incidents(job)


def test_c9_a_second_download_confirms_at_once_which_lines_are_missing(new_world):
    w = new_world(may_pay_twice=True, batch_line_fault_for=in_batch(0, "missing_lines", {3}))
    fetched: list[float] = []
    answered: list[int] = []

    def note(lines: list[bytes]) -> list[bytes]:
        fetched.append(w.clock.now())
        answered.append(job.status().completed)
        return lines

    w.rewrite_results(note)
    prompts = texts(9)
    job = w.process().submit_batch(prompts)
    assert [result.text for result in w.results(job)] == w.right(prompts)
    first, again = w.creates
    assert (first.total, again.total) == (9, 1)
    assert answered[:2] == [0, 8]
    assert fetched[1] - fetched[0] < 3
    assert len(fetched) == 3
    assert w.incidents(job) == {"missing_items": 1}


def test_c9_results_that_still_grow_are_fetched_until_they_are_whole(new_world):
    w = new_world()
    fetched: list[float] = []

    def growing(lines: list[bytes]) -> list[bytes]:
        fetched.append(w.clock.now())
        return lines[: 3 * len(fetched)]

    w.rewrite_results(growing)
    job = w.answered_job(texts(12))
    assert len(fetched) == 4
    assert len(w.creates) == 1
    assert not w.incidents(job)


@pytest.mark.full
def test_c10_lines_of_other_jobs_are_not_delivered(new_world):
    w = new_world(batch_faults={"foreign_lines": 0.4})
    whole: dict[str, list[bytes]] = {}

    def exchange(seen: Seen, lines: list[bytes]) -> list[bytes]:
        before = [line for path, known in whole.items() if path != seen.path for line in known]
        whole[seen.path] = lines
        return [*before, *lines]

    w.rewrite_downloads(exchange)
    client = w.process()
    one, two = texts(30, "one"), texts(30, "two")
    jobs = [client.submit_batch(prompts) for prompts in (one, two)]
    for job, prompts in zip(jobs, (one, two), strict=True):
        assert [result.text for result in w.results(job)] == w.right(prompts)
    assert [set(w.incidents(job)) for job in jobs] == [{"foreign_line"}] * 2
    assert len(w.creates) <= 3  # where sizes must differ, the second job goes in two parts


@in_both_ways
def test_c11_of_two_answers_under_one_id_the_first_counts(held, monkeypatch, new_world):
    monkeypatch.setattr(collect, "MAX_BUFFERED_BYTES", held)
    w = new_world(batch_faults={"doubled_lines": 0.5})
    prompts = texts(40)
    job = w.process().submit_batch(prompts)
    future_of = [future.result for future in job.futures()]
    results = w.results(job)
    assert [result.text for result in results] == w.right(prompts)
    assert [result().text for result in future_of] == w.right(prompts)
    assert len(results) == job.status().completed == 40  # none was delivered twice
    assert w.incidents(job) == {"doubled_line": 1}
    incident = job.incidents()[0]
    assert (incident.money or 0) > 0  # what the second ones say they cost
    status = job.status()
    assert status.wasted == incident.money
    assert status.saved == pytest.approx(status.realtime_cost - status.cost - status.wasted)
    assert f"and {money(status.wasted)} for unusable answers" in str(status)


@pytest.mark.full
def test_c12_nor_does_a_last_line_without_an_end(new_world):
    ends = (b"", b'{"custom_id": "', b"\xff\xfe\x00", b"[" * 5000, b"x" * 100_000)
    w = new_world()
    client = w.process()
    for number, end in enumerate(ends):
        w.rewrite_results(lambda lines: lines, tail=end)
        prompts = texts(6 + number, f"job {number}")  # the batch before may still hold its size
        job = client.submit_batch(prompts)
        assert [result.text for result in w.results(job)] == w.right(prompts)
        assert w.incidents(job)["malformed_line"] == bool(end)
    assert len(w.creates) == len(ends)


@pytest.mark.parametrize(("fault", "share"), [("item_error", 1.0), ("status_zero", 0.4)])
def test_c13_a_batch_with_errors_only_or_with_both_is_read_in_full(fault, share, new_world):
    w = new_world(batch_faults={fault: share})
    w.answered_job(texts(20))
    ran = [line for line in w.creates[0].lines.values() if line.billed]
    assert (len(ran) == 0) == (share == 1.0)
    assert sum(bool(call.billed) for call in w.emu.ledger.calls) == 20 - len(ran)
    assert len(w.creates) == 1


def test_c13_lines_are_believed_and_counts_are_not(new_world):
    w = new_world(batch_turnaround=3 * MINUTE, batch_faults={"wrong_counts": 1.0})
    job = w.answered_job(texts(20))
    status = job.status()
    assert (status.total, status.completed, status.running) == (20, 20, 0)
    assert len(w.creates) == 1


def test_c10_a_line_with_an_unknown_position_is_not_delivered(provider, new_world):
    w = new_world()

    def add(lines: list[bytes]) -> list[bytes]:
        line = json.loads(lines[0])
        named = parse_wire_id(w.id_of(line))
        assert named is not None
        wrong = []
        for position in ("3", "zzzzzz", "00", "-1", ""):
            line["key" if provider == "gemini" else "custom_id"] = f"{named[0]}-{position}"
            wrong.append(json.dumps(line).encode())
        return [*wrong, *lines]

    w.rewrite_results(add)
    job = w.answered_job(texts(3))
    assert w.incidents(job) == {"foreign_line": 1}
    assert "5 lines" in job.incidents()[0].detail
    assert len(w.creates) == 1
