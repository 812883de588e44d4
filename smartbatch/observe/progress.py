"""Progress of a list of requests or of a job, shown as a bar, as lines at intervals, or not at all."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, Self, TextIO

from attrs import Factory, define, field

from smartbatch._clock import RealClock
from smartbatch._words import SafeStream, duration, escape, known_money
from smartbatch.errors import ConfigError
from smartbatch.events import BreakerChanged, CooldownStarted, Event, LongWait, PauseChanged, RetryScheduled
from smartbatch.observe.listeners import LONG_WAIT_SECONDS
from smartbatch.types import Result

Mode = Literal["auto", "bar", "lines", "quiet"]
_MODES = ("auto", "bar", "lines", "quiet")

LINE_INTERVAL_SECONDS = 10.0  # seconds between lines if there is no terminal
BAR_INTERVAL_SECONDS = 0.1  # seconds between redraws of a bar: tqdm's default
DEFAULT_WIDTH = 80  # columns of a terminal that does not report its width
RATE_WINDOW_SECONDS = 30.0  # seconds over which the rate is measured


class JobFigures(Protocol):
    """The displayed figures of a job; see :class:`smartbatch.jobs.status.JobStatus`."""

    @property
    def total(self) -> int: ...
    @property
    def submitted(self) -> int: ...
    @property
    def finished(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def remaining(self) -> float | None: ...
    @property
    def elapsed(self) -> float: ...
    @property
    def cost(self) -> float: ...
    @property
    def unpriced(self) -> int: ...
    @property
    def note(self) -> str | None: ...


class Progress:
    """Shows progress, from one of two sources: the results themselves, or the status of a job.

    :meth:`advance` counts a result; :meth:`advance_to` takes the counts from the jobs that contain a list's
    results. Both show the rate and the remaining time at that rate. :meth:`show` shows a job: requests
    submitted, requests completed by the provider, and the forecast of the remaining time. A progress display
    is also an observer of events, which shows notes about limits and outages.

    The display is drawn when one of these methods or :meth:`update` is called, without a thread or a timer.
    Safe from any thread; while one thread is drawing, others count and continue.

    Args:
        total: expected number of results; ``None`` if unknown.
        mode: ``bar`` (terminal or notebook), ``lines`` (one every 10 s, and one at the end), ``quiet``, or
            ``auto``: a bar if ``stream`` is a terminal or this is a notebook, otherwise lines.
        stream: where the display is written; ``None`` for standard error.
        now: returns monotonic seconds, from the clock of the events.
        initial: earlier results, such as those of a resumed run; they count as done, but are left out of the
            rate.

    Raises:
        ConfigError: the mode is unknown.
    """

    def __init__(
        self,
        total: int | None = None,
        mode: Mode = "auto",
        stream: TextIO | None = None,
        now: Callable[[], float] = RealClock.now,
        *,
        initial: int = 0,
    ) -> None:
        if mode not in _MODES:
            raise ConfigError(f"unknown progress mode {mode!r}; use one of {', '.join(_MODES)}")
        stream = stream or sys.stderr
        self._counts = _ProgressCounts(total, initial, now())
        self._now = now
        # re-entrant, because an interrupt may call close() on the thread that holds it
        self._lock = threading.RLock()
        self._drawing = threading.RLock()
        self._process = os.getpid()
        self._closed = False
        self._renderer: _Bar | _Lines | None = None
        if mode == "bar" or (mode == "auto" and watched(stream)):
            self._renderer = _Bar(SafeStream(stream), total, initial)
        elif mode != "quiet":
            self._renderer = _Lines(SafeStream(stream))
        self._next = now() + (self._renderer.every if self._renderer else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, result: Result) -> None:
        """Count one result, failed or not."""
        with self._lock:
            counts = self._counts
            counts.done += 1
            counts.failed += not result.ok
            if result.cost is not None:
                counts.priced = True
                counts.cost += result.cost
            elif result.ok:
                counts.unpriced += 1
        self.update()

    def advance_to(self, status: JobFigures) -> None:
        """Take the counts from the jobs that contain the results of this list, or of a part of it.

        Args:
            status: the status of all these jobs together. Results that are in none of them count as done.
        """
        with self._lock:
            counts = self._counts
            elsewhere = 0 if counts.total is None else counts.total - status.total
            counts.done = elsewhere + status.finished
            counts.failed = status.failed + status.cancelled
            counts.cost = status.cost
            counts.priced = status.finished > status.unpriced
            counts.unpriced = status.unpriced
        self.update()

    def waits_for(self, status: JobFigures) -> None:
        """Show the status of the awaited job next to the results already read."""
        with self._lock:
            words = status.note or ", ".join(_of_job(status)[1:])
            self._counts.notes["job"] = (escape(words)[:100], None)
        self.update()

    @property
    def is_due(self) -> bool:
        """Whether the next :meth:`update` draws."""
        return self._renderer is not None and self._now() >= self._next

    def show(self, status: JobFigures) -> None:
        """Show a job; used as ``job.on_progress(progress.show)``.

        100 % is shown only when every result is stored; the progress at the provider is shown next to it.
        """
        with self._lock:
            counts = self._counts
            counts.job, counts.total, counts.done = status, status.total, status.finished
            counts.notes.clear()
            if status.note:
                counts.notes["job"] = (escape(status.note)[:100], None)
        self.update()

    def __call__(self, event: Event) -> None:
        """Show notes about a client's events: pauses for limits, and an unavailable provider."""
        if isinstance(event, CooldownStarted | LongWait):
            self._set_note(f"limit {event.model}", "waiting: rate limit", event.at + event.seconds)
        elif isinstance(event, RetryScheduled):
            if event.delay > LONG_WAIT_SECONDS:
                self._set_note(f"retry {event.model}", "next retry in", event.at + event.delay)
        elif isinstance(event, PauseChanged):
            self._set_note(f"pause {event.model}", f"{event.model} is paused" if event.paused else "", None)
        elif isinstance(event, BreakerChanged):
            opened = event.after == "open"
            until = event.at + event.pause if 0 < event.pause < math.inf else None
            text = "provider unavailable" + (", next probe in" if until else "")
            self._set_note(f"breaker {event.model}", text if opened else "", until)

    def update(self) -> None:
        """Draw, if a redraw is due."""
        if self._renderer is None or self._now() < self._next or not self._drawing.acquire(blocking=False):
            return  # nothing to show, or another thread is drawing
        try:
            now = self._now()
            if now >= self._next and not self._closed and self._process == os.getpid():
                self._next = now + self._renderer.every
                self._renderer.draw(self._view(now))
        finally:
            self._drawing.release()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Hide the bar while the block writes other lines to the terminal."""
        if self._renderer is None:
            yield
            return
        with self._drawing:
            self._renderer.hide()
            yield
            self._renderer.show()

    def close(self) -> None:
        """Draw the final state and close the display. May be called twice."""
        with self._drawing:
            if self._closed:
                return
            self._closed = True
            if self._renderer is not None and self._process == os.getpid():
                with self._lock:
                    self._counts.notes.clear()
                self._renderer.end(self._view(self._now()))

    def _set_note(self, key: str, text: str, until: float | None) -> None:
        with self._lock:
            self._counts.notes.pop(key, None)
            if text:
                self._counts.notes[key] = (escape(text), until)
        self.update()

    def _view(self, now: float) -> tuple[int, str, str]:
        with self._lock:
            return self._counts.done, *self._counts.describe(now)


@define(eq=False)
class _ProgressCounts:
    """The figures and their text; not thread-safe."""

    total: int | None
    initial: int
    began: float
    done: int = field(default=Factory(lambda self: self.initial, takes_self=True))
    failed: int = 0
    cost: float = 0.0
    priced: bool = False
    unpriced: int = 0
    job: JobFigures | None = None
    notes: dict[str, tuple[str, float | None]] = field(factory=dict)
    # recent times, each with the number of results at that time
    samples: deque[tuple[float, int]] = field(
        default=Factory(lambda self: deque([(self.began, self.initial)]), takes_self=True)
    )

    def describe(self, now: float) -> tuple[str, str]:
        """Return the share done (`` 42%``, empty if unknown) and the text next to it."""
        parts = self._of_results(now) if self.job is None else _of_job(self.job)
        note = self._note(now)
        return self._share(), ", ".join(parts) + (f" ({note})" if note else "")

    def _of_results(self, now: float) -> list[str]:
        rate = self._rate(now)
        parts = [f"{self.done:,}/{self.total:,}" if self.total is not None else f"{self.done:,} done"]
        if self.failed:
            parts.append(f"{self.failed:,} failed")
        if rate > 0:
            parts.append(f"{rate:.3g}/s" if rate < 100 else f"{rate:,.0f}/s")
        if self.priced:
            parts.append(known_money(self.cost, self.unpriced))
        if self.total is not None and self.done < self.total:
            if rate > 0:
                parts.append(f"{duration((self.total - self.done) / rate)} left")
        else:
            parts.append(duration(now - self.began))
        return parts

    def _share(self) -> str:
        if not self.total:
            return ""
        # rounded down: 100 % is shown only when all are done
        return f"{min(100, self.done * 100 // self.total):3d}%"

    def _rate(self, now: float) -> float:
        """Return results per second over :data:`RATE_WINDOW_SECONDS`; at the end, over the whole list."""
        samples = self.samples
        if now - samples[-1][0] >= 1.0:
            samples.append((now, self.done))
        while len(samples) > 1 and samples[1][0] <= now - RATE_WINDOW_SECONDS:
            samples.popleft()
        start, before = samples[0]
        if self.total is not None and self.done >= self.total:
            start, before = self.began, self.initial
        return (self.done - before) / (now - start) if now > start else 0.0

    def _note(self, now: float) -> str:
        for key, (_, until) in list(self.notes.items()):
            if until is not None and until <= now:
                del self.notes[key]
        if not self.notes:
            return ""
        text, until = next(reversed(self.notes.values()))
        return text if until is None else f"{text} {duration(until - now)}"


def _of_job(status: JobFigures) -> list[str]:
    counts = {
        "submitted": status.submitted if status.submitted != status.finished else 0,
        "done at the provider": status.running,
        "failed": status.failed,
        "cancelled": status.cancelled,
    }
    parts = [f"{status.finished:,}/{status.total:,}"]
    parts += [f"{number:,} {word}" for word, number in counts.items() if number]
    if status.cost:
        parts.append(known_money(status.cost, status.unpriced))
    if status.finished == status.total:
        parts.append(duration(status.elapsed))
    elif status.remaining is not None:
        parts.append(f"about {duration(status.remaining)} left")
    return parts


class _Lines:
    """One plain line at a time, for logs and pipes."""

    every = LINE_INTERVAL_SECONDS

    def __init__(self, stream: SafeStream) -> None:
        self._stream = stream

    def draw(self, view: tuple[int, str, str]) -> None:
        _, share, words = view
        self._stream.write(f"{share} {words}".strip() + "\n")
        self._stream.flush()

    def hide(self) -> None:
        """Do nothing: lines remain visible."""

    show = hide
    end = draw


class _Bar:
    """A tqdm bar with this library's text, in a terminal or as a notebook widget."""

    every = BAR_INTERVAL_SECONDS

    def __init__(self, stream: SafeStream, total: int | None, initial: int) -> None:
        # imported late, because only bars need it; tqdm.auto warns in a notebook without widgets
        if in_notebook() and find_spec("ipywidgets") is not None:
            base: Any = import_module("tqdm.notebook").tqdm
        else:
            base = import_module("tqdm.std").tqdm
        # tqdm's monitor thread is only needed by bars that draw by count
        kind: Any = type("Bar", (base,), {"monitor_interval": 0})
        self._format = "{}|{{bar}}| {}" if total else "{1}"
        self._bar = kind(
            total=total,
            initial=initial,
            file=stream,
            dynamic_ncols=_has_width(stream),
            ncols=None if _has_width(stream) else DEFAULT_WIDTH,
            bar_format=self._format.format("  0%", ""),
        )

    def draw(self, view: tuple[int, str, str]) -> None:
        self._bar.n, share, words = view
        self._bar.bar_format = self._format.format(share, words.replace("{", "{{").replace("}", "}}"))
        self._bar.refresh()

    def hide(self) -> None:
        self._bar.clear()

    def show(self) -> None:
        self._bar.refresh()

    def end(self, view: tuple[int, str, str]) -> None:
        self.draw(view)
        self._bar.close()


def _has_width(stream: Any) -> bool:
    """Whether a terminal reports its width; if the reported width is 0, the bar would be empty."""
    try:
        return os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError, AttributeError):
        return True  # a notebook: widgets have their own width


def in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return "IPKernelApp" in getattr(shell, "config", {})


def watched(stream: TextIO) -> bool:
    """Whether a person can see a bar: ``stream`` is a terminal, or this is a notebook."""
    with contextlib.suppress(ValueError, AttributeError):  # the stream is closed or has no isatty
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            return True
    return in_notebook()


def new_display(
    progress: bool | None, total: int | None, now: Callable[[], float], *, initial: int = 0
) -> Progress | None:
    """Return the display for the argument ``progress`` of a call.

    If it is true, this is a bar, or lines without a terminal. If it is ``None``, it is a bar in a notebook
    only, because a terminal belongs to the program.
    """
    if progress or (progress is None and in_notebook()):
        return Progress(total, now=now, initial=initial)
    return None
