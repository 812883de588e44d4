"""What callbacks, observers and hooks of the user raise reaches the standard ``logging``."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from threading import Event
from typing import Any, NoReturn

import pytest

from smartbatch import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.observe import logs
from smartbatch.testing import MockProvider

PATIENCE = 30.0


def mistake(*_: object) -> NoReturn:
    raise ZeroDivisionError("a mistake of mine")


def in_a_callback(prompt: str) -> None:
    added = Event()

    def answer(*_: object) -> str:
        assert added.wait(PATIENCE)
        return "an answer"

    with BatchingClient(answer) as client:
        future = client.submit(prompt)
        future.add_done_callback(mistake)
        added.set()
        future.result(PATIENCE)


def in_a_callback_of_a_job(prompt: str) -> None:
    with BatchingClient("sim:x?latency=0&batch_seconds=0", batch_poll_interval=0.01) as client:
        [future] = client.submit_batch([prompt]).futures()
        future.add_done_callback(mistake)
        future.result(PATIENCE)


def in_on_progress(prompt: str) -> None:
    with BatchingClient("sim:x?latency=0") as client:
        client.submit_and_wait([prompt], on_progress=mistake)


def in_an_observer(prompt: str) -> None:
    with BatchingClient("sim:x?latency=0", observers=[mistake]) as client:
        client.generate([prompt])


def in_a_middleware(prompt: str) -> None:
    with BatchingClient("sim:x?latency=0", middleware=[mistake], retries=0) as client:
        assert client.submit(prompt).exception(PATIENCE)


def in_post_process(prompt: str) -> None:
    with BatchingClient("sim:x?latency=0", post_process=mistake) as client:
        assert client.submit(prompt).exception(PATIENCE)


def in_a_classifier(prompt: str) -> None:
    answers = MockProvider([ProviderError("no", kind=ErrorKind.CLIENT_ERROR)])
    with BatchingClient("m", provider=answers, classifiers=[mistake], retries=0) as client:
        assert client.submit(prompt).exception(PATIENCE)


PLACES = {
    "a callback": in_a_callback,
    "a callback of a job": in_a_callback_of_a_job,
    "on_progress": in_on_progress,
    "an observer": in_an_observer,
    "a middleware": in_a_middleware,
    "post_process": in_post_process,
    "a classifier": in_a_classifier,
}


@pytest.mark.parametrize(("place", "act"), PLACES.items(), ids=PLACES)
def test_what_is_raised_is_logged_with_its_traceback(place, act, caplog):
    act("canary")
    assert f"exception in {place.removesuffix(' of a job')}" in caplog.messages
    record, *_ = [each for each in caplog.records if each.name == "smartbatch"]
    assert record.levelno == logging.ERROR
    assert "in mistake" in caplog.text
    assert "ZeroDivisionError: a mistake of mine" in caplog.text
    assert "canary" not in caplog.text


@pytest.mark.full
def test_it_is_on_standard_error_by_default():
    code = (
        "from smartbatch import BatchingClient\n"
        "with BatchingClient('sim:x?latency=0.2') as client:\n"
        "    client.submit('canary').add_done_callback(lambda future: 1 / 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "exception in a callback\nTraceback" in done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "canary" not in done.stderr


def test_a_repeated_error_is_logged_once_a_second(caplog, monkeypatch):
    moment: Iterator[float] = iter([0.0, 0.1, 0.2, 1.5])
    monkeypatch.setattr(logs.RealClock, "now", lambda: next(moment))
    for _ in range(4):
        with pytest.raises(ZeroDivisionError) as caught:
            mistake()
        logs.user_error("an observer", caught.value)
    assert caplog.messages == [
        "exception in an observer",
        "exception in an observer, and 2 times more since it was last logged",
    ]


def test_the_end_of_a_client_tells_the_mistakes_that_no_further_one_did(caplog, monkeypatch):
    monkeypatch.setattr(logs, "_REPEAT_SECONDS", 600.0)
    with BatchingClient("sim:x?latency=0", post_process=mistake) as client:
        for prompt in ("one", "two", "three"):
            assert client.submit(prompt).exception(PATIENCE)
    line = mistake.__code__.co_firstlineno + 1
    assert caplog.messages == [
        "exception in post_process",
        f"exception in post_process ({__file__}, line {line}), 2 times more since it was last logged",
    ]
    client.stop()
    assert len(caplog.messages) == 2


def test_a_verdict_of_a_middleware_is_no_mistake(caplog):
    def refuse(*_: Any) -> NoReturn:
        raise ProviderError("not today", kind=ErrorKind.CLIENT_ERROR)

    with BatchingClient("sim:x?latency=0", middleware=[refuse]) as client:
        assert "not today" in str(client.submit("x").exception(PATIENCE))
    assert caplog.messages == []


def test_a_hook_before_the_queue_raises_to_who_asked(caplog):
    with BatchingClient("sim:x?latency=0", preprocess=[mistake]) as client:
        for ask in (
            client.submit,
            lambda prompt: client.generate([prompt]),
            lambda p: client.submit_batch([p]),
        ):
            with pytest.raises(ZeroDivisionError):
                ask("x")
    assert caplog.messages == []
