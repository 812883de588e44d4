"""Comparisons of recorded rows: matching, agreement, fields and figures."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from smartbatch.errors import InputError
from smartbatch.quality.comparison import Comparison, ConfusedPair
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_matching import compare_rows


def row(id: str | int, text: str | None = None, **more: Any) -> RecordedRow:
    return RecordedRow(index=more.pop("index", 0), id=id, text=text, **more)


def with_fields(id: int, **fields: Any) -> RecordedRow:
    return row(id, fields=fields)


def compared(first: list[RecordedRow], second: list[RecordedRow], max_flipped: int = 20) -> Comparison:
    return compare_rows(first, second, names=("old", "new"), max_flipped=max_flipped)


def test_texts_agree_whatever_their_case_and_whitespace():
    found = compared([row(1, "Very  good\n"), row(2, "bad")], [row(1, "very good"), row(2, "good")])

    assert (found.agreement.successes, found.agreement.total) == (1, 2)
    assert [(each.first.text, each.second.text) for each in found.flipped] == [("bad", "good")]
    assert found.agreement.low == pytest.approx(0.0945, abs=0.001)


def test_rows_match_by_id_in_any_order():
    first = [row(f"r{at}", str(at)) for at in range(6)]
    second = [row(f"r{at}", str(at)) for at in (7, 5, 3, 1, 2, 4)]

    found = compared(first, second)

    assert (found.matched, found.only_in_first, found.only_in_second) == (5, 1, 1)
    assert (found.ids_only_in_first, found.ids_only_in_second) == (("r0",), ("r7",))
    assert found.flipped_rows == 0


def test_an_id_is_the_same_as_number_and_as_text():
    """Tables write every id as text."""
    assert compared([row(7, "a")], [row("7", "a")]).matched == 1


def test_several_answers_of_a_row_match_by_sample():
    found = compared(
        [row(1, "a", sample=0), row(1, "b", sample=1)], [row(1, "b", sample=1), row(1, "c", sample=2)]
    )

    assert (found.matched, found.only_in_first, found.only_in_second) == (1, 1, 1)


def test_rows_that_share_an_id_match_in_their_order():
    found = compared(
        [row("x", "1"), row("x", "2"), row("x", "3"), row("y", "4")],
        [row("y", "4"), row("x", "1"), row("x", "2"), row("x", "3")],
    )

    assert (found.matched, found.flipped_rows) == (4, 0)


def test_parsed_answers_agree_if_their_fields_do():
    first = row(1, '{"a": 1, "b": "Yes"}', fields={"a": 1, "b": "Yes"})
    second = row(1, '{"b":"yes","a":1.0}', fields={"b": "yes", "a": 1.0})

    assert compared([first], [second]).flipped_rows == 0


def test_the_fields_that_differ_are_named():
    found = compared([with_fields(1, a=1, b="x", c=True)], [with_fields(1, a=2, b="x")])

    assert found.flipped[0].fields == ("a", "c")
    assert [(each.name, each.agreement.successes) for each in found.fields] == [("a", 0), ("b", 1), ("c", 0)]


def test_the_values_of_a_category_are_counted_in_pairs():
    labels = [("good", "good"), ("good", "bad"), ("bad", "bad"), ("good", "good"), ("bad", None)]
    first = [with_fields(at, label=one, other=1) for at, (one, _) in enumerate(labels)]
    second = [with_fields(at, label=other, other=1) for at, (_, other) in enumerate(labels)]

    found = compared(first, second)

    (field, _) = found.fields
    assert field.kind == "category"
    assert field.confusion[0] == ConfusedPair("good", "good", 2)
    assert set(field.confusion[1:]) == {
        ConfusedPair("good", "bad", 1),
        ConfusedPair("bad", "bad", 1),
        ConfusedPair("bad", None, 1),
    }
    table = [line.split() for line in str(found).partition("label: old (rows)")[2].splitlines()[1:5]]
    assert table == [
        ["bad", "good", "(missing)"],
        ["bad", "1", "0", "1"],
        ["good", "1", "2", "0"],
        ["(missing)", "0", "0", "0"],
    ]


def test_fields_of_many_or_long_strings_have_no_table_of_values():
    many = [with_fields(at, word=f"word {at}", long="x" * 300) for at in range(50)]

    assert [(each.kind, each.confusion) for each in compared(many, many).fields] == [("text", ())] * 2


def test_booleans_of_a_table_and_of_lines_are_equal():
    (field,) = compared([with_fields(1, ok=True)], [with_fields(1, ok="True")]).fields
    (both,) = compared([with_fields(1, ok=True)], [with_fields(1, ok=False)]).fields

    assert field.agreement.successes == 1
    assert (both.kind, both.confusion) == ("boolean", (ConfusedPair("true", "false", 1),))


def test_numbers_have_differences():
    first = [with_fields(at, stars=stars) for at, stars in enumerate([1, 2, 3, 4])]
    second = [with_fields(at, stars=stars) for at, stars in enumerate([2, 2, 2.0, 8])]

    (field,) = compared(first, second).fields

    found = field.differences
    assert found is not None
    assert (field.kind, field.agreement.successes, found.rows) == ("number", 1, 4)
    assert (found.first_mean, found.second_mean) == (2.5, 3.5)
    assert (found.mean, found.median, found.max_absolute) == (1.0, 0.5, 4.0)
    assert found.correlation == pytest.approx(0.7746, abs=0.0001)


def test_the_same_number_everywhere_has_no_correlation():
    (field,) = compared([with_fields(1, n=3)], [with_fields(1, n=3)]).fields

    assert field.differences is not None
    assert field.differences.correlation is None


@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan"), ["a", {"b": 1}], "\ud800", {}])
def test_odd_values_are_compared_as_text(value):
    found = compared([with_fields(1, odd=value)], [with_fields(1, odd=value)])

    assert found.flipped_rows == 0
    assert found.fields[0].differences is None
    assert "odd" in str(found)


def test_failed_and_skipped_rows_are_counted_not_compared():
    first = [row(1, "a"), row(2, error_kind="timeout"), row(3, error_kind="timeout"), row(4, "d")]
    second = [
        row(1, error_kind="auth"),
        row(2, "b"),
        row(3, error_kind="auth"),
        row(4, error_kind="row_skipped"),
    ]

    found = compared(first, second)

    assert (found.only_first_answered, found.only_second_answered, found.both_answered) == (1, 1, 0)
    assert (found.matched, found.only_in_first, found.agreement.total) == (3, 1, 0)
    assert found.first.failures == {"timeout": 2}
    assert (found.second.failures, found.second.rows, found.second.skipped) == ({"auth": 2}, 3, 1)


def test_answers_without_text_or_fields_are_not_compared():
    found = compared([row(1), row(2, "a"), row(3, " ")], [row(1), row(2, ""), row(3, "\n")])

    assert (found.both_answered, found.not_comparable) == (3, 2)
    assert (found.agreement.successes, found.agreement.total) == (0, 1)


def test_cost_tokens_and_latency_of_both_outputs():
    first = [
        row(at, "a", cost=at / 100, latency=float(at), input_tokens=10, output_tokens=at, model="sim:a")
        for at in range(1, 21)
    ]
    second = [row(1, "a", defects=("truncated",)), row(2, error_kind="timeout", cost=0.5, latency=9.0)]

    found = compared(first, second)

    assert found.first.models == ("sim:a",)
    assert (found.first.cost.total, found.first.cost.median, found.first.cost.p95) == (
        pytest.approx(2.1),
        0.1,
        0.19,
    )
    assert (found.first.input_tokens.total, found.first.output_tokens.p95, found.first.latency.median) == (
        200,
        19,
        10,
    )
    assert (found.second.cost.total, found.second.cost.unknown) == (0.5, 1)
    assert (found.second.latency.total, found.second.latency.unknown) == (None, 1)
    assert found.second.truncated == 1


def test_only_the_first_flipped_rows_are_kept():
    found = compared([row(at, "a") for at in range(9)], [row(at, "b") for at in range(9)], max_flipped=2)

    assert [each.first.id for each in found.flipped] == [0, 1]
    assert found.flipped_rows == 9
    assert "7 more rows have different answers." in str(found)


def test_outputs_without_a_common_row_are_rejected():
    with pytest.raises(InputError, match="no row of old is in new; rows are matched by id"):
        compared([row("a", "x")], [row("b", "x")])


def test_names_of_too_many_fields_are_counted():
    fields = {f"f{at}": at for at in range(130)}
    found = compared([with_fields(1, **fields)], [with_fields(1, **{**fields, "f129": 7})])

    assert (len(found.fields), found.fields_left_out) == (100, 30)
    assert found.flipped_rows == 1


def test_flipped_rows_are_in_the_order_of_the_input_without_their_inputs():
    first = [row(at, "a", index=at, input={"text": "PROMPT"}) for at in (0, 1, 2)]
    second = [row(at, "b\ud800", index=at, input={"text": "PROMPT"}) for at in (2, 1, 0)]

    found = compared(first, second)

    assert [each.first.index for each in found.flipped] == [0, 1, 2]
    assert [dict(one.input) for each in found.flipped for one in (each.first, each.second)] == [{}] * 6


def test_strings_that_rarely_repeat_are_no_category():
    names = [with_fields(at, name=f"name {at}") for at in range(10)]

    assert compared(names, names).fields[0].kind == "text"
    assert compared(names[:3], names[:3]).fields[0].kind == "category"


def test_nested_records_are_equal_in_any_order():
    first = with_fields(1, place={"city": "Lima", "zip": [1, 2]})
    second = with_fields(1, place={"zip": [1, 2], "city": "lima"})

    assert compared([first], [second]).flipped_rows == 0


def test_the_largest_difference_may_be_a_decrease():
    (field,) = compared(
        [with_fields(1, n=9), with_fields(2, n=1)], [with_fields(1, n=2), with_fields(2, n=3)]
    ).fields

    assert field.differences is not None
    assert field.differences.max_absolute == 7


@pytest.mark.full
def test_rows_whose_answers_were_too_long_to_keep_are_counted():
    def rows(order, end):
        return (row(at, f"{at} " + "x" * 2_000_000 + end) for at in order)

    found = compare_rows(
        rows(range(20), "a"), rows(range(19, -1, -1), "b"), names=("old", "new"), max_flipped=99
    )

    assert found.flipped_rows == 20
    assert 0 < len(found.flipped) < 20
    assert f"{20 - len(found.flipped)} more rows have different answers." in str(found)


@pytest.mark.full
def test_reversed_rows_keep_few_of_their_answers():
    def rows(step: int):
        for at in range(5_000)[::step]:
            yield row(f"id {at}", f"{at} " + "x" * 16_000, cost=0.1)

    tracemalloc.start()
    found = compare_rows(rows(1), rows(-1), names=("old", "new"), max_flipped=20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (found.matched, found.flipped_rows) == (5_000, 0)
    assert peak < 60_000_000  # all answers have 80 MB of each output
