"""The table of several models that answered the same sample."""

from smartbatch.quality.model_comparison import SampledModel, model_view
from smartbatch.quality.projection import project
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_matching import compare_rows
from smartbatch.views.html import report
from smartbatch.views.terminal import text_of
from tests.hostile import HOSTILE, Elements


def answers(labels: str, *, cost: float | None) -> list[RecordedRow]:
    return [
        RecordedRow(
            index=at,
            id=at,
            fields={"label": label, HOSTILE["a script"]: 1},
            cost=cost,
            latency=0.5,
            input_tokens=10,
            output_tokens=2,
            defects=("truncated",) if label == "c" else (),
        )
        for at, label in enumerate(labels)
    ]


def sampled(name: str, found: list[RecordedRow]) -> SampledModel:
    comparison = compare_rows(answers("aabb", cost=0.01), found, names=("x", name), max_flipped=0)
    return SampledModel(comparison, project(found, [10.0] * 100))


def test_every_model_has_its_agreement_cost_and_defects():
    view = model_view(
        [
            sampled("one:a", answers("aabb", cost=0.01)),
            sampled("one:b", answers("aabc", cost=0.5)),
            sampled("\x1b[31m<b>", answers("bbaa", cost=None)),
        ]
    )

    lines = text_of(view).splitlines()

    assert lines[0] == "Comparison of models, 4 rows"
    table = [line.split() for line in lines[3:7]]
    assert table[1] == ["one:a", "-", "0", "-", "$0.04", "$1.00", "500", "ms"]
    assert table[2] == ["one:b", "75.0", "%", "0", "1", "truncated", "$2.00", "$50.00", "500", "ms"]
    assert table[3][1:6] == ["0.0", "%", "0", "-", "unknown"]
    facts = [" ".join(line.split()) for line in lines]
    assert "one:b 75.0 % (95 %: 30.1 to 95.4 %)" in facts
    assert "one:a $1.00 (90 %: $1.00 to $1.00)" in facts
    assert "\\x1b[31m<b> unknown" in facts


def test_names_of_models_and_fields_are_escaped_on_a_page():
    page = report(model_view([sampled(name, answers("abab", cost=0.1)) for name in HOSTILE.values()]))

    assert not {"script", "img", "svg", "b", "a"} & set(Elements(page).tags)
