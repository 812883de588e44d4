"""Corrects estimated tokens of a model by those that were billed, and learns the lengths of its answers."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from attrs import evolve, frozen

from smartbatch.core.preparation.tokens import (
    RequestTokens,
    asks_for_audio,
    estimate_audio,
    estimate_contents,
    estimate_request,
    files_in,
    most_audio,
    most_of_request,
)
from smartbatch.media_in_prompts import files_of
from smartbatch.types import Request, Usage

CHANCE_STANDARD_ERRORS = 2.0  # standard errors by which two mean lengths may differ by chance
MEAN_KEPT_ANSWERS = 2_000  # answers after which a mean length is dropped unless it recurs
MAX_SHAPES = 64  # kinds of requests whose answers are learned separately
# output tokens before any observation: the 95 % quantile of the Azure 2023 conversation trace (451)
OUTPUT_TOKENS = 450


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
