"""Budgets that do not cover the maximum cost of a whole list: plans and results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import inside
from levels import sampled

from smartbatch import BatchingClient, ConfigError, Price
from smartbatch.core.routing.offers import BatchOffer, rounds_of
from tests.faults.world import MINUTE, World, texts, world

PRICE = Price(input=1000.0, output=1000.0)  # a tenth of a cent per token, so that rounding is negligible


@contextmanager
def market(folder: Path) -> Iterator[tuple[World, BatchingClient]]:
    with world("openai", folder, rare=60, batch_turnaround=10 * MINUTE) as w:
        client = w.process(prices={f"openai:{w.model}": PRICE}, max_tokens=40)
        client.generate(texts(30, "to learn from"), strategy="individual")
        yield w, client


@pytest.mark.full
@pytest.mark.parametrize(("budget", "about"), sampled([(1.6, 2), (0.9, 3), (0.5, 6), (0.33, 13)], keep=1))
def test_a_plan_counts_the_rounds_that_a_budget_makes_of_a_list(budget, about, tmp_path):
    with market(tmp_path) as (w, client):
        prompts = texts(60)
        one = client.plan(prompts, strategy="batch")
        plan = client.plan(prompts, strategy="batch", budget=budget)
        results = client.generate(prompts, strategy="batch", budget=budget)
        assert results.texts == w.right(prompts)
        assert results.cost is not None
        assert results.cost <= budget
        assert about / 1.5 <= len(w.creates) <= about * 1.5
        assert len(w.creates) / 1.4 <= plan.batches <= len(w.creates) * 1.4
        assert plan.p50 == pytest.approx(plan.batches * one.p50)


def test_what_a_plan_says_of_its_rounds_can_be_checked_by_hand(tmp_path):
    with market(tmp_path) as (_, client):
        text = client.plan(texts(60), strategy="batch", budget="0.5 USD").explain(details=True)
        found = re.search(
            r"up to \$([\d.]+) is reserved per request, out of \$([\d.]+), so batches are sent in (\d+) "
            r"rounds, the first with (\d+) requests",
            text,
        )
        assert found is not None
        each, room, rounds, fit = (float(figure) for figure in found.groups())
        assert room == 0.5
        assert fit == pytest.approx(room / each, rel=0.1)
        assert f"Chosen: batch, {rounds:.0f} batches;" in text


def test_a_budget_of_the_client_makes_rounds_as_one_of_the_list_does(tmp_path):
    with market(tmp_path) as (w, client):
        same = w.process(prices={f"openai:{w.model}": PRICE}, max_tokens=40, budget=0.5)
        inside(client).history.save()
        own = client.plan(texts(60), strategy="batch", budget=0.5)
        outer = same.plan(texts(60), strategy="batch")
        lax = same.plan(texts(60), strategy="batch", budget=5)
        assert own.batches > 1
        assert outer.batches == lax.batches > 1


def test_rounds_are_less_likely_in_time_than_one_batch(tmp_path):
    with market(tmp_path) as (_, client):
        rich, poor = (
            client.plan(texts(60), strategy="batch", deadline="10h", budget=budget) for budget in (5, 0.33)
        )
    assert poor.options[0].chance < rich.options[0].chance


def test_where_all_fits_at_once_nothing_is_said(tmp_path):
    with market(tmp_path) as (_, client):
        for budget in (None, 5):
            assert "is reserved" not in client.plan(texts(60), strategy="batch", budget=budget).explain(
                details=True
            )
        assert "is reserved" not in client.plan(texts(60), strategy="individual", budget=0.9).explain(
            details=True
        )
        with pytest.raises(ConfigError, match="no route meets a budget"):
            client.plan(texts(60), strategy="batch", budget=0.01)


@given(
    st.integers(1, 5000),
    st.floats(0, 1000),
    st.floats(0, 10),
    st.floats(0, 10),
    st.integers(1, 500),
    st.integers(1, 20),
)
def test_rounds_send_everything_there_is_room_for(requests, room, most, each, largest, parallel):
    rounds = rounds_of(requests, room, most, each)
    assert 0 <= rounds.unsent <= requests
    assert (rounds.count == 0) == (rounds.fit == 0) == (rounds.unsent == requests)
    assert rounds.fit * most <= room + 1e-6
    if rounds.unsent:  # no further request fits
        assert room - (requests - rounds.unsent) * min(each, most) < most
    offer = BatchOffer(times=Times(), cost=None, most=largest, at_a_time=parallel)
    cut = rounds.cut(offer, requests)
    assert cut.most <= largest
    assert 1 <= cut.at_a_time <= parallel
    assert cut.finish(requests, 0.5) >= offer.finish(requests, 0.5)


class Times:
    def quantile(self, q: float, size: int) -> float:
        return MINUTE

    def expected(self, size: int) -> float:
        return MINUTE

    def chance(self, seconds: float, size: int) -> float:
        return float(seconds >= MINUTE)

    def uncertainty(self) -> float:
        return 0.0


@pytest.mark.parametrize(
    ("room", "each", "fit", "count", "unsent"),
    [
        (10.0, 0.5, 10, 1, 0),
        (4.0, 0.5, 4, 3, 3),
        (7.0, 0.5, 7, 2, 0),
        (4.0, 9.0, 4, 1, 6),
        (4.0, 0.0, 4, 3, 0),
        (0.5, 0.1, 0, 0, 10),
    ],
)
def test_each_round_has_what_the_answers_before_it_left(room, each, fit, count, unsent):
    rounds = rounds_of(10, room, 1.0, each)
    assert (rounds.fit, rounds.count, rounds.unsent) == (fit, count, unsent)


def test_very_many_rounds_are_counted_soon():
    assert rounds_of(1_000_000, 1.5, 1.0, 0.0).count == 1_000_000
    assert rounds_of(10, 1.0, 0.0, 0.0).count == 1


class TimesBySize:
    def quantile(self, q: float, size: int) -> float:
        return float(size)

    def expected(self, size: int) -> float:
        return float(size)


@pytest.mark.parametrize(("requests", "seconds"), [(10, 10.0), (500, 500.0), (1_000, 500.0)])
def test_a_list_takes_as_long_as_its_largest_batch(requests, seconds):
    offer = BatchOffer(times=TimesBySize(), cost=None, most=500)
    assert offer.finish(requests, 0.5) == seconds
