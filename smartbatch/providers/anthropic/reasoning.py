"""How Anthropic's models accept ``reasoning_effort``: as an effort or as a token budget for thinking.

Sources: Anthropic's guides "Effort" and "Troubleshooting thinking", which lists the configurations that each
model accepts, November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from smartbatch.errors import InvalidRequest
from smartbatch.providers.conversation import THINKING_BUDGETS, check_effort, refuse_second_control
from smartbatch.types import Generation

_NAME: Final = re.compile(
    r"claude-(?:(?P<old>\d)-(?:(?P<old_minor>\d)-)?)?(?P<family>opus|sonnet|haiku|fable|mythos)"
    r"(?:-(?P<major>\d{1,2})(?!\d)(?:-(?P<minor>\d{1,2})(?!\d))?)?"
)
_LATEST: Final = (99, 0)  # of models without a version in their name
_ADAPTIVE: Final = (4, 6)  # the first version that decides how much to think
_FIRST_THINKING: Final = (3, 7)
_FIRST_XHIGH: Final = (4, 7)
_FIRST_5_5: Final = (5, 5)
_ALWAYS_THINKING: Final = ("fable", "mythos")  # families that always think
_MIN_TOP_P: Final = 0.95  # of a model that thinks


def _version(model: str) -> tuple[str, tuple[int, int]]:
    """Return the family of a model and its version. The name may have a prefix and a date."""
    found = _NAME.search(model)
    if found is None:
        return "", _LATEST
    major, minor = found["old"] or found["major"], found["old_minor"] or found["minor"]
    return found["family"], _LATEST if major is None else (int(major), int(minor or 0))


def _levels(family: str, version: tuple[int, int]) -> tuple[str, ...]:
    always = family in _ALWAYS_THINKING or (family == "opus" and version >= _FIRST_5_5)
    none = () if always else ("none",)
    if version < _FIRST_THINKING:
        return ()
    if version < _ADAPTIVE:
        return (*none, "low", "medium", "high")
    return (*none, "low", "medium", "high", *(("xhigh",) if version >= _FIRST_XHIGH else ()), "max")


def add_effort(body: dict[str, Any], effort: str, model: str) -> None:
    """Add the effort to a body that contains the fields of ``extra``."""
    family, version = _version(model)
    thinking: dict[str, Any]
    if effort == "none":
        kind = "between_tools" if family == "sonnet" and version >= _FIRST_5_5 else "disabled"
        thinking = {"type": kind}
    elif version < _ADAPTIVE:
        thinking = {"type": "enabled", "budget_tokens": THINKING_BUDGETS[effort]}
    else:  # the effort alone does not turn thinking on in every model
        thinking = {"type": "adaptive"}
        body["output_config"] = {**(body.get("output_config") or {}), "effort": effort}
    body["thinking"] = {**(body.get("thinking") or {}), **thinking}


def check_thinking(params: Generation, model: str, max_tokens: int, *, samples: bool) -> None:
    """Reject an effort that the model does not support, or that conflicts with other parameters.

    ``samples`` is True if the version of the API accepts sampling parameters.
    """
    effort = params.reasoning_effort
    if effort is None:
        return
    _check_once(params.extra or {})
    family, version = _version(model)
    check_effort(effort, model, _levels(family, version))
    if effort == "none":
        return
    if version < _ADAPTIVE and max_tokens <= (budget := THINKING_BUDGETS[effort]):
        problem = f"{model} thinks for up to {budget:,} tokens: set max_tokens above that number"
        raise _conflict(effort, problem, "max_tokens")
    if params.tool_choice not in (None, "auto", "none"):
        raise _conflict(effort, "models that think cannot be forced to call a tool", "tool_choice")
    if samples and params.temperature not in (None, 1):
        raise _conflict(effort, "models that think only accept a temperature of 1", "temperature")
    if samples and params.top_p is not None and params.top_p < _MIN_TOP_P:
        raise _conflict(effort, f"models that think only accept top_p from {_MIN_TOP_P} to 1", "top_p")


def _conflict(effort: str, problem: str, field: str) -> InvalidRequest:
    return InvalidRequest(f"reasoning_effort={effort!r} conflicts with {field}: {problem}", field=field)


def _check_once(extra: Mapping[str, Any]) -> None:
    for outer, names in (("thinking", ("type", "budget_tokens")), ("output_config", ("effort",))):
        fields = extra.get(outer)
        if isinstance(fields, Mapping):
            for name in names:
                if name in fields:
                    raise refuse_second_control(f"{outer}.{name}")
