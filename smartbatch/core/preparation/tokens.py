"""How many tokens a request takes: estimated from its characters, corrected by what was billed.

No provider's tokenizer works offline without a vocabulary file, and limits and budgets only need a figure
that is right on average: :func:`estimate_request` estimates, :class:`Calibration` learns the model's ratio.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from attrs import frozen

from smartbatch._values import Value
from smartbatch.types import Message, Request, Usage

# Characters of a token, by the length of a character's UTF-8 form, which tells the class of scripts:
ASCII_CHARS = 4.0  # English prose and code; the rule of thumb of OpenAI's tokenizer guide
TWO_BYTE_CHARS = 2.5  # accented Latin, Greek, Cyrillic, Hebrew, Arabic
THREE_BYTE_CHARS = 1.0  # Chinese, Japanese, Korean, Thai, Indic scripts; typographic punctuation
FOUR_BYTE_CHARS = 0.5  # emoji and rare ideographs: two tokens each

CHANCE = 2.0
"""Standard errors within which two means of lengths may differ by chance."""
MESSAGE_TOKENS = 4
"""Role and separators of a message (OpenAI's cookbook, "How to count tokens": 3 a message and 1 a role)."""
TOOL_TOKENS = 8
"""What frames a tool's name, description and parameters."""
MEDIA_TOKENS = 765
"""A part that is no text: a picture of 1024 x 1024 at high detail (OpenAI's vision guide: 85 + 4 x 170)."""
SHAPES = 64
"""Kinds of requests whose answers are told apart."""
OUTPUT_TOKENS = 450
"""Output before anything was observed: the 95 % quantile of the Azure 2023 conversation trace (451)."""
LONGEST_OUTPUT = 128_000
"""Most tokens of one answer, of any model in common use (the model pages of OpenAI, Anthropic and Google)."""


def longest_output(max_tokens: int | None, limit: int | None = None) -> int:
    """Return the most output tokens a call can be billed for.

    Args:
        max_tokens: of the request.
        limit: the provider's, for requests without ``max_tokens``; ``None`` where it is unknown.
    """
    return next(most for most in (max_tokens, limit, LONGEST_OUTPUT) if most is not None)


def estimate(text: str) -> int:
    """Return the estimated tokens of ``text``; 0 for an empty text, else at least 1."""
    if text.isascii():
        return (len(text) + 3) // 4
    return math.ceil(_weigh(text))


def _weigh(text: str) -> float:
    """Count the characters of each class by the lengths of three encodings, far faster than one by one."""
    chars = len(text)
    ascii_chars = len(text.encode("ascii", "ignore"))
    four = len(text.encode("utf-16-le", "surrogatepass")) // 2 - chars
    size = len(text.encode("utf-8", "surrogatepass"))
    # chars = one + two + three + four and size = one + 2 two + 3 three + 4 four
    three = size - ascii_chars - 4 * four - 2 * (chars - ascii_chars - four)
    two = chars - ascii_chars - three - four
    return (
        ascii_chars / ASCII_CHARS + two / TWO_BYTE_CHARS + three / THREE_BYTE_CHARS + four / FOUR_BYTE_CHARS
    )


def estimate_request(request: Request) -> int:
    """Return the estimated input tokens of ``request``: prompt, system text, schema and message frames."""
    params = request.params
    prompt = request.prompt
    tokens = 3  # the frame of the answer, from the same source as MESSAGE_TOKENS
    if isinstance(prompt, str):
        tokens += MESSAGE_TOKENS + estimate(prompt)
    else:
        tokens += sum(_message(message) for message in prompt)
    if params.system is not None:
        tokens += MESSAGE_TOKENS + estimate(params.system)
    for tool in params.tools or ():
        tokens += TOOL_TOKENS + estimate(f"{tool.name} {tool.description or ''}") + _json(tool.parameters)
    for structure in (params.schema, params.response_format, params.extra):
        if structure:
            tokens += _json(structure)
    return tokens


def _json(value: Any) -> int:
    return estimate(json.dumps(value, ensure_ascii=False, default=str))


def _message(message: Message) -> int:
    content = message.content
    tokens = estimate(content) if isinstance(content, str) else sum(_part(part) for part in content)
    for call in message.tool_calls:
        tokens += MESSAGE_TOKENS + estimate(call.name) + _json(call.arguments or call.arguments_text)
    return MESSAGE_TOKENS + tokens


def _part(part: Mapping[str, Any]) -> int:
    """Tokens of a part: of its text; of the JSON of a call or the content of its result; else of media."""
    for name in ("text", "input", "thinking"):
        if name in part:
            return estimate(part[name]) if isinstance(part[name], str) else _json(part[name])
    if part.get("type") != "tool_result":
        return MEDIA_TOKENS
    content = part.get("content") or ""
    return estimate(content) if isinstance(content, str) else sum(_part(inner) for inner in content)


class Calibration:
    """What was learned of one model's tokens from its answers.

    Any thread may call it, without a lock: what is known is one immutable value, which is replaced. Of
    answers observed at the same moment some may be lost, which hardly changes an average.

    The input ratio weighs the latest requests most: an average over the first :data:`SETTLED` requests,
    then exponentially fading. Output is remembered over the latest :data:`REMEMBERED` answers; the mean of
    their lengths is that of the answers since the lengths last changed, such as where another list began.

    Args:
        outputs_for: the calibration of the model, for one of its packed prompts: it learns the lengths of the
            same answers, and nothing of their input, whose counts differ.
    """

    SETTLED = 20
    """Requests after which the ratio fades with weight 1/20, and the output quantile is trusted."""
    REMEMBERED = 256
    """Enough for a 95 % quantile that rests on a dozen answers."""
    QUANTILE = 0.95
    """The quantile to reserve: one answer in twenty exceeds it, which is settled afterwards."""
    LATEST = 10
    """Answers whose mean, where it is another than before, is the mean from now on."""
    CHANGED = 1.5
    """Factor by which it must be another; a smaller one is soon made up for by the answers to come."""
    RATIO = (0.2, 8.0)
    """Limits of the ratio: one outside comes from a wrong count, not from another tokenizer."""

    def __init__(self, outputs_for: Calibration | None = None) -> None:
        self._outputs_for = outputs_for
        self._known = _Known()
        self._shapes: dict[str, _Known] = {}
        self._shape_bases: dict[str, int] = {}  # answers of each that the store knows of
        self._base = 0  # answers that the store knows of

    @property
    def observed(self) -> int:
        return self._known.seen

    @property
    def alike(self) -> int:
        """How many answers the mean of output tokens rests on: those since their lengths last changed."""
        return self._known.alike

    @property
    def unsaved(self) -> bool:
        """Whether something was observed since the last :meth:`restore` or :meth:`saved`."""
        return self._known.seen > self._base

    @property
    def ratio(self) -> float:
        """Billed input tokens for each estimated one."""
        known = self._known
        if known.estimated <= 0:
            return 1.0
        low, high = self.RATIO
        return min(high, max(low, known.billed / known.estimated))

    def input(self, request_estimate: int) -> int:
        return math.ceil(request_estimate * self.ratio)

    def output(self, max_tokens: int | None) -> int:
        """Return the output tokens to reserve: 95 % of answers stay below; never above ``max_tokens``."""
        known = self._known
        if known.seen >= self.SETTLED:
            expected = known.output(self.QUANTILE)
        elif max_tokens is not None:
            expected = max_tokens
        else:
            expected = max(OUTPUT_TOKENS, known.output(1.0))
        return expected if max_tokens is None else min(expected, max_tokens)

    def most_output(self, max_tokens: int | None) -> int:
        """Return the output tokens to reserve in a budget: ``max_tokens``, which no answer exceeds.

        Where it is not set, twice the 95 % quantile; what an answer costs beyond that is charged afterwards.
        """
        return 2 * self.output(None) if max_tokens is None else max_tokens

    def answers(self, shape: str) -> tuple[int, float]:
        """Return how many answers of one shape were seen, since their lengths last changed, and their mean.

        Args:
            shape: names the kind of request, see
                :class:`~smartbatch.core.preparation.answer_length.AnswerShape`.
        """
        known = self._shapes.get(shape)
        if (
            known is None and not self._shapes and not shape
        ):  # stored by a version that did not tell them apart
            known = self._known
        return (0, 0.0) if known is None else (known.alike, known.mean)

    def observe(self, request_estimate: int, usage: Usage, shape: str = "") -> None:
        """Learn from one answered request, which :func:`estimate_request` said ``request_estimate`` of; an
        answer without the provider's own counts is ignored.
        """
        if request_estimate <= 0 or usage.input_tokens <= 0 or usage.estimated:
            return
        self._known = self._known.after(request_estimate, usage.input_tokens, usage.output_tokens)
        self._learn_shape(shape, usage.output_tokens)
        if self._outputs_for is not None:
            self._outputs_for.observe_output(usage.output_tokens, shape)

    def observe_output(self, tokens: int, shape: str = "") -> None:
        """Learn the length of one answer; what is known of the input stays as it is."""
        known = self._known
        self._known = known.after(known.estimated, known.billed, tokens)
        self._learn_shape(shape, tokens)

    def _learn_shape(self, shape: str, tokens: int) -> None:
        known = self._shapes.get(shape)
        if known is None and len(self._shapes) >= SHAPES:
            self._shapes = {}
        self._shapes[shape] = (known or _Known()).after(0.0, 0.0, tokens)

    def state(self) -> dict[str, Any]:
        """Return what was learned as plain values, for :meth:`restore`."""
        known = self._known
        return {
            "seen": known.seen,
            "alike": known.alike,
            "estimated": known.estimated,
            "billed": known.billed,
            "mean": known.mean,
            "outputs": list(known.latest),
            "shapes": {
                shape: [each.seen, each.alike, each.mean, *each.latest[-self.SETTLED :]]
                for shape, each in self._shapes.copy().items()
            },
        }

    def saved(self, state: Mapping[str, Any]) -> None:
        """Note that a :meth:`state` is in the store now."""
        self._base = state["seen"]
        self._shape_bases = {shape: figures[0] for shape, figures in state["shapes"].items()}

    def restore(self, state: Any) -> bool:
        """Continue from the :meth:`state` of another process, where it has answers that are not known here;
        what was observed here since the last one counts after it. Return whether it was used: anything of
        another form is ignored.
        """
        found = _read(state, self.REMEMBERED)
        if found is None or found.seen <= self._base:
            return False
        own = self._known
        self._base, here = found.seen, own.seen - self._base
        for shape, each in _read_shapes(state.get("shapes")).items():
            mine, before = self._shapes.get(shape, _Known()), self._shape_bases.get(shape, 0)
            self._shape_bases[shape] = each.seen
            for tokens in mine.latest[before - mine.seen :] if mine.seen > before else ():
                each = each.after(0.0, 0.0, tokens)
            self._shapes[shape] = each
        for tokens in own.latest[-here:] if here else ():
            found = found.after(own.estimated, own.billed, tokens)
        self._known = found
        return True


def _read_shapes(state: Any) -> dict[str, _Known]:
    """Return what was stored of the shapes of answers; anything of another form is left out."""
    found = {}
    for shape, figures in state.items() if isinstance(state, dict) else ():
        sound = isinstance(figures, list) and len(figures) > 3
        if not sound or not all(isinstance(each, int | float) and 0 <= each < math.inf for each in figures):
            continue
        seen, alike, mean, *latest = figures
        outputs = tuple(int(each) for each in latest)
        if 0 < alike <= seen:
            ranked = tuple(sorted(outputs))
            found[str(shape)] = _Known(int(seen), int(alike), 0.0, 0.0, float(mean), outputs, ranked)
    return found


def _read(state: Any, most: int) -> _Known | None:
    """Return a state as it was stored; ``None`` for anything else."""
    if not isinstance(state, dict):
        return None
    seen, alike, outputs = (state.get(name) for name in ("seen", "alike", "outputs"))
    figures = [state.get(name) for name in ("estimated", "billed", "mean")]
    if not isinstance(seen, int) or not isinstance(alike, int) or not isinstance(outputs, list):
        return None
    if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in [*figures, *outputs]):
        return None
    latest = [int(tokens) for tokens in outputs[-most:]]
    if not latest or not 0 < alike <= seen:
        return None
    estimated, billed, mean = (float(figure) for figure in figures if figure is not None)
    return _Known(seen, alike, estimated, billed, mean, tuple(latest), tuple(sorted(latest)))


@frozen(eq=False, repr=False)
class _Known(Value):
    """What is known after ``seen`` answers: averages of input tokens, estimated and billed; the average of
    output tokens over the ``alike`` latest of them; the latest numbers of output tokens, in order of arrival
    and of size.
    """

    seen: int = 0
    alike: int = 0
    estimated: float = 0.0
    billed: float = 0.0
    mean: float = 0.0
    latest: tuple[int, ...] = ()
    ranked: tuple[int, ...] = ()

    def after(self, estimated: float, billed: float, output: int) -> _Known:
        """Return what is known after one more answer."""
        weight = 1 / min(self.seen + 1, Calibration.SETTLED)
        latest, ranked = self._outputs_with(output, Calibration.REMEMBERED)
        alike, mean = self._lengths_with(output, latest[-Calibration.LATEST :])
        return _Known(
            self.seen + 1,
            alike,
            self.estimated + weight * (estimated - self.estimated),
            self.billed + weight * (billed - self.billed),
            mean,
            latest,
            ranked,
        )

    def _lengths_with(self, output: int, newest: Sequence[int]) -> tuple[int, float]:
        """Return how many answers count from now on, and their mean.

        1. The newest have another mean than the answers so far, by more than a factor and by more than chance
           explains: only they count.
        2. Otherwise this is one answer more, of the weight that it has in the average.
        """
        if self.alike >= len(newest) == Calibration.LATEST:
            mean = sum(newest) / len(newest)
            before = self.latest[: 1 - len(newest)][len(newest) - 1 - self.alike :]
            if max(mean, self.mean) > Calibration.CHANGED * min(mean, self.mean) and _differ(before, newest):
                return len(newest), mean
        alike = self.alike + 1
        return alike, self.mean + (output - self.mean) / min(alike, Calibration.SETTLED)

    def _outputs_with(self, tokens: int, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        latest = (*self.latest, tokens)
        if len(latest) > most and latest[0] == tokens:  # it takes the place of an equal one
            return latest[1:], self.ranked
        ranked = list(self.ranked)
        insort(ranked, tokens)
        if len(latest) > most:
            del ranked[bisect_left(ranked, latest[0])]
            latest = latest[1:]
        return latest, tuple(ranked)

    def output(self, q: float) -> int:
        """Return the number of output tokens that a share ``q`` stays within."""
        return self.ranked[int(q * (len(self.ranked) - 1))] if self.ranked else 0


def _differ(before: Sequence[int], newest: Sequence[int]) -> bool:
    """Whether two lists of lengths differ by more than chance explains, by their logarithms: lengths are
    spread by factors.
    """
    then, now = ([math.log(max(1, each)) for each in lengths] for lengths in (before, newest))
    spread = pstdev(now)
    if len(before) >= len(newest):  # fewer may be of a list that is over
        spread = max(spread, pstdev(then))
    return abs(fmean(now) - fmean(then)) > CHANCE * spread / math.sqrt(len(newest))
