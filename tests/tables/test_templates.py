"""Templates in files: placeholders in a text file, and Jinja in a file that ends in .j2."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient, InvalidRequest
from smartbatch.tables.cells import BadField, MissingFields
from smartbatch.tables.row_prompts import RowPrompts
from smartbatch.tables.templates import TemplateError
from smartbatch.testing import MockProvider
from smartbatch.types import OnMissing
from tests.levels import sampled
from tests.tables.kinds import TABLES

DAY = date(2026, 3, 1)


@pytest.fixture
def client():
    with BatchingClient("mock", provider=MockProvider(lambda request: f"re: {request.prompt}")) as made:
        yield made


@pytest.fixture
def prompt(tmp_path):
    def fill(text: str, row: dict[str, Any], on_missing: OnMissing = "error") -> str:
        (tmp_path / "prompt.j2").write_text(text)
        return str(RowPrompts.of(tmp_path / "prompt.j2", None, on_missing).prompt(row))

    return fill


def test_a_path_is_the_file_of_the_template(client, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"\xef\xbb\xbfReview:\r\n{text}\n")
    results = client.generate([{"text": "Grüße"}], template=tmp_path / "prompt.txt")
    assert results.texts == ["re: Review:\nGrüße"]


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_a_jinja_template_reads_only_its_columns_of_a_table(kind, client, tmp_path):
    (tmp_path / "prompt.j2").write_text("{% if title %}{{ title }}: {% endif %}{{ text }}\n")
    table = TABLES[kind](
        [{"title": "Kettle", "text": "good", "n": 1}, {"title": None, "text": "bad", "n": 2}]
    )
    results = client.generate(table, template=tmp_path / "prompt.j2")
    assert results.texts == ["re: Kettle: good", "re: bad"]


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_the_variable_row_has_all_columns_of_a_table(kind, client, tmp_path):
    (tmp_path / "prompt.j2").write_text("{{ row['Review Text'] }} {{ n }}")
    table = TABLES[kind]([{"n": 1, "Review Text": "good"}])
    assert client.generate(table, template=tmp_path / "prompt.j2").texts == ["re: good 1"]


@pytest.mark.parametrize(
    ("text", "row", "filled"),
    [
        ("{% for tag in tags %}\n- {{ tag }}\n{% endfor %}", {"tags": ["a", "b"]}, "- a\n- b\n"),
        ("{{ on }} {{ at }} {{ n }} {{ many }}", {"on": True, "at": DAY, "n": 2.5, "many": ["é"]},
         'true 2026-03-01 2.5 ["é"]'),
        ("{{ row['Review Text'] }}", {"Review Text": "<b>"}, "<b>"),
        ("{% for name, value in row.items() %}{{ name }}={{ value }};{% endfor %}", {"a": 1, "b": "", "c": 2},
         "a=1;c=2;"),
        ("{{ title | default('none') }} {{ text }}", {"title": " ", "text": "t"}, "none t"),
        ("{{ range }}", {"range": "$5 to $9"}, "$5 to $9"),
        ("{{ row }}", {"row": "a column of that name"}, "a column of that name"),
    ],
)  # fmt: skip
def test_conditions_and_loops_are_filled_from_a_row(text, row, filled, prompt):
    assert prompt(text, row) == filled


@pytest.mark.parametrize("value", [None, "", " \n", float("nan")])
def test_a_blank_field_may_be_tested_but_not_inserted(value, prompt):
    row = {"title": value, "text": "t"}
    assert prompt("{% if not title %}untitled {% endif %}{{ text }}", row) == "untitled t"
    with pytest.raises(MissingFields) as caught:
        prompt("{{ text }}{{ title }}", row)
    assert caught.value.names == ["title"]
    assert "field 'title' is " in caught.value.message
    assert prompt("{{ text }}{{ title }}{% for _ in title %}x{% endfor %}", row, "empty") == "t"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Rate {text}.", "all prompts would be identical; write {{ field }} for a field"),
        ("a\n{% if b %}", "line 2: Unexpected end of template"),
        ("{{ text | nosuchfilter }}", "line 1: No filter named 'nosuchfilter'"),
        ("{{ " + "(" * 5_000 + "text", "nested too deeply"),
        ("{% include 'other.j2' %}{{ text }}", "cannot include, import or extend others"),
        ("{% import name as other %}{{ text }}", "cannot include, import or extend others"),
    ],
)
def test_an_invalid_template_is_refused_with_its_line(text, problem, prompt):
    with pytest.raises(TemplateError) as caught:
        prompt(text, {"text": "t"})
    assert "prompt.j2: " in str(caught.value)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ text.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("\n{{ text / 2 }}", "line 2 of the template: the template cannot be filled in: TypeError"),
        ("{{ tags.append(1) }}{{ text }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ range(9) | list }}{{ text }}", "no field 'range'"),
    ],
)
def test_a_template_runs_no_code_and_its_errors_repeat_no_cell(text, problem, prompt):
    with pytest.raises(BadField) as caught:
        prompt(text, {"text": "a secret", "tags": ["a secret"]})
    assert problem in caught.value.message
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "template", [[{"role": "user", "content": "{text}"}], {"role": "user"}, b"{text}", 3]
)
def test_only_text_and_paths_are_templates(template, client):
    with pytest.raises(InvalidRequest, match=r"template: must be text .* or pass a list of chats") as caught:
        client.generate([{"text": "t"}], template=template)
    assert caught.value.field == "template"
    assert client.counts.submitted == 0


def test_a_list_names_the_row_that_a_template_cannot_use(client, tmp_path):
    (tmp_path / "prompt.j2").write_text("{{ 10 / n }}")
    with pytest.raises(
        InvalidRequest, match=r"row 1 \(counted from 0\): line 1 of the template.*ZeroDiv"
    ) as e:
        client.generate([{"n": 1}, {"n": 0}], template=tmp_path / "prompt.j2")
    assert e.value.row == 1
    (tmp_path / "prompt.j2").write_text("{% if m %}{{ n }}{% endif %}")
    with pytest.raises(InvalidRequest, match="no row has the field 'm'"):
        client.generate([{"n": 1}], template=tmp_path / "prompt.j2")
    with pytest.raises(InvalidRequest, match=r"template: .*missing.txt: cannot be read: No such file"):
        client.generate([{"n": 1}], template=Path(tmp_path, "missing.txt"))
