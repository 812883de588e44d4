"""What Ctrl-C raises where results are waited for: a ``KeyboardInterrupt`` that has the answers so far."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from smartbatch.results import ResultList

_FRAMES = 3
"""Frames of a traceback that a notebook shows: the innermost ones, down to the call that was interrupted."""


class Interrupted(KeyboardInterrupt):
    """Ctrl-C, or the interrupt of a notebook's cell, while a call of this library waited for results.

    In a notebook or a shell ``sys.last_value`` is the one that nobody caught.

    Args:
        message: how many results there were, and how to go on.
        results: returns them, each time they are asked for.
    """

    def __init__(self, message: str = "", results: Callable[[], ResultList] = ResultList) -> None:
        super().__init__(message)
        self._results = results

    @property
    def results(self) -> ResultList:
        """What was answered so far, looked up anew: calls that were in flight may have ended since.

        Of a list, in the order of the requests: those without an answer hold a ``RequestCancelled``. Of the
        loops over ``map`` and ``as_completed`` those answers only that the loop was not given yet; of a job
        those that are stored.
        """
        return self._results()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (str(self), list(self.results))

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: it would show each frame with the code around it."""
        lines = ["Traceback (most recent call last):"]
        frames = [one for one in _frames(self.__traceback__) if not _is_shell(one.tb_frame.f_globals)]
        for one in frames[-_FRAMES:]:
            (summary,) = traceback.extract_tb(one, limit=1)
            lines.append(f'  File "{summary.filename}", line {summary.lineno}, in {summary.name}')
            lines.append(f"    {summary.line}")
        return [*lines, *traceback.format_exception_only(self)]


def as_interrupted(error: KeyboardInterrupt, results: ResultList | None = None) -> Interrupted:
    """Return the interrupt that a public call raises ``from None``, for one that was raised inside it: it has
    the frames of its callers only, and nothing that it interrupted.

    Cases: what it interrupted had counted its results already, perhaps before a second Ctrl-C: that one;
    everything had come, and the client was ending; nothing had been asked.

    Args:
        results: of the whole list, where all had come.
    """
    found: BaseException | None = error
    while found is not None and not isinstance(found, Interrupted):
        found = found.__context__
    if found is None and results is not None:
        all_of_them = results
        found = Interrupted("interrupted; every result had come: .results has them", lambda: all_of_them)
    elif found is None:
        found = Interrupted("interrupted before a result was waited for")
    found.__context__ = None
    return found.with_traceback(None)


def _rebuilt(message: str, results: list[Any]) -> Interrupted:
    return Interrupted(message, lambda: ResultList(results))


def _frames(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_shell(names: dict[str, Any]) -> bool:
    return str(names.get("__name__")).startswith("IPython.")
