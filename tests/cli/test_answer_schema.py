"""Structured answers on the command line: ``--schema``, ``--output-field`` and ``--extra``."""

from __future__ import annotations

import csv
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from cli.runs import prompts, use_emulator, written

from smartbatch import ConfigError
from smartbatch.cli.answer_schema import answer_schema
from smartbatch.cli.clients import params_of
from smartbatch.cli.main import build_parser, main
from smartbatch.runs.row_keys import Keys
from smartbatch.testing import emulator
from smartbatch.types import Generation

RUN = ["run", "in.txt", "--model", "sim:demo?latency=0"]
LABEL = {"type": "object", "properties": {"mood": {"enum": ["good", "bad"]}}, "required": ["mood"]}


def options(schema: str | None = None, *fields: str) -> Namespace:
    return Namespace(schema=schema, output_field=list(fields))


def field_of(written: str) -> Any:
    schema = answer_schema(options(None, f"it: {written}"))
    assert schema is not None
    return schema["properties"]["it"]


@pytest.mark.parametrize(
    ("written", "schema"),
    [
        ("str", {"type": "string"}),
        ("bool", {"type": "boolean"}),
        ("int", {"type": "integer"}),
        ("int 1-5", {"type": "integer", "minimum": 1, "maximum": 5}),
        ("int  -5 - -1", {"type": "integer", "minimum": -5, "maximum": -1}),
        ("float 0-0.5", {"type": "number", "minimum": 0.0, "maximum": 0.5}),
        ("positive|negative | mixed", {"type": "string", "enum": ["positive", "negative", "mixed"]}),
        ("date|time|place", {"type": "string", "enum": ["date", "time", "place"]}),
        ("date|null", {"anyOf": [field_of("date"), {"type": "null"}]}),
        ("a|b|null", {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]}),
        ("list of str", {"type": "array", "items": {"type": "string"}}),
        ("list of a|b", {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}),
    ],
)
def test_a_field_has_the_schema_of_its_type(written, schema):
    assert field_of(written) == schema


def test_all_fields_of_the_options_are_required_and_no_others_allowed():
    schema = answer_schema(options(None, "mood: good|bad", "due :date"))
    assert schema is not None
    assert schema["required"] == list(schema["properties"]) == ["mood", "due"]
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (["stars"], "'stars': needs a name and a type, such as"),
        (["stars: int", "stars: str"], "stars: is given twice"),
        (["stars: integer"], "'integer' is not a type; did you mean int?"),
        (["stars: flaot"], "'flaot' is not a type; did you mean float?"),
        (["stars: xyzzy"], "'xyzzy' is not a type; write the field as in \"sentiment: positive|"),
        (["stars: int 1..5"], "'1..5' is not a range; write it as in int 1-5"),
        (["stars: int 1-2.5"], "needs whole numbers"),
        (["stars: int 5-1"], "the range 5-1 is empty"),
        (["stars: str 1-5"], "only int and float have a range"),
        (["stars: good||bad"], "an empty or a repeated value"),
        (["stars: good|good"], "an empty or a repeated value"),
        (["stars: int|str"], "has several types"),
        (["stars: a|null|b"], "null comes last"),
        (["stars: list of"], "is not a type"),
    ],
)
def test_a_wrong_field_is_refused_with_the_right_form(fields, problem):
    with pytest.raises(ConfigError) as caught:
        answer_schema(options(None, *fields))
    assert problem in str(caught.value)
    assert str(caught.value).startswith("--output-field ")


CLASS = """
from typing import Literal
from attrs import frozen

@frozen
class Label:
    mood: Literal["good", "bad"]

number = 5
"""


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("label.json", None, "label.json: cannot be read: No such file"),
        ("label.json", "{\n 1}", "label.json: is not valid JSON: "),
        ("label.json", "[1]", "label.json: must be a JSON object"),
        (
            "label.json",
            '{"name": "label", "schema": {"type": "object"}}',
            "label.json: must be a JSON object",
        ),
        ("label.json", '{"type": "strnig"}', "label.json: "),
        ("own_labels:Label", None, "own_labels:Label: cannot be imported: ModuleNotFoundError"),
        ("own_labels:Labl", CLASS, "own_labels:Labl: cannot be imported: AttributeError"),
        ("own_labels:number", CLASS, "own_labels:number: schema must be a JSON schema (a dict) or a type"),
    ],
)
def test_a_wrong_schema_is_refused_before_anything_is_sent(
    name, content, problem, folder, capfd, monkeypatch
):
    prompts(1)
    monkeypatch.delitem(sys.modules, "own_labels", raising=False)
    if content is not None:
        Path("own_labels.py" if ":" in name else name).write_text(content)
    assert main([*RUN, "--schema", name]) == 2
    assert f"--schema {problem}" in capfd.readouterr().err
    assert not Path("sim").exists()


def test_a_class_of_the_current_folder_gives_its_schema(folder, monkeypatch):
    Path("own_labels.py").write_text(CLASS)
    monkeypatch.delitem(sys.modules, "own_labels", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != ""])
    schema = answer_schema(options("own_labels:Label"))
    assert schema is not None
    assert schema["properties"]["mood"]["enum"] == ["good", "bad"]


def test_a_file_whose_name_looks_like_a_class_is_a_file(folder):
    Path("labels:v1").write_text(json.dumps(LABEL))
    assert answer_schema(options("labels:v1")) == LABEL


def test_equal_schemas_have_equal_keys_and_others_do_not(folder):
    Path("label.json").write_text(json.dumps(LABEL))
    Path("same.json").write_text(json.dumps(dict(reversed(LABEL.items())), indent=2))
    Path("other.json").write_text(json.dumps({**LABEL, "required": []}))

    def keys(*words: str) -> Keys:
        return Keys.of("sim:demo", params_of(build_parser().parse_args([*RUN, *words])))

    assert keys("--schema", "label.json") == keys("--schema", "same.json") != keys("--schema", "other.json")
    assert keys() == Keys.of("sim:demo", Generation())
    assert keys("--extra", "top_k=40") != keys() != keys("--output-field", "mood: good|bad")


@pytest.mark.parametrize("table", ["out.csv", pytest.param("out.parquet", marks=pytest.mark.full)])
def test_fields_of_the_answers_become_columns(table, folder):
    prompts(3)
    fields = ("--output-field", "mood: good|bad", "--output-field", "stars: int 1-5")
    assert main([*RUN, *fields, "--output-field", "model: str", "--quiet", "-o", table]) == 0
    if table.endswith(".csv"):
        rows = list(csv.DictReader(Path(table).read_text().splitlines()))
    else:
        rows = pyarrow.parquet.read_table(table).to_pylist()
    assert {row["mood"] for row in rows} <= {"good", "bad"}
    assert all(1 <= int(row["stars"]) <= 5 for row in rows)
    assert all(row["parsed_model"] != row["model"] == "sim:demo" for row in rows)


def test_schema_and_extra_are_sent_to_the_provider(folder, monkeypatch):
    prompts(1)
    Path("label.json").write_text(json.dumps(LABEL))
    with emulator() as emu:
        use_emulator(emu, monkeypatch)
        line = ["run", "in.txt", "--model", "openai:gpt-5-mini", "--quiet", "-o"]
        assert main([*line, "label.jsonl", "--schema", "label.json"]) == 0
        assert main([*line, "short.jsonl", "--extra", "max_completion_tokens=1"]) == 0
    assert written("label.jsonl")[0]["parsed"]["mood"] in ("good", "bad")
    assert written("short.jsonl")[0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--schema", "a.json", "--output-field", "a: str"], "both describe the answer: leave one out"),
        (["--extra", "top_k"], "--extra 'top_k' needs the form KEY=JSON, such as top_k=40"),
        (["--extra", "=4"], "needs the form KEY=JSON"),
        (["--extra", "user=sk-secret"], """--extra user: the value is not JSON; write it such as user=40"""),
        (["--extra", "a=1", "--extra", "a=2"], "--extra a: is given twice"),
        (
            [
                "--output-field",
                "a: str",
                "--extra",
                "faults=1",
                "--model",
                "openai:m",
                "--provider-option",
                "api_key=k",
                "--extra",
                'response_format={"type": "text"}',
            ],
            "the format is set twice",
        ),
        (["--embed", "--output-field", "a: str"], "--output-field applies to answers"),
        (["--embed", "--schema", "a.json"], "--schema applies to answers"),
        (["--embed", "--extra", "a=1"], "--extra applies to answers"),
    ],
)
def test_contradictions_and_wrong_forms_end_the_command(words, problem, folder, capfd):
    prompts(1)
    for command in ("run", "plan"):
        assert main([command, *RUN[1:], *words]) == 2
        told = capfd.readouterr().err
        assert problem in told
        assert "sk-secret" not in told
