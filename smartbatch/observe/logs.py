"""Events as log lines, through structlog; off by default. What the user's own code raised, and
paid answers that are in danger, through the standard ``logging``; on by default.

No event is logged unless the user passes a logger, or calls :func:`enable`. Lines carry the fields of
:mod:`smartbatch.events` and nothing else: ids, counts, seconds, tokens, USD. Texts pass
:func:`~smartbatch.errors.scrub`, so one event is one line, and what looks like a key does not appear.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Mapping
from typing import Any, Protocol, TextIO

from smartbatch._clock import RealClock
from smartbatch.errors import ConfigError, StoreError, scrub
from smartbatch.events import (
    AnswersLost,
    BatchEnded,
    BreakerChanged,
    CacheUnavailable,
    CallFinished,
    ClientStopped,
    ClockStepped,
    CooldownStarted,
    Event,
    FlexChanged,
    ForecastMoved,
    JobAccepted,
    JobFinished,
    JobHeld,
    JobIncident,
    JobRescued,
    LimitChanged,
    LongWait,
    PackingChanged,
    PauseChanged,
    RequestFinished,
    RouteChosen,
    RouteScored,
    ShardChanged,
    SharedLimitsLost,
    StoreAvailable,
    StoreUnavailable,
    ThresholdMoved,
)

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class EventLogger(Protocol):
    """What lines go to, such as a structlog logger: methods that take an event's name and its fields."""

    def debug(self, event: str, /, **fields: Any) -> Any: ...

    def info(self, event: str, /, **fields: Any) -> Any: ...

    def warning(self, event: str, /, **fields: Any) -> Any: ...


_enabled: EventLogger | None = None


def enable(level: str | int = "info", stream: TextIO | None = None) -> None:
    """Switch the library's log on, for all clients of the process.

    Lines go to the application's own structlog configuration where there is one and no ``stream`` is given,
    otherwise as one JSON object a line to ``stream``. The configuration of others is never changed.

    Args:
        level: the least level shown: ``"debug"``, ``"info"``, ``"warning"``, ``"error"`` or its number.
            Failures and what needs attention are warnings; limits, breaker changes, routes and the states
            of jobs are infos; all else is debug.
        stream: where lines go; standard error when ``None``.

    Raises:
        ConfigError: for an unknown level.
    """
    import structlog

    global _enabled
    number = _LEVELS.get(level.lower()) if isinstance(level, str) else level
    if number is None:
        raise ConfigError(f"unknown log level {level!r}; use one of {', '.join(_LEVELS)}")
    filtering = structlog.make_filtering_bound_logger(number)
    if stream is None and structlog.is_configured():
        # on top of the application's own filter and processors
        _enabled = structlog.wrap_logger(
            structlog.get_logger("smartbatch"), processors=[], wrapper_class=filtering
        ).bind()
        return
    _enabled = structlog.wrap_logger(
        structlog.PrintLogger(stream or sys.stderr),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=filtering,
    ).bind(logger="smartbatch")


def disable() -> None:
    """Switch the library's log off again."""
    global _enabled
    _enabled = None


def get_logger(logger: EventLogger | logging.Logger | None = None) -> EventLogger | None:
    """Return what lines go to; ``None`` when logging is off.

    Args:
        logger: used as it is, but a standard library logger gets a front that takes fields; ``None`` stands
            for the log that :func:`enable` switched on.
    """
    if logger is None:
        return _enabled
    if not isinstance(logger, logging.Logger):
        return logger
    import structlog

    fitted: EventLogger = structlog.wrap_logger(
        logger,
        processors=[structlog.stdlib.filter_by_level, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.stdlib.BoundLogger,
    ).bind()
    return fitted


def warn(name: str, /, **fields: str) -> None:
    """Log an error that no request and no job reports, where logging is on.

    What the log raises, as one whose stream is closed or whose disk is full, goes to the standard logger:
    whoever reports an error goes on.

    Args:
        name: of the entry.
        fields: class names and ids; the text of a user's error may hold an answer.
    """
    log = get_logger()
    if log is not None:
        try:
            log.warning(name, **fields)
        except Exception as error:
            user_error("the log", error)


_USER_LOGGER = logging.getLogger("smartbatch")
_QUIET = 1.0
"""Seconds in which the same mistake of the user's code is logged once: a hook may run for every request."""
_last_logged: dict[tuple[str, str, int], tuple[float, int]] = {}
"""When a mistake was last logged, and how often it was raised since, by hook, file and line. Used without a
lock, which a fork or a signal handler could find taken: a count may lose what threads raise together."""


def user_error(where: str, error: BaseException) -> None:
    """Log what a user's callback, observer or hook raised, with its traceback; nobody else hears of it.

    It goes to the standard logger ``smartbatch`` as an error, as ``concurrent.futures`` logs callbacks that
    raise: on standard error unless the application configures its logging. Of the same mistake at most one a
    second is logged, with the number of those in between. The text of the exception is the user's own;
    arguments are not logged. Safe from any thread.

    Args:
        where: what raised it, such as ``an observer``.
        error: with its traceback.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (where, "", 0) if trace is None else (where, trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    now = RealClock.now()
    last, count = _last_logged.get(place, (-math.inf, 0))
    if now - last < _QUIET:
        _last_logged[place] = (last, count + 1)
        return
    if len(_last_logged) >= 1000:  # a program that makes its code anew again and again
        _last_logged.clear()
    _last_logged[place] = (now, 0)
    more = f", and {count:,} times more since it was last logged" if count else ""
    _log(logging.ERROR, "exception in %s%s", where, more, cause=error)


def user_errors_left() -> None:
    """Log how often mistakes were raised since each was last logged, for which no further one may come."""
    for place, (last, count) in list(_last_logged.items()):
        if count:
            _last_logged[place] = (last, 0)
            text = "exception in %s (%s, line %d), %s times more since it was last logged"
            _log(logging.ERROR, text, *place, f"{count:,}")


def alarm(text: str, *, lost: bool = False) -> None:
    """Tell whoever runs the program of paid answers that are in danger, or lost; with logging off as well.

    It goes to the standard logger ``smartbatch``: a warning, and an error where they are lost.
    """
    _log(logging.ERROR if lost else logging.WARNING, "%s", scrub(text))


def _log(level: int, text: str, *values: object, cause: BaseException | None = None) -> None:
    """Log to the standard logger, whose handlers raise where standard error is closed."""
    with contextlib.suppress(Exception):
        _USER_LOGGER.log(level, text, *values, exc_info=cause)


def job_error(job_id: str | None, error: BaseException) -> None:
    """Log what keeps jobs from going on; of foreign errors only the class: their text may hold an answer."""
    message = error.message if isinstance(error, StoreError) else ""
    warn("job_error", job_id=job_id or "", error=type(error).__name__, message=message)


class LogObserver:
    """Logs every event under its name, such as ``call_finished``; an observer, safe from any thread.

    Args:
        logger: a structlog logger, a ``logging.Logger``, or anything with ``debug``, ``info`` and ``warning``
            that take an event and keyword fields. ``None``: what :func:`enable` switched on, else nothing.
    """

    def __init__(self, logger: EventLogger | logging.Logger | None = None) -> None:
        self._logger = get_logger(logger) if logger is not None else None

    def __call__(self, event: Event) -> None:
        logger = self._logger if self._logger is not None else _enabled
        if logger is None:
            return
        level = level_of(event)
        # structlog's name, or the standard library's
        shown = getattr(logger, "is_enabled_for", None) or getattr(logger, "isEnabledFor", None)
        if shown is None or shown(_LEVELS[level]):
            getattr(logger, level)(event.name, **clean(event.fields()))


def level_of(event: Event) -> str:
    """Return the level an event is logged at: ``warning``, ``info`` or ``debug``."""
    match event:
        case CallFinished(error=str()) | RequestFinished(ok=False, cancelled=False) | RouteScored(met=False):
            return "warning"
        case (
            LongWait()
            | PackingChanged(enabled=False)
            | FlexChanged(enabled=False)
            | PauseChanged(paused=True)
            | JobIncident()
            | JobHeld()
        ):
            return "warning"
        case StoreUnavailable() | SharedLimitsLost() | AnswersLost() | CacheUnavailable() | ClockStepped():
            return "warning"
        case ClientStopped(failed=failed) if failed:
            return "warning"
        case CooldownStarted() | BreakerChanged() | PackingChanged() | FlexChanged():
            return "info"
        case PauseChanged() | LimitChanged():
            return "info"
        case JobAccepted() | JobFinished() | JobRescued() | ShardChanged() | BatchEnded() | StoreAvailable():
            return "info"
        case RouteChosen() | RouteScored() | ForecastMoved() | ThresholdMoved():
            return "info"
    return "debug"


def clean(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields fit for any renderer: texts scrubbed, numbers finite; nested mappings as well."""
    cleaned: dict[str, Any] = {}
    for key, value in fields.items():
        if isinstance(value, str):
            value = scrub(value)
        elif isinstance(value, float) and not math.isfinite(value):
            value = str(value)  # JSON has no infinity
        elif isinstance(value, Mapping):
            value = clean(value)
        cleaned[key] = value
    return cleaned
