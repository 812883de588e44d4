"""Nothing a server may send gets past the parsers, or hangs them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from attrs import evolve
from properties import real_bodies
from properties.fuzzing import Targets, fuzz
from properties.mangling import Pieces, body, garbled, headers, spoiled, stream
from properties.real_bodies import KEY, PROMPT

from smartbatch._fork import PerProcess
from smartbatch.core.batching.packing import BatchCompiler, random_word, split
from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.core.preparation.json_recovery import MAX_DEPTH, JsonNotFound, recover_json
from smartbatch.core.preparation.structured import Parsed, Problem, check_answer
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.anthropic.answers import MessageReader
from smartbatch.providers.anthropic.errors import ERRORS as ANTHROPIC_ERRORS
from smartbatch.providers.anthropic.provider import AnthropicProvider
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.gemini.answers import ChunkReader
from smartbatch.providers.gemini.errors import ERRORS as GEMINI_ERRORS
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.providers.http.event_stream import EventStream
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.limit_headers import (
    RETRY_AFTER_CEILING,
    parse_duration,
    parse_retry_after,
    read_anthropic_limits,
    read_limits,
)
from smartbatch.providers.openai.errors import ERRORS as OPENAI_ERRORS
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.providers.openai.streams import ChatReader, ResponseReader
from smartbatch.realtime.call import answer_flaw
from smartbatch.types import Answer, Embedding, LimitReport, Request, Usage
from tests.levels import sampled

OPENAI_SECRET = evolve(OPENAI_ERRORS, secrets=(KEY,))
GEMINI_SECRET = evolve(GEMINI_ERRORS, secrets=(KEY,))
ANTHROPIC_SECRET = evolve(ANTHROPIC_ERRORS, secrets=(KEY,))
DEFAULT = 1_500
SOAK = 100_000

REQUEST = Request(PROMPT)
TEXTS = [Request(f"{PROMPT} {number}", embedding=Embedding(dimensions=3)) for number in range(3)]
STATUSES = (200, 200, 301, 400, 401, 403, 404, 408, 413, 429, 429, 500, 502, 503, 504, 529, 599)
NAMES = (
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
    *(f"x-ratelimit-{what}-project-tokens" for what in ("limit", "remaining", "reset")),
    *(
        f"anthropic-ratelimit-{of}-{what}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens", "input-tokens", "output-tokens")
    ),
    "retry-after",
    "retry-after-ms",
    "date",
    "x-request-id",
)
TYPES = ("application/json", "text/event-stream; charset=utf-8", "text/html", "")


# -- what may come back --------------------------------------------------------------------------------


def assert_is_an_answer(answer: object) -> None:
    assert isinstance(answer, Answer)
    assert answer_flaw(answer) is None
    for text in (answer.text, answer.model, answer.provider_request_id, answer.finish_reason):
        assert text is None or isinstance(text, str)
        (text or "").encode()  # no lone surrogates
    check_usage(answer.usage)
    check_limits(answer.limits)
    if answer.embedding is not None:
        assert len(answer.embedding) == 3
        assert all(map(math.isfinite, answer.embedding))


def check_error(error: ProviderError, *, carried_prompt: bool = True) -> None:
    assert isinstance(error.kind, ErrorKind)
    assert error.status is None or type(error.status) is int
    assert error.code is None or isinstance(error.code, str)
    assert str(error).isprintable()
    assert KEY not in str(error)
    assert not carried_prompt or PROMPT not in str(error)
    check_wait(error.retry_after)
    check_usage(error.usage)
    check_limits(error.limits)


def check_wait(seconds: object) -> None:
    assert seconds is None or (isinstance(seconds, float | int) and 0 <= seconds <= RETRY_AFTER_CEILING)


def check_usage(usage: object) -> None:
    if usage is None:
        return
    assert isinstance(usage, Usage)
    assert 0 <= usage.cached_tokens <= usage.input_tokens <= 2 * 10**9
    assert 0 <= usage.reasoning_tokens <= usage.output_tokens <= 2 * 10**9


def check_limits(limits: object) -> None:
    if limits is None:
        return
    assert isinstance(limits, LimitReport)
    for field in limits.__attrs_attrs__:
        value = getattr(limits, field.name)
        assert value is None or (value >= 0 and math.isfinite(float(value))), field.name


def outcome(call: Callable[[], Any]) -> bool:
    try:
        found = call()
    except ProviderError as error:
        check_error(error)
        return False
    for answer in found if isinstance(found, list) else [found]:
        assert_is_an_answer(answer)
    return True


# -- what is fed ---------------------------------------------------------------------------------------


class Wire:
    def __init__(self) -> None:
        self.reply = Reply(200, {}, b"")

    def post(self, path: str, sent: Any, timeout: Any) -> Any:
        return self.reply

    def ask(self, method: str, path: str, timeout: float, body: Any = None, content: bytes = b"") -> Any:
        text = self.reply.body.decode("utf-8", "replace")  # the SDK decodes
        return Reply(self.reply.status, self.reply.headers, text.encode())


def reply(trees: list[Any], rng: random.Random) -> Reply:
    status = 200 if rng.random() < 0.9 else rng.choice(STATUSES)
    data = body(rng.choice(trees), rng)
    found = headers(NAMES, rng) if rng.random() < 0.3 else {}
    if rng.random() < 0.5:
        found["content-type"] = rng.choice(TYPES)
    return Reply(status, found, data)


def openai(api: Any = "chat") -> tuple[OpenAIProvider, Wire]:
    provider, wire = OpenAIProvider(KEY, "http://127.0.0.1:9/v1", api=api), Wire()
    provider.network.realtime = wire  # type: ignore[assignment]
    return provider, wire


def google() -> tuple[GeminiProvider, Wire]:
    provider, wire = GeminiProvider(KEY, "http://127.0.0.1:9"), Wire()
    provider._sdk = PerProcess(lambda: wire)  # type: ignore[assignment]
    return provider, wire


def claude() -> tuple[AnthropicProvider, Wire]:
    provider, wire = AnthropicProvider(KEY, "http://127.0.0.1:9"), Wire()
    provider._sdk = PerProcess(lambda: wire)  # type: ignore[assignment]
    return provider, wire


def generating(made: Callable[[], tuple[Any, Wire]], trees: list[Any]) -> Callable[[random.Random], bool]:
    provider, wire = made()

    def target(rng: random.Random) -> bool:
        wire.reply = reply(trees, rng)
        return outcome(lambda: provider.generate(REQUEST, model="m", attempt=0, timeout=9.0))

    return target


def embedding(made: Callable[[], tuple[Any, Wire]], trees: list[Any]) -> Callable[[random.Random], bool]:
    provider, wire = made()

    def target(rng: random.Random) -> bool:
        wire.reply = reply(trees, rng)
        return outcome(lambda: provider.embed(TEXTS, model="m", attempt=0, timeout=9.0))

    return target


def live(data: bytes, rng: random.Random) -> Pieces:
    status = 200 if rng.random() < 0.95 else rng.choice(STATUSES)
    found = headers(NAMES, rng) if rng.random() < 0.2 else {}
    if rng.random() < 0.2:
        found["content-type"] = rng.choice(TYPES)
    return Pieces(data, rng, status, found)


def reading(made: Any) -> Answer:
    text = "".join(made)
    text.encode()
    assert (made.answer.text or "") == text
    return made.answer  # type: ignore[no-any-return]


def chat_stream(rng: random.Random) -> bool:
    data = stream(rng.choice(real_bodies.CHAT_STREAMS), rng, end="[DONE]")
    if rng.random() < 0.05:
        data = body(rng.choice(real_bodies.CHATS), rng)
    return outcome(
        lambda: reading(EventStream(lambda *_: live(data, rng), ChatReader(OPENAI_SECRET), REQUEST, 9.0))
    )  # type: ignore[arg-type, return-value]


def response_stream(rng: random.Random) -> bool:
    data = stream(rng.choice(real_bodies.RESPONSE_STREAMS), rng, named=True)
    if rng.random() < 0.05:
        data = body(rng.choice(real_bodies.RESPONSES), rng)
    return outcome(
        lambda: reading(EventStream(lambda *_: live(data, rng), ResponseReader(OPENAI_SECRET), REQUEST, 9.0))
    )  # type: ignore[arg-type, return-value]


def gemini_stream(rng: random.Random) -> bool:
    data = stream(rng.choice(real_bodies.GEMINI_STREAMS), rng)
    return outcome(
        lambda: reading(EventStream(lambda *_: live(data, rng), ChunkReader(GEMINI_SECRET), REQUEST, 9.0))
    )  # type: ignore[arg-type]


def message_stream(rng: random.Random) -> bool:
    data = stream(rng.choice(real_bodies.MESSAGE_STREAMS), rng, named=True)
    reader = MessageReader(ANTHROPIC_SECRET, ())
    return outcome(lambda: reading(EventStream(lambda *_: live(data, rng), reader, REQUEST, 9.0)))  # type: ignore[arg-type]


def refused(errors: ErrorReader, trees: list[Any]) -> Callable[[random.Random], bool]:
    def target(rng: random.Random) -> bool:
        found = headers(NAMES, rng) if rng.random() < 0.5 else {}
        data = body(rng.choice(trees), rng)
        check_error(errors.read(Reply(rng.choice(STATUSES), found, data), [REQUEST]))
        return False

    return target


def all_headers(rng: random.Random) -> bool:
    found = headers(NAMES, rng)
    wall = rng.choice((0.0, 1_790_000_000.0, 2.0**40))
    wait = parse_retry_after(found, wall)
    check_wait(wait)
    reports = read_limits(found, wall), read_anthropic_limits(found, wall)
    for report in reports:
        check_limits(report)
    for value in found.values():
        seconds = parse_duration(value)
        assert seconds is None or 0 <= seconds < math.inf
    return wait is not None or any(reports)


def packs(rng: random.Random) -> bool:
    compiler = BatchCompiler(partial(random_word, rng), native_schema=False)
    packed = compiler.compile([Request(f"Question {number}") for number in range(4)])
    replies = ["Lima it is", "forty-two", "no idea", "see above"]  # further apart than a few bytes
    said = zip(packed.ids, packed.checks, replies, strict=True)
    whole = {"answers": [{"id": id_, "answer": f"{check} {reply} {check}"} for id_, check, reply in said]}
    text = spoiled(whole, rng) if rng.random() < 0.8 else json.dumps(whole)
    if rng.random() < 0.5:
        text = garbled(text.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    found = split(packed, f"```json\n{text}\n```" if rng.random() < 0.2 else text)
    assert len(found) == len(packed.ids)
    for at, each in enumerate(found):
        assert each is None or (isinstance(each, str) and each)
        assert each not in replies[:at] + replies[at + 1 :]
    return any(found)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer"}},
    "required": ["name"],
}
AROUND = (
    "{}",
    "```json\n{}\n```",
    "Here it is: {} Hope that helps!",
    "{}\n{}",
    "// note\n{},",
    "<think>{{</think>{}",
)


def written_json(rng: random.Random) -> bool:
    tree = {"name": "Lima", "people": 10, "parts": [{"a": 1}, {"b": [1, 2, {"c": None}]}]}
    text = spoiled(tree, rng) if rng.random() < 0.7 else json.dumps(tree)
    if rng.random() < 0.2:
        text = text.replace('"', "'")
    text = rng.choice(AROUND).replace("{}", text)
    if rng.random() < 0.5:
        text = garbled(text.encode("utf-8", "replace"), rng).decode("utf-8", "replace")
    assert isinstance(check_answer(*schema_of(SCHEMA), text, "stop"), Parsed | Problem)
    try:
        value = recover_json(text)
    except JsonNotFound:
        return False
    depth, level = 0, [value]
    while level := [
        item
        for found in level
        if isinstance(found, dict | list)
        for item in (found.values() if isinstance(found, dict) else found)
    ]:
        depth += 1
    assert depth <= MAX_DEPTH
    return True


TARGETS: Targets = {
    "openai chat": lambda: generating(openai, real_bodies.CHATS),
    "openai response": lambda: generating(partial(openai, "responses"), real_bodies.RESPONSES),
    "openai embeddings": lambda: embedding(openai, real_bodies.EMBEDDINGS),
    "openai errors": lambda: refused(OPENAI_SECRET, real_bodies.ERRORS),
    "openai chat stream": lambda: chat_stream,
    "openai response stream": lambda: response_stream,
    "gemini": lambda: generating(google, real_bodies.GEMINIS),
    "gemini embeddings": lambda: embedding(google, real_bodies.GEMINI_EMBEDDINGS),
    "gemini errors": lambda: refused(GEMINI_SECRET, real_bodies.GEMINI_ERRORS),
    "gemini stream": lambda: gemini_stream,
    "anthropic": lambda: generating(claude, real_bodies.MESSAGES),
    "anthropic errors": lambda: refused(ANTHROPIC_SECRET, real_bodies.ANTHROPIC_ERRORS),
    "anthropic stream": lambda: message_stream,
    "headers": lambda: all_headers,
    "packed answers": lambda: packs,
    "json in a text": lambda: written_json,
}


@pytest.mark.full
@pytest.mark.parametrize("name", sampled(TARGETS, keep=2))
def test_what_servers_may_send_is_an_answer_or_an_error(name):
    good = fuzz(name, TARGETS[name], DEFAULT).good
    if "errors" not in name:
        assert DEFAULT * 0.05 < good < DEFAULT * 0.99, (
            f"{good} of {DEFAULT} make sense: the mangling is too weak or too strong"
        )


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_a_hundred_thousand_of_each(name):
    fuzz(name, TARGETS[name], SOAK)
