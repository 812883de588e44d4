"""How Gemini's models accept ``reasoning_effort``: as a thinking level or as a token budget for thinking.

Sources: Google's guide to thinking, with the levels of each model, and its page "OpenAI compatibility", with
the budgets that correspond to OpenAI's levels, November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from smartbatch.providers.conversation import THINKING_BUDGETS, check_effort, refuse_second_control
from smartbatch.types import Generation

CONFIGS: Final = ("thinkingConfig", "thinking_config")
_CONTROLS: Final = ("thinkingLevel", "thinking_level", "thinkingBudget", "thinking_budget")
_LEVELS: Final = (
    (re.compile(r"gemini-(?:1|2\.0|pro(?!-latest))|gemma-[1-3]|learnlm"), ()),
    (re.compile(r"gemini-2\.5-pro"), ("minimal", "low", "medium", "high")),
    (re.compile(r"gemini-2\.5"), ("none", "minimal", "low", "medium", "high")),
    (re.compile(r"gemini-3(?:\.\d)?-pro|gemini-3\.[78]-flash"), ("low", "medium", "high")),
    (re.compile(r"gemini-3"), ("minimal", "low", "medium", "high")),
)
_LATEST_LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh")


def _name(model: str) -> str:
    return model.rpartition("/")[2]


def check_thinking(params: Generation, model: str, config_names: tuple[str, ...]) -> None:
    """Reject an effort that the model does not support, or that ``extra`` sets as well."""
    if params.reasoning_effort is None:
        return
    name = _name(model)
    levels = next((levels for form, levels in _LEVELS if form.match(name)), _LATEST_LEVELS)
    check_effort(params.reasoning_effort, name, levels)
    for outer in config_names:
        for inner in CONFIGS:
            thinking = ((params.extra or {}).get(outer) or {}).get(inner)
            if isinstance(thinking, Mapping) and (found := [each for each in _CONTROLS if each in thinking]):
                raise refuse_second_control(f"{outer}.{inner}.{found[0]}")


def add_effort(config: dict[str, Any], effort: str, model: str) -> None:
    """Add the effort to a generation's configuration, next to other fields about thinking."""
    thinking: dict[str, Any]
    own = next((config.pop(name) for name in CONFIGS if name in config), None) or {}
    if _name(model).startswith("gemini-2.5"):
        thinking = {"thinkingBudget": 0 if effort == "none" else THINKING_BUDGETS[effort]}
    else:
        thinking = {"thinkingLevel": effort.upper()}
    config["thinkingConfig"] = {**own, **thinking}
