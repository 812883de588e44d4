"""Random walks through shards, packing, windows and cross-checks."""

from __future__ import annotations

import json
import math
import random

from attrs import frozen
from core.batching.hostile_prompts import HOSTILE
from core.batching.pack_models import DAMAGE as DAMAGES
from core.batching.pack_models import answer_to, honest, written

from smartbatch.core.batching.packing import (
    BatchCompiler,
    PackRoom,
    packable,
    random_word,
    split,
    split_usage,
    usage_weights,
)
from smartbatch.core.batching.request_batch import BatchAccumulator, GatherWindow, Waiting, Window
from smartbatch.core.batching.sharding import Crosscheck, cut
from smartbatch.core.preparation.json_recovery import recover_json
from smartbatch.core.preparation.json_schemas import compiled
from smartbatch.core.preparation.structured import read_answer
from smartbatch.core.preparation.tokens import estimate, estimate_request
from smartbatch.types import Generation, Message, Request, Usage
from tests.core.walks.record import Record


@frozen
class _Item:
    ix: int
    size: int
    tokens: int


def shards(rng: random.Random, record: Record) -> None:
    for _ in range(6):
        items = [
            _Item(place, rng.choice((10, 50, 400)), rng.choice((1, 30, 200)))
            for place in range(rng.choice((0, 1, 7, 60, 300)))
        ]
        record.tried(
            "cut",
            cut,
            items,
            max_requests=rng.choice((0, 1, 7, 50)),
            max_bytes=rng.choice((300.0, 401.0, 5000.0)),
            max_tokens=rng.choice((150.0, 2000.0, math.inf)),
            distinct=rng.random() < 0.6,
            taken_sizes=rng.choice(((), (7, 50), range(26, 51), range(17, 51), range(3, 8), range(1, 8))),
        )


def crosschecks(rng: random.Random, record: Record) -> None:
    check, spread = Crosscheck(), rng.choice((0.0, 0.01, 0.1, 2.0))
    constant, slope = rng.choice(((0, 1.2), (0, 1.2), (200, 1.2), (9000, -3.0), (0, 0.02)))
    with_bytes = rng.random() < 0.5
    lines = []
    for _ in range(rng.choice((10, 20, 21, 150))):
        tokens = int(math.exp(rng.uniform(3, rng.choice((3.2, 6.5)))))
        billed = round(max(0.0, constant + slope * tokens * math.exp(rng.gauss(0, spread))))
        other_script = rng.choice((1.0, 1.0, 1.0, 1.1, 2.0))
        lines.append((tokens, billed, round(4 * tokens * other_script) if with_bytes else 0))
    for line in lines:
        check.observe(*line)
    for tokens, billed, size in lines:
        for share in (0.3, 0.5, 0.9, 0.97, 1.0, 1.03, 1.1, 2.0, 5.0):
            record.note(f"times {share}", suspicious=check.suspicious(tokens, round(share * billed), size))
        more, less = (check.suspicious(tokens, billed + by, size) for by in (1, -1))
        record.note("next", more=more, less=less)
    record.note("of none", check.suspicious(0, 9), check.suspicious(9, 0), check.suspicious(1, 40))
    record.note("unrelated", check.unrelated)


def windows(rng: random.Random, record: Record) -> None:
    for _ in range(400):
        window = Window(
            rng.choice((0.0, 0.1, 2.0)),
            rng.choice((1, 5, 10)),
            rng.choice((None, None, None, 1, 2, 4)),
            rng.choice((0.3, 5.0)),
        )
        now = 100.0
        calls = rng.choice((0, 1, 1, 2))
        waiting = Waiting(
            count=rng.choice((0, 1, 2, 3, 4, 5, 10, 30)),
            opened=now - rng.choice((0.0, 0.002, 0.05, 0.1, 0.3, 7.0)),
            must_start=now + rng.choice((-1.0, 0.0, 0.01, 5.0)),
            urgent=rng.random() < 0.05,
            flushed=rng.random() < 0.05,
            expected=rng.choice((0, 1, 3, 8)),
            newest=now - rng.choice((0.0, 0.001, 0.003, 0.004, 0.05)),
            last_finished=now - rng.choice((0.0, 0.002, 0.019, 0.5, math.inf)),
            latency=rng.choice((0.0, 0.004, 0.05, 0.5, 2.0)),
            calls=[
                (now + rng.choice((-0.01, 0.01, 0.03, 0.25, 1.0)), rng.choice((1, 2, 3, 30)))
                for _ in range(calls)
            ],
        )
        record.note("ready", after=BatchAccumulator(window).ready(now, waiting) - now)
        gather = GatherWindow(rng.choice((3, 10)), *rng.choice(((), (1.0, 5.0))))
        leave_by = now + rng.choice((-1.0, 2.0, 500.0))
        closes = gather.closes(waiting.count, waiting.opened, waiting.newest, leave_by)
        record.note("closes", after=closes - now)


WORDS = ("red", "größer", "語", "😀", "a longer word", "x" * 30)
DAMAGE = ("", "x", "\n", "{", "[1, 2]", "```json\n", "```", '{"a": 1,}', "null", "'b'", "NaN", '"', "}")


def packs(rng: random.Random, record: Record) -> None:
    compiler = BatchCompiler(lambda: random_word(rng), native_schema=rng.random() < 0.5)
    prompts = [" ".join(rng.choices(WORDS, k=rng.randrange(1, 6))) for _ in range(rng.randrange(2, 6))]
    params = Generation(max_tokens=rng.choice((None, 40)), system=rng.choice((None, "Be short.")))
    packed = compiler.compile([Request(prompt, params) for prompt in prompts])
    record.note("packed", prompt=packed.request.prompt, params=packed.request.params)
    answers = [" ".join(rng.choices(WORDS, k=2)) for _ in prompts]
    record.note("not asked", split(packed, json.dumps(answers)))
    record.note("no answers", split(packed, rng.choice(DAMAGE)))
    right = [answer_to(prompt) for prompt in prompts]
    for damage in ("none", *rng.sample(list(DAMAGES), 6)):
        items = honest(packed)
        found = split(packed, DAMAGES[damage](items, rng) if damage in DAMAGES else written(items))
        kept = [answer is not None for answer in found]
        exact = [answer == text for answer, text in zip(found, right, strict=True)]
        record.note(f"damage {damage}", answers=len(prompts), kept=sum(kept), right=sum(exact))
    mentioned = rng.sample(HOSTILE, 8)
    record.note("packable", [packable(Request(text)) for text in (*mentioned, *prompts)])
    record.tried("of two kinds", compiler.compile, [Request("a"), Request("b", Generation(max_tokens=3))])
    missing: list[str | None] = [None, None]
    record.note(
        "weights", some=usage_weights(rng.sample([*missing, *answers], 2)), none=usage_weights(missing)
    )
    weights = [rng.randrange(0, 50) for _ in prompts]
    usage = Usage(rng.randrange(500), rng.randrange(500), cached_tokens=rng.randrange(100))
    if sum(weights):
        record.note("usage", split_usage(usage, weights, weights[::-1]))
    room = PackRoom(rng.choice((300, 2000)), rng.choice((100, 1000)))
    for _ in range(12):
        record.note("room", room.take(rng.randrange(90), rng.randrange(90)))


def texts(rng: random.Random, record: Record) -> None:
    for _ in range(30):
        text = "".join(
            rng.choices(("a ", "é", "я", "語", "😀", "—", "\u0e01", "{", "1"), k=rng.randrange(40))
        )
        record.note("tokens", estimate(text))
        parts = ({"type": "text", "text": text}, {"type": "image_url"})
        messages = (Message("user", text), Message("user", parts))
        params = Generation(system=rng.choice((None, text)), extra=rng.choice(({}, {"a": [text]})))
        record.note("request", estimate_request(Request(rng.choice((text, messages)), params)))
        broken = "".join(rng.choices(DAMAGE, k=rng.randrange(1, 7)))
        record.tried("json", recover_json, broken)
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        params = Generation(schema=schema)
        record.tried("answer", read_answer, params, broken, rng.choice(("stop", "length", "content_filter")))


ATOMS = (".", "a", "b", "é", "^", "$", "[ab]", "[^a-c]", "[a-]", "(a|b)", "(?:ab)")
CLASSES = (r"\w", r"\d", r"\s", r"\W", r"[\d_]")
MORE = (r"\b", r"\B", "(?=a)", "(?!b)", "(?<=a)", "(?<!b)", r"\.", "(?i:A)")
FLAGS = ("", "", "(?a)", "(?i)", "(?s)", "(?im)")
TIMES = ("", "", "", "*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?")


def _taken(pattern: str) -> bool:
    compiled(pattern)
    return True


def patterns(rng: random.Random, record: Record) -> None:
    for _ in range(60):
        parts = rng.choices(ATOMS + CLASSES + MORE, k=rng.randrange(1, 5))
        written = rng.choice(FLAGS) + "".join(part + rng.choice(TIMES) for part in parts)
        found = record.tried("pattern", _taken, written)
        for _ in range(8 if found else 0):
            text = "".join(rng.choices("aabbcAé _1.\n٣É\x1c", k=rng.randrange(7)))
            record.note("found", compiled(written)(text))


WALKS = {
    "shards": (shards, 64),
    "crosschecks": (crosschecks, 36),
    "windows": (windows, 32),
    "packs": (packs, 48),
    "texts": (texts, 16),
    "patterns": (patterns, 16),
}
