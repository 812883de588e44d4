"""Stored answers that an internal error made unreadable are read again and paid for once."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pydantic
import pytest

from smartbatch.cli.main import main
from smartbatch.core.preparation import structured
from smartbatch.errors import AllRequestsFailed, AnswerUnread, ValidationFailed
from smartbatch.types import evolve
from tests.faults.world import MINUTE, texts, world


class Row(pydantic.BaseModel):
    name: str
    count: int


@contextmanager
def reading_fails(monkeypatch):
    def broken(text):
        raise ImportError("half made")

    with monkeypatch.context() as patch:
        patch.setattr(structured, "recover_json", broken)
        yield


@pytest.fixture
def w(tmp_path):
    with world("openai", tmp_path, rare=60, batch_turnaround=MINUTE) as made:
        yield made


def test_results_of_a_job_are_read_again_for_every_reader(w, monkeypatch, capfd):
    client = w.process()
    with reading_fails(monkeypatch):
        job = client.submit_batch(texts(3), schema=Row)
        before = w.results(job)
        assert {type(result.error) for result in before} == {AnswerUnread}

    def marked(result):
        return evolve(result, parsed={"seen": result.parsed})

    other = w.process(post_process=marked).job(job.id)
    expected = [json.loads(result.text or "") for result in before]
    read = list(job.results())
    assert [result.parsed for result in read] == expected
    assert [(result.ok, result.text, result.cost, result.usage) for result in read] == [
        (True, result.text, result.cost, result.usage) for result in before
    ]
    assert [result.parsed for result in other.results()] == [{"seen": value} for value in expected]
    assert [future.result(10).parsed for future in other.futures()] == [{"seen": each} for each in expected]
    assert (job.status().failed, job.status().completed) == (3, 0)
    main(["jobs", "results", job.id, "--store", w.store])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert [line["parsed"] for line in lines] == expected
    assert len(w.creates) == 1


def test_a_stored_request_that_is_submitted_again_gets_its_answer(w, monkeypatch):
    first = w.process(schema=Row)
    with reading_fails(monkeypatch), pytest.raises(AnswerUnread):
        first.submit("q", key="one").result()
    w.stop(first)
    sent = len(w.requests("ask"))
    assert sent == 1
    again = w.process(schema=Row).submit("q", key="one").result()
    assert isinstance(again.parsed, Row)
    assert (again.paid_before, len(w.requests("ask"))) == (True, sent)


def test_a_list_with_a_key_gets_its_answers_when_it_is_found_again(w, monkeypatch):
    first = w.process()
    with reading_fails(monkeypatch), pytest.raises(AllRequestsFailed) as raised:
        first.generate(texts(3), schema=Row, key="rows", strategy="batch")
    assert {type(result.error) for result in raised.value.results} == {AnswerUnread}
    w.stop(first)
    again = w.process().generate(texts(3), schema=Row, key="rows", strategy="batch")
    assert {type(result.parsed) for result in again} == {Row}
    assert [result.text for result in again] == [result.text for result in raised.value.results]
    assert len(w.creates) == 1


def test_an_answer_that_turns_out_not_to_fit_is_named_so(w, monkeypatch):
    with reading_fails(monkeypatch):
        job = w.process().submit_batch(texts(2), schema=Row, key="rows")
        w.wait(job)
        assert {type(result.error) for result in job.results()} == {AnswerUnread}
    monkeypatch.setattr(structured, "recover_json", lambda text: {"name": 1})
    for result in job.results():
        assert type(result.error) is ValidationFailed
        assert result.error.text == result.text
        assert result.error.request_id == result.request_id
        assert result.error.usage == result.usage


def test_a_stored_answer_that_cannot_be_parsed_is_reported_and_kept(w, monkeypatch):
    first = w.process(schema=Row)
    text = first.submit("q", key="one").result().text
    w.stop(first)
    second = w.process(schema=Row)
    with reading_fails(monkeypatch), pytest.raises(AnswerUnread) as raised:
        second.submit("q", key="one").result()
    assert raised.value.text == text
    w.stop(second)
    assert isinstance(w.process(schema=Row).submit("q", key="one").result().parsed, Row)
    assert len(w.requests("ask")) == 1
