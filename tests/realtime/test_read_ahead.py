"""Prompts from iterators: an answer is returned before the next prompt exists."""

from __future__ import annotations

import contextvars
import gc
import queue
import sqlite3
import threading
import traceback
from itertools import count, islice

import pytest

from smartbatch import BatchingClient, InvalidRequest
from smartbatch.testing import MockProvider

NAME = "smartbatch-prompts"


@pytest.fixture
def client():
    provider = MockProvider(lambda request: f"re: {request.prompt}")
    with BatchingClient("mock", provider=provider, queue_capacity=100) as made:
        yield made


def readers():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def end_of_readers():
    for thread in readers():
        thread.join(10)
    assert not readers()


class Conversation:
    def __init__(self):
        self._given = queue.Queue()

    def __iter__(self):
        while (prompt := self._given.get(timeout=30)) is not None:
            yield prompt

    def say(self, prompt):
        self._given.put(prompt)


@pytest.mark.parametrize("method", ["map", "as_completed"])
def test_an_answer_comes_before_the_next_prompt(client, method):
    prompts = Conversation()
    prompts.say("0")
    texts = []
    for result in getattr(client, method)(iter(prompts)):
        texts.append(result.text)
        prompts.say(str(len(texts)) if len(texts) < 20 else None)
    assert texts == [f"re: {n}" for n in range(20)]
    end_of_readers()


def test_an_answer_is_told_before_the_next_prompt(client):
    prompts = Conversation()
    prompts.say("first")

    def told(progress):
        prompts.say("last" if progress.finished == 1 else None)

    assert client.generate(iter(prompts), on_progress=told).texts == ["re: first", "re: last"]


def test_no_more_is_read_than_there_is_room_for():
    read = []

    def endless():
        for n in count():
            read.append(n)
            yield str(n)

    with BatchingClient(
        "mock", provider=MockProvider(lambda request: request.prompt), queue_capacity=100
    ) as small:
        results = small.map(endless())
        for taken in (1, 30, 200):
            assert len(list(islice(results, taken))) == taken
        assert 231 <= len(read) <= 231 + 11 * 100 + 64  # in progress, behind a slow request, and read ahead
        assert [*read] == list(range(len(read)))
        results.close()
    end_of_readers()


def test_the_iterator_sees_the_context_of_the_caller(client):
    who = contextvars.ContextVar("who", default="nobody")
    seen = []

    def prompts():
        seen.append((who.get(), threading.get_ident()))
        yield "a"

    who.set("me")
    assert client.generate(prompts()).texts == ["re: a"]
    assert client.generate(prompts(), read_ahead=False).texts == ["re: a"]
    assert [name for name, _ in seen] == ["me", "me"]
    assert seen[0][1] != threading.get_ident() == seen[1][1]


def test_an_error_of_the_iterator_comes_after_the_results_before_it(client):
    def prompts():
        yield "a"
        yield "b"
        raise OSError("the line is dead")

    results = client.map(prompts())
    assert [next(results).text, next(results).text] == ["re: a", "re: b"]
    with pytest.raises(OSError, match="the line is dead") as caught:
        next(results)
    assert caught.value.__notes__ == ["raised while prompt 2 (counted from 0) was read"]
    with pytest.raises(InvalidRequest, match=r"row 1 \(counted from 0\)"):
        list(client.map(iter(["a", ""])))
    end_of_readers()


@pytest.mark.parametrize("leave", ["break", "close", "raise"])
def test_a_generator_is_closed_on_its_thread(client, leave):
    closed_by = queue.Queue()

    def prompts():
        try:
            yield from map(str, count())
        finally:
            closed_by.put(threading.current_thread().name)

    def read(results):
        for _ in results:
            if leave == "break":
                break
            if leave == "close":
                results.close()
            else:
                raise KeyError

    given = prompts()
    if leave == "raise":
        with pytest.raises(KeyError):
            read(client.map(given))
    else:
        read(client.map(given))
    gc.collect()
    assert closed_by.get(timeout=10) == NAME
    assert closed_by.empty()
    end_of_readers()


def test_a_thread_bound_source_is_read_by_the_caller(client):
    base = sqlite3.connect(":memory:")
    base.executescript("create table asked (text); insert into asked values ('a'), ('b');")

    def prompts():
        return (text for (text,) in base.execute("select text from asked"))

    assert client.generate(prompts(), read_ahead=False).texts == ["re: a", "re: b"]
    with pytest.raises(sqlite3.ProgrammingError) as caught:
        client.generate(prompts())
    assert "read_ahead=False" in "".join(traceback.format_exception(caught.value))
    base.close()


def test_lists_and_tables_are_read_at_once(client):
    asked = client.generate
    assert asked(["a"]).texts == asked([{"t": "a"}], column="t").texts == ["re: a"]
    assert not readers()
    with pytest.raises(InvalidRequest, match="read_ahead must be True or False"):
        asked(iter(["a"]), read_ahead="no")
