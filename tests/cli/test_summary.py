"""What people read: the summary, failed rows, results on a terminal; never a raw control character."""

from __future__ import annotations

import io
import sys

import pytest
from cli.runs import summary_lines

from smartbatch.cli.standard_output import StandardOutput
from smartbatch.cli.summary import RunSummary, decision_summary, failure_line
from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.core.routing.workload import Cost, Load
from smartbatch.errors import ErrorKind, ProviderError
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


def test_the_summary_counts_what_was_done() -> None:
    """Done, failed, retried, tokens, cost, wall and the comparison with a sequential loop."""
    summary = RunSummary()
    summary.add(row(0), answered())
    summary.add(row(1), answered(attempts=4))
    summary.add(row(2, id="r\x07-3"), Result("r", error=FAILURE, attempts=1, cost=0.0))
    assert summary_lines(summary, before=Recovered(answered=7)) == [
        "done 2 answered, 1 failed, 1 retried (3 extra calls), 7 already answered, not asked again",
        "tokens 200 in, 20 out",
        "cost $0.02; paid now: $0.02",
        "wall 1.00 s; one after another 4.00 s, so 4.0× faster",
        r"failed row 2 (id r\x07-3): timeout: no answer\x1b[31m",
    ]


@pytest.mark.parametrize("wall", [2.0, 20.0])
def test_no_speed_is_told_where_nothing_was_gained(wall: float) -> None:
    """A short run takes longer than its calls: it is not called 0.1× faster."""
    summary = RunSummary()
    summary.add(row(0), answered())
    assert f"wall {wall:.2f} s" in summary_lines(summary, wall=wall)


def test_equal_failures_are_one_line_with_a_count() -> None:
    """Also if ids and numbers in their messages differ; those that were not sent say so."""
    summary = RunSummary()
    for index in range(3):
        error = ProviderError(f"broken (request req_01ab{index}cdef)", kind=ErrorKind.SERVER_ERROR)
        summary.add(row(index), Result("r", error=error, attempts=1))
    summary.add(row(3), Result("r", error=FAILURE, attempts=0))
    lines = summary_lines(summary)
    assert lines[0] == "done 0 answered, 3 failed, 1 not sent, 0 retried"
    assert lines[-2] == "failed 3 rows, first row 0: server_error: broken (request req_01ab0cdef)"
    assert lines[-1].startswith("not sent row 3: ")


def test_the_line_names_the_lowest_row_of_equal_failures() -> None:
    """Whichever of them ended first; groups are listed by their lowest rows."""
    summary = RunSummary()
    for index in (7, 3, 9):
        error = ProviderError(f"broken (request req_01ab{index}cdef)", kind=ErrorKind.SERVER_ERROR)
        summary.add(row(index), Result("r", error=error, attempts=1))
    summary.add(row(2), Result("r", error=FAILURE, attempts=1))
    lines = summary_lines(summary)
    assert lines[-2].startswith("failed row 2: ")
    assert lines[-1] == "failed 3 rows, first row 3: server_error: broken (request req_01ab3cdef)"


def test_only_the_first_groups_of_failures_are_listed() -> None:
    """Five of many, and how many rows more; the counts stay exact."""
    summary = RunSummary()
    for index in range(1000):
        error = ProviderError(f"broken {'abcdefg'[index % 7]}", kind=ErrorKind.SERVER_ERROR)
        summary.add(row(index), Result("r", error=error, attempts=1))
    lines = summary_lines(summary)
    assert sum(line.startswith("failed ") for line in lines) == 5
    assert lines[-6] == "failed 143 rows, first row 0: server_error: broken a"
    assert lines[-1].endswith("and 285 more (-v shows every one)")
    assert "failed" not in summary_lines(summary, before=Recovered(), failures=False)[-1]


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
def test_the_cost_says_what_it_knows(costs: list[float | None], printed: str) -> None:
    """An unknown price is never counted as nothing."""
    summary = RunSummary()
    for cost in costs:
        summary.add(row(0), answered(cost=cost))
    assert f"cost {printed}" in summary_lines(summary)


@pytest.mark.parametrize("amount", [0.0001125, 0.00011249999999999999, 0.00011250000000000002])
def test_sums_that_differ_in_their_order_only_are_printed_alike(amount: float) -> None:
    """A run adds up in another order than its job."""
    summary = RunSummary()
    summary.add(row(0), answered(cost=amount))
    assert "cost $0.00011" in summary_lines(summary)


@pytest.mark.parametrize(
    ("seconds", "printed"), [(9.126, "9.13 s"), (150.2, "2 min 30 s"), (7260.0, "2 h 01 min")]
)
def test_times_are_printed_as_people_say_them(seconds: float, printed: str) -> None:
    """Seconds, minutes, hours."""
    assert f"wall {printed}" in summary_lines(RunSummary(), wall=seconds)


def decided(chosen: Route, deadline: float | None = None, *, priced: bool = True) -> Decision:
    """A decision between always individually, 20 s for 4 USD, and always by batch, 1,000 s for 2 USD."""
    alone = Option(Route.INDIVIDUAL, 20.0, 60.0, 25.0, Cost(3, 4, 5) if priced else None, calls=10, share=1.0)
    cheap = Cost(1, 2, 3) if priced else None
    batch = Option(Route.BATCH, 1000.0, 9000.0, 2000.0, cheap, calls=0, share=0.5, batches=1)
    hybrid = evolve(batch, route=Route.HYBRID, first=3)
    options = {option.route: option for option in (alone, batch, hybrid)}
    constraints = Constraints(deadline=deadline)
    return Decision(Load(10), constraints, tuple(options.values()), options[chosen], "so it is", alone, batch)


def spent(usd: float | None) -> ActualCost:
    """What a run cost whose tokens cost 4 USD individually and 2 USD by batch."""
    return ActualCost(paid=usd, individual=4.0, by_batch=2.0)


def test_a_choice_is_compared_with_its_forecast_and_the_plain_routes() -> None:
    """Money and time, above or below; against itself nothing is compared."""
    assert list(decision_summary(decided(Route.HYBRID), 200.0, spent(2.5), None)) == [
        ("route", "hybrid, 3 at once: so it is"),
        (
            "forecast",
            "half in 16 min 40 s, 95 of 100 in 2 h 30 min for $2.00; it took 3 min 20 s for $2.50",
        ),
        (
            "against",
            "always individually: $1.50 less for the same tokens, 3 min 00 s later than its forecast",
        ),
        (
            "against",
            "always by batch: $0.50 more for the same tokens, 13 min 20 s sooner than its forecast",
        ),
    ]
    assert [name for name, _ in decision_summary(decided(Route.BATCH), 1.0, spent(1.0), None)].count(
        "against"
    ) == 1


def test_a_choice_says_whether_its_deadline_was_met() -> None:
    """Not without one."""
    met = dict(decision_summary(decided(Route.BATCH, 3600.0), 3000.0, spent(2.0), None))
    assert met["deadline"] == "met, 10 min 00 s before it"
    missed = dict(decision_summary(decided(Route.INDIVIDUAL, 30.0), 31.5, spent(4.0), None))
    assert missed["deadline"] == "missed by 1.50 s"
    assert "deadline" not in dict(decision_summary(decided(Route.BATCH), 1.0, spent(None), None))


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
def test_requests_of_a_batch_that_were_sent_in_real_time_are_counted(
    route: Route, by_batch: int, in_real_time: int, printed: str | None
) -> None:
    """Not those that a hybrid sends at once, nor copies of the answers of equal requests."""
    actual = ActualCost()
    routes = [Route.BATCH] * by_batch + [Route.FLEX] * (in_real_time > 0)
    for each in routes + [Route.INDIVIDUAL] * (in_real_time - 1):
        actual.add(answered(route=each))
        actual.add(answered(route=each, deduplicated=True))
    assert dict(decision_summary(decided(route), 1.0, actual, "too late")).get("rescued") == printed


def test_a_choice_says_nothing_of_money_that_is_unknown() -> None:
    """Only of time."""
    printed = " ".join(
        words for _, words in decision_summary(decided(Route.HYBRID, priced=False), 200.0, spent(None), None)
    )
    assert "USD" not in printed
    assert "always individually: 3 min 00 s later than its forecast" in printed


class Terminal(io.TextIOWrapper):
    """Standard output as a terminal would be."""

    def isatty(self) -> bool:
        return True


def test_a_person_reads_lines_without_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a row is one line, whatever its prompt or answer holds."""
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


def test_a_failed_row_is_one_line() -> None:
    """A line end in a message or an id cannot forge a second line."""
    failure = Result("r", error=ProviderError("a\nb", kind=ErrorKind.UNKNOWN))
    assert failure_line(row(4, id="x\ny"), failure) == r"row 4 (id x\ny): unknown: a\nb"
