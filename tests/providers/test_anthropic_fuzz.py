"""No body, stream or error body of Anthropic's, however mangled, gets past the parsers or hangs them."""

from __future__ import annotations

import json
import random

import pytest
from claude import BLOCK, END, PING, START, STOP, delta, error, event, message

from smartbatch.errors import ProviderError
from smartbatch.providers.anthropic.answers import read_message
from smartbatch.providers.anthropic.errors import ERRORS
from smartbatch.providers.anthropic.streams import MessageReader
from smartbatch.providers.http.event_stream import EventStream
from smartbatch.providers.http.replies import Reply
from smartbatch.types import Answer, Request

SEED = 20_261_121
BODIES = [
    json.dumps(message()).encode(),
    json.dumps(message(None, stop_reason="refusal")).encode(),
    json.dumps(error("overloaded_error", "Overloaded", "x")).encode(),
]
STREAM = b"".join((START, BLOCK, PING, delta("Li"), delta("ma\u2028"), END, STOP))
FAILED = b"".join((START, delta("Li"), event("error", **error("api_error"))))
ODD = ["null", "true", "-1", "1e999", "[]", "{}", '""', '"\\ud800"', "NaN", "9" * 400, "[" * 400]
REQUEST = Request(prompt="Capital of Peru?")


class Pieces:
    """A live answer out of memory, in pieces of any size."""

    status = 200

    def __init__(self, data: bytes, rng: random.Random, kind: str = "text/event-stream") -> None:
        self.headers = {"content-type": kind}
        self._data, self._rng = data, rng

    def __iter__(self):
        at = 0
        while at < len(self._data):
            size = self._rng.randint(1, 60)
            yield self._data[at : at + size]
            at += size

    def drain(self) -> None: ...

    def close(self) -> None: ...


def mangled(data: bytes, rng: random.Random) -> bytes:
    """Cut, doubled, swapped, overwritten, or with a JSON value put in another's place."""
    for _ in range(rng.randint(1, 4)):
        at, to = sorted(rng.randrange(len(data) + 1) for _ in range(2))
        match rng.randrange(6):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + data[to:]
            case 2:
                data = data[:to] + data[at:to] + data[to:]
            case 3:
                data = data[:at] + rng.randbytes(rng.randint(1, 6)) + data[at:]
            case 4:
                data = data[:at] + rng.choice(ODD).encode() + data[at:]
            case 5:
                colon = data.find(b":", at)
                if colon >= 0:
                    end = min((e for e in (data.find(c, colon) for c in (b",", b"}")) if e > 0), default=at)
                    data = data[: colon + 1] + rng.choice(ODD).encode() + data[end:]
    return data


def parse_all(rounds: int, seed: int) -> tuple[int, int]:
    """Parse mangled bodies; return how many were answers and how many errors."""
    rng = random.Random(seed)
    answers = errors = 0
    for _ in range(rounds):
        body = mangled(rng.choice(BODIES), rng)
        try:
            reply = Reply(200, {}, body)
            assert isinstance(read_message(ERRORS.answer(reply, (REQUEST,)), reply), Answer)
            answers += 1
        except ProviderError:
            errors += 1
        refusal = Reply(rng.choice((400, 429, 500)), {}, body)
        assert isinstance(ERRORS.read(refusal, (REQUEST,)), ProviderError)
        pieces = Pieces(mangled(rng.choice((STREAM, FAILED)), rng), rng)
        stream = EventStream(pieces, MessageReader(ERRORS, ()), REQUEST)
        try:
            text = "".join(stream)
            text.encode()
            assert stream.answer.text == text
            answers += 1
        except ProviderError:
            errors += 1
    return answers, errors


def test_mangled_bodies_are_answers_or_errors_and_nothing_else() -> None:
    """A thousand of each kind; the seed says which."""
    answers, errors = parse_all(1_000, SEED)
    assert answers > 50, f"seed {SEED}: hardly anything was left to parse"
    assert errors > 500, f"seed {SEED}: hardly anything was broken"


@pytest.mark.soak
def test_a_hundred_thousand_mangled_bodies() -> None:
    """The same, for long."""
    for seed in range(100):
        parse_all(1_000, seed)
