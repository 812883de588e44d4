"""Labels of metrics: closed sets, so that neither memory nor the number of series grows.

No prompt, id or foreign text can become a label; what is in no set is ``other``.
"""

from __future__ import annotations

from typing import Final

from smartbatch import errors
from smartbatch.types import Priority, Route


def _failure_names() -> dict[str, str]:
    """Map every text an event may carry as its error to the one name it is counted under."""
    names = {kind.value: kind.value for kind in errors.ErrorKind}
    for cls in vars(errors).values():
        if isinstance(cls, type) and issubclass(cls, errors.SmartbatchError):
            names[cls.__name__] = names[errors.snake_case(cls.__name__)] = errors.snake_case(cls.__name__)
    return names


_OTHER: Final = "other"
_FAILURES = _failure_names()
KINDS: Final = (*dict.fromkeys(_FAILURES.values()), _OTHER)
"""All kinds of failures."""

PRIORITIES: Final = {each: each.name.lower() for each in Priority}
ROUTES: Final[dict[Route | None, str]] = {None: "none"} | {route: route.value for route in Route}
_BREAKER_STATES: Final = frozenset({"closed", "open", "half_open", "stopped"})
_SHARD_STATES: Final = frozenset(
    (
        *("planned", "uploading", "ready", "submitting", "uncertain", "provisional", "fenced", "submitted"),
        *("ended", "ingesting", "settled", "dead"),
    )
)


def failure(error: str | None) -> str:
    """Return the kind of a failure, by the error of its event."""
    return _FAILURES.get(error or "unknown", _OTHER)


def breaker_state(state: str) -> str:
    return state if state in _BREAKER_STATES else _OTHER


def shard_state(state: str) -> str:
    return state if state in _SHARD_STATES else _OTHER
