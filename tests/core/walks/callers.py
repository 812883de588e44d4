"""Random walks through lists, hooks, deadlines, pauses, classifiers and batches."""

from __future__ import annotations

import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from smartbatch.core.batching.request_batch import Batch, BatchState, IllegalTransition
from smartbatch.core.limits.failures import Classifiers
from smartbatch.core.limits.model_controls import ALL_MODELS, ModelControls, Pause, name_of
from smartbatch.core.preparation.preparer import RequestPreparer, prompt_list
from smartbatch.core.routing.options import seconds_until
from smartbatch.errors import ConfigError, ErrorKind, InvalidRequest, ProviderError
from smartbatch.types import Answer, Embedding, Generation, Message, Request
from tests.core.walks.record import Record

WALL = 1.8e9


def _hooked(text: str, found: Any) -> Any:
    return lambda request: found(request) if request.prompt == text else None


def _raised(_: Request) -> None:
    raise InvalidRequest("prompt is not for us", field="prompt")


HOOKS = (
    _hooked("local", lambda _: "said here"),
    _hooked("whole", lambda _: Answer("said", finish_reason="length")),
    _hooked("none", lambda _: None),
    _hooked("other", lambda request: Request(f"{request.prompt} one", timeout=3.0)),
    _hooked("refused", _raised),
)
ASKED = ("local", "whole", "none", "other", "other one", "refused", "plain", "", Request("own", timeout=9.0))
PARAMS: tuple[dict[str, Any], ...] = (
    {},
    {"timeout": 5},
    {"max_tokens": 4, "id": None, "priority": None},
    {"temperature": 3.5},
    {"embedding": Embedding()},
    {"embedding": Embedding(), "max_tokens": 3},
)


def _refuse_plain(request: Request) -> None:
    if request.prompt == "plain":
        raise InvalidRequest("prompt is too plain", field="prompt")


def prepared(rng: random.Random, record: Record) -> None:
    one = RequestPreparer(
        Generation(max_tokens=rng.choice((None, 70))),
        rng.sample(HOOKS, rng.randrange(6)),
        rng.choice((None, 40.0)),
        rng.choice((_refuse_plain, lambda _: None)),
    )
    for _ in range(12):
        params, asked = rng.choice(PARAMS), rng.sample(ASKED, rng.choice((1, 1, 3)))
        listed: Any = asked if rng.random() < 0.6 else iter(asked)
        found = record.tried("requests", one.requests, listed, params)
        if found is None:
            continue
        for request in found if isinstance(found, list) else ():
            record.tried("preprocessed", one.preprocessed, request)
            record.tried("hooked", one.hooked, request)
        attended = rng.random() < 0.4
        record.tried("rows", lambda found=found, on=attended: list(one.rows_for_job(found, attended=on)))


ROWS: tuple[Any, ...] = ({"a": "x", "b": 1}, {"a": "y", "b": 2}, {"a": None, "b": 3}, {"b": 4}, "text", 7)
PLACED = ({"template": "{a}: {b}"}, {"template": "{c}"}, {"template": "{a"}, {"column": "a"}, {"column": "c"})


def lists(rng: random.Random, record: Record) -> None:
    odd = ("text", b"x", {1}, frozenset("a"), 5, None, {"a": 1}, {"a": ["x"]}, Message("user", "a"))
    for _ in range(40):
        rows = rng.sample(ROWS[: rng.choice((2, 6))], 2)
        given: Any = rng.choice((rows, tuple(rows), iter(rows), dict.fromkeys("ab").keys(), rng.choice(odd)))
        named = rng.choice((*PLACED, {}, {}, {"template": "{a}", "column": "a"}))
        made = record.tried("list", lambda given=given, named=named: _kept(prompt_list(given, **named)))
        if isinstance(made, Iterable):
            record.tried("read", lambda made=made: list(made))


def _kept(made: Any) -> Any:
    return made if isinstance(made, list | tuple) else iter(made)


def deadlines(rng: random.Random, record: Record) -> None:
    for given in (None, 5, 0.5, "2h", "90m", 0, -1, float("inf"), float("nan"), "soon", True, [], 1e-9):
        record.tried("seconds", seconds_until, given, WALL)
    for _ in range(6):
        moment = datetime.fromtimestamp(WALL + rng.choice((-1, 0, 1, 3600)), UTC)
        for each in (moment, moment.replace(tzinfo=None)):
            record.tried("until", seconds_until, each, WALL)


def controls(rng: random.Random, record: Record) -> None:
    record.epoch = WALL
    providers = ("openai", "", " a", "a:b", "a\n", 5, "x" * 298, "x" * 299)
    models = (None, "m", "m:n", "", "m ", "y", "y" * 150)
    for provider in providers:
        for model in models:
            record.tried("name", name_of, provider, model)
    for _ in range(20):
        names = rng.sample(("openai:m", f"openai:{ALL_MODELS}", f"gemini:{ALL_MODELS}"), rng.randrange(4))
        pauses = {name: Pause(name, rng.choice((None, "dear")), "ada", WALL) for name in names}
        found = ModelControls(pauses).pause_of(rng.choice(("openai:m", "openai:n", "gemini:m", "sim:m")))
        record.note("paused", found)


def classifiers(rng: random.Random, record: Record) -> None:
    def broken(_: Exception, __: ProviderError) -> ErrorKind:
        raise KeyError("a mistake")

    def odd(_: Exception, __: ProviderError) -> Any:
        return "text"

    other = ProviderError("mine", kind=ErrorKind.TIMEOUT)
    chain = [broken, odd, lambda *_: None, lambda *_: ErrorKind.CLIENT_ERROR, lambda *_: other]
    for _ in range(20):
        told: list[Any] = []
        one = Classifiers(rng.sample(chain, rng.randrange(6)), lambda *each, told=told: told.append(each))
        error = ProviderError("theirs", kind=rng.choice((ErrorKind.CLIENT_ERROR, ErrorKind.SERVER_ERROR)))
        cause = ValueError("cause")
        error.__cause__ = cause
        found = one.verdict(ValueError("x"), error)
        record.note(
            "verdict",
            found.kind,
            theirs=found is error,
            cause=found.__cause__ is cause,
            told=[type(problem).__name__ for _, problem in told],
            notes=len(getattr(error, "__notes__", ())),
        )
    try:
        Classifiers((str, 5))  # type: ignore[arg-type]
    except ConfigError:
        record.note("refused")


def batches(rng: random.Random, record: Record) -> None:
    one = Batch[str, str]("batch", "sim:m", 5.0)
    for _ in range(20):
        acts: tuple[tuple[Any, ...], ...] = (
            (one.fill, rng.choice((["a"], ["b", "c"])), rng.randrange(9)),
            *[(one.move, state) for state in BatchState],
            (one.complete, rng.randrange(3), "one"),
            (one.complete_all, ["x"] * len(one)),
            (one.complete_all, ["x"] * 2),
            (one.fail, "failed"),
        )
        act, *given = rng.choice(acts)
        try:
            record.tried("act", act, *given)
            if rng.random() < 0.1:
                one.close(answered=rng.random() < 0.5)
        except IllegalTransition:
            record.note("illegal")
        record.note(
            "is",
            state=one.state,
            ended=one.ended,
            outcomes=one.outcomes,
            size=len(one),
            tokens=one.tokens,
            age=one.age(7.5),
            items=one.items,
        )


WALKS = {
    "prepared": (prepared, 24),
    "lists": (lists, 16),
    "deadlines": (deadlines, 4),
    "controls": (controls, 4),
    "classifiers": (classifiers, 8),
    "batches": (batches, 64),
}
