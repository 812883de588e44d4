"""Clients make the recorded calls, at the recorded times and cost, and in the recorded order."""

from __future__ import annotations

import pytest
from levels import sampled

from tests import figures
from tests.realtime.recorded_runs.client_runs import GROUP, RECORDED, RUNS, figures_of


@pytest.mark.parametrize("name", sampled(RUNS, keep=2, first=1))
def test_a_client_sends_what_it_sent(name):
    recorded = {GROUP: {name: figures.read(RECORDED)[GROUP].get(name, {})}}
    assert figures.differences(recorded, {GROUP: {name: figures_of(RUNS[name])}}) == []


def test_each_recorded_run_takes_place():
    assert list(figures.read(RECORDED)[GROUP]) == list(RUNS)
