"""Figures that summarize a random walk: counts, sums, and words with their counts."""

from __future__ import annotations

import enum
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from itertools import pairwise
from statistics import median_low
from typing import Any

import attrs

from smartbatch.core.limits.shared_limit import LateExchange

MOST_WORDS = 6  # different words that are counted individually; enumeration members always are
MEDIAN_OF = 50  # number of fractions from which the median is recorded, because a few may dominate the sum
UNBOUNDED = 1e12  # numbers from which a value is considered unbounded
_WORD = re.compile(r"[\w.:+-]{1,24}")
_KEY = re.compile(r"[a-z_]+")


class _Figure:
    def __init__(self) -> None:
        self.numbers: list[float] = []
        self.words: Counter[str] = Counter()
        self.states: Counter[str] = Counter()
        self.falls = 0

    def told(self, name: str, times: int) -> dict[str, str]:
        found: dict[str, str] = {}
        if above := [number for number in self.numbers if number]:
            found[name or "sum"] = f"{math.fsum(above):.7g}" + f" in {len(above)}" * (len(above) != times)
            if len(above) >= MEDIAN_OF and not all(number == int(number) for number in above):
                found[_joined(name, "median")] = f"{median_low(above):.5g}"
        if self.falls:
            found[_joined(name, "falls")] = str(self.falls)
        if len(self.words) <= MOST_WORDS and all(map(_WORD.fullmatch, self.words)):
            words = self.words + self.states
            if set(words) != {"none"}:
                found |= {_joined(name, word): str(count) for word, count in sorted(words.items())}
        else:
            found |= {_joined(name, state): str(count) for state, count in sorted(self.states.items())}
            count, length = self.words.total(), sum(len(word) * n for word, n in self.words.items())
            found[_joined(name, "texts")] = f"{count} ({len(self.words)} different; {length} characters)"
        return found


class Record:
    def __init__(self) -> None:
        self.name = ""
        self.epoch = math.inf
        self._times: Counter[str] = Counter()
        self._figures: defaultdict[str, defaultdict[str, _Figure]] = defaultdict(lambda: defaultdict(_Figure))

    def note(self, what: str, *found: Any, **named: Any) -> None:
        self._times[what] += 1
        for each in found:
            self._add(what, "", each)
        for name, each in named.items():
            self._add(what, name, each)

    def tried(self, what: str, act: Callable[..., Any], *given: Any, **named: Any) -> Any:
        try:
            found = act(*given, **named)
        except (ValueError, RuntimeError, KeyError, TypeError, LateExchange) as error:
            self.note(what, type(error).__name__)
            if field := getattr(error, "field", None):
                self._figures[what]["field"].states[field] += 1
            return None
        self.note(what, found)
        return found

    def figures(self) -> dict[str, dict[str, str]]:
        return {
            what: ({"times": str(times)} if times > 1 else {})
            | {
                name: told
                for path, figure in self._figures[what].items()
                for name, told in figure.told(path, times).items()
            }
            for what, times in sorted(self._times.items())
        }

    def _add(self, what: str, name: str, value: Any) -> None:
        figure = self._figures[what][name]
        match value:
            case None:
                figure.words["none"] += 1
            case bool():
                figure.words["yes" if value else "no"] += 1
            case enum.Enum():
                figure.states[str(value.value)] += 1
            case str():
                figure.words[value or "empty"] += 1
            case bytes():
                figure.words[value.decode("latin-1")] += 1
            case int() | float():
                self._add_number(figure, value)
            case Mapping() if all(map(_KEY.fullmatch, map(str, value))):
                for key, each in value.items():
                    self._add(what, _joined(name, str(key)), each)
            case Mapping():
                self._add(what, _joined(name, "keys"), sorted(map(str, value)))
                for each in value.values():
                    self._add(what, name, each)
            case list() | tuple() | Set():
                self._add_all(what, name, sorted(value, key=str) if isinstance(value, Set) else value)
            case _ if attrs.has(type(value)):
                kind = type(value).__name__
                self.note(kind, **{
                    field.name.strip("_"): getattr(value, field.name) for field in attrs.fields(type(value))
                })  # fmt: skip
                if what != kind:
                    figure.words[kind] += 1
            case _:
                figure.words[type(value).__name__] += 1

    def _add_all(self, what: str, name: str, values: list[Any] | tuple[Any, ...]) -> None:
        for each in values:
            self._add(what, name, each)
        if values and all(type(each) in (int, float) for each in values):
            self._figures[what][name].falls += sum(after < before for before, after in pairwise(values))

    def _add_number(self, figure: _Figure, value: float) -> None:
        if math.isnan(value):
            figure.words["nan"] += 1
        elif abs(value) >= UNBOUNDED:
            figure.words["never" if value > 0 else "always"] += 1
        else:
            figure.numbers.append(value - self.epoch if value >= self.epoch / 2 else value)


def _joined(name: str, part: str) -> str:
    return f"{name}:{part}" if name else part
