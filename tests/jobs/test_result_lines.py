"""Downloads are split into lines, and lines are assigned to requests."""

from __future__ import annotations

import json
import tracemalloc
from types import SimpleNamespace

import pytest
from attrs import asdict, evolve
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import decode_params, decode_result, encode_params, encode_request
from smartbatch.jobs.records import ItemSize, NewResult, StoredItem
from smartbatch.jobs.shard_records import wire_id
from smartbatch.jobs.steps import result_lines
from smartbatch.jobs.steps.collect import PEEK_BYTES, ResultTotals, nonces_in
from smartbatch.jobs.steps.result_lines import (
    MAX_LINE_BYTES,
    OddLines,
    ResultLine,
    ResultReader,
    ends_inside_line,
    nonces_of,
    pages_of,
    raw_lines,
    read_lines,
)
from smartbatch.jobs.steps.step import Step
from smartbatch.jobs.store.database import fitting
from smartbatch.jobs.wiring import StepLimits
from smartbatch.providers.batch_api import Line, LineOutcome
from smartbatch.types import Answer, Generation, Request, Route, Usage

NONCE, OTHER = "n" * 22, "o" * 22
SHARD = SimpleNamespace(nonce=NONCE, size=3)


def read(raw, _):
    name, _, tokens = raw.decode().partition(" ")
    if not name:
        raise ValueError("no line")
    usage = Usage(int(tokens)) if tokens not in ("", "?") else None
    answer = SimpleNamespace(usage=usage, cost=0.5) if tokens else None
    return SimpleNamespace(wire_id=name, answer=answer)


STEP = SimpleNamespace(job=SimpleNamespace(kind="generate"), api=SimpleNamespace(read_line=read))
IDS = [wire_id(NONCE, at).encode() for at in range(4)]


@pytest.mark.parametrize(
    ("content", "found", "odd"),
    [
        (b"", [], {}),
        (IDS[0] + b" 5\n" + IDS[2] + b"\n", [0, 2], {}),
        (IDS[2] + b"\n" + IDS[0] + b"\n" + IDS[2] + b"\n", [2, 0], {}),
        (IDS[1] + b" 5\n" + IDS[1] + b" 6\n", [1], {"doubled": 1, "repeats": [(Usage(6), 0.5)]}),
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
def test_each_request_has_its_first_line(tmp_path, content, found, odd):
    (tmp_path / "out").write_bytes(content)
    seen = OddLines()
    lines = list(read_lines(STEP, SHARD, [tmp_path / "out"], seen))
    assert [line.position for line in lines] == found
    assert sorted(seen.seen) == sorted(found)
    counted = {name: value for name, value in asdict(seen, recurse=False).items() if name != "seen"}
    plain = {"malformed": 0, "foreign": 0, "doubled": 0, "repeats": []}
    assert counted == {**plain, "unended": False, "cut": False, "broken": False, **odd}


def test_results_that_lack_lines_are_read_again_for_a_minute():
    limits = StepLimits(poll_interval=60.0, timeout=1.0, settle=1.0, max_requests=1, enqueued_tokens=None)
    step = SimpleNamespace(limits=limits)
    assert [Step.reread_pause(step, times) for times in range(5)] == [2.0, 8.0, 32.0, 18.0, None]


def test_a_job_waits_as_its_documentation_says():
    limits = StepLimits(poll_interval=60.0, timeout=1.0, settle=1.0, max_requests=1, enqueued_tokens=None)
    assert (limits.visibility, limits.orphan_watch, limits.send_within) == (120.0, 93_600.0, 5.0)
    assert (limits.call_timeout, limits.transfer_timeout, limits.longest_pause) == (60.0, 3_600.0, 600.0)
    assert limits.max_tries == 3


def data_of(*pieces, max_line=MAX_LINE_BYTES):
    return list(raw_lines(pieces, max_line=max_line))


@given(st.lists(st.binary(max_size=9)), st.integers(0, 6))
def test_every_line_that_says_something_comes_and_those_too_long_are_told(pieces, most):
    whole = b"".join(pieces)
    expected = []
    lines = whole.split(b"\n")
    for number, line in enumerate(lines, start=1):
        kept = line.removesuffix(b"\r") if number < len(lines) else line
        if len(line) > most:
            expected.append(None)
        elif kept.strip():
            expected.append(kept)
    assert list(raw_lines(pieces, max_line=most)) == expected


def test_line_ends_of_other_alphabets_do_not_cut_an_answer():
    answers = ["a\u2028b", "c\u2029d", "e\x85f", "g\x0bh\x0ci", "j\x1ck\x1dl\x1e"]
    stream = "".join(json.dumps({"t": text}, ensure_ascii=False) + "\n" for text in answers).encode()
    pieces = [stream[i : i + 1] for i in range(len(stream))]
    assert [json.loads(line)["t"] for line in data_of(*pieces) if line] == answers


def test_a_byte_order_mark_is_no_part_of_the_first_line():
    assert data_of(b"\xef\xbb", b"\xbfa\n\xef\xbb\xbfb\n") == [b"a", b"\xef\xbb\xbfb"]


@pytest.mark.full
def test_a_line_without_end_is_not_gathered_in_memory():
    piece = b"x" * 65_536

    def endless():
        for _ in range(3200):
            yield piece
        yield b"\nlast\n"

    tracemalloc.start()
    try:
        found = list(raw_lines(endless(), max_line=1_000_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == [None, b"last"]
    assert peak < 2_500_000


LARGE = 8 * 2**20


def test_a_cut_download_is_told_by_its_last_line():
    for data in (b"", b"a\n", b"a\n \n ", b"a\nb", b" x\n"):
        assert not ends_inside_line(STEP, data)
    assert ends_inside_line(STEP, b"a\n\xff")


def test_whose_lines_are_is_told_by_their_ids():
    assert nonces_of(STEP, [IDS[0] + b"\n", wire_id(OTHER, 1).encode() + b"\n x\n"]) == {NONCE, OTHER}
    assert nonces_of(STEP, [b"mine\n"]) == {None}
    assert nonces_of(STEP, [b" x\n"]) == set()


@pytest.mark.parametrize("size", [PEEK_BYTES, PEEK_BYTES // 2 + 1])
def test_whose_a_batch_is_needs_a_megabyte_of_each_output(size):
    asked = []

    def download(_, output, __):
        for nonce in {"one": (NONCE, OTHER, "x" * 22), "two": (OTHER, OTHER, NONCE)}[output]:
            asked.append(f"{output} {nonce[0]}".encode())
            yield (wire_id(nonce, 1).encode() + b"\n").ljust(size - 1) + b"\n"

    step = SimpleNamespace(
        job=STEP.job,
        api=SimpleNamespace(read_line=read, download=download),
        limits=SimpleNamespace(transfer_timeout=60.0),
    )
    batch = SimpleNamespace(outputs=("one", "two"))
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
def test_a_page_has_a_thousand_lines_or_eight_megabytes(sizes, pages):
    lines = [SimpleNamespace(position=at, size=size) for at, size in enumerate(sizes)]
    assert [len(page) for page in pages_of(iter(lines), {})] == pages
    answers = [SimpleNamespace(position=at, size=0) for at in range(len(sizes))]
    measures = {at: ItemSize(size, 1) for at, size in enumerate(sizes)}
    assert [len(page) for page in pages_of(iter(answers), measures)] == pages


@pytest.mark.parametrize(
    ("sizes", "count"), [([], 0), ([LARGE + 1, 0], 1), ([LARGE, 0, 1], 2), ([1, LARGE - 1, 0, 1, 0], 3)]
)
def test_a_page_of_the_store_has_eight_megabytes_or_one_row(sizes, count):
    assert fitting(sizes) == count


def billed(ix, outcome, cost, tokens=5):
    return NewResult(ix, outcome, b"", b"", Usage(tokens, 2), cost, cost, Route.BATCH)


def test_what_a_batch_cost_is_the_sum_of_what_was_run():
    totals = ResultTotals()
    assert totals.price == "at a cost of $0"
    page = [billed(0, "succeeded", 0.5), billed(1, "unrun", 0.0), billed(2, "failed", 0.25)]
    nothing = ResultTotals()
    nothing.add_page(page[1:2], set(), {1})
    assert (nothing.doubled, nothing.twice) == (0, 0.0)
    totals.add_page([*page, billed(3, "failed", 0.0, 0), billed(4, "succeeded", 1.0, 0)], {3}, {4})
    counts = {
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
    silent = [
        evolve(billed(7 + unknown, "unrun", 0.0), usage=Usage(unknown=unknown, estimated=not unknown))
        for unknown in (0, 1)
    ]
    totals.add_page([billed(5, "succeeded", None), billed(6, "again", 0.5), *silent], {6})
    assert totals.unknown == [7, 8]
    assert (totals.billed, totals.used, totals.unused, totals.usd, totals.wasted) == (5, 1, 2, None, None)
    assert totals.price == "at an unknown cost"


def reader(monkeypatch, *, submitted_at=107.0, priced=True, usd=2.0, **settings):
    """A reader for tokens of 2 USD, half of it in a batch, and requests of 9 USD at most."""
    monkeypatch.setattr(result_lines.CostCeiling, "of", lambda *_: SimpleNamespace(in_batch=lambda _: 9.0))

    def rates(provider, model, wall, processing="standard"):
        assert (provider, model, wall) == ("p", "m", 110.0)
        each = (usd or 0.0) / (2 if processing == "batch" else 1)
        return usd and SimpleNamespace(cost=lambda usage: each * usage.total_tokens)

    prices = SimpleNamespace(rates=rates)
    job = SimpleNamespace(params=encode_params(Generation()), model="p:m", created_at=100.0)
    api = SimpleNamespace(abilities=SimpleNamespace(priced=priced), dropped=lambda *_, model: ())
    step = SimpleNamespace(wall=110.0, job=job, model="m", api=api, runtime=SimpleNamespace(prices=prices))
    step.shared, job.id = (lambda: decode_params(job.params)), "j"
    step.store = SimpleNamespace(files=SimpleNamespace(keep=lambda *_: None))
    return ResultReader(step, submitted_at, **settings)


def read_as(monkeypatch, outcome, answer=None, error=None, **settings):
    item = StoredItem(
        3, None, encode_request(Request("ask"), decode_params(encode_params(Generation()))), tokens=5, tries=0
    )
    line = ResultLine(0, Line("id", outcome, answer, error), b"digest", 9)
    [found] = reader(monkeypatch, **settings).results_of_page({0: item}, [line, evolve(line, position=1)])
    return found, decode_result(found.body, request_id="3")


MADE, ERROR = Usage(6, 4), {"kind": ErrorKind.SERVER_ERROR}
LOST = {"maybe_billed": True, **ERROR}
UNRUN = LineOutcome.UNRUN


@pytest.mark.parametrize(
    ("outcome", "error", "told", "costs"),
    [
        (LineOutcome.FAILED, ERROR, ("failed", 1), (0.0, 0.0, 0.0, False)),
        (LineOutcome.FAILED, LOST, ("failed", 1), (None, 9.0, 0.0, True)),
        (LineOutcome.FAILED, {**LOST, "cost": 0.25}, ("failed", 1), (0.25, 0.0, 0.0, False)),
        (LineOutcome.FAILED, {**LOST, "usage": MADE}, ("failed", 1), (10.0, 0.0, 20.0, False)),
        (LineOutcome.RETRY, {**ERROR, "usage": MADE}, ("again", 1), (10.0, 0.0, 20.0, False)),
        (UNRUN, LOST, ("unrun", 0), (0.0, 0.0, 0.0, False)),
        (UNRUN, None, ("unrun", 0), (0.0, 0.0, 0.0, False)),
    ],
)
def test_a_failed_request_costs_what_it_used_or_may_have_used(monkeypatch, outcome, error, told, costs):
    found, result = read_as(monkeypatch, outcome, error=error and ProviderError("no", **error))
    assert (found.outcome, result.attempts) == told
    assert (found.cost, result.unconfirmed_cost, found.realtime_cost, result.usage.unknown) == costs
    assert (found.ix, found.digest, found.route, result.cost) == (3, b"digest", Route.BATCH, found.cost)
    assert (result.latency, result.queued, result.model) == (3.0, 7.0, "p:m")
    assert str(result.error).endswith("no" if error else "the request failed in its batch")


@pytest.mark.parametrize(
    ("answer", "settings", "costs"),
    [
        ({"usage": MADE}, {}, (10.0, 0.0, 20.0)),
        ({"usage": MADE, "cost": 0.5}, {}, (0.5, 0.0, 20.0)),
        ({"usage": None}, {}, (None, 9.0, 12.0)),
        ({"usage": MADE}, {"usd": None}, (None, 0.0, None)),
        ({"usage": MADE}, {"priced": False, "usd": None}, (0.0, 0.0, 0.0)),
    ],
)
def test_an_answer_costs_what_is_known_of_it(monkeypatch, answer, settings, costs):
    found, result = read_as(monkeypatch, LineOutcome.OK, Answer("a", **answer), **settings)
    assert (found.cost, result.unconfirmed_cost, found.realtime_cost) == costs
    assert (found.outcome, result.text, result.attempts) == ("succeeded", "a", 1)
    assert result.usage == (answer["usage"] or Usage(5, 1, estimated=True))


def test_refused_requests_are_sent_again_where_they_may_be(monkeypatch):
    refused = ProviderError("no", kind=ErrorKind.CLIENT_ERROR)
    for again, outcome in ((True, "again"), (False, "failed")):
        found, result = read_as(
            monkeypatch, LineOutcome.FAILED, error=refused, submitted_at=None, sends_again=again
        )
        assert (found.outcome, result.latency, result.queued) == (outcome, 0.0, 10.0)
