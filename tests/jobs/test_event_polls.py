"""Pauses between polls while a webhook event is expected."""

from __future__ import annotations

import math

import pytest

from smartbatch.jobs.steps.poll import seconds_to_event_poll


@pytest.mark.parametrize(
    ("usual", "age", "left", "pause"),
    [
        (30.0, 0.0, math.inf, 120.0),
        (30.0, 120.0, math.inf, 480.0),
        (30.0, 600.0, math.inf, 900.0),  # a lost event costs no more
        (3600.0, 600.0, math.inf, 3600.0),  # never sooner than without webhooks
        (30.0, 600.0, 100.0, 100.0),
        (30.0, 600.0, -5.0, 30.0),
    ],
)
def test_pauses_grow_with_the_age_of_the_batch(usual, age, left, pause):
    assert seconds_to_event_poll(usual, age, left) == pause
