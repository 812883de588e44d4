"""Prompts, ids and keys of rows, and the requests of an input."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.errors import InputError
from smartbatch.runs.row_keys import HALF_BYTES, Keys, RowKeys
from smartbatch.runs.row_requests import InputRequests, PromptMaker
from smartbatch.tables.cells import BadField
from smartbatch.tables.row_source import Row, RowSource
from smartbatch.types import Generation, Request


def row(**fields: Any) -> Row:
    return Row(7, 9, fields)


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("Classify: {text}", "Classify: good"),
        ("{text}{text}", "goodgood"),
        ('{{"a": {n}}}', '{"a": 3}'),
        ("{yes} {list} {nested}", 'true ["é"] {"a": null}'),
        ("{a column}!", "spaced!"),
    ],
)
def test_a_template_puts_fields_in_their_places(template, prompt):
    fields = {"text": "good", "n": 3, "yes": True, "list": ["é"], "nested": {"a": None}, "a column": "spaced"}
    assert PromptMaker(template=template).prompt(row(**fields)) == prompt


@pytest.mark.parametrize(
    "template",
    [
        "{a.b}",
        "{a[0]}",
        "{a!r}",
        "{a:>10000}",
        "{a:q}",
        "{}",
        "{a",
        "a}",
        "no field at all",
        "{a.__class__}",
        "{a:{b}}",
    ],
)
def test_a_template_that_is_more_than_fields_is_refused(template):
    with pytest.raises(InputError, match=r"^--template.*\{field\}"):
        PromptMaker(template=template)


@given(st.text(), st.text())
def test_a_field_that_looks_like_a_template_is_only_text(before, value):
    literal = before.replace("{", "{{").replace("}", "}}")
    assert PromptMaker(template=literal + "{x}", on_missing="empty").prompt(row(x=value)) == before + value


def test_a_missing_field_is_named_with_the_fields_there_are():
    lacking = row(text="secret", other=1)
    for ask in (
        lambda: PromptMaker(template="{txet}").prompt(lacking),
        lambda: PromptMaker(prompt_field="txet").prompt(lacking),
        lambda: PromptMaker(id_field="txet").id(lacking),
    ):
        with pytest.raises(BadField) as caught:
            ask()
        assert caught.value.message == "no field 'txet'; the row has 'text', 'other'"


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"prompt": "p", "messages": [], "text": "t"}, "p"),
        ({"messages": [{"role": "user", "content": "hi"}], "text": "t"}, [{"role": "user", "content": "hi"}]),
        ({"id": "r1", "text": "t", "n": 1}, "t"),
    ],
)
def test_without_a_word_from_the_user_the_prompt_is_the_plain_meaning(fields, prompt):
    assert PromptMaker().prompt(row(**fields)) == prompt


@pytest.mark.parametrize("fields", [{"question": "q", "answer": "a"}, {"n": 1}, {}])
def test_an_unclear_row_is_refused_with_the_way_out(fields):
    with pytest.raises(BadField, match="use --prompt-field or --template"):
        PromptMaker().prompt(row(**fields))


def test_the_id_is_the_named_field_or_id_or_the_index():
    assert PromptMaker().id(row(text="x")) == 7
    assert PromptMaker().id(row(id="a")) == "a"
    assert PromptMaker(id_field="n").id(row(n=5, id="a")) == 5
    assert PromptMaker(id_field="-").id(row(id=[1])) == 7


@pytest.mark.parametrize(
    ("value", "id"),
    [(1.0, 1), (1.5, "1.5"), (-0.0, 0), (1e300, "1e+300"), ("1.0", "1.0"), (" a ", " a "), (0, 0)],
)
def test_numbers_and_text_are_ids(value, id):
    assert PromptMaker().id(row(id=value)) == id
    assert type(PromptMaker().id(row(id=value))) is type(id)


@pytest.mark.parametrize("value", [None, "", "  ", float("nan"), True, False, [1], {"a": 1}])
@pytest.mark.parametrize("named", ["id", None])
def test_what_identifies_no_row_is_refused_with_the_way_out(value, named):
    with pytest.raises(BadField, match=r"^field 'id'.*--id-field names another field, --id-field - numbers"):
        PromptMaker(id_field=named).id(row(id=value))


def test_keys_tell_settings_from_prompts():
    one = Keys.of("sim:a", Generation())
    other = Keys.of("sim:a", Generation(system="s"))
    assert len({one.settings, other.settings, Keys.of("sim:b", Generation()).settings}) == 3
    assert one.key("p")[:HALF_BYTES] == one.key("q")[:HALF_BYTES] == one.settings
    assert one.key("p")[HALF_BYTES:] == other.key("p")[HALF_BYTES:] != one.key("q")[HALF_BYTES:]
    assert one.key([{"role": "user", "content": "p"}]) == one.key([{"content": "p", "role": "user"}])
    assert one.key("\ud800") != one.key("?"), "a lone surrogate is digested, to be refused elsewhere"
    assert len({one.key("p"), one.key(Request("p", model="b")), one.key(Request("p", model="c"))}) == 3


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "in.txt"
    path.write_text("".join(f"prompt {i}\n" for i in range(10)))
    with RowSource(str(path)) as source:
        requests = InputRequests(source, PromptMaker(), model="sim:demo", params=Generation())
        requests.check()
        yield requests


def test_rows_are_found_in_any_order(rows):
    row_at = rows.row_lookup(lambda _: False, ordered=False)
    for index in (3, 0, 9, 1, 2, 8, 4, 5, 7, 6):
        row = row_at(index)
        assert (row.index, row.fields) == (index, {"prompt": f"prompt {index}"})


def test_rows_that_come_in_order_are_not_kept(rows):
    row_at = rows.row_lookup(lambda index: index == 8, ordered=True)
    assert [row_at(index).index for index in (0, 2, 3, 7)] == [0, 2, 3, 7]
    with pytest.raises(InputError, match="changed while it was being read"):
        row_at(8)


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "csv"])
@pytest.mark.parametrize("first", [0, 1, 6, 7, 8, 13, 14, 40, 49])
def test_rows_behind_answered_ones_are_the_same_wherever_reading_begins(tmp_path, monkeypatch, ending, first):
    monkeypatch.setattr("smartbatch.tables.row_source._PLACE_INTERVAL_ROWS", 7)
    lines = [
        "\ufeff" + json.dumps({"prompt": "é 0"}),
        *(json.dumps({"prompt": f"é {i}"}) for i in range(1, 60)),
    ]
    text = "\n\n".join(lines) if ending != "csv" else "prompt\n" + "\n".join(f"é {i}" for i in range(60))
    path = tmp_path / f"in.{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending.endswith("gz") else text.encode())
    with RowSource(str(path)) as source:
        requests = InputRequests(source, PromptMaker(), model="sim:demo", params=Generation(), limit=50)
        requests.check()
        read = list(requests.read(lambda index: index < first, stopped=lambda: False))
    assert [request.prompt for request in read] == [f"é {i}" for i in range(first, 50)]
    assert [request.context.index for request in read] == list(range(first, 50))


def test_rows_that_are_answered_are_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr("smartbatch.tables.row_source._PLACE_INTERVAL_ROWS", 10)
    path = tmp_path / "in.jsonl"
    path.write_text("".join(f'{{"prompt": "row {i}"}}\n' for i in range(30)))
    with RowSource(str(path)) as source:
        requests = InputRequests(source, PromptMaker(), model="sim:demo", params=Generation())
        requests.check()
        changed = path.read_bytes().replace(b'{"prompt": "row 3"}', b'["prompt": "row 3"]')
        with path.open("r+b") as file:
            file.write(changed)
        assert requests.row_lookup(lambda index: index < 25, ordered=True)(29).index == 29
        with pytest.raises(InputError, match="changed while it was being read"):
            requests.row_lookup(lambda index: index < 5, ordered=True)(29)
        with path.open("ab") as file:
            file.write(b'{"prompt": "row 30"}\n')
        with pytest.raises(InputError, match="changed while it was being read"):
            list(requests.read(lambda index: index < 25, stopped=lambda: False))


def test_the_digest_of_many_keys_takes_no_memory():
    keys = RowKeys(bytes(16))
    for row in range(50_000):
        keys.append(row.to_bytes(16))
    before = keys.digest(len(keys), "place")
    keys.append(bytes(16))
    tracemalloc.start()
    try:
        assert keys.digest(50_000, "place") == before != keys.digest(50_001, "place")
        assert tracemalloc.get_traced_memory()[1] < 50_000
    finally:
        tracemalloc.stop()


# -- models ----------------------------------------------------------------------------------------------


def test_a_row_that_is_a_request_may_name_its_model():
    fields = {"prompt": "one", "model": "gpt-5"}
    made = PromptMaker().prompt(row(**fields))
    assert isinstance(made, Request)
    assert (made.prompt, made.model) == ("one", "gpt-5")
    chat = PromptMaker().prompt(row(messages=[{"role": "user", "content": "x"}], model="gpt-5"))
    assert chat.model == "gpt-5"
    assert PromptMaker().prompt(row(prompt="one", model="")) == "one"
    assert PromptMaker(template="{prompt} {model}").prompt(row(**fields)) == "one gpt-5"
    assert PromptMaker(prompt_field="prompt").prompt(row(**fields)).model == "gpt-5"
    assert PromptMaker(prompt_field="text").prompt(row(text="two", **fields)) == "two"
    with pytest.raises(BadField, match="'model' must be text"):
        PromptMaker().prompt(row(prompt="one", model=5))
