"""Which tests a mutant meets, of those that reach its line."""

from __future__ import annotations

import pytest

from benchmarks.mutant_runs import TestCalls, fitting


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ([1.0, 2.0, 3.0], [0, 1, 2]),
        ([1.0, 2.0, 9.0, 3.0, 4.0], [0, 1, 3, 4]),
        ([11.0, 2.0], [0]),
        ([11.0], [0]),
        ([], []),
    ],
)
def test_a_long_test_that_does_not_fit_keeps_no_quick_one_away(
    seconds: list[float], chosen: list[int]
) -> None:
    tests = [TestCalls(f"test {place}", each, frozenset()) for place, each in enumerate(seconds)]
    assert fitting(tests, 10.0) == [tests[place] for place in chosen]
