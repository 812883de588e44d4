"""A plan in words: whole sentences for the main cases, and all figures on demand."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.explanation import IN_PYTHON, ON_COMMAND_LINE, explain, plan_lines
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.outcome import decision_of, decision_text
from smartbatch.core.routing.workload import AnswerLengths, Cost, FileLoad, Load
from smartbatch.types import Route, Strategy, evolve

NOON = datetime(2026, 11, 28, 12, 0, tzinfo=UTC)
SEEN = AnswerLengths(50, 120.0)
REALTIME = Option(Route.INDIVIDUAL, 15.0, 40.0, 20.0, Cost(0.03, 0.04, 0.06), calls=100, share=1.0)
BATCH = Option(Route.BATCH, 1440.0, 7200.0, 2000.0, Cost(0.01, 0.02, 0.03), calls=0, share=0.5, batches=1)


def lines(
    chosen: Option,
    *,
    alone: Option = REALTIME,
    batch: Option | None = BATCH,
    answers: AnswerLengths | None = SEEN,
    requests: int = 100,
    closed: tuple[tuple[Route, str], ...] = (),
    calls_at_once: int = 0,
    **constraints: object,
) -> list[str]:
    decision = Decision(
        Load(requests, 5000.0, 12000.0, answers=answers),
        Constraints(**constraints),  # type: ignore[arg-type]
        (chosen, *(each for each in (alone, batch) if each is not None and each.route is not chosen.route)),
        chosen,
        "so it is",
        alone,
        batch,
        closed,
        calls_at_once,
    )
    return list(plan_lines(decision, voice=ON_COMMAND_LINE, now=NOON))


def test_real_time_is_compared_with_a_batch():
    assert lines(REALTIME) == [
        "Sending in real time: about 15 s, $0.04. A batch would save $0.02 but take 24 min or more."
    ]


def test_a_batch_is_compared_with_real_time():
    assert lines(BATCH) == [
        "Sending as a batch: usually done in 24 min, almost certainly within 2 h. This costs $0.02; real "
        "time would take about 15 s but cost $0.04.",
        "For a faster run, use --prefer speed.",
    ]


def test_a_batch_with_a_deadline_says_when_the_rest_is_sent_in_real_time():
    rescued = evolve(BATCH, rescue_at=20_580.0, rescue_needs=1020.0)
    (first, _) = lines(rescued, deadline=21_600.0)
    assert first.startswith(
        "Sending as a batch: usually done in 24 min, almost certainly within 2 h. Anything unfinished at "
        "17:43 is sent in real time. This costs $0.02; "
    )
    (first, _) = lines(evolve(rescued, rescue_at=90_000.0), deadline=100_000.0)
    assert "Anything unfinished at 13:00 on 29 Nov is sent in real time." in first


def test_a_rescue_before_half_of_the_batches_are_done_is_not_called_usual():
    (first, _) = lines(evolve(BATCH, p95=1800.0, rescue_at=600.0), deadline=1800.0)
    assert first.startswith(
        "Sending as a batch: almost certainly done within 30 min. Anything unfinished at 12:10"
    )


def test_a_hybrid_names_both_parts():
    hybrid = evolve(BATCH, route=Route.HYBRID, first=12, calls=12)
    assert lines(hybrid, strategy=Strategy.HYBRID) == [
        "Sending 12 in real time and 88 as a batch: usually done in 24 min, almost certainly within 2 h. "
        "This costs $0.02; real time would take about 15 s but cost $0.04.",
        "For a faster run, use --strategy individual.",
    ]


def test_without_an_observed_batch_its_times_are_called_assumptions():
    assert (
        "No batch has been observed yet, so these times are assumptions."
        in lines(evolve(BATCH, untried=True))[0]
    )


@pytest.mark.parametrize(
    ("answers", "requests", "line"),
    [
        (
            AnswerLengths(0, 450.0, 100),
            100,
            "Answer length unknown; assuming 450 tokens. Run 20 rows first for a better estimate.",
        ),
        (AnswerLengths(0, 450.0, 8), 8, "Answer length unknown; assuming 450 tokens."),
        (
            AnswerLengths(0, 450.0),
            8,
            "Answer length unknown; assuming 450 tokens, or max_tokens if that is less.",
        ),
        (AnswerLengths(0, 31.4, by_schema=True), 8, "Answer length estimated from the schema: 31 tokens."),
    ],
)
def test_an_unknown_answer_length_is_stated(answers, requests, line):
    assert lines(REALTIME, answers=answers, requests=requests)[1] == line


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"requests": 3, "closed": ((Route.BATCH, "few"),)},
            "Lists of up to 3 rows are never sent as a batch.",
        ),
        (
            {"requests": 8, "closed": ((Route.BATCH, "few"),)},
            "Lists of fewer than 10 rows are never sent as a batch.",
        ),
        ({"batch": None}, "A batch is not possible for this list."),
        (
            {"strategy": Strategy.INDIVIDUAL, "batch": None},
            "Batches are ruled out by --strategy individual.",
        ),
        (
            {"deadline": 3600.0, "batch": evolve(BATCH, problem="misses the deadline")},
            "A batch would save $0.02 but risk missing the deadline.",
        ),
        (
            {"deadline": 3600.0, "batch": evolve(BATCH, cost=REALTIME.cost, ruled_out="no gain")},
            "A batch would save nothing and risk missing the deadline.",
        ),
        ({"batch": evolve(BATCH, p50=10.0)}, "A batch would save $0.02 but take up to 2 h."),
        ({"batch": evolve(BATCH, cost=None)}, "A batch would take 24 min or more."),
        ({"budget": 0.005}, "A batch would exceed the budget, too."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_real_time_says_why_the_list_is_not_a_batch(more, sentence):
    first = lines(REALTIME, **more)[0]  # type: ignore[arg-type]
    assert first.startswith(f"Sending in real time: about 15 s, $0.04. {sentence}")


@pytest.mark.parametrize(
    ("alone", "more", "sentence"),
    [
        (evolve(REALTIME, cost=None), {}, "The price is unknown; real time would take about 15 s."),
        (
            evolve(REALTIME, p50=9000.0, p95=15_000.0),
            {"deadline": 10_000.0},
            "This costs $0.02; real time would take about 2.5 h, too long for the deadline.",
        ),
        (REALTIME, {"budget": 0.025}, "This costs $0.02; real time would cost $0.04, more than the budget."),
        (
            evolve(REALTIME, p50=9000.0),
            {},
            "This costs $0.02; real time would take about 2.5 h and cost $0.04.",
        ),
    ],
)
def test_a_batch_says_why_real_time_was_not_chosen(alone, more, sentence):
    assert sentence in lines(BATCH, alone=alone, **more)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chosen", "more", "line"),
    [
        (
            REALTIME,
            {"calls_at_once": 32},
            "For a faster run, allow more than 32 calls at once (--parallelism).",
        ),
        (
            evolve(REALTIME, quota=0.99),
            {"calls_at_once": 32},
            "The rate limit determines the time; a higher one would make this faster.",
        ),
        (evolve(REALTIME, route=Route.FLEX), {}, "For a faster run, use --prefer speed."),
        (BATCH, {"budget": 0.03}, "For a faster run, raise the budget."),
    ],
)
def test_a_plan_says_what_would_be_faster(chosen, more, line):
    assert lines(chosen, **more)[-1] == line  # type: ignore[arg-type]


def test_a_likely_miss_and_a_tight_budget_are_announced():
    (first, *_) = lines(evolve(REALTIME, odds=0.8), deadline=20.0)
    assert first.endswith(" The deadline may be missed: the chance of meeting it is 80 %.")
    (first, *_) = lines(REALTIME, budget=0.05)
    assert first.endswith(
        " This may cost more than the budget of $0.05; sending stops before it is exceeded."
    )


def test_a_list_with_nothing_to_send_says_so():
    assert lines(REALTIME, requests=0) == ["Nothing to send: every row is already answered."]


def test_settings_are_named_as_the_reader_sets_them():
    decision = Decision(Load(100), Constraints(), (BATCH, REALTIME), BATCH, "so it is", REALTIME, BATCH)
    assert list(plan_lines(decision, voice=IN_PYTHON))[-1] == 'For a faster run, use prefer="speed".'


def test_the_load_counts_what_need_not_be_sent():
    load = Load(40, 7100.0, 80_000.0, cached=3, answers=SEEN, duplicates=80, repeats=2)
    decision = Decision(load, Constraints(), (REALTIME,), REALTIME, "so it is", REALTIME, None)
    assert explain(decision).splitlines()[0] == (
        "40 requests, about 7,100 input tokens and 80,000 output tokens; 2 of them are repeated, and a job "
        "pays for those once; 80 more are duplicates and share an answer; 3 more are answered from the cache."
    )


def test_the_load_counts_the_files_of_the_requests():
    for files, words in (
        (FileLoad(1, 0, 765.0), "40 requests with 1 file, about 7,100 input tokens (765 for the files) and"),
        (
            FileLoad(80, 3_400_000, 7000.0),
            "40 requests with 80 files (3.4 MB), about 7,100 input",
        ),
    ):
        load = Load(40, 7100.0, 80_000.0, answers=SEEN, files=files)
        decision = Decision(load, Constraints(), (REALTIME,), REALTIME, "so it is", REALTIME, None)
        assert explain(decision).startswith(words)
        assert decision_of(decision_text(decision)) == decision


def test_details_add_every_route_and_the_figures_that_decided():
    rescued = evolve(BATCH, rescue_at=20_000.0, rescue_needs=1600.0, odds=0.997, late_cost=0.0003, quota=0.25)
    decision = Decision(
        Load(100, 5000.0, 12000.0, answers=SEEN),
        Constraints(deadline=21_600.0, budget=2.0),
        (REALTIME, rescued),
        rescued,
        "the cheapest",
        REALTIME,
        rescued,
        ((Route.PACKED, "it is off"),),
    )
    told = explain(decision, details=True).splitlines()
    assert told[:3] == explain(decision).splitlines()
    assert told[4:] == [
        "route            p50   p95    mean   cost  range           in time  late penalty  note",
        "  individual    15 s  40 s    20 s  $0.04  $0.03 to $0.06  100 %              $0  -",
        "> batch       24 min   2 h  33 min  $0.02  $0.01 to $0.03  100 %         $0.0003  -",
        "  packed           -     -       -      -  -               -                   -  it is off",
        "",
        "Constraints: strategy auto, prefer balanced, deadline 6 h (penalty if missed: $0.10), budget $2.00, "
        "time value $5.00 per hour.",
        "Answer length: 120 tokens on average in 50 answers.",
        "Chosen: batch, 1 batch; the cheapest.",
        "Limits: uses 25 % of what the known limits allow in that time.",
        "Rescue: requests not answered after 5.6 h (27 min before the deadline) are withdrawn and sent in "
        "real time.",
    ]


def test_endless_forecasts_can_be_explained():
    endless = evolve(REALTIME, p50=math.inf, p95=math.inf, expected=math.inf)
    assert lines(endless)[0].startswith("Sending in real time: about forever, $0.04.")
