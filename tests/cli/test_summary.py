"""What people read: the summary, failed rows, results on a terminal; never a raw control character."""

from __future__ import annotations

import io
import sys

import pytest
from cli.runs import summary_lines

from smartbatch.cli.printing import StandardOutput
from smartbatch.cli.summary import RunSummary, failure_line, outcome_lines
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.core.routing.workload import Cost, Load
from smartbatch.errors import ErrorKind, ListStopped, ProviderError
from smartbatch.runs.output_file import Recovered
from smartbatch.runs.output_lines import encode
from smartbatch.runs.row_keys import KeyedRow
from smartbatch.types import Result, Route, Usage, evolve

FAILURE = ProviderError("no answer\x1b[31m", kind=ErrorKind.TIMEOUT)


def row(index: int, id: str | int | None = None, text: str = "a prompt") -> KeyedRow:
    return KeyedRow(index, index if id is None else id, {"prompt": text}, b"")


def answered(**more: object) -> Result:
    return Result(
        "r", **{"text": "t", "usage": Usage(100, 10), "cost": 0.01, "latency": 2.0, "attempts": 1} | more
    )


def broken(message: str, kind: ErrorKind = ErrorKind.SERVER_ERROR, attempts: int = 1) -> Result:
    return Result("r", error=ProviderError(message, kind=kind), attempts=attempts, cost=0.0)


def test_the_summary_is_a_few_sentences():
    summary = RunSummary()
    for index in range(19):
        summary.count_row(row(index), answered(latency=0.0))
    summary.count_row(row(19), broken("no such model", ErrorKind.CLIENT_ERROR))
    assert summary_lines(summary, decision=decided(Route.INDIVIDUAL)) == [
        "19 answered, 1 rejected by the provider.",
        "Took 1 s (expected up to 60 s).",
        "Cost: $0.19.",
        "Tokens: 1,900 in, 190 out.",
        "Failed: row 19: client_error: no such model",
    ]


def test_a_resumed_run_is_compared_with_sequential_calls():
    summary = RunSummary()
    summary.count_row(row(0), answered())
    summary.count_row(row(1), answered(attempts=4))
    summary.count_row(row(2, id="r\x07-3"), Result("r", error=FAILURE, attempts=1, cost=0.0))
    assert summary_lines(summary, before=Recovered(answered=7)) == [
        "2 answered (7 more were answered before), 1 failed, 1 retried (3 extra calls).",
        "Took 1 s, 4.0 times faster than one call after another (4 s).",
        "Cost: $0.02, of which $0.02 in this run.",
        "Tokens: 200 in, 20 out.",
        r"Failed: row 2 (id r\x07-3): timeout: no answer\x1b[31m",
    ]


def test_a_rejected_key_stops_the_run():
    summary = RunSummary()
    stopped = ListStopped("not sent", reason="the API key was rejected (401)")
    for index in range(20):
        summary.count_row(row(index), broken("wrong key", ErrorKind.AUTH_ERROR))
        summary.count_row(row(20 + index), Result("r", error=stopped, cost=0.0))
    assert summary_lines(summary) == [
        "Stopped: the API key was rejected (401). 20 rows were not sent.",
        "0 answered, 20 rejected by the provider, 20 not sent.",
        "Took 1 s.",
        "Cost: $0.",
        "Tokens: 0 in, 0 out.",
        "Failed: 20 rows, first row 0: auth_error: wrong key",
    ]


@pytest.mark.parametrize("wall", [2.0, 20.0])
def test_no_speedup_is_claimed_if_there_is_none(wall):
    summary = RunSummary()
    summary.count_row(row(0), answered())
    assert f"Took {wall:.0f} s." in summary_lines(summary, wall=wall)


def test_equal_failures_are_one_line_with_a_count():
    summary = RunSummary()
    for index in range(3):
        summary.count_row(row(index), broken(f"broken (request req_01ab{index}cdef)"))
    summary.count_row(row(3), Result("r", error=FAILURE, attempts=0))
    lines = summary_lines(summary)
    assert lines[0] == "0 answered, 3 failed, 1 not sent."
    assert lines[-2:] == [
        "Failed: 3 rows, first row 0: server_error: broken (request req_01ab0cdef)",
        r"Not sent: row 3: timeout: no answer\x1b[31m",
    ]


def test_only_the_first_groups_of_failures_are_listed():
    summary = RunSummary()
    for index in range(1000):
        summary.count_row(row(index), broken(f"broken {'abcdefg'[index % 7]}"))
    lines = summary_lines(summary)
    assert sum(line.startswith("Failed: ") for line in lines) == 5
    assert lines[-6] == "Failed: 143 rows, first row 0: server_error: broken a"
    assert lines[-1] == "285 more rows failed (-v shows each)."
    assert not any(line.startswith("Failed") for line in summary_lines(summary, failures=False))


@pytest.mark.parametrize(
    ("costs", "printed"),
    [
        ([0.25, 0.5], "$0.75"),
        ([0.000004], "$0.000004"),
        ([1234.5], "$1,234.50"),
        ([0.0], "$0"),
        ([None], "unknown price"),
        ([0.5, None], "$0.50 and 1 row of unknown price"),
    ],
)
def test_an_unknown_price_is_never_counted_as_nothing(costs, printed):
    summary = RunSummary()
    for cost in costs:
        summary.count_row(row(0), answered(cost=cost))
    assert f"Cost: {printed}." in summary_lines(summary)


def decided(chosen: Route, deadline: float | None = None, *, priced: bool = True) -> Decision:
    alone = Option(Route.INDIVIDUAL, 20.0, 60.0, 25.0, Cost(3, 4, 5) if priced else None, calls=10, share=1.0)
    cheap = Cost(1, 2, 3) if priced else None
    batch = Option(Route.BATCH, 1000.0, 9000.0, 2000.0, cheap, calls=0, share=0.5, batches=1)
    hybrid = evolve(batch, route=Route.HYBRID, first=3)
    options = {option.route: option for option in (alone, batch, hybrid)}
    constraints = Constraints(deadline=deadline)
    return Decision(Load(10), constraints, tuple(options.values()), options[chosen], "so it is", alone, batch)


def spent(usd: float | None) -> ActualCost:
    return ActualCost(paid=usd, individual=4.0, by_batch=2.0)


@pytest.mark.parametrize(
    ("route", "words"),
    [
        (Route.INDIVIDUAL, "; the same tokens would have cost $2.00 as a batch"),
        (Route.BATCH, "; the same tokens would have cost $4.00 in real time"),
        (Route.HYBRID, "; the same tokens would have cost $4.00 in real time or $2.00 as a batch"),
    ],
)
def test_the_cost_is_compared_with_the_other_routes(route, words):
    summary = RunSummary()
    summary.count_row(row(0), answered(cost=2.5))
    assert f"Cost: $2.50{words}." in summary_lines(summary, decision=decided(route), actual=spent(2.5))
    assert "Cost: $2.50." in summary_lines(summary, decision=decided(route), actual=spent(None))


def test_the_tokens_read_from_the_cache_are_compared_with_the_forecast():
    summary = RunSummary()
    summary.count_row(row(0), answered(usage=Usage(1000, 5, cached_tokens=600, cache_write_tokens=100)))
    planned = decided(Route.INDIVIDUAL)
    option = evolve(planned.chosen, cost=Cost(1, 2, 3, read_low=400, read=700, read_high=800))
    planned = evolve(planned, chosen=option, load=Load(10, 1000.0))
    words = "60 % read from the provider's cache, expected 40 % to 80 %, 10 % written to it"
    assert f"Tokens: 1,000 in ({words}), 5 out." in summary_lines(summary, decision=planned)


def outcome(decision: Decision, seconds: float, actual: ActualCost, rescue: str | None = None) -> list[str]:
    return list(outcome_lines(decision, seconds, actual, rescue))


def test_a_run_says_whether_its_deadline_was_met():
    assert outcome(decided(Route.BATCH, 3600.0), 3000.0, spent(2.0)) == [
        "Met the deadline with 10 min to spare."
    ]
    assert outcome(decided(Route.INDIVIDUAL, 30.0), 31.5, spent(4.0)) == ["Missed the deadline by 1.5 s."]
    assert outcome(decided(Route.BATCH), 1.0, spent(None)) == []


@pytest.mark.parametrize(
    ("route", "by_batch", "in_real_time", "printed"),
    [
        (
            Route.BATCH,
            4,
            6,
            "10 requests were planned as a batch, 6 of them were sent in real time: too late",
        ),
        (
            Route.HYBRID,
            4,
            6,
            "7 requests were planned as a batch, 3 of them were sent in real time: too late",
        ),
        (Route.HYBRID, 7, 3, None),
        (Route.BATCH, 10, 0, None),
        (Route.INDIVIDUAL, 0, 10, None),
    ],
)
def test_requests_of_a_batch_that_were_sent_in_real_time_are_counted(route, by_batch, in_real_time, printed):
    actual = ActualCost()
    routes = [Route.BATCH] * by_batch + [Route.FLEX] * (in_real_time > 0)
    for each in routes + [Route.INDIVIDUAL] * (in_real_time - 1):
        actual.add_result(answered(route=each))
        actual.add_result(answered(route=each, deduplicated=True))
    assert outcome(decided(route), 1.0, actual, "too late") == ([f"{printed}."] if printed else [])


class Terminal(io.TextIOWrapper):
    def isatty(self) -> bool:
        return True


def test_a_person_reads_lines_without_control_characters(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", Terminal(shown, encoding="utf-8"))
    output = StandardOutput()
    first_row = row(0, text="say\x1b]0;title\x07 " + "x" * 50)
    good, bad = answered(text="red \x1b[31m\nnew line"), Result("r", error=FAILURE)
    output.append([(first_row, encode(first_row, good, "sim:x"), True)])
    output.append([(row(1), encode(row(1), bad, "sim:x"), False)])
    first, second = shown.getvalue().decode().splitlines()
    assert first == r"0  say\x1b]0;title\x07 " + "x" * 19 + r"… → red \x1b[31m new line"
    assert second == r"1  a prompt → [timeout] no answer\x1b[31m"


def test_a_failed_row_is_one_line():
    failure = Result("r", error=ProviderError("a\nb", kind=ErrorKind.UNKNOWN))
    assert failure_line(row(4, id="x\ny"), failure) == r"row 4 (id x\ny): unknown: a\nb"
