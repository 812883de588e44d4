"""``smartbatch run --label-column``: the summary scores answers against labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from smartbatch.cli.main import main

pytestmark = pytest.mark.usefixtures("folder")

ROWS = "id,text,mood\n" + "".join(
    f"r{at},{text},{mood}\n"
    for at, (text, mood) in enumerate(
        [("good", "Good"), ("bad", "bad"), ("bad", "good"), ("SECRET", "bad"), ("x", "")]
    )
)


LABELED = ["--label-column", "mood"]


@pytest.fixture
def run(folder: Path, calls: Any, capfd: Any):
    calls.ask = lambda request, attempt: request.prompt
    (folder / "in.csv").write_text(ROWS)

    def go(*options: str, model: str = "call:own_calls:ask") -> tuple[int, str]:
        code = main(["run", "in.csv", "--prompt-field", "text", "--model", model, *options])
        return code, capfd.readouterr().err

    return go


@pytest.mark.parametrize("output", ["out.jsonl", "out.csv"])
def test_the_summary_scores_all_answers_in_the_output(run, output):
    code, said = run("-o", output, "--limit", "2", "--label-column", "mood")
    assert code == 0
    assert "100.0 % (95 %: 34.2 to 100.0 %) of 2 answers equal the label (mood)." in said
    code, said = run("-o", output, "--label-column", "mood")
    assert code == 0
    assert "50.0 % (95 %: 15.0 to 85.0 %) of 4 answers equal the label (mood)." in said
    assert "Not scored: 1 row without a label." in said
    assert [line.split()[:2] for line in said.splitlines() if line.startswith(("good ", "bad "))][:2] == [
        ["good", "2"],
        ["bad", "2"],
    ]
    assert "secret" not in said.partition("Labels: mood")[2].lower()


def test_a_sample_is_scored_without_an_output(run):
    code, said = run("--sample", "4", "--label-column", "mood")
    assert code == 0
    assert "of 4 answers equal the label" in said or "of 3 answers equal the label" in said


def test_a_sample_is_scored_apart_from_other_answers(run):
    assert run("-o", "out.jsonl", "--limit", "4", "--quiet")[0] == 0
    code, said = run("-o", "out.jsonl", "--sample", "1", "--label-column", "mood", "--limit", "4")
    assert code == 0
    assert "of 1 answer equal the label (mood)." in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--label-column", "mood"], "add -o, or --sample"),
        (
            ["--label-column", "moods", "-o", "out.jsonl"],
            "no row has a value in the column 'moods'; did you mean mood?",
        ),
        (["--label-field", "x", "-o", "out.jsonl"], "--label-field needs --label-column or --labels"),
        (["--labels", "no.jsonl", "-o", "out.jsonl"], "no.jsonl: cannot be read"),
        (
            ["--label-column", "mood", "--label-field", "mood", "-o", "out.jsonl"],
            "--label-field needs answers with fields: add --output-field or --schema",
        ),
        (
            [*LABELED, "--label-field", "moood", "--output-field", "mood: str", "-o", "out.jsonl"],
            "--label-field 'moood' is not a field of the answers; did you mean mood?",
        ),
        (
            [*LABELED, "--embed", "-o", "out.jsonl"],
            "--label-column applies to answers and has no effect with --embed: leave it out",
        ),
    ],
)
def test_wrong_options_are_rejected_before_anything_is_sent(run, folder, options, message):
    code, said = run(*options, model="sim:echo?faults=500:1")
    assert code == 2
    assert message in said
    assert not (folder / "out.jsonl").exists()


def test_labels_come_from_a_file(run, folder):
    (folder / "labels.jsonl").write_text('{"id": "r3", "label": "secret"}\n{"id": "r4", "label": "y"}\n')
    code, said = run("-o", "out.csv", "--labels", "labels.jsonl")
    assert code == 0
    assert "of 2 answers equal the label (labels.jsonl)." in said
    assert "Not scored: 3 rows without a label." in said


def test_a_chosen_field_is_compared(run):
    fields = ["--output-field", "mood: good|bad", "--output-field", "stars: int 1-5"]
    code, said = run(
        "-o",
        "out.jsonl",
        *fields,
        "--label-column",
        "mood",
        "--label-field",
        "stars",
        model="sim:demo?latency=0",
    )
    assert code == 0
    assert "0.0 % (95 %: 0.0 to 49.0 %) of 4 answers equal the label (mood)." in said
