"""Estimates the tokens of a request from its characters, and corrects the estimate by billed tokens.

No provider's tokenizer works offline without a vocabulary file. Limits and forecasts need a figure
that is right on average: :func:`estimate_request`, with the model's ratio that :class:`Calibration`
learns. Budgets need a figure that is never too low: :func:`most_of_request`, raised if more was
billed.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from attrs import evolve, frozen

from smartbatch.chats import Part
from smartbatch.media import Audio, Media
from smartbatch.media_in_prompts import file_of_part, files_of, text_of_part
from smartbatch.media_tokens import (
    UNKNOWN_MOST_TOKENS,
    UNKNOWN_TOKENS,
    MediaRule,
    media_rule,
)
from smartbatch.types import Message, Request, Usage

# Characters per token, by the length of a character in UTF-8, which indicates the script:
ASCII_CHARS = 4.0  # English prose and code: the rule of thumb in OpenAI's tokenizer guide
TWO_BYTE_CHARS = 2.5  # accented Latin, Greek, Cyrillic, Hebrew, Arabic
THREE_BYTE_CHARS = 1.0  # Chinese, Japanese, Korean, Thai, Indic scripts; typographic punctuation
FOUR_BYTE_CHARS = 0.5  # emoji and rare ideographs: two tokens each

CHANCE_STANDARD_ERRORS = 2.0  # standard errors by which two mean lengths may differ by chance
# role and separators of a message (OpenAI's cookbook, "How to count tokens": 3 per message and 1 per role)
MESSAGE_TOKENS = 4
TOOL_TOKENS = 8  # around a tool's name, description and parameters
MEAN_KEPT_ANSWERS = 2_000  # answers after which a mean length is dropped unless it recurs
MAX_SHAPES = 64  # kinds of requests whose answers are learned separately
# output tokens before any observation: the 95 % quantile of the Azure 2023 conversation trace (451)
OUTPUT_TOKENS = 450
# maximum tokens of one answer, over all models in common use (OpenAI, Anthropic and Google model pages)
MAX_ANSWER_TOKENS = 128_000


_SMALLEST_TOKEN = re.compile(rb"[A-Za-z][a-z]?|[^ A-Za-z]| (?= )")  # matches at most one token of UTF-8 text


def longest_output(max_tokens: int | None, limit: int | None = None) -> int:
    """Return the maximum output tokens that can be billed for a call.

    ``limit`` is the provider's limit for requests without ``max_tokens``.
    """
    return next(most for most in (max_tokens, limit, MAX_ANSWER_TOKENS) if most is not None)


def estimate(text: str) -> int:
    """Estimate the tokens of a text: 0 for an empty text, otherwise at least 1."""
    if text.isascii():
        return (len(text) + 3) // 4
    return math.ceil(_weigh(text))


def _weigh(text: str) -> float:
    """The lengths of three encodings give the number of characters in each class, far faster than a loop."""
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


def most_tokens(text: str) -> int:
    """Return the maximum number of tokens of ``text`` in any tokenizer: about twice the estimate for English.

    A token has at least two letters of a word, and includes the space before the word. Every other byte,
    such as a digit, a punctuation mark, another space or part of another script, may be a token of its
    own.
    """
    return len(_SMALLEST_TOKEN.findall(text.encode("utf-8", "surrogatepass")))


@frozen
class _CountingRule:
    """How the parts of a request are counted. Numbers are tokens, except for ``forms``."""

    text: Callable[[str], int]  # returns the tokens of a text
    frame: int  # around the answer
    message: int  # around a message
    tool: int  # around a tool
    media: int  # a part that is neither text nor a file whose content is known
    file: Callable[[MediaRule, Media], int]  # returns the tokens of a file
    tools: int  # a provider's own instructions for tools
    schema: int  # instructions around a schema
    forms: int  # factor by which a schema may grow in a provider's dialect

    def request(self, request: Request, rule: MediaRule) -> int:
        params, prompt = request.params, request.prompt
        tokens = self.frame
        if isinstance(prompt, str):
            tokens += self.message + self.text(prompt)
        else:
            tokens += sum(self._message(message, rule) for message in prompt)
        if params.system is not None:
            tokens += self.message + self.text(params.system)
        tokens += self.tools if params.tools else 0
        for tool in params.tools or ():
            tokens += self.tool + self.text(f"{tool.name} {tool.description or ''}")
            tokens += self.forms * self._json(tool.parameters)
        for structure in (params.schema, params.response_format):
            if structure:
                tokens += self.schema + self.forms * self._json(structure)
        return tokens + self._json(params.extra) if params.extra else tokens

    def _json(self, value: Any) -> int:
        return self.text(json.dumps(value, ensure_ascii=False, default=str))

    def _message(self, message: Message, rule: MediaRule) -> int:
        content = message.content
        if isinstance(content, str):
            tokens = self.text(content)
        else:
            tokens = sum(self._part(part, rule) for part in content)
        for call in message.tool_calls:
            tokens += self.message + self.text(call.name) + self._json(call.arguments or call.arguments_text)
        return self.message + tokens

    def _part(self, part: Part | str, rule: MediaRule) -> int:
        if not isinstance(part, Mapping):
            return self.text(part) if isinstance(part, str) else self.file(rule, part)
        if (text := text_of_part(part)) is not None:
            return self.text(text) if isinstance(text, str) else self._json(text)
        if part.get("type") != "tool_result":
            file = file_of_part(part)
            return self.media if file is None else self.file(rule, file)
        content = part.get("content") or ""
        if isinstance(content, str):
            return self.text(content)
        return sum(self._part(inner, rule) for inner in content)


_EXPECTED_COUNTS = _CountingRule(
    estimate,
    frame=3,  # from the same source as MESSAGE_TOKENS
    message=MESSAGE_TOKENS,
    tool=TOOL_TOKENS,
    media=UNKNOWN_TOKENS,
    file=MediaRule.expected,
    tools=0,
    schema=0,
    forms=1,
)
_MAXIMUM_COUNTS = _CountingRule(
    most_tokens,
    frame=16,
    message=2 * MESSAGE_TOKENS,
    tool=8 * TOOL_TOKENS,
    media=UNKNOWN_MOST_TOKENS,
    file=MediaRule.most,
    tools=1000,
    schema=200,
    forms=2,
)


_CONTENT_COUNTS = evolve(_EXPECTED_COUNTS, frame=0, message=0, tool=0, schema=0, forms=0)


def estimate_request(request: Request, model: str = "") -> int:
    """Estimate the input tokens of a request: prompt, system text, schema and message frames.

    ``model`` decides how files are counted.
    """
    return _EXPECTED_COUNTS.request(request, media_rule(model))


def estimate_contents(request: Request, model: str = "") -> int:
    """Estimate only texts and files. Some providers bill neither message frames nor schemas."""
    return _CONTENT_COUNTS.request(request, media_rule(model))


def files_in(request: Request, model: str = "") -> Iterator[tuple[int, int]]:
    """Yield the bytes, 0 if unknown, and the estimated tokens of each file in a prompt."""
    rule = media_rule(model)
    for file in map(file_of_part, files_of(request)):
        yield (0, UNKNOWN_TOKENS) if file is None else (file.size or 0, rule.expected(file))


def estimate_audio(request: Request, model: str = "") -> int:
    """Estimate the input tokens that are audio, which some models price differently."""
    return _audio_tokens(request, media_rule(model).expected)


def most_audio(request: Request, model: str = "") -> int:
    return _audio_tokens(request, media_rule(model).most)


def _audio_tokens(request: Request, count: Callable[[Media], int]) -> int:
    files = map(file_of_part, files_of(request))
    return sum(count(file) for file in files if isinstance(file, Audio))


def estimated_usage(request: Request, model: str, output: int) -> Usage:
    """Return the usage of an answered request whose provider reported none.

    ``output`` is the number of output tokens.
    """
    given, audio = estimate_request(request, model), estimate_audio(request, model)
    return Usage(given, output, estimated=True, audio_tokens=audio)


def asks_for_audio(request: Request) -> bool:
    """Whether the answer is audio, requested with the field ``modalities`` of OpenAI's chat completions."""
    wanted = (request.params.extra or {}).get("modalities")
    return isinstance(wanted, Sequence) and "audio" in wanted


def most_of_request(request: Request, model: str = "") -> int:
    """Return the maximum input tokens, including instructions that providers may add for messages, schemas
    and tools.
    """
    return _MAXIMUM_COUNTS.request(request, media_rule(model))


@frozen
class RequestTokens:
    """Estimated input tokens of a request.

    Attributes:
        contents: only texts and files, without message frames and schemas; equal to ``total`` once billed
            tokens have been observed.
        audio: the part of ``total`` that is audio.
        asks_for_audio: whether the answer is audio.
    """

    total: int
    contents: int
    audio: int = 0
    asks_for_audio: bool = False

    @property
    def audio_share(self) -> float:
        return self.audio / self.total if self.total else 0.0


class Calibration:
    """Learns about the tokens of one model from its answers.

    Thread-safe without a lock, because the state is an immutable value that is replaced. If several
    answers are observed at the same moment, some may be lost, which hardly changes an average.

    The input ratio is the mean of the first :data:`SETTLED` requests, and then an exponential moving
    average. Output lengths are kept for the latest :data:`REMEMBERED` answers. Each shape has the mean
    length of its answers since the lengths last changed, for example because another list began.

    Requests with files have their own calibration, because their tokens are counted by another rule: the
    tokens billed for texts say nothing about images.

    Args:
        outputs_for: the calibration of the model, if this one is for the model's packed prompts or for its
            requests with files. It learns the lengths of the same answers, but nothing about their input,
            which is counted differently.
    """

    SETTLED = 20  # requests after which each has weight 1/20 in the ratio, and the output quantile is trusted
    REMEMBERED = 256  # answers; the 95 % quantile is then based on a dozen of them
    QUANTILE = 0.95  # quantile to reserve: one answer in twenty exceeds it, and is reconciled afterwards
    LATEST = 10  # answers whose mean replaces the previous one if it differs
    CHANGED = 1.5  # factor by which it must differ; smaller differences average out soon
    # limits of the ratio: a value outside them comes from a wrong count, not from another tokenizer
    RATIO = (0.2, 8.0)

    def __init__(self, outputs_for: Calibration | None = None, model: str = "") -> None:
        self._model: str = model if outputs_for is None else outputs_for._model
        self._outputs_for = outputs_for
        self._with_files = Calibration(self) if outputs_for is None else self
        self._known = _KnownTokens()
        self._shapes: dict[str, _LatestLengths] = {}
        self._shape_bases: dict[str, int] = {}  # answers per shape already in the store
        self._base = 0  # answers already in the store

    def of(self, request: Request) -> Calibration:
        """Return the calibration for requests like this one: those with files have their own."""
        return self if next(files_of(request), None) is None else self._with_files

    @property
    def observed(self) -> int:
        return self._known.seen

    @property
    def knows_input(self) -> bool:
        """Whether the ratio is based on observed requests, not only the lengths of answers."""
        return self._known.billed > 0

    @property
    def unsaved(self) -> bool:
        return self._known.seen > self._base

    @property
    def ratio(self) -> float:
        """Billed input tokens per estimated token."""
        known = self._known
        if known.estimated <= 0:
            return 1.0
        low, high = self.RATIO
        return min(high, max(low, known.billed / known.estimated))

    def estimate(self, request: Request) -> int:
        """Estimate the input tokens of a request to the model, before they are corrected."""
        return estimate_request(request, self._model)

    def files(self, request: Request) -> Iterator[tuple[int, int]]:
        """Yield the bytes and tokens of each file; see :func:`files_in`."""
        return files_in(request, self._model)

    def tokens_of(self, request: Request) -> RequestTokens:
        """Estimate the tokens of a request to the model, before they are corrected."""
        total = self.estimate(request)
        contents = total if self.knows_input else estimate_contents(request, self._model)
        audio = min(total, estimate_audio(request, self._model))
        return RequestTokens(total, contents, audio, asks_for_audio(request))

    def input(self, request_estimate: int) -> int:
        return math.ceil(request_estimate * self.ratio)

    def output(self, max_tokens: int | None) -> int:
        """The output tokens to reserve: 95 % of answers are shorter. Never above ``max_tokens``."""
        known = self._known
        if known.seen >= self.SETTLED:
            expected = known.output(self.QUANTILE)
        elif max_tokens is not None:
            expected = max_tokens
        else:
            expected = max(OUTPUT_TOKENS, known.output(1.0))
        return expected if max_tokens is None else min(expected, max_tokens)

    def most(self, request: Request, output: int | None = None) -> Usage:
        """Return the tokens to reserve for ``request`` in a budget.

        ``output`` replaces the output tokens of :meth:`most_output`.
        """
        if output is None:
            output = 0 if request.embedding is not None else self.most_output(request.params.max_tokens)
        given = self.most_input(request)
        return Usage(
            given,
            output,
            audio_tokens=min(given, most_audio(request, self._model)),
            output_audio_tokens=output if asks_for_audio(request) else 0,
        )

    def most_input(self, request: Request) -> int:
        """Return the maximum input tokens of ``request``, from its text and from answers billed above their
        estimates.

        Underestimated texts cause a constant factor; tokens that a server adds to each request cause a
        constant difference. The smaller of the two bounds still covers every observed answer.
        """
        most, known = most_of_request(request, self._model), self._known
        if known.factor <= 1.0:
            return most
        estimated = self.estimate(request)
        return max(most, math.ceil(min(estimated * known.factor, estimated + known.excess)))

    def most_output(self, max_tokens: int | None) -> int:
        """The output tokens to reserve in a budget: ``max_tokens``, which no answer exceeds.

        Without ``max_tokens``, twice the 95 % quantile is reserved, and a longer answer is charged
        afterwards.
        """
        return 2 * self.output(None) if max_tokens is None else max_tokens

    def answers(self, shape: str) -> tuple[int, float]:
        """Return the number of answers of one shape since their lengths last changed, and their mean."""
        known = self._shapes.get(shape)
        return (0, 0.0) if known is None else (known.alike, known.mean)

    def observe(self, request_estimate: int, usage: Usage, shape: str = "") -> None:
        """Learn from an answered request; ignored without the provider's own counts."""
        if request_estimate <= 0 or usage.input_tokens <= 0 or usage.estimated:
            return
        self._known = self._known.after(request_estimate, usage.input_tokens, usage.output_tokens)
        self._learn_shape(shape, usage.output_tokens)
        if self._outputs_for is not None:
            self._outputs_for.observe_output(usage.output_tokens, shape)

    def observe_output(self, tokens: int, shape: str = "") -> None:
        """Learn the length of one answer, but nothing about its input."""
        known = self._known
        self._known = known.after(known.estimated, known.billed, tokens)
        self._learn_shape(shape, tokens)

    def _learn_shape(self, shape: str, tokens: int) -> None:
        known = self._shapes.get(shape)
        if known is None and len(self._shapes) >= MAX_SHAPES:
            self._shapes = dict(list(self._shapes.items())[MAX_SHAPES // 2 :])
        self._shapes[shape] = (known or _LatestLengths()).after(tokens)

    def levels(self, shape: str) -> tuple[float, ...]:
        """Return the earlier mean lengths of a shape that differ from the present one."""
        known = self._shapes.get(shape) or _LatestLengths()
        return tuple(mean for mean, last in known.levels if known.seen - last < MEAN_KEPT_ANSWERS)

    def state(self) -> dict[str, Any]:
        """Return the learned state as plain values, for :meth:`restore`."""
        known = self._known
        files = {} if self._with_files is self else {"files": self._with_files.state()}
        return {
            **files,
            "seen": known.seen,
            "estimated": known.estimated,
            "billed": known.billed,
            "factor": known.factor,
            "excess": known.excess,
            "outputs": list(known.latest),
            "shapes": {
                shape: [each.seen, each.alike, each.mean, *each.latest[-self.SETTLED :]]
                for shape, each in self._shapes.copy().items()
            },
        }

    def saved(self, state: Mapping[str, Any]) -> None:
        """Record that a :meth:`state` was stored."""
        if "files" in state:
            self._with_files.saved(state["files"])
        self._base = state["seen"]
        self._shape_bases = {shape: figures[0] for shape, figures in state["shapes"].items()}

    def restore(self, state: Any) -> bool:
        """Add the answers in another process's :meth:`state`; False if the state was not used.

        A state is used if it includes answers that this process has not seen. Answers observed since the
        last exchange are kept. A state in another format is ignored.
        """
        if isinstance(state, dict) and "files" in state and self._with_files is not self:
            self._with_files.restore(state["files"])
        found = _read(state, self.REMEMBERED)
        if found is None or found.seen <= self._base:
            return False
        own = self._known
        self._base, here = found.seen, own.seen - self._base
        factor, excess = max(found.factor, own.factor), max(found.excess, own.excess)
        for shape, each in _read_shapes(state.get("shapes")).items():
            mine, before = self._shapes.get(shape, _LatestLengths()), self._shape_bases.get(shape, 0)
            self._shape_bases[shape] = each.seen
            for tokens in mine.latest[before - mine.seen :] if mine.seen > before else ():
                each = each.after(tokens)
            self._shapes[shape] = each
        for tokens in own.latest[-here:] if here else ():
            found = found.after(own.estimated, own.billed, tokens)
        self._known = evolve(found, factor=factor, excess=excess)
        return True


def _read_shapes(state: Any) -> dict[str, _LatestLengths]:
    """Anything in another format is ignored."""
    found = {}
    for shape, figures in state.items() if isinstance(state, dict) else ():
        sound = isinstance(figures, list) and len(figures) > 3
        if not sound or not all(isinstance(each, int | float) and 0 <= each < math.inf for each in figures):
            continue
        seen, alike, mean, *latest = figures
        outputs = tuple(int(each) for each in latest)
        if 0 < alike <= seen:
            found[str(shape)] = _LatestLengths(int(seen), int(alike), float(mean), outputs)
    return found


def _read(state: Any, most: int) -> _KnownTokens | None:
    """``None`` for anything in another format."""
    if not isinstance(state, dict):
        return None
    seen, outputs = state.get("seen"), state.get("outputs")
    figures = [
        state.get("estimated"),
        state.get("billed"),
        state.get("factor", 1.0),
        state.get("excess", 0.0),
    ]
    if not isinstance(seen, int) or not isinstance(outputs, list):
        return None
    if not all(isinstance(each, int | float) and 0 <= each < math.inf for each in [*figures, *outputs]):
        return None
    latest = [int(tokens) for tokens in outputs[-most:]]
    if not 0 < len(latest) <= seen:
        return None
    estimated, billed, factor, excess = (float(figure) for figure in figures if figure is not None)
    return _KnownTokens(seen, estimated, billed, tuple(latest), tuple(sorted(latest)), factor, excess)


@frozen
class _KnownTokens:
    """What is known after ``seen`` answers."""

    seen: int = 0
    estimated: float = 0.0  # average input tokens per request
    billed: float = 0.0  # average input tokens per request
    latest: tuple[int, ...] = ()  # output tokens in order of arrival
    ranked: tuple[int, ...] = ()  # output tokens in order of size
    factor: float = 1.0  # maximum of billed / estimated input
    excess: float = 0.0  # maximum of billed - estimated input, in tokens

    def after(self, estimated: float, billed: float, output: int) -> _KnownTokens:
        weight = 1 / min(self.seen + 1, Calibration.SETTLED)
        latest, ranked = self._outputs_with(output, Calibration.REMEMBERED)
        factor = billed / estimated if estimated > 0 else 1.0
        return _KnownTokens(
            self.seen + 1,
            self.estimated + weight * (estimated - self.estimated),
            self.billed + weight * (billed - self.billed),
            latest,
            ranked,
            max(self.factor, factor),
            max(self.excess, billed - estimated),
        )

    def _outputs_with(self, tokens: int, most: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        latest = (*self.latest, tokens)
        ranked = list(self.ranked)
        insort(ranked, tokens)
        if len(latest) > most:
            del ranked[bisect_left(ranked, latest[0])]
            latest = latest[1:]
        return latest, tuple(ranked)

    def output(self, q: float) -> int:
        return self.ranked[int(q * (len(self.ranked) - 1))] if self.ranked else 0


@frozen
class _LatestLengths:
    """The lengths of ``seen`` answers of one shape."""

    seen: int = 0
    alike: int = 0  # latest answers that the mean covers
    mean: float = 0.0  # output tokens
    latest: tuple[int, ...] = ()  # output tokens
    # earlier means that differ, each with the number of answers when it was last seen
    levels: tuple[tuple[float, int], ...] = ()

    def after(self, output: int) -> _LatestLengths:
        latest = (*self.latest[1 - Calibration.REMEMBERED :], output)
        alike, mean, levels = self._with(output, latest[-Calibration.LATEST :])
        return _LatestLengths(self.seen + 1, alike, mean, latest, levels)

    def _levels_with(self, mean: float) -> tuple[tuple[float, int], ...]:
        """Old means and those close to ``mean`` are left out, so that there are never many."""
        held = [
            (level, last)
            for level, last in self.levels
            if max(level, mean) > Calibration.CHANGED * min(level, mean)
            and self.seen - last < MEAN_KEPT_ANSWERS
        ]
        return (*held, (mean, self.seen))

    def _with(self, output: int, newest: Sequence[int]) -> tuple[int, float, tuple[tuple[float, int], ...]]:
        """Return the number of answers that count from now on, their mean, and the earlier means that differ.

        Only the newest answers count if their mean differs by more than a factor and by more than chance
        explains. Otherwise the answer is averaged in.
        """
        if self.alike >= len(newest) == Calibration.LATEST:
            mean = sum(newest) / len(newest)
            if max(mean, self.mean) > Calibration.CHANGED * min(mean, self.mean):
                before = self.latest[: 1 - len(newest)][len(newest) - 1 - self.alike :]
                if _differ(before, newest):
                    earlier = fmean(before[-Calibration.SETTLED :]) if before else self.mean
                    return len(newest), mean, self._levels_with(earlier)
        alike = self.alike + 1
        return alike, self.mean + (output - self.mean) / min(alike, Calibration.SETTLED), self.levels


def _differ(before: Sequence[int], newest: Sequence[int]) -> bool:
    """True if two lists of lengths differ by more than chance explains.

    Their logarithms are compared, because lengths vary by factors.
    """
    then, now = ([math.log(max(1, each)) for each in lengths] for lengths in (before, newest))
    spread = pstdev(now)
    if len(before) >= len(newest):  # fewer may belong to a list that has finished
        spread = max(spread, pstdev(then))
    return abs(fmean(now) - fmean(then)) > CHANCE_STANDARD_ERRORS * spread / math.sqrt(len(newest))
