"""Whole jobs in virtual time, with everything that may happen, checked with the provider's ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from attrs import evolve
from levels import sampled

from tests import figures
from tests.faults.simulation.plans import CASES, Totals, plan_of, seeded, with_housekeeping
from tests.faults.simulation.recorded import (
    ODD,
    POLICIES,
    RECORDED,
    SEEDS,
    all_plans,
    differences,
    odd,
    with_policy,
)
from tests.faults.simulation.scenario import FLAVOURS, Plan
from tests.faults.simulation.simulated_world import Outcome, simulate

Run = Callable[[Iterable[Plan]], Iterator[Outcome]]
MANY = 400
REPLAYED = 20


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_of_8_jobs_nothing_is_lost_paid_twice_unnamed_or_never_done(flavour):
    outcomes = [simulate(plan) for plan in seeded(SEEDS, flavour)]
    assert Totals.of(outcomes).problems == []
    assert differences(f"seeds of {flavour}", outcomes) == []


def test_each_recorded_group_of_jobs_is_run():
    assert set(figures.read(RECORDED)) == set(all_plans())


@pytest.mark.full
@pytest.mark.parametrize("case", sampled(CASES, keep=4))
def test_jobs_in_each_case_go_as_they_went(case):
    outcomes = [simulate(plan_of(case, flavour, 0)) for flavour in FLAVOURS]
    assert Totals.of(outcomes).problems == []
    assert differences(f"case {case}", outcomes) == []


@pytest.mark.full
@pytest.mark.parametrize("policy", sampled(POLICIES, first=2))
def test_jobs_that_ask_for_more_go_as_they_went(policy):
    """So do those of the tests above. A change that is meant is recorded anew with
    ``PYTHONPATH=tests:. python -m tests.faults.simulation.recorded``."""
    outcomes = [simulate(plan) for plan in with_policy(policy)]
    assert Totals.of(outcomes).problems == []
    assert differences(f"policy {policy}", outcomes) == []


@pytest.mark.full
@pytest.mark.parametrize("name", ODD)
def test_jobs_at_an_odd_provider_go_as_they_went(name):
    assert differences(f"odd {name}", map(simulate, odd(name))) == []


@pytest.mark.full
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_of_400_jobs_nothing_is_lost_paid_twice_unnamed_or_never_done(run, flavour):
    outcomes = list(run(seeded(range(MANY), flavour)))
    total = Totals.of(outcomes)
    assert total.problems == []
    assert total.runs == MANY
    assert total.foreign == 0  # in a workspace shared with others only a line of results proves whose it is
    assert total.crashes > 5 * MANY
    assert total.freezes > MANY / 10
    assert min(total.creates[outcome] for outcome in ("lost", "dropped", "late")) > MANY / 50
    assert (total.creates["fenced"] > 0) == FLAVOURS[flavour].files
    # 100 of the 2,000 are run again, here: each equals the run of another process in every event and its time
    assert [simulate(outcome.plan).trace for outcome in outcomes[:REPLAYED]] == [
        outcome.trace for outcome in outcomes[:REPLAYED]
    ]
    assert len({outcome.trace for outcome in outcomes}) == MANY


@pytest.mark.parametrize(
    ("seed", "flavour", "rate"),
    sampled(
        [
            # an upload stood still, and went on after the fence had deleted its file
            (2_006_001, "gemini", 0.0),
            (1_003_264, "anthropic-shared", 0.02),  # the only line of a candidate could not be read
            (3_009_562, "anthropic", 0.0),  # of a first, cut reading only a foreign line was left
            # a foreign batch was deleted while it was taken for an orphan
            (4_004_889, "anthropic-shared", 0.0),
            (1143, "compatible", 0.0),  # a resumed owner read results that its successor had deleted
        ],
        keep=2,
    ),
)
def test_a_seed_that_once_failed_is_clean(seed, flavour, rate):
    outcome = simulate(Plan(seed=seed, flavour=flavour, crash_rate=rate))
    assert outcome.problem is None
    assert outcome.incidents["double_submission"] == 0


# -- webhook events, some of them wrong ----------------------------------------------------------------------

WEBHOOKS, HOUSEKEEPING = 20_000, 30_000  # the first seeds


def with_webhooks(count: int) -> Iterator[Plan]:
    return (evolve(plan, webhooks=True) for plan in seeded(range(WEBHOOKS, WEBHOOKS + count)))


def test_webhook_events_lose_nothing_and_pay_nothing_twice():
    outcomes = [simulate(plan) for plan in with_webhooks(5)]
    assert Totals.of(outcomes).problems == []
    assert sum(int(outcome.figures.get("notices", 0)) for outcome in outcomes) >= 3


@pytest.mark.full
def test_of_400_jobs_with_webhook_events_none_is_lost_or_paid_twice(run):
    outcomes = list(run(with_webhooks(MANY)))
    total = Totals.of(outcomes)
    assert total.problems == []
    assert total.unnamed == 0
    assert any(name.startswith("mark_used") for name in total.names)
    assert sum(int(outcome.figures.get("repeats", 0)) for outcome in outcomes) > MANY / 10


@pytest.mark.parametrize("seed", [36_399, 39_195])
def test_a_process_that_was_suspended_uploads_no_file_of_a_job_that_is_done(seed):
    assert [simulate(plan).problem for plan in with_housekeeping([seed])] == [None]


@pytest.mark.full
def test_of_400_jobs_with_events_and_deletions_none_is_wrong(run):
    """More of them are run by ``python -m benchmarks.simulation``."""
    total = Totals.of(run(with_housekeeping(range(HOUSEKEEPING, HOUSEKEEPING + MANY))))
    assert total.problems == []
    assert total.unnamed == 0
    assert total.crashes > 5 * MANY
    assert {"take.after", "delete_file.after", "delete_batch.after", "mark_used.after"} <= total.names
    assert total.incidents["storage_full"] > MANY / 50


# -- files in prompts ----------------------------------------------------------------------------------------


def with_uploads(seeds: Iterable[int]) -> Iterator[Plan]:
    return (evolve(plan, uploads=True, policy=(("retention", 0.0),)) for plan in seeded(seeds))


def test_each_file_is_uploaded_once_and_deleted_and_batches_find_it():
    outcomes = [simulate(plan) for plan in with_uploads(range(8))]
    assert Totals.of(outcomes).problems == []
    points = {name for outcome in outcomes for name in outcome.points}
    assert {"complete.after", "delete_upload.after", "find_upload"} <= points


@pytest.mark.parametrize("flavour", ["openai", "anthropic"])
def test_files_of_prompts_wait_while_the_storage_of_their_account_is_full(flavour):
    outcome = simulate(
        Plan(seed=1, flavour=flavour, quiet=True, uploads=True, odd=("full",), policy=(("retention", 0.0),))
    )
    assert outcome.problem is None
    assert outcome.incidents["storage_full"] == 1
    assert "complete.after" in outcome.points  # they were uploaded later, and not sent in the requests


@pytest.mark.full
def test_of_400_jobs_with_files_none_uploads_one_twice_or_leaves_it(run):
    total = Totals.of(run(with_uploads(range(30_000, 30_000 + MANY))))
    assert total.problems == []
    assert total.crashes > MANY


# -- the negative control: something below the library repeats creates ---------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("flavour", sampled(FLAVOURS))
def test_a_repeated_create_is_told_with_what_it_cost(run, flavour):
    outcomes = list(run(plan_of("repeated", flavour, seed) for seed in range(12)))
    assert [outcome.problem for outcome in outcomes if outcome.problem] == []
    assert min(outcome.incidents["double_submission"] for outcome in outcomes) >= 1
    assert sum(outcome.unnamed for outcome in outcomes) == 0
    if FLAVOURS[flavour].labels:  # then it is cancelled after two minutes
        assert sum(outcome.cancelled for outcome in outcomes) > 8


@pytest.mark.full
def test_whatever_else_goes_wrong_second_payments_are_named(run):
    total = Totals.of(run(evolve(plan, repeats=2) for plan in seeded(range(10_000, 10_120))))
    assert total.problems == []
    assert total.double > 30
    assert total.unnamed < total.double / 10
    assert total.repeated > 12
