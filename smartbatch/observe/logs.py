"""Two logs: events through structlog, off by default; errors in the user's code and lost answers through
the standard ``logging``, on by default.

Events are logged only if the user passes a logger or calls :func:`enable`. A line contains only the fields of
:mod:`smartbatch.events`: ids, counts, seconds, tokens and USD. :func:`~smartbatch.errors.scrub` keeps each
event on a single line and removes anything that looks like a key.
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
    CachingStopped,
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
    PriceUnknown,
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
    """A target of log lines, such as a structlog logger; its methods take an event's name and fields."""

    def debug(self, event: str, /, **fields: Any) -> Any: ...

    def info(self, event: str, /, **fields: Any) -> Any: ...

    def warning(self, event: str, /, **fields: Any) -> Any: ...


_enabled: EventLogger | None = None


def enable(level: str | int = "info", stream: TextIO | None = None) -> None:
    """Turn on the library's log for all clients of the process.

    Lines pass through the application's structlog configuration, if there is one and no ``stream`` is given.
    Otherwise each line is a JSON object written to ``stream``. Other logging configuration is not changed.

    Args:
        level: the lowest level shown: ``"debug"``, ``"info"``, ``"warning"``, ``"error"`` or its number.
            Failures and problems are logged as warnings; limits, breaker changes, routes and the states of
            jobs as info; everything else as debug.
        stream: where the lines are written; ``None`` for standard error.

    Raises:
        ConfigError: the level is unknown.
    """
    import structlog

    global _enabled
    number = _LEVELS.get(level.lower()) if isinstance(level, str) else level
    if number is None:
        raise ConfigError(f"unknown log level {level!r}; use one of {', '.join(_LEVELS)}")
    filtering = structlog.make_filtering_bound_logger(number)
    if stream is None and structlog.is_configured():
        # added to the application's filter and processors
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
    """Turn the library's log off again."""
    global _enabled
    _enabled = None


def get_logger(logger: EventLogger | logging.Logger | None = None) -> EventLogger | None:
    """Return the target of log lines; ``None`` if logging is off.

    Args:
        logger: returned unchanged, except that a standard library logger is wrapped so that it accepts
            fields; ``None`` for the log turned on by :func:`enable`.
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
    """If logging is on, log an error that no request or job reports.

    An exception raised by logging itself, for example because the disk is full, goes to the standard logger,
    and the caller continues.

    Args:
        name: the name of the log entry.
        fields: class names and ids, but no error messages from user code, which may contain an answer.
    """
    log = get_logger()
    if log is not None:
        try:
            log.warning(name, **fields)
        except Exception as error:
            user_error("the log", error)


_USER_LOGGER = logging.getLogger("smartbatch")
_REPEAT_SECONDS = 1.0
"""Seconds within which the same error in the user's code is logged only once, because a hook may run for
every request.
"""
_last_logged: dict[tuple[str, str, int], tuple[float, int]] = {}
"""Time of an error's last log entry and number of repetitions since, by hook, file and line. There is no
lock, which might be held during a fork or in a signal handler, so simultaneous errors may be counted once."""


def user_error(where: str, error: BaseException) -> None:
    """Log an exception of a user's callback, observer or hook with its traceback, because it is not reported
    anywhere else.

    It is logged as an error by the standard logger ``smartbatch``, so it appears on standard error unless the
    application configures its logging; ``concurrent.futures`` logs failing callbacks the same way. The same
    error is logged at most once per second, with the number of repetitions. The message of the exception
    comes from the user's code; arguments are not logged. Safe from any thread.

    Args:
        where: the code that raised it, such as ``an observer``.
        error: the exception, with its traceback.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = (where, "", 0) if trace is None else (where, trace.tb_frame.f_code.co_filename, trace.tb_lineno)
    now = RealClock.now()
    last, count = _last_logged.get(place, (-math.inf, 0))
    if now - last < _REPEAT_SECONDS:
        _last_logged[place] = (last, count + 1)
        return
    if len(_last_logged) >= 1000:  # a program that generates code could add entries without limit
        _last_logged.clear()
    _last_logged[place] = (now, 0)
    more = f", and {count:,} times more since it was last logged" if count else ""
    _log(logging.ERROR, "exception in %s%s", where, more, cause=error)


def user_errors_left() -> None:
    """Log the repetitions that have not been logged yet."""
    for place, (last, count) in list(_last_logged.items()):
        if count:
            _last_logged[place] = (last, 0)
            text = "exception in %s (%s, line %d), %s times more since it was last logged"
            _log(logging.ERROR, text, *place, f"{count:,}")


def alarm(text: str, *, lost: bool = False) -> None:
    """Report that paid answers are lost or may be lost, even if logging is off.

    The standard logger ``smartbatch`` logs this as an error if the answers are ``lost``, otherwise as a
    warning.
    """
    _log(logging.ERROR if lost else logging.WARNING, "%s", scrub(text))


def _log(level: int, text: str, *values: object, cause: BaseException | None = None) -> None:
    """Log to the standard logger, whose handlers raise if standard error is closed."""
    with contextlib.suppress(Exception):
        _USER_LOGGER.log(level, text, *values, exc_info=cause)


def job_error(job_id: str | None, error: BaseException) -> None:
    """Log only the class of an error from another library, because its message may contain an answer."""
    message = error.message if isinstance(error, StoreError) else ""
    warn("job_error", job_id=job_id or "", error=type(error).__name__, message=message)


class LogObserver:
    """Logs every event under its name, such as ``call_finished``; an observer, safe from any thread.

    Args:
        logger: a structlog logger, a ``logging.Logger``, or any object whose ``debug``, ``info`` and
            ``warning`` take an event and keyword fields; ``None`` for the log turned on by :func:`enable`, if
            any.
    """

    def __init__(self, logger: EventLogger | logging.Logger | None = None) -> None:
        self._logger = get_logger(logger) if logger is not None else None

    def __call__(self, event: Event) -> None:
        logger = self._logger if self._logger is not None else _enabled
        if logger is None:
            return
        level = level_of(event)
        # method name in structlog or in ``logging``
        shown = getattr(logger, "is_enabled_for", None) or getattr(logger, "isEnabledFor", None)
        if shown is None or shown(_LEVELS[level]):
            getattr(logger, level)(event.name, **clean(event.fields()))


def level_of(event: Event) -> str:
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
        case PriceUnknown() | CachingStopped():
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
    """Return the fields in a form that any renderer accepts: strings scrubbed and numbers finite, including
    those in nested mappings.
    """
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
