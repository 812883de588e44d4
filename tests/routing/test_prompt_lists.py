"""Every call that takes a list of prompts refuses anything else before it sends a request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
from levels import sampled

import smartbatch
from smartbatch import BatchingClient, InvalidRequest, Message, Request
from smartbatch.testing import MockProvider

Ask = Callable[[BatchingClient, Any], object]


class Frame:
    def __init__(self, columns: dict[str, list[str]]) -> None:
        self._columns = columns

    @property
    def columns(self) -> list[str]:
        return list(self._columns)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


class Interchanged(Frame):
    columns = None  # type: ignore[assignment]

    def __dataframe__(self) -> object:
        raise AssertionError("nobody reads it")


class LazyFrame:
    @property
    def columns(self) -> list[str]:
        raise AssertionError("nobody asks for them")


class Column:
    def __init__(self, values: list[str]) -> None:
        self._values = values

    def __arrow_c_stream__(self) -> object:
        raise AssertionError("nobody reads it")

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


ROWS = [f"text {n}" for n in range(1000)]

CALLS: dict[str, Ask] = {
    "generate": lambda client, prompts: client.generate(prompts),
    "generate by batch": lambda client, prompts: client.generate(prompts, strategy="batch"),
    "map": lambda client, prompts: list(client.map(prompts)),
    "as_completed": lambda client, prompts: list(client.as_completed(prompts)),
    "plan": lambda client, prompts: client.plan(prompts),
    "forecast": lambda client, prompts: client.forecast(prompts),
    "embed": lambda client, prompts: client.embed(prompts),
    "submit_batch": lambda client, prompts: client.submit_batch(prompts, batch_fallback="individual"),
    "submit_batch with a deadline": lambda client, prompts: client.submit_batch(prompts, deadline="2h"),
    "submit_and_wait": lambda client, prompts: client.submit_and_wait(prompts, timeout=30),
    "submit_run": lambda client, prompts: client.submit_run(prompts, client.forecast(["one"])),
    "smartbatch.generate": lambda _, prompts: smartbatch.generate(prompts, model="sim:x?latency=0"),
    "smartbatch.embed": lambda _, prompts: smartbatch.embed(prompts, model="sim:x?latency=0"),
}

NO_LISTS: dict[str, tuple[Any, str]] = {
    "table": (
        Frame({"id": ROWS, "text": ROWS}),
        r"is a table of an unsupported type \(Frame\).*such as table\['text'\]",
    ),
    "interchanged table": (Interchanged({"id": ROWS, "text": ROWS}), "is a table"),
    "lazy table": (LazyFrame(), "is a table"),
    "mapping": ({"first": "text", "second": "text"}, "not a single prompt"),
    "text": ("text", "not a single prompt"),
    "message": (Message("user", "text"), "not a single prompt"),
    "request": (Request("text"), "not a single prompt"),
    "bytes": (b"text", "decode it"),
    "set": ({"one", "two"}, "has no order"),
    "number": (5, "must be a list of prompts, not int"),
}


@pytest.mark.parametrize(
    ("ask", "prompts", "says"),
    sampled(
        [
            pytest.param(ask, prompts, says, id=f"{call}-{kind}")
            for call, ask in CALLS.items()
            for kind, (prompts, says) in NO_LISTS.items()
        ],
        keep=17,  # covers each call and each kind, because 17 is coprime to the numbers of both
    ),
)
def test_what_is_no_list_is_refused_and_nothing_is_sent(ask, prompts, says):
    provider = MockProvider(lambda request: f"re: {request.prompt}")
    with BatchingClient("mock", provider=provider) as client:
        with pytest.raises(InvalidRequest, match=says) as caught:
            ask(client, prompts)
        assert caught.value.field == "prompts"
        assert client.jobs() == []
    assert provider.calls == []


LISTS: dict[str, Callable[[], Any]] = {
    "list": lambda: ["a", "b"],
    "tuple": lambda: ("a", "b"),
    "deque": lambda: deque(["a", "b"]),
    "generator": lambda: (text for text in "ab"),
    "column": lambda: Column(["a", "b"]),
    "array": lambda: numpy.array(["a", "b"]),
    "values of a mapping": lambda: {"first": "a", "second": "b"}.values(),
    "keys of a mapping": lambda: {"a": 1, "b": 2}.keys(),
}


@pytest.mark.parametrize("prompts", sampled(LISTS.values(), keep=4), ids=LISTS)
def test_lists_columns_arrays_and_generators_are_read_in_order(prompts):
    with BatchingClient("mock", provider=MockProvider(lambda request: f"re: {request.prompt}")) as client:
        assert client.generate(prompts()).texts == ["re: a", "re: b"]
        assert client.submit_and_wait(prompts(), timeout=30).texts == ["re: a", "re: b"]


def test_a_column_is_checked_and_routed_like_a_list():
    with BatchingClient("sim:x?latency=0") as client:
        with pytest.raises(InvalidRequest, match="row 999"):
            client.map(Column([*ROWS[:-1], ""]))
        assert client.plan(Column(ROWS)).explain() == client.plan(ROWS).explain()


def test_rows_that_are_records_are_told_to_be_texts():
    with BatchingClient("sim:x?latency=0") as client, pytest.raises(InvalidRequest, match=r"row\['text'\]"):
        client.generate([{"id": 1, "text": "one"}])
