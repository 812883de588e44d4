"""Random walks through the preparation of requests and the validation of answers against schemas."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from typing import Any, Literal

from attrs import define

from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.fingerprint import fingerprint
from smartbatch.core.preparation.json_recovery import MAX_DEPTH, MAX_INTEGER_BITS, snapshot
from smartbatch.core.preparation.json_schemas import check_schema
from smartbatch.core.preparation.preparer import prompt_list
from smartbatch.core.preparation.structured import Problem, read_answer, repair_request
from smartbatch.core.preparation.validation import (
    MAX_COUNT,
    MAX_DIMENSIONS,
    MAX_STOPS,
    MAX_TIMEOUT_SECONDS,
    MAX_WAIT_SECONDS,
    SEED_LIMIT,
    admit_defaults,
    normalise,
)
from smartbatch.core.routing.outcome import ActualCost
from smartbatch.errors import InvalidRequest
from smartbatch.types import Embedding, Generation, Message, Priority, Request, Result, Route, Usage
from tests.core.walks.record import Record
from tests.core.walks.routes import Rates

ODD: tuple[Any, ...] = (None, True, 0, 1, -1, 1.5, math.nan, math.inf, "", "a", "\ud800", b"b", [], {}, ["a"])
NEAR: dict[str, tuple[Any, ...]] = {
    "system": ("Be short.", "\ud800", " "),
    "max_tokens": (0, 1, 7, MAX_COUNT, MAX_COUNT + 1),
    "temperature": (-0.1, 0, -0.0, 1, 2, 2.01),
    "top_p": (0, 1e-9, 1, 1.01),
    "stop": ("x", "", ["a", "b"], ["a"] * MAX_STOPS, ["a"] * (MAX_STOPS + 1), [""], ["\ud800"]),
    "seed": (-SEED_LIMIT - 1, -SEED_LIMIT, 0, SEED_LIMIT - 1, SEED_LIMIT),
    "response_format": ({"type": "json_object"}, [], "json"),
    "schema": ({"type": "object"}, {"type": "no such"}, {"$ref": "#/nowhere"}, {"pattern": "("}, "text"),
    "extra": ({"tools": [{}]}, {"temperature": 1}, {"a": math.nan}),
    "priority": ("high", "background", Priority.URGENT, "soon", 3),
    "max_wait": (0, "5s", MAX_WAIT_SECONDS, MAX_WAIT_SECONDS + 1, -1),
    "timeout": (0, 1, "2h", "soon", MAX_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS + 1),
    "id": ("row-1",),
    "isolation_key": ("tenant",),
    "deduplicate": (True, False),
    "embedding": (
        Embedding(),
        Embedding("query", MAX_DIMENSIONS),
        Embedding(None, MAX_DIMENSIONS + 1),
        Embedding("", 0),
    ),
    "max_completion_tokens": (5,),
    "tempratur": (1,),
}
PROMPTS: tuple[Any, ...] = (
    "text",
    "",
    "  ",
    "lone \ud800",
    [Message("user", "a")],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "robot", "content": "a"}],
    [{"role": "user"}],
    [{"role": "user", "content": "a", "name": "b"}],
    [Message("user", "")],
    [],
    Request("inner", Generation(max_tokens=9, temperature=0.5), id="inner"),
    Request([Message("system", "s")], priority=Priority.HIGH),  # type: ignore[arg-type]
)  # fmt: skip


def requests(rng: random.Random, record: Record) -> None:
    for _ in range(40):
        names = rng.sample(list(NEAR), rng.randrange(4))
        given = {name: rng.choice(NEAR[name] if rng.random() < 0.8 else ODD) for name in names}
        defaults = Generation(max_tokens=rng.choice((None, 50)), system=rng.choice((None, "Default.")))
        prompt = rng.choice(PROMPTS if rng.random() < 0.9 else ODD)
        request = record.tried("request", normalise, prompt, admit_defaults(defaults), **given)
        if request is not None and request.params.schema is None:
            other = fingerprint(request, rng.choice("mn"), rng.choice("st")) == fingerprint(request, "m", "s")
            record.note("key", same=other)
        record.tried("defaults", admit_defaults, Generation(**{
            name: value for name, value in given.items() if name in ("temperature", "stop", "extra", "top_p")
        }))  # fmt: skip
    for listed in (["a", "b"], "text", b"text", {"a": 1}, {"a"}, 7, iter("ab"), ("a",), [1]):
        record.tried("list", lambda listed=listed: type(prompt_list(listed)))


def _nested(depth: int) -> Any:
    return [] if depth <= 1 else [_nested(depth - 1)]


def snapshots(rng: random.Random, record: Record) -> None:
    kept = (1, 2.5, "é", None, True, {"a": [1, {"b": 2}]}, ("x", 2), 1 << (MAX_INTEGER_BITS - 1))
    strange = (math.nan, -math.inf, "a\udfff", b"x", {1: 2}, {"\ud800": 1}, 1 << MAX_INTEGER_BITS, object)
    for _ in range(40):
        value: Any = rng.choice(kept if rng.random() < 0.6 else strange)
        for _ in range(rng.randrange(4)):
            value = {"k": value, "l": rng.choice(kept)} if rng.random() < 0.5 else [rng.choice(kept), value]
        record.tried("snapshot", lambda value=value: json.dumps(snapshot(value)))
    for depth in (MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1):
        record.tried("depth", lambda depth=depth: len(json.dumps(snapshot(_nested(depth)))))


@define
class Point:
    x: int
    y: float = 0.5
    label: Literal["a", "b"] | None = None


@dataclass
class Line:
    ends: list[Point]
    names: dict[str, int]
    next: Line | None = None


SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]},
    {"type": "array", "items": {"type": "string", "pattern": "^a+$"}, "uniqueItems": True, "maxItems": 3},
    {"patternProperties": {"^x": {"type": "number"}}, "additionalProperties": False},
    {"enum": [1, 1.5, "a", {"pattern": "("}], "default": {"$ref": "#/x"}},
    {"$defs": {"n": {"type": "integer"}}, "type": "object", "additionalProperties": {"$ref": "#/$defs/n"}},
    {"type": "object", "properties": {"a": {"pattern": "("}}},
    {"type": "object", "properties": {"a": {"$ref": "https://example.org/x"}}},
    {"patternProperties": {"[": {}}},
)
VALUES: tuple[Any, ...] = (
    {"a": 3}, {"a": 12}, {"a": 1.0}, {"b": 1}, ["a", "aa"], ["a", "a"], ["b"], ["a"] * 5, [1, True, 1.0],
    {"x1": 2}, {"x1": "2"}, {"y": 1}, 1, 1.5, "a", None, {"a": [{"a": 1}]},
)  # fmt: skip
AROUND = ("{}", "```json\n{}\n```", "Here:\n```\n{}\n```\nDone.", "``` {}```", "x {} y", "```a\n{}", "{},")
AROUND += ("{} {}", "```\n{}\n``````\n1\n```", "````\n{}\n````", "```\n{}\n```\n```\n{}\n```")
ENDS = ("stop", "stop", "stop", "length", "refusal", "content_filter")


def answers(rng: random.Random, record: Record) -> None:
    for schema in SCHEMAS:
        record.tried("schema", check_schema, schema)
    for kind in (Point, Line, dict, int, list[int], Point | None):
        record.tried("class", lambda kind=kind: schema_of(kind)[0])
    for _ in range(60):
        schema, build = rng.choice(
            [(each, None) for each in SCHEMAS[:5]] + [(None, rng.choice((Point, Line)))]
        )
        given: Any = build if schema is None else schema
        value = rng.choice((*VALUES, {"x": 1}, {"x": 2, "y": 1.5, "label": "a"}, {"ends": [], "names": {}}))
        text = rng.choice(AROUND).replace("{}", json.dumps(value).replace('"', rng.choice('""\'')))
        params = normalise("p", schema=given).params
        ends = rng.choice(ENDS)
        if schema is None:  # pydantic's error messages may change
            record.note("read", getattr(read_answer(params, text, ends), "value", None))
            continue
        found = record.tried("read", read_answer, params, text, ends)
        if isinstance(found, Problem):
            temperature = rng.choice((None, 0.0, 0.7, 1.4, 2.0))
            request = Request(rng.choice(("p", (Message("user", "q"),))), Generation(temperature=temperature))
            for attempt in range(5):
                again = repair_request(request, text, found, attempt, takes_temperature=attempt > 0)
                record.note("again", prompt=again.prompt, temperature=again.params.temperature)


def costs(rng: random.Random, record: Record) -> None:
    for _ in range(20):
        one, prices = ActualCost(), (rng.choice((None, Rates())), rng.choice((None, Rates())))
        for place in range(rng.randrange(5)):
            usage = rng.choice((Usage(), Usage(900, 80)))
            route = rng.choice(list(Route))
            cost = rng.choice((None, 0.0, 0.5, 0.5))
            one.add_result(Result(str(place), usage=usage, cost=cost, route=route), *prices)
            record.note(
                "cost", paid=one.paid, individual=one.individual, by_batch=one.by_batch, answered=one.answered
            )


assert issubclass(InvalidRequest, ValueError)
WALKS = {
    "requests": (requests, 32),
    "snapshots": (snapshots, 8),
    "answers": (answers, 16),
    "costs": (costs, 12),
}
