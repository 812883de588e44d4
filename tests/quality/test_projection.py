"""The cost of all rows is projected from a sample, with a range that holds as often as it promises."""

import math
import random
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.projection import DATA_SETS, SAMPLE_SIZES, DataSet, measure
from smartbatch.quality.projection import Projection, Range, project
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.sample import draw
from tests.shared_data import shared

INPUT_USD, OUTPUT_USD = 1e-6, 5e-6


def row(index, given=100, made=50, **changes):
    known = {"cost": given * INPUT_USD + made * OUTPUT_USD, "attempts": 1, **changes}
    return RecordedRow(index=index, id=index, input_tokens=given, output_tokens=made, **known)


def failed(index, cost=0.0):
    return row(index, 0, 0, cost=cost, error_kind="rate_limited", error="too many requests")


def lengths(count, seed=1):
    rng = random.Random(seed)
    return [round(rng.lognormvariate(4, 1)) + 1 for _ in range(count)]


def test_the_cost_of_a_completely_sampled_table_is_certain():
    rows = [row(index, made=made) for index, made in enumerate(lengths(20))]

    found = project(rows, [100] * 20)

    assert found.remaining == 0
    assert found.rest.low == found.rest.expected == found.rest.high == 0
    assert found.total.high == pytest.approx(sum(each.cost for each in rows))


def test_rows_answered_before_the_sample_are_not_projected():
    found = project([row(index) for index in range(5)], [100] * 50, earlier={7: 0.5, 9: 0.25})

    assert (found.rows, found.sampled, found.remaining) == (50, 5, 43)
    assert found.rest.expected == pytest.approx(43 * row(0).cost)
    assert found.total.expected == pytest.approx(48 * row(0).cost + 0.75)


def test_a_range_of_equal_costs_has_no_width():
    found = project([row(index) for index in range(5)], [100] * 50)

    assert found.rest.low == pytest.approx(found.rest.high)
    assert found.total.expected == pytest.approx(50 * row(0).cost)


def test_known_prompts_leave_only_the_answers_uncertain():
    sizes = lengths(500)
    rows = [row(index, sizes[index], 10) for index in range(20)]

    found = project(rows, sizes)

    assert found.total.expected == pytest.approx(sum(sizes) * INPUT_USD + 500 * 10 * OUTPUT_USD)
    assert found.rest.high == pytest.approx(found.rest.low)


def test_wrong_token_estimates_are_corrected_by_the_billed_tokens():
    sizes = lengths(500)
    rows = [row(index, 2 * sizes[index], 10) for index in range(20)]

    expected = project(rows, sizes).total.expected

    assert expected == pytest.approx(2 * sum(sizes) * INPUT_USD + 500 * 10 * OUTPUT_USD)


def test_costs_that_fall_with_the_prompt_give_input_no_negative_price():
    rows = [row(index, 100 * (index + 1), 100, cost=1 / (index + 1) ** 2) for index in range(5)]

    expected = project(rows, [100 * (index + 1) for index in range(5)] + [10**6] * 5).rest.expected

    assert expected == pytest.approx(sum(each.cost for each in rows))


def test_proportional_answers_scale_with_their_prompts():
    sizes = lengths(500)
    rows = [row(index, sizes[index], 2 * sizes[index]) for index in range(20)]

    assert project(rows, sizes).total.expected == pytest.approx(
        sum(sizes) * (INPUT_USD + 2 * OUTPUT_USD), rel=0.05
    )


def test_rows_without_an_answer_are_expected_to_be_sent_again():
    found = project([row(0), row(1), row(2), failed(3, cost=0.01)], [100] * 10)

    assert (found.sampled, found.unanswered, found.answers, found.remaining) == (4, 1, 3, 7)
    assert found.paid == pytest.approx(3 * row(0).cost + 0.01)
    assert found.rest.expected == pytest.approx(7 * row(0).cost)


def test_a_sample_without_an_answer_projects_nothing():
    found = project([failed(0), failed(1)], [100] * 10)

    assert found.rest is found.total is found.output_tokens is None
    assert found.remaining == 10


def test_tokens_are_projected_without_a_price():
    found = project([row(index, cost=None) for index in range(5)], [100] * 10)

    assert found.rest is found.total is None
    assert found.output_tokens.expected == pytest.approx(5 * 50)


@pytest.mark.parametrize("answers", [1, 2])
def test_too_few_answers_have_an_expected_cost_without_a_range(answers):
    found = project([row(index) for index in range(answers)], [100] * 10)

    assert found.total.expected == pytest.approx(10 * row(0).cost)
    assert found.rest.low is found.rest.high is None
    assert str(found.total) == "$0.0035 (too few answers for a range)"


def test_shared_and_cached_answers_are_no_evidence_of_the_cost():
    shared_answer = row(3, 0, 0, cost=0.0, attempts=0)

    found = project([row(0), row(1), row(2), shared_answer], [100] * 10)

    assert (found.answers, found.remaining) == (3, 6)
    assert found.rest.expected == pytest.approx(6 * row(0).cost)


def test_several_answers_of_a_row_are_added_up():
    rows = [row(index, sample=number) for index in range(4) for number in range(2)]

    found = project(rows, [200] * 10)

    assert (found.sampled, found.answers) == (4, 4)
    assert found.total.expected == pytest.approx(10 * 2 * row(0).cost)


def test_rows_that_are_not_sent_cost_nothing():
    found = project([row(0), row(1), row(2)], [100, 100, 100, 0, 0, 100])

    assert (found.rows, found.remaining) == (4, 1)
    assert found.total.expected == pytest.approx(4 * row(0).cost)


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (4.1, 4.6, "$4.10 to $4.60"),
        (0.0286, 0.0318, "$0.0286 to $0.0318"),
        (0.0, 0.5, "$0.000 to $0.500"),
        (0.0, 0.0, "$0 to $0"),
        (1234.5, 98765.4, "$1,234.50 to $98,765.40"),
    ],
)
def test_the_ends_of_a_range_have_enough_digits(low, high, shown):
    assert str(Range(low, low, high)) == f"{shown.split()[0]} (90 %: {shown})"


def test_a_row_with_an_answer_of_unknown_cost_is_left_out():
    rows = [row(index, sample=number) for index in range(4) for number in range(2)]
    rows[-1] = row(3, sample=1, cost=None)

    found = project(rows, [200] * 10)

    assert found.rest.expected == pytest.approx(6 * 2 * row(0).cost)
    assert found.paid == pytest.approx(7 * row(0).cost)


def ends(rows, sizes, groups=None):
    """Return the distances of the ends of a range from the expected cost, in USD of output tokens."""
    rest = project(rows, sizes, groups).rest
    return (rest.expected - rest.low) / OUTPUT_USD, (rest.high - rest.expected) / OUTPUT_USD


def test_symmetric_answers_have_the_range_of_students_t():
    lengths_of_answers = [10, 20, 30, 40, 50, 50, 60, 70, 80, 90]
    rows = [row(index, made=made) for index, made in enumerate(lengths_of_answers)]

    below, above = ends(rows, [100] * 50)

    error = stdev(lengths_of_answers) * math.sqrt(50 * 40 / 10)
    assert below == pytest.approx(1.4537 * error, rel=0.001)  # 91 % quantile of 9 degrees of freedom
    assert above == pytest.approx(2.8214 * error, rel=0.001)  # 99 %


def test_the_range_of_skewed_answers_is_corrected_for_their_skewness():
    lengths_of_answers = [5, 6, 7, 8, 9, 10, 12, 14, 30, 150]
    rows = [row(index, made=made) for index, made in enumerate(lengths_of_answers)]

    below, above = ends(rows, [100] * 50)

    mean, size = fmean(lengths_of_answers), len(lengths_of_answers)
    error = stdev(lengths_of_answers) * math.sqrt(50 * 40 / 10)
    cubes = sum((made - mean) ** 3 for made in lengths_of_answers)
    skewness = cubes / sum((made - mean) ** 2 for made in lengths_of_answers) ** 1.5
    # Hall's transformation, which Willink's interval inverts, leads back to Student's t
    for distance, quantile in ((below / error, 1.4537), (-above / error, -2.8214)):
        t = distance + skewness * distance**2 / 3 + skewness**2 * distance**3 / 27 + skewness / 6
        assert t == pytest.approx(quantile, rel=0.001)
    assert size == 10
    assert above > 3 * below


def test_answers_from_the_cache_leave_fewer_rows_uncertain():
    rows = [row(0, made=10), row(1, made=20), row(2, made=30)]
    cached = [row(index, 0, 0, cost=0.0, attempts=0) for index in range(3, 9)]

    _, above = ends([*rows, *cached], [100] * 10)

    assert above == pytest.approx(6.965 * 10 * math.sqrt(1 * 4 / 3), rel=0.03)  # one row of ten is left


def test_each_sampled_row_stands_for_its_group():
    groups = ["short"] * 90 + ["long"] * 10
    rows = [row(0, made=10), row(1, made=10), row(90, made=1000), row(91, made=1000)]

    expected = project(rows, [100] * 100, groups).total.expected

    assert expected == pytest.approx(100 * 100 * INPUT_USD + (90 * 10 + 10 * 1000) * OUTPUT_USD)


@pytest.mark.parametrize("answered", [3, 50])
def test_a_group_without_answers_is_projected_from_the_others(answered):
    groups = ["a"] * 50 + ["b"] * 50

    rows = [row(index) for index in range(answered)]

    found = project([*rows, failed(50)], [100] * 100, groups)

    assert found.total.expected == pytest.approx(100 * row(0).cost)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.floats(0, 10)), min_size=3, max_size=60
    ),
    st.integers(0, 100),
    st.randoms(use_true_random=False),
)
def test_the_expected_cost_lies_within_its_range(answers, others, rng):
    sizes = [rng.randint(1, 10**5) for _ in range(len(answers) + others)]
    groups = [rng.choice("aab") for _ in sizes]

    rows = [row(index, given, made, cost=cost) for index, (given, made, cost) in enumerate(answers)]
    found = project(rows, sizes, groups)

    assert 0 <= found.rest.low <= found.rest.expected * (1 + 1e-9) <= found.rest.high * (1 + 2e-9)
    assert found.total.low >= found.paid


def test_ranges_of_grouped_samples_contain_the_cost():
    rng = random.Random(3)
    groups = [rng.choice("aaaaab") for _ in range(800)]
    rows = [
        row(index, made=round(rng.lognormvariate(3 if group == "a" else 5, 0.8)))
        for index, group in enumerate(groups)
    ]
    cost = sum(each.cost for each in rows)

    def projected() -> Projection:
        return project([rows[index] for index in draw(800, 20, rng, groups)], [100] * 800, groups)

    totals = [projected().total for _ in range(100)]

    assert sum(total.low <= cost <= total.high for total in totals) in range(85, 100)


def test_groups_with_different_answers_make_the_range_narrower():
    rng = random.Random(3)
    groups = ["short"] * 50 + ["long"] * 50
    mean = {"short": 20, "long": 400}
    rows = [row(index, made=mean[group] + rng.randint(0, 20)) for index, group in enumerate(groups)]
    sample = [rows[index] for index in draw(100, 10, rng, groups)]

    below, above = ends(sample, [100] * 100, groups)
    below_without, above_without = ends(sample, [100] * 100)

    assert 10 * below < below_without
    assert 10 * above < above_without


def test_single_rows_of_groups_vary_around_their_common_mean():
    rows = [row(index, made=made) for index, made in enumerate([10, 20, 30])]

    assert ends(rows, [100] * 30, list(range(3)) * 10) == pytest.approx(ends(rows, [100] * 30))


def check_coverage(data: DataSet, size: int, draws: int) -> None:
    found = measure(data, size, draws, random.Random(1))

    assert 0.85 <= found.inside <= 0.95, found


def test_ranges_contain_the_cost_of_real_data():
    path = "prompts/gsm8k_test.jsonl"

    check_coverage(DATA_SETS[path](shared(path)), 20, 200)


@pytest.mark.full
@pytest.mark.parametrize("path", DATA_SETS)
@pytest.mark.parametrize("size", SAMPLE_SIZES)
def test_ranges_contain_the_cost_of_every_data_set(path, size):
    check_coverage(DATA_SETS[path](shared(path)), size, 1000)
