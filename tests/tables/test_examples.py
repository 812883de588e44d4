"""Few-shot examples: the same turns before the prompt of every row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient, InvalidRequest
from smartbatch.cli.main import main
from smartbatch.testing import MockProvider
from tests.levels import sampled
from tests.tables.kinds import TABLES

EXAMPLES = [{"text": "Broke at once.", "answer": "bad"}, {"text": "Boils fast.", "answer": "good"}]
TEMPLATE = "Rate: {text}"
TURNS = [
    ("user", "Rate: Broke at once."),
    ("assistant", "bad"),
    ("user", "Rate: Boils fast."),
    ("assistant", "good"),
]


@pytest.fixture
def sent():
    return []


@pytest.fixture
def client(sent):
    def answer(request: Any) -> str:
        sent.append([(message.role, message.content) for message in request.prompt])
        return "fine"

    with BatchingClient("mock", provider=MockProvider(answer), parallelism=1) as made:
        yield made


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_every_prompt_begins_with_the_examples(kind, client, sent):
    rows = TABLES[kind]([{"text": "Fine."}, {"text": "Dull."}])
    client.generate(rows, template=TEMPLATE, examples=TABLES[kind](EXAMPLES))
    assert sorted(sent) == [[*TURNS, ("user", "Rate: Dull.")], [*TURNS, ("user", "Rate: Fine.")]]


def test_examples_of_a_column_have_its_prompts_and_json_answers(client, sent):
    rows, examples = [{"q": "Two?"}], [{"q": "One?", "answer": {"n": 1}}]
    client.generate(iter(rows), column="q", examples=iter(examples))
    assert sent == [[("user", "One?"), ("assistant", '{"n": 1}'), ("user", "Two?")]]


@pytest.mark.full
def test_a_job_has_the_examples_in_every_request(client, sent):
    job = client.submit_batch(
        [{"text": "Fine."}], template=TEMPLATE, examples=EXAMPLES, batch_fallback="individual"
    )
    assert [result.text for result in job.results()] == ["fine"]
    assert sent == [[*TURNS, ("user", "Rate: Fine.")]]


@pytest.mark.parametrize(
    ("examples", "problem"),
    [
        ([], "examples has no rows"),
        ("examples.csv", "examples must be a table or a list of rows"),
        ([*EXAMPLES, {"text": "a"}], "row 2 (counted from 0): no field 'answer'; the row has 'text'"),
        ([{"text": "a", "answer": " "}], "row 0 (counted from 0): field 'answer' is blank"),
        ([{"answer": "good"}], "row 0 (counted from 0): no field 'text'"),
        (
            [("a", "good")],
            "row 0 (counted from 0): must be a mapping with the fields of the prompt",
        ),
        (EXAMPLES * 501, "row 1000 (counted from 0): is beyond the limit of 1,000 examples"),
    ],
)
def test_unusable_examples_are_refused_with_their_row(examples, problem, client):
    with pytest.raises(InvalidRequest) as caught:
        client.generate([{"text": "Fine."}], template=TEMPLATE, examples=examples)
    assert problem in str(caught.value)
    assert caught.value.field == "examples"
    assert client.counts.submitted == 0


def test_prompts_that_cannot_follow_examples_are_refused(client):
    with pytest.raises(InvalidRequest, match="examples needs a template or a column"):
        client.generate(["a"], examples=EXAMPLES)
    chat = json.dumps([{"role": "user", "content": "hi"}])
    with pytest.raises(InvalidRequest, match="the prompt is a chat, which cannot begin with examples"):
        client.generate([{"text": chat}], column="text", examples=EXAMPLES)
    with pytest.raises(InvalidRequest, match="examples has no effect on embeddings"):
        client.embed([{"text": "a"}], column="text", examples=EXAMPLES)
    with pytest.raises(InvalidRequest, match="rename that field of the input"):
        client.generate([{"answer": "a"}], template="Right? {answer}", examples=EXAMPLES)


def run(*options: str, model: str = "sim:demo?latency=0") -> int:
    return main(["run", "in.csv", "--model", model, "--template", TEMPLATE, *options])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text("text\nFine.\nDull.\n")
    Path("examples.csv").write_text("text,answer\nBroke at once.,bad\nBoils fast.,good\n")


def test_examples_of_a_file_are_part_of_the_prompts_and_keys(folder, capfd):
    assert run("--examples", "examples.csv", "-o", "out.jsonl", "-v") == 0
    prompt = [{"role": role, "content": content} for role, content in [*TURNS, ("user", "Rate: Fine.")]]
    assert f"first prompt, row 0 (line 2): {json.dumps(prompt)}" in capfd.readouterr().err
    assert run("--examples", "examples.csv", "-o", "out.jsonl") == 0
    assert "2 rows answered already" in capfd.readouterr().err
    Path("examples.csv").write_text("text,answer\nBroke at once.,awful\n")
    assert run("--examples", "examples.csv", "-o", "out.jsonl") == 2
    assert "the prompt of 2 answered rows" in capfd.readouterr().err


FIELDS = [
    word
    for field in ("mood: good|bad", "stars: int 1-5", "buy: bool", "due: date|null")
    for word in ("--output-field", field)
]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("text,mood,stars,buy,due", "a,good,5,True,"),
        ("text,answer", 'a,"{""mood"": ""good"", ""stars"": 5, ""buy"": true, ""due"": null}"'),
    ],
)
def test_answers_of_a_schema_are_fields_of_examples_or_json(header, row, folder, capfd):
    Path("examples.csv").write_text(f"{header}\n{row}\n")
    assert main(["plan", "in.csv", "--model", "sim:demo", "--examples", "examples.csv", *FIELDS]) == 0
    (_, answer, _) = json.loads(capfd.readouterr().out.partition("First prompt: ")[2])
    assert json.loads(answer["content"]) == {"mood": "good", "stars": 5, "buy": True, "due": None}


def test_a_sample_of_prompts_with_examples_is_shown_and_projected(folder, capfd):
    assert run("--examples", "examples.csv", "--sample", "1", "-o", "out.jsonl") == 0
    printed = capfd.readouterr()
    assert "Rate: " in printed.out
    assert "Broke at once." not in printed.out
    assert "Run the same command without --sample to send the other 1 row." in printed.err


def test_a_field_of_prompt_and_schema_is_in_both_turns(folder, capfd):
    Path("examples.csv").write_text("text\nBroke.\n")
    line = ["plan", "in.csv", "--model", "sim:demo", "--template", TEMPLATE, "--output-field", "text: str"]
    assert main([*line, "--examples", "examples.csv"]) == 0
    turns = json.loads(capfd.readouterr().out.partition("First prompt: ")[2])
    assert [turn["content"] for turn in turns] == ["Rate: Broke.", '{"text": "Broke."}', "Rate: Fine."]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text,answer\na,good\n", "row 0 (line 2): the answer does not follow the schema"),
        (
            "text,mood,stars,buy,due\na,good,6,true,\n",
            "the answer violates the schema at properties/stars",
        ),
        ("text,mood,stars,buy,due\na,good,,true,\n", "row 0 (line 2): the answer violates the schema at "),
        (
            "text,mood\na,good\n",
            "no field 'answer', and no 'stars' of the schema; the row has 'text', 'mood'",
        ),
    ],
)
def test_examples_that_violate_the_schema_are_refused(content, problem, folder, capfd):
    Path("examples.csv").write_text(content)
    assert run("--examples", "examples.csv", *FIELDS) == 2
    assert problem in capfd.readouterr().err


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("text,label\na,good\n", "row 0 (line 2): no field 'answer'; the row has 'text', 'label'"),
        ("text,answer\na,good\n,bad\n", "row 1 (line 3): field 'text' is blank"),
        ("text,answer\n", "has no rows"),
        ("text,answer\n" + "a,good\n" * 1001, "row 1000 (line 1002): is beyond the limit of 1,000 examples"),
        ("text,answer\na,b,c\n", "line 2: "),
    ],
)
def test_unusable_examples_of_a_file_are_refused_with_their_line(content, problem, folder, capfd):
    Path("examples.csv").write_text(content)
    for on_missing in ("error", "skip"):
        assert run("--examples", "examples.csv", "--on-missing", on_missing) == 2
        assert f"--examples examples.csv: {problem}" in capfd.readouterr().err
