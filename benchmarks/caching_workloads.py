"""The workloads of ``benchmarks.caching``, and what an oracle saves on them.

All texts are made of random words, and have an exact number of the emulator's tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

from attrs import evolve, field, frozen

from benchmarks.caching_world import Mode
from smartbatch import Message, Request, ToolCall
from smartbatch.testing import PromptCaching
from smartbatch.types import Generation

__all__ = ["OTHERS", "SHARING", "Row", "Workload", "oracle_saving"]

_BYTES_PER_TOKEN = 4
_WORDS = ("river", "stone", "bread", "house", "market", "garden", "winter", "letter", "bridge", "copper")
BATCH_SECONDS = 3600.0
"""Turnaround of a batch."""


@frozen
class Row:
    """A request, and the prefix that it shares with others.

    Attributes:
        group: of the requests with this prefix; ``None`` if there is none worth caching.
        shared: its tokens.
    """

    request: Request
    group: int | None = None
    shared: int = 0


@frozen
class Workload:
    """A list of requests and the conditions under which it is sent.

    Attributes:
        make: creates the rows.
        gaps: seconds between single requests, repeated; empty for one list.
        settings: of the emulator.
        caching: settings of its prompt caches.
        modes: the modes in which it is sent.
    """

    name: str
    make: Callable[[Random, int], list[Row]]
    count: int
    gaps: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(factory=dict)
    caching: PromptCaching = field(factory=PromptCaching)
    modes: tuple[Mode, ...] = ("real time", "batch")

    def rows(self, scale: float = 1.0) -> list[Row]:
        return self.make(Random(self.name), max(2, round(self.count * scale)))


def text(rng: Random, tokens: int) -> str:
    size, made = _BYTES_PER_TOKEN * tokens, ""
    while len(made) < size:
        made += rng.choice(_WORDS) + (".\n" if rng.random() < 0.1 else " ")
    return made[: size - 1] + "\n"


def _request(prompt: Any, system: str | None = None) -> Request:
    return Request(prompt, params=Generation(system=system))


def _with_system(tokens: int) -> Callable[[Random, int], list[Row]]:
    def make(rng: Random, count: int) -> list[Row]:
        system = text(rng, tokens)
        return [Row(_request(text(rng, 40), system), 0, tokens) for _ in range(count)]

    return make


def _with_systems(uses: int, tokens: int) -> Callable[[Random, int], list[Row]]:
    """Several requests with each system text."""
    one = _with_system(tokens)
    return lambda rng, count: [
        evolve(row, group=group) for group in range(max(1, count // uses)) for row in one(rng, uses)
    ]


def _documents(uses: int, tokens: int, *, shuffled: bool = False) -> Callable[[Random, int], list[Row]]:
    """Several questions about each document, in the order of the documents or of the questions."""

    def make(rng: Random, count: int) -> list[Row]:
        documents = [text(rng, tokens) for _ in range(max(1, count // uses))]
        rows = [
            Row(_request(f"{document}\nQuestion: {text(rng, 30)}"), group, tokens)
            for group, document in enumerate(documents)
            for _ in range(uses)
        ]
        return [row for at in range(uses) for row in rows[at::uses]] if shuffled else rows

    return make


def _few_shot(rng: Random, count: int) -> list[Row]:
    examples = [
        Message(role, text(rng, tokens))
        for _ in range(20)
        for role, tokens in (("user", 80), ("assistant", 10))
    ]
    return [
        Row(_request((*examples, Message("user", text(rng, 60))), "Classify the text."), 0, 4 + 20 * 90)
        for _ in range(count)
    ]


def _unshared(shortest: int, longest: int) -> Callable[[Random, int], list[Row]]:
    return lambda rng, count: [Row(_request(text(rng, rng.randint(shortest, longest)))) for _ in range(count)]


def _once_or_twice(rng: Random, count: int) -> list[Row]:
    rows: list[Row] = []
    for group in range(count * 2 // 3):
        document = text(rng, 1500)
        uses = rng.choice((1, 2))
        rows += [Row(_request(f"{document}\n{text(rng, 30)}"), group, 1500) for _ in range(uses)]
    rng.shuffle(rows)
    return rows


def _changing_start(rng: Random, count: int) -> list[Row]:
    shared = text(rng, 3000)
    return [Row(_request(text(rng, 20), f"Time: {at:07}. {shared}")) for at in range(count)]


def _conversations(rng: Random, count: int) -> list[Row]:
    """Conversations of ten turns, each sent with all turns before it."""
    rows: list[Row] = []
    while len(rows) < count:
        messages = [Message("user", text(rng, 1200))]
        for _ in range(10):
            rows.append(Row(_request(tuple(messages), "Answer in one sentence.")))
            messages += [Message("assistant", text(rng, 100)), Message("user", text(rng, 100))]
    return rows[:count]


def _tool_loops(rng: Random, count: int) -> list[Row]:
    """Questions that are answered after nine calls of tools, each sent with all results before it."""
    rows: list[Row] = []
    while len(rows) < count:
        messages = [Message("user", text(rng, 1200))]
        for number in range(10):
            rows.append(Row(_request(tuple(messages), "Answer with the help of the tool.")))
            call = ToolCall(id=f"call_{number}", name="search", arguments={"words": text(rng, 20)})
            messages += [
                Message("assistant", "", tool_calls=(call,)),
                Message("tool", text(rng, 300), tool_call_id=call.id),
            ]
    return rows[:count]


SHARING = (
    Workload("4,000-token system text × 2,000 prompts", _with_system(4000), 2000),
    Workload("40 documents × 50 questions", _documents(50, 5000), 2000),
    Workload("few-shot classification × 20,000", _few_shot, 20_000),
)
"""Workloads whose saving is compared with the oracle's."""
_GAPS = (60.0, 1500.0, 200.0, 5400.0, 700.0, 2400.0, 30.0, 1000.0, 4000.0, 90.0, 600.0)
_FAILS_FIRST = {"fault_for": lambda index, _body: "500" if index < 2 else None}
OTHERS = (
    Workload("unshared short prompts", _unshared(30, 300), 400),
    Workload("unshared long prompts", _unshared(1500, 6000), 150),
    Workload("prefix below the minimum", _with_system(400), 400),
    Workload("prefixes used once or twice", _once_or_twice, 200),
    Workload("prefixes used twice, far apart", _documents(2, 2000, shuffled=True), 200),
    Workload("gaps of 70 minutes", _with_system(3000), 12, gaps=(4200.0,)),
    Workload("gaps of 10 minutes", _with_system(3000), 20, gaps=(600.0,)),
    Workload("gaps of 1 to 90 minutes", _with_system(3000), 100, gaps=_GAPS, modes=("real time",)),
    Workload("two gaps of 10 minutes each", _with_systems(3, 3000), 300, gaps=(600.0, 600.0, 60.0),
             modes=("real time",)),
    Workload("gaps of 10 minutes, then of 2 hours", _with_system(3000), 100,
             gaps=(*(600.0,) * 50, *(7200.0,) * 50), modes=("real time",)),
    Workload("gaps of 10 and 70 minutes", _with_system(3000), 100, gaps=(600.0, 4200.0),
             modes=("real time",)),
    Workload("conversations", _conversations, 300, gaps=(60.0,), modes=("real time",)),
    Workload("tool loops", _tool_loops, 300, gaps=(5.0,), modes=("real time",)),
    Workload("changing start of the system text", _changing_start, 200),
    Workload("interleaved documents", _documents(10, 2000, shuffled=True), 300),
    Workload("rate limit", _with_system(2000), 200, settings={"rpm": 120}),
    Workload("failing first requests", _with_system(3000), 100, settings=_FAILS_FIRST),
    Workload("short system text", _with_system(60), 400),
    # in batches, providers document hits of at least 30 %
    Workload("cache that never hits", _with_system(3000), 400, modes=("real time",),
             caching=PromptCaching(hit_rate=0.0, implicit_hit_rate=0.0)),
)  # fmt: skip
"""Workloads on which caching must not cost more than none."""


# -- the oracle ----------------------------------------------------------------------------------------------


@frozen
class _Rules:
    """What the oracle knows of a cache.

    Attributes:
        minimum: tokens.
        surcharges: of a written token, by lifetime in seconds.
        step: tokens by which cached prefixes grow.
        hit_rate: in real time.
        keyed: whether a key serves only some requests per minute.
        storage: price of a token of an explicit cache per hour; ``None`` without explicit caches.
    """

    minimum: int
    surcharges: Mapping[float, float]
    step: int = 1
    hit_rate: float = 1.0
    keyed: bool = False
    storage: float | None = None


_RULES = {
    "OpenAI ≤ 5.5": _Rules(1024, {600.0: 0.0}, step=128, keyed=True),
    "OpenAI ≥ 5.6": _Rules(1024, {1800.0: 0.25}),
    "Anthropic": _Rules(512, {300.0: 0.25, 3600.0: 1.0}),
    "Gemini": _Rules(1024, {300.0: 0.0}, step=128, hit_rate=0.8, storage=0.5 / 0.75),
}
_SAVED = 0.9  # of a token that is read


def oracle_saving(
    provider: str, mode: Mode, workload: Workload, rows: Sequence[Row], seconds: float
) -> float:
    """Return the expected saving in input tokens of a client that knows the workload and the cache.

    It sends the requests of a group one after the other, writes each prefix once and only if that pays,
    and uses as few keys as the time of the real run allows.

    Args:
        seconds: that the real run took.
    """
    groups = Counter(row.group for row in rows if row.group is not None)
    shared = {row.group: row.shared for row in rows}
    total = 0.0
    for group, uses in groups.items():
        time = seconds * uses / len(rows)
        between = BATCH_SECONDS / len(rows) if mode == "batch" else max(workload.gaps, default=0.0)
        total += _group_saving(
            _RULES[provider], mode, workload.caching, uses, shared[group], time=time, between=between
        )
    return total


def _group_saving(
    rules: _Rules, mode: Mode, caching: PromptCaching, uses: int, shared: int, *, time: float, between: float
) -> float:
    tokens = shared // rules.step * rules.step
    if tokens < rules.minimum:
        return 0.0
    hit_rate = caching.batch_hit_rate if mode == "batch" else rules.hit_rate * caching.hit_rate
    first = 1
    if rules.keyed and mode == "real time":
        first = -(-uses // (caching.key_requests * (int(time / 60) + 1)))
    savings = [0.0]
    for lifetime, surcharge in rules.surcharges.items():
        if between < lifetime:
            later = (uses - first) * (hit_rate * _SAVED - (1 - hit_rate) * surcharge)
            savings.append(tokens * (later - first * surcharge))
    if rules.storage is not None and mode == "real time":
        savings.append(shared * (uses * _SAVED - 1 - rules.storage * time / 3600))
    return max(savings)
