"""How result files of a batch are read: by pages, each request once, and what they cost in all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import asdict

from smartbatch.jobs.records import ItemSize, NewResult
from smartbatch.jobs.shard_records import wire_id
from smartbatch.jobs.steps.collect import PEEK_BYTES, ResultTotals, nonces_in
from smartbatch.jobs.steps.result_lines import OddLines, ends_inside_line, nonces_of, pages_of, read_lines
from smartbatch.jobs.steps.step import Step
from smartbatch.jobs.store.database import fitting
from smartbatch.jobs.wiring import StepLimits
from smartbatch.types import Route, Usage

NONCE, OTHER = "n" * 22, "o" * 22
SHARD: Any = SimpleNamespace(nonce=NONCE, size=3)
LARGE = 8 * 2**20


def read(raw: bytes, _: object) -> Any:
    name, _, tokens = raw.decode().partition(" ")
    if not name:
        raise ValueError("no line")
    answer = SimpleNamespace(usage=Usage(int(tokens)) if tokens != "?" else None) if tokens else None
    return SimpleNamespace(wire_id=name, answer=answer)


STEP: Any = SimpleNamespace(job=SimpleNamespace(kind="generate"), api=SimpleNamespace(read_line=read))
IDS = [wire_id(NONCE, at).encode() for at in range(4)]


@pytest.mark.parametrize(
    ("content", "found", "odd"),
    [
        (b"", [], {}),
        (IDS[0] + b" 5\n" + IDS[2] + b"\n", [0, 2], {}),
        (IDS[2] + b"\n" + IDS[0] + b"\n" + IDS[2] + b"\n", [2, 0], {}),
        (IDS[1] + b" 5\n" + IDS[1] + b" 6\n", [1], {"doubled": 1, "repeats": [{"input_tokens": 6}]}),
        (IDS[1] + b" 5\n" + IDS[1] + b"\n" + IDS[1] + b" ?\n", [1], {"doubled": 2}),
        (IDS[3] + b"\n", [], {"foreign": 1}),
        (b"other\n" + wire_id(OTHER, 0).encode() + b"\n" + IDS[0] + b"\n", [0], {"foreign": 2}),
        (b" \n" + b" x\n" + IDS[0] + b"\n", [0], {"malformed": 1}),
        (IDS[0] + b"\n x\n", [0], {"malformed": 1, "broken": True}),
        (IDS[0] + b"\n x", [0], {"malformed": 1, "broken": True, "unended": True, "cut": True}),
        (IDS[0] + b"\n" + IDS[1], [0, 1], {"unended": True}),
        (IDS[0] + b"\n \n  ", [0], {}),
        (IDS[0] + b" " + b"9" * 4200, [0], {"unended": True}),
    ],
)
def test_each_request_has_its_first_line(
    tmp_path: Path, content: bytes, found: list[int], odd: dict[str, Any]
) -> None:
    (tmp_path / "out").write_bytes(content)
    seen = OddLines()
    lines = list(read_lines(STEP, SHARD, [tmp_path / "out"], seen))
    assert [line.position for line in lines] == found
    assert sorted(seen.seen) == sorted(found)
    counted = {name: value for name, value in asdict(seen).items() if name != "seen"}
    counted["repeats"] = [{"input_tokens": usage["input_tokens"]} for usage in counted["repeats"]]
    plain = {"malformed": 0, "foreign": 0, "doubled": 0, "repeats": []}
    assert counted == {**plain, "unended": False, "cut": False, "broken": False, **odd}


def test_a_cut_download_is_told_by_its_last_line() -> None:
    for data in (b"", b"a\n", b"a\n \n ", b"a\nb", b" x\n"):
        assert not ends_inside_line(STEP, data)
    assert ends_inside_line(STEP, b"a\n\xff")


def test_whose_lines_are_is_told_by_their_ids() -> None:
    assert nonces_of(STEP, [IDS[0] + b"\n", wire_id(OTHER, 1).encode() + b"\n x\n"]) == {NONCE, OTHER}
    assert nonces_of(STEP, [b"mine\n"]) == {None}
    assert nonces_of(STEP, [b" x\n"]) == set()


@pytest.mark.parametrize("size", [PEEK_BYTES, PEEK_BYTES // 2 + 1])
def test_whose_a_batch_is_needs_a_megabyte_of_each_output(size: int) -> None:
    asked: list[bytes] = []

    def download(_: object, output: str, __: float) -> Iterator[bytes]:
        for nonce in {"one": (NONCE, OTHER, "x" * 22), "two": (OTHER, OTHER, NONCE)}[output]:
            asked.append(f"{output} {nonce[0]}".encode())
            yield (wire_id(nonce, 1).encode() + b"\n").ljust(size - 1) + b"\n"

    step: Any = SimpleNamespace(
        job=STEP.job,
        api=SimpleNamespace(read_line=read, download=download),
        limits=SimpleNamespace(transfer_timeout=60.0),
    )
    batch: Any = SimpleNamespace(outputs=("one", "two"))
    assert nonces_in(step, SHARD, batch) == {NONCE, OTHER}
    pieces = -(-PEEK_BYTES // size)
    assert asked == [b"one n", b"one o"][:pieces] + [b"two o", b"two o"][:pieces]


@pytest.mark.parametrize(
    ("sizes", "pages"),
    [
        ([], []),
        ([0] * 1_001, [1_000, 1]),
        ([LARGE, 0, 1, LARGE - 1, 1], [2, 2, 1]),
        ([LARGE + 1, LARGE + 1, 0], [1, 1, 1]),
    ],
)
def test_a_page_has_a_thousand_lines_or_eight_megabytes(sizes: list[int], pages: list[int]) -> None:
    lines: list[Any] = [SimpleNamespace(position=at, size=size) for at, size in enumerate(sizes)]
    assert [len(page) for page in pages_of(iter(lines), {})] == pages
    answers: list[Any] = [SimpleNamespace(position=at, size=0) for at in range(len(sizes))]
    measures = {at: ItemSize(size, 1) for at, size in enumerate(sizes)}
    assert [len(page) for page in pages_of(iter(answers), measures)] == pages


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([LARGE + 1, 0], 1), ([LARGE, 0, 1], 2), ([1, LARGE - 1, 0, 1, 0], 3)]
)
def test_a_page_of_the_store_has_eight_megabytes_or_one_row(sizes: list[int], count: int) -> None:
    assert fitting(sizes) == count


def billed(ix: int, outcome: str, cost: float | None, tokens: int = 5) -> NewResult:
    return NewResult(ix, outcome, b"", b"", Usage(tokens, 2), cost, cost, Route.BATCH)


def test_what_a_batch_cost_is_the_sum_of_what_was_run() -> None:
    totals = ResultTotals()
    assert totals.price == "at a cost of $0"
    page = [billed(0, "succeeded", 0.5), billed(1, "unrun", 0.0), billed(2, "failed", 0.25)]
    nothing = ResultTotals()
    nothing.add_page(page[1:2], set(), {1})
    assert (nothing.doubled, nothing.twice) == (0, 0.0)
    totals.add_page([*page, billed(3, "failed", 0.0, 0), billed(4, "succeeded", 1.0, 0)], {3}, {4})
    counts: dict[str, object] = {
        "billed": 3,
        "used": 0,
        "unused": 1,
        "doubled": 1,
        "usd": 1.75,
        "wasted": 1.0,
        "twice": 1.0,
    }
    counts["unknown"] = []
    assert asdict(totals) == {**counts, "size": 0, "unended": False, "cut": False, "uncertain": False}
    assert totals.price == "at a cost of $1.75"
    totals.add_page([billed(5, "succeeded", None), billed(6, "again", 0.5)], {6})
    assert (totals.billed, totals.used, totals.unused, totals.usd, totals.wasted) == (5, 1, 2, None, None)
    assert totals.price == "at an unknown cost"


def test_results_that_lack_lines_are_read_again_for_a_minute() -> None:
    limits = StepLimits(poll_interval=60.0, timeout=1.0, settle=1.0, max_requests=1, enqueued_tokens=None)
    step: Any = SimpleNamespace(limits=limits)
    assert [Step.reread_pause(step, times) for times in range(5)] == [2.0, 8.0, 32.0, 18.0, None]


def test_a_job_waits_as_its_documentation_says() -> None:
    limits = StepLimits(poll_interval=60.0, timeout=1.0, settle=1.0, max_requests=1, enqueued_tokens=None)
    assert (limits.visibility, limits.orphan_watch, limits.send_within) == (120.0, 93_600.0, 5.0)
    assert (limits.call_timeout, limits.transfer_timeout, limits.longest_pause) == (60.0, 3_600.0, 600.0)
    assert limits.max_tries == 3
