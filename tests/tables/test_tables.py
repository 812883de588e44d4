"""Tables as lists of prompts, and the same tables extended by their answers."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from levels import sampled

import smartbatch
from smartbatch import BatchingClient, InvalidRequest, Result, ResultList, SmartbatchError
from smartbatch.providers import OpenAIProvider
from smartbatch.testing import MockProvider, emulator
from tests.tables.kinds import TABLES

ROWS = [{"id": 3, "text": "red", "n": 1.5}, {"id": 1, "text": "blue", "n": 2.0}]
VECTORS = ResultList(Result(str(size), embedding=array("f", [size])) for size in (3.0, 4.0))
ANSWERS = ["text", "input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost", "latency"]
ANSWERS += ["route", "attempts", "model", "finish_reason", "error_kind", "error"]


@pytest.fixture
def client():
    with BatchingClient("mock", provider=MockProvider(lambda request: f"re: {request.prompt}")) as made:
        yield made


MAKE = {kind: partial(make, ROWS) for kind, make in TABLES.items()}
KINDS = [pytest.param(make, id=name) for name, make in MAKE.items()]
CALLS: dict[str, Callable[[BatchingClient, Any], Sequence[Result]]] = {
    "generate": lambda client, table: client.generate(table, template="{text} {id}"),
    "submit_and_wait": lambda client, table: client.submit_and_wait(
        table, template="{text} {id}", timeout=30
    ),
    "plan": lambda client, table: client.plan(table, template="{text} {id}").run(),
    "map": lambda client, table: ResultList(client.map(table, template="{text} {id}")),
    "submit_batch": lambda client, table: ResultList(
        client.submit_batch(table, template="{text} {id}", batch_fallback="individual").results()
    ),
}


def columns_of(table: Any) -> list[str]:
    if isinstance(table, list):
        return list(table[0])
    return list(getattr(table, "column_names", None) or table.columns)


def column_of(table: Any, name: str) -> list[Any]:
    if isinstance(table, list):
        return [row[name] for row in table]
    values = table[name]
    return [value.as_py() if hasattr(value, "as_py") else value for value in values]


@pytest.mark.full
def test_a_stream_of_rows_is_asked_row_by_row(client):
    import datasets

    stream = datasets.IterableDataset.from_generator(lambda: ({"text": f"t{n}"} for n in itertools.count()))
    results = client.map(stream, template="{text}!")
    assert [result.text for result in itertools.islice(results, 3)] == ["re: t0!", "re: t1!", "re: t2!"]


@pytest.mark.full
def test_a_table_in_parts_is_asked_part_by_part(client):
    read: list[int] = []

    def parts() -> Iterator[Any]:
        for number in range(1000):
            read.append(number)
            yield MAKE["record batch"]()

    results = client.map(parts(), template="{text} {id}")
    assert [result.text for result in itertools.islice(results, 3)] == [
        "re: red 3",
        "re: blue 1",
        "re: red 3",
    ]
    assert len(read) <= client.config.queue_capacity
    assert (
        client.generate([MAKE["pandas"](), MAKE["polars"]()], column="text").texts
        == ["re: red", "re: blue"] * 2
    )
    with pytest.raises(InvalidRequest, match=r"template names 'txt'.*'id', 'text', 'n'"):
        client.generate([MAKE["arrow"]()], template="{txt}")


@pytest.mark.full
def test_a_column_of_arrow_is_a_list_of_prompts(client):
    for column in (MAKE["arrow"]()["text"], MAKE["record batch"]()["text"]):
        results = client.generate(column)
        assert results.texts == ["re: red", "re: blue"]
        assert columns_of(results.to_table())[:2] == ["prompt", "text"]


@pytest.mark.full
def test_several_tables_are_refused_with_their_names(client):
    import datasets

    stream = MAKE["datasets"]().to_iterable_dataset()
    for tables in ({"train": MAKE["arrow"]()}, datasets.IterableDatasetDict({"train": stream})):
        with pytest.raises(
            InvalidRequest, match=r"contains several tables \(\w+\), 'train': pass one of them"
        ):
            client.generate(tables, column="text")
    with pytest.raises(InvalidRequest, match=r"with the columns 'id', 'text', 'n'.*column=.*template="):
        client.generate(stream)


@pytest.mark.parametrize("make", sampled(KINDS))
@pytest.mark.parametrize("ask", sampled(CALLS.values()), ids=list(CALLS))
def test_a_table_comes_back_in_its_kind_with_a_row_a_request(client, make, ask):
    table = make()
    results = ask(client, table)
    back = results.to_table(table)
    assert type(back) is type(table)
    assert columns_of(back) == ["id", "text", "n", "result_text", *ANSWERS[1:]]
    assert column_of(back, "id") == [3, 1]
    assert column_of(back, "result_text") == ["re: red 3", "re: blue 1"]
    assert columns_of(table) == ["id", "text", "n"]


@pytest.mark.parametrize("make", sampled(KINDS))
def test_a_list_call_remembers_its_table(client, make):
    table = make()
    for results in (
        client.generate(table, column="text"),
        client.plan(table, column="text").run(),
        client.submit_and_wait(table, column="text", timeout=30),
    ):
        assert results.texts == ["re: red", "re: blue"]
        assert results.table is table
        assert column_of(results.to_table(), "result_text") == results.texts


@pytest.mark.parametrize("make", sampled(KINDS))
def test_vectors_are_a_column_instead_of_texts(make):
    back = VECTORS.to_table(make())
    assert [list(vector) for vector in column_of(back, "embedding")] == [[3.0], [4.0]]
    assert "result_text" not in columns_of(back)


def test_a_column_is_embedded():
    with emulator() as served:
        provider = OpenAIProvider("sk-test", served.base_url)
        vectors = smartbatch.embed(ROWS, column="text", model="text-embedding-3-small", provider=provider)
    assert [len(row["embedding"]) > 0 for row in vectors.to_table()] == [True, True]


@pytest.mark.full
def test_the_index_of_a_frame_is_kept(client):
    import pandas

    frame = MAKE["pandas"]()
    for index in (["b", "a"], ["x", "x"], pandas.MultiIndex.from_tuples([(1, "a"), (1, "b")])):
        frame.index = index
        results = client.generate(frame, template="{text}")
        assert results.to_pandas().index.equals(frame.index)
        assert results.to_table().index.equals(frame.index)
        named = client.generate(frame["text"])
        assert named.to_pandas().index.equals(frame.index)
        assert list(named.to_table().columns[:2]) == ["text", "result_text"]


@pytest.mark.full
def test_columns_have_the_types_of_their_values(client):
    import polars
    import pyarrow

    results = client.generate(ROWS, template="{text}")
    frame = results.to_pandas()
    assert list(frame.columns) == ANSWERS
    assert frame["attempts"].dtype == "int64"
    assert frame["cost"].dtype == "float64"
    assert frame["error"].isna().all()
    assert results.to_polars().schema["error"] == polars.String
    assert results.to_arrow().schema.field("output_tokens").type == pyarrow.int64()
    assert VECTORS.to_arrow().schema.field("embedding").type == pyarrow.list_(pyarrow.float32())
    assert VECTORS.to_polars()["embedding"].to_list() == [[3.0], [4.0]]
    assert ResultList().to_pandas().empty
    assert ResultList().to_arrow().num_rows == 0


def test_rows_are_read_lazily_from_an_iterator(client):
    seen: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(10_000):
            seen.append(number)
            yield {"text": f"text {number}"}

    results = client.map(rows(), template="{text}")
    assert next(results).text == "re: text 0"
    assert len(seen) <= client.config.queue_capacity


def test_a_column_may_hold_chats(client):
    rows = [{"chat": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}]
    (result,) = client.generate(rows, column="chat")
    assert "Be brief." in str(result.text)


def test_values_that_are_no_texts_are_written_as_json(client):
    rows = [{"n": 1, "f": 0.5, "yes": True, "tags": ["ä", 1], "on": date(2026, 1, 2), "usd": Decimal("1.50")}]
    (result,) = client.generate(rows, template="{n} {f} {yes} {tags} {on} {usd} {{n}}")
    assert result.text == 're: 1 0.5 true ["ä", 1] 2026-01-02 1.50 {n}'


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no way to a prompt": ({}, r"is a table \(\w+\) with the columns 'id', 'text', 'n'.*column=.*template="),
    "unknown column": ({"column": "txt"}, r"column names 'txt'.*'id', 'text', 'n'"),
    "unknown field": ({"template": "{txt}"}, r"template names 'txt'.*'id', 'text', 'n'"),
    "both": ({"template": "{text}", "column": "text"}, "template and column"),
    "attribute": ({"template": "{text.upper}"}, "not a plain field name"),
    "no field": ({"template": "Classify"}, "without a field"),
}


@pytest.mark.full
@pytest.mark.parametrize("make", [MAKE["pandas"], MAKE["polars"], MAKE["arrow"]])
@pytest.mark.parametrize(("given", "says"), REFUSED.values(), ids=list(REFUSED))
def test_a_table_without_a_way_to_a_prompt_is_refused_with_its_columns(client, make, given, says):
    with pytest.raises(InvalidRequest, match=says):
        client.generate(make(), **given)
    with pytest.raises(InvalidRequest, match=says):
        client.submit_batch(make(), **given)
    assert client.counts.submitted == 0


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        (["a text"], r"with a column: row 0 is str"),
        ([{"text": "a"}, {"id": 2}], r"row 1 .*: no field 'text'; the row has 'id'"),
        ([{"text": "a"}, {"text": None}], r"row 1 .*: field 'text' is null; 1 of 2 rows .*on_missing='skip'"),
        ([{"text": float("nan")}], r"row 0 .*: field 'text' is null"),
        ({"text": ["a", "b"]}, r"not a single prompt"),
    ],
)
def test_rows_that_give_no_prompt_are_refused(client, prompts, says):
    with pytest.raises(InvalidRequest, match=says):
        client.generate(prompts, column="text")


@pytest.mark.full
@pytest.mark.parametrize("make", [MAKE["pandas"], MAKE["polars"]])
def test_a_missing_value_is_no_prompt(client, make):
    table = make()[["n"]]
    table = type(table)({"n": [1.0, None], "text": [None, "a"]})
    for name in ("n", "text"):
        with pytest.raises(InvalidRequest, match=f"field '{name}' is null"):
            client.generate(table, column=name)


@pytest.mark.full
@pytest.mark.parametrize("make", [MAKE["pandas"], MAKE["polars"], MAKE["arrow"]])
def test_a_table_without_rows_has_no_answers(client, make):
    table = make()
    none = table.iloc[:0] if hasattr(table, "iloc") else table[:0]
    back = client.generate(none, column="text").to_table()
    assert (type(back), len(back)) == (type(table), 0)
    assert columns_of(back)[-1] == "error"


@pytest.mark.full
def test_two_columns_of_one_name_are_told_apart_from_none(client):
    import pandas

    twice = pandas.DataFrame([["a", "b", 1]], columns=["text", "text", 0])
    with pytest.raises(InvalidRequest, match="'text', but the table has 2 columns of that name"):
        client.generate(twice, column="text")
    assert client.generate(twice, template="{0}").texts == ["re: 1"]


def test_results_that_came_from_no_table_say_so(client):
    results = client.generate(["a", "b"])
    with pytest.raises(ValueError, match=r"to_table\(table\)"):
        results.to_table()
    with pytest.raises(ValueError, match="3 rows, but there are 2 results"):
        results.to_table([{"id": 1}] * 3)
    assert [row["text"] for row in results.as_dicts()] == ["re: a", "re: b"]


@frozen
class Town:
    name: str
    text: str
    at: tuple[float, float]


@dataclasses.dataclass
class Place:
    name: str
    parsed_text: int


def test_parsed_fields_are_columns_by_their_own_names():
    results = ResultList(
        [
            Result("1", text="{}", parsed=Town("Ulm", "old", (1.0, 2.0))),
            Result("2", text="{}", parsed=Place("Rom", 5)),
            Result("3", text="{}", parsed={"name": "Köln", "cost": None}),
            Result("4", text="[1]", parsed=[1]),
            Result("5", error=SmartbatchError("lost")),
        ]
    )
    rows = results.as_dicts()
    assert [row["name"] for row in rows] == ["Ulm", "Rom", "Köln", None, None]
    assert rows[0]["at"] == [1.0, 2.0]
    assert rows[0]["parsed_parsed_text"] == "old"
    assert rows[1]["parsed_text"] == 5
    assert [row["parsed"] for row in rows] == [None, None, None, [1], None]
    assert (rows[4]["text"], rows[4]["error"]) == (None, "lost")
    assert rows[4]["error_kind"] == "smartbatch_error"
    assert len({tuple(row) for row in rows}) == 1


HALF = "half \ud83d of a pair"


@pytest.mark.parametrize(
    ("values", "replaced"),
    [([HALF], True), ([None, HALF], True), ([1, HALF], False), ([[HALF]], False), ([{"a": HALF}], False)],
    ids=["text", "with gaps", "mixed", "list", "record"],
)
def test_half_a_surrogate_pair_fits_into_every_kind_of_table(values, replaced):
    results = ResultList([Result(str(n), text="", parsed={"value": value}) for n, value in enumerate(values)])
    for table in (results.to_pandas(), results.to_arrow(), results.to_polars()):
        found = column_of(table, "value")
        assert len(found) == len(values)
        if replaced:
            assert found[-1] == "half ? of a pair"


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**65), 2**65)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.full
@given(st.lists(VALUES, max_size=8))
def test_whatever_is_parsed_fits_into_every_kind_of_table(values):
    results = ResultList([Result(str(n), text="", parsed={"value": value}) for n, value in enumerate(values)])
    frame, arrow, polars = results.to_pandas(), results.to_arrow(), results.to_polars()
    assert len(frame) == arrow.num_rows == polars.height == len(values)
    if not values:
        return
    assert arrow.column("value").to_pylist() == polars["value"].to_list()
    if all(isinstance(value, str) for value in values):
        assert arrow.column("value").to_pylist() == [v.encode("utf-8", "replace").decode() for v in values]
    if all(isinstance(value, int) and abs(value) < 2**63 for value in values):
        assert [int(value) for value in arrow.column("value").to_pylist()] == [int(value) for value in values]
    assert [value is None for value in arrow.column("value").to_pylist()] == [v is None for v in values]


@pytest.mark.full
@given(st.lists(st.tuples(st.integers(), st.text(min_size=1).filter(str.strip)), min_size=1, max_size=6))
def test_order_and_index_survive_the_round_trip(rows):
    import pandas

    index, texts = zip(*rows, strict=True)
    frame = pandas.DataFrame({"text": texts}, index=index)
    with BatchingClient("mock", provider=MockProvider(lambda request: str(request.prompt))) as client:
        back = client.generate(frame, column="text").to_table()
    assert list(back.index) == list(index)
    assert list(back["text"]) == list(back["result_text"]) == list(texts)


def test_no_library_of_tables_is_imported_to_recognise_one(client):
    before = set(sys.modules)
    client.generate(ROWS, template="{text}").to_table()
    client.generate(["a"])
    assert not {name.split(".")[0] for name in set(sys.modules) - before} & {"pandas", "polars", "pyarrow"}


@pytest.mark.parametrize("make", KINDS)
def test_answer_columns_are_chosen_and_renamed(client, make):
    results = client.generate(make(), template="{text} {id}")
    joined = results.to_table(columns=["model", "text"], suffix="_mock")
    assert columns_of(joined) == ["id", "text", "n", "model_mock", "text_mock"]
    assert column_of(joined, "text_mock") == results.texts


def test_a_chosen_column_that_does_not_exist_is_named(client):
    results = client.generate(["a"])
    assert list(results.to_polars(columns=("cost", "text"), suffix="_a").columns) == ["cost_a", "text_a"]
    assert results.to_arrow(columns=["text"]).column_names == ["text"]
    with pytest.raises(ValueError, match=r"'txt'; did you mean text\?; the columns are 'text'"):
        results.to_pandas(columns=["txt"])
