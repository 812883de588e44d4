"""Table rows that lack a field of their prompt are rejected, skipped, or sent without it."""

from __future__ import annotations

from typing import Any

import pytest

from smartbatch import BatchingClient, InvalidRequest, ResultList, RowSkipped
from smartbatch.testing import MockProvider
from tests.levels import sampled
from tests.tables.kinds import TABLES

ROWS = [{"text": text} for text in ("a", None, "c", " ", "e", float("nan"))]


@pytest.fixture
def client():
    with BatchingClient("mock", provider=MockProvider(lambda request: f"re: {request.prompt}")) as made:
        yield made


def table_of(kind: str) -> Any:
    if kind in ("rows", "pandas"):
        return TABLES[kind](ROWS)
    return TABLES[kind]([{"text": row["text"] if isinstance(row["text"], str) else None} for row in ROWS])


EXPECTED = ["re: a!", None, "re: c!", None, "re: e!", None]


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_all_rows_that_lack_a_field_are_counted(client, kind):
    with pytest.raises(
        InvalidRequest, match=r"3 of 6 rows lack a field.*\(rows 1, 3, 5\).*'skip'.*'empty'"
    ) as e:
        client.generate(table_of(kind), template="{text}!")
    assert e.value.row == 1
    assert client.counts.submitted == 0


@pytest.mark.parametrize("kind", sampled(TABLES))
def test_a_skipped_row_has_its_result_in_its_place(client, kind):
    results = client.generate(table_of(kind), template="{text}!", on_missing="skip")
    assert results.texts == EXPECTED
    assert (results.succeeded, results.failed, results.skipped) == (3, 0, 3)
    skipped = results[3].error
    assert isinstance(skipped, RowSkipped)
    assert skipped.message == "row 3 (counted from 0) was skipped: blank `text`"
    assert results.to_arrow()["error_kind"].to_pylist()[3] == "row_skipped"
    results.to_table()
    assert client.counts.submitted == 3


@pytest.mark.parametrize("lazily", [False, True])
def test_every_call_skips(client, lazily):
    def rows() -> Any:
        return iter(ROWS) if lazily else ROWS

    skip: Any = {"template": "{text}!", "on_missing": "skip"}
    assert [result.text for result in client.map(rows(), **skip)] == EXPECTED
    came = [result.text for result in client.as_completed(rows(), **skip)]
    assert sorted(map(str, came)) == sorted(map(str, EXPECTED))
    assert client.plan(rows(), **skip).run().texts == EXPECTED
    assert client.plan(rows(), **skip).requests == 3


def test_a_skipped_row_raises_nothing(client):
    results = client.map(ROWS, template="{text}!", on_missing="skip", on_error="raise")
    assert [result.text for result in results] == EXPECTED
    assert client.generate([{"text": ""}], column="text", on_missing="skip").skipped == 1


def test_rows_behind_skipped_ones_keep_their_numbers(client):
    rows = [{"text": None}, {"text": "a"}, {"text": 5}]
    with pytest.raises(InvalidRequest, match=r"row 2 \(counted from 0\)") as caught:
        client.generate(rows, column="text", on_missing="skip")
    assert caught.value.row == 2


def test_an_empty_field_is_sent_empty(client):
    texts = client.generate(ROWS, template="{text}!", on_missing="empty").texts
    assert texts == ["re: a!", "re: !", "re: c!", "re:  !", "re: e!", "re: !"]
    with pytest.raises(InvalidRequest, match=r"row 1 .*is null, and a prompt cannot be empty"):
        client.generate(ROWS, column="text", on_missing="empty")


@pytest.mark.parametrize("how", ["error", "skip", "empty"])
def test_a_misspelt_field_is_always_an_error(client, how):
    with pytest.raises(InvalidRequest, match="no row has the field 'txt'"):
        client.generate(ROWS, template="{txt}", on_missing=how)


def test_what_cannot_be_skipped_is_refused(client):
    for call in (client.submit_batch, client.submit_and_wait):
        with pytest.raises(InvalidRequest, match=r"'skip' cannot be used for jobs.*strategy='batch'"):
            call(ROWS, template="{text}", on_missing="skip")
    with pytest.raises(InvalidRequest, match="on_missing needs a template or a column"):
        client.generate(["a"], on_missing="skip")
    with pytest.raises(InvalidRequest, match="on_missing must be one of 'error', 'skip', 'empty'"):
        client.generate(ROWS, column="text", on_missing="drop")  # type: ignore[arg-type]


def test_a_chat_in_a_cell_is_a_chat(client):
    (result,) = client.generate([{"chat": '[{"role": "user", "content": "hi"}]'}], column="chat")
    assert "Message" in (result.text or "") or "'content': 'hi'" in (result.text or "")
    assert isinstance(client.generate([{"chat": "[1]"}], column="chat"), ResultList)
