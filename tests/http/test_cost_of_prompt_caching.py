"""The cost of whole lists with prompt caching, on emulated caches: see ``benchmarks.caching``."""

from __future__ import annotations

import pytest

from benchmarks.caching import MAX_SURCHARGE, MIN_SHARE, measure
from benchmarks.caching_workloads import OTHERS, SHARING
from benchmarks.caching_world import MODELS

SCALE = 0.1
DOCUMENTS = SHARING[1]
TWICE, RECURRING, ENDING = (
    next(each for each in OTHERS if name in each.name)
    for name in ("far apart", "gaps of 10 minutes", "two gaps of 10 minutes each")
)
pytestmark = pytest.mark.full


@pytest.mark.parametrize("mode", ["real time", "batch"])
@pytest.mark.parametrize("provider", MODELS)
def test_questions_about_documents_cost_almost_as_little_as_possible(provider, mode):
    assert measure(DOCUMENTS, provider, mode, SCALE, "auto").share >= MIN_SHARE


@pytest.mark.parametrize("mode", ["real time", "batch"])
@pytest.mark.parametrize("provider", MODELS)
def test_documents_used_twice_do_not_cost_more_than_without_caching(provider, mode):
    auto, off = (measure(TWICE, provider, mode, SCALE, caching) for caching in ("auto", "off"))
    assert auto.sent.cost <= (1 + MAX_SURCHARGE) * off.sent.cost


def test_requests_ten_minutes_apart_read_entries_that_last_for_an_hour():
    sent = measure(RECURRING, "Anthropic", "real time", 1.0, "auto")
    assert sent.saving > 0.7


def test_writes_for_an_hour_that_are_never_read_cost_little():
    sent = measure(ENDING, "Anthropic", "real time", 1.0, "auto").sent
    assert sent.written > 0
    assert sent.cost <= (1 + MAX_SURCHARGE) * sent.full
