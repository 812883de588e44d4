"""Sentry: reports errors of smartbatch with route, kind and attempt as tags, and without prompts.

Without this integration, Sentry records the local variables of every frame: prompts, answers and whole
requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import sentry_sdk
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor

from smartbatch.errors import AllRequestsFailed, SmartbatchError

if TYPE_CHECKING:
    from sentry_sdk._types import Event, Hint

__all__ = ["SmartbatchIntegration"]


class SmartbatchIntegration(Integration):
    """Add it with ``sentry_sdk.init(integrations=[SmartbatchIntegration()])``.

    Events about an error of smartbatch, or about an error raised from one, get the tags ``smartbatch.kind``,
    ``smartbatch.route``, ``smartbatch.attempt`` and ``smartbatch.request_id`` if these are known. Local
    variables are removed from these events and from all others with a frame of smartbatch.

    Args:
        include_prompts: keep the local variables.
    """

    identifier = "smartbatch"

    def __init__(self, include_prompts: bool = False) -> None:
        self.include_prompts = include_prompts

    @staticmethod
    def setup_once() -> None:
        add_global_event_processor(_processed)


def _processed(event: Event, hint: Hint) -> Event:
    integration = sentry_sdk.get_client().get_integration(SmartbatchIntegration)
    if integration is None:
        return event
    error = _error_of(hint)
    if error is not None:
        event.setdefault("tags", {}).update(_tags(error))
    stacks = list(_stacks(event))
    ours = error is not None or any(_is_ours(frame) for stack in stacks for frame in stack)
    if ours and not integration.include_prompts:
        for stack in stacks:
            for frame in stack:
                frame.pop("vars", None)
    return event


def _error_of(hint: Hint) -> SmartbatchError | None:
    """Return the error of smartbatch that an event is about, or from which its error was raised."""
    found: BaseException | None = (hint.get("exc_info") or (None, None))[1]
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        if isinstance(found, AllRequestsFailed) and found.results:
            return cast(SmartbatchError, found.results[0].error)
        if isinstance(found, SmartbatchError):
            return found
        seen.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def _tags(error: SmartbatchError) -> dict[str, str]:
    found = {
        "kind": None if error.kind is None else error.kind.value,
        "route": None if error.route is None else error.route.value,
        "attempt": str(error.attempts) if error.attempts else None,
        "request_id": error.request_id,
    }
    return {f"smartbatch.{name}": value for name, value in found.items() if value}


def _stacks(event: Event) -> Iterator[list[dict[str, Any]]]:
    parts = cast(dict[str, Any], event)
    for part in ("exception", "threads"):
        for value in (parts.get(part) or {}).get("values") or ():
            yield (value.get("stacktrace") or {}).get("frames") or []
    yield (parts.get("stacktrace") or {}).get("frames") or []


def _is_ours(frame: dict[str, Any]) -> bool:
    return str(frame.get("module")).partition(".")[0] == "smartbatch"
