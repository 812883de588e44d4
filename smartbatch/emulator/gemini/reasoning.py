"""Checks thinking in Gemini's requests, and sets the simulated model's thinking tokens.

Source: Google's guide to thinking, with the levels of each model, November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from smartbatch.emulator.gemini.parsing import api_error, found
from smartbatch.emulator.parsed_requests import HIDDEN_TOKENS, GenerationRequest

_LEVELS: Final = ("minimal", "low", "medium", "high", "xhigh")
_WITHOUT: Final = re.compile(r"gemini-(?:1|2\.0)|gemma-[1-3]")
_WITHOUT_MINIMAL: Final = re.compile(r"gemini-3(?:\.\d)?-pro|gemini-3\.[78]-flash")
_MAX_BUDGET: Final = 32_768
_TOKENS_PER_HIDDEN: Final = 32  # budget tokens per thinking token of the simulated model


def with_thinking(request: GenerationRequest, fields: Mapping[str, Any]) -> GenerationRequest:
    """Add the number of hidden thinking tokens to a parsed request.

    Raises:
        ApiError: the model does not accept the level or the budget.
    """
    config = found(found(fields, "generationConfig") or {}, "thinkingConfig")
    if not isinstance(config, Mapping):
        return request
    level, budget = found(config, "thinkingLevel"), found(config, "thinkingBudget")
    if level is None and budget is None:
        return request
    if _WITHOUT.match(request.model):
        raise api_error(400, "Thinking is not enabled for this model.")
    if level is not None and budget is not None:
        raise api_error(400, "You can only set only one of thinking budget and thinking level.")
    if level is not None:
        return evolve(request, hidden_tokens=HIDDEN_TOKENS[_level(level, request.model)])
    if type(budget) is not int or not -1 <= budget <= _MAX_BUDGET:
        raise api_error(400, f"The thinking budget {budget} is invalid. Please choose a value up to 32768.")
    if budget == 0 and request.model.startswith("gemini-2.5-pro"):
        raise api_error(400, "Budget 0 is invalid. This model only works in thinking mode.")
    return evolve(request, hidden_tokens=max(0, budget) // _TOKENS_PER_HIDDEN)


def _level(given: Any, model: str) -> str:
    if model.startswith("gemini-2"):
        raise api_error(400, "Thinking level is not supported for this model.")
    level = str(given).lower()
    if level not in _LEVELS:
        raise api_error(
            400, f"Invalid value at 'generation_config.thinking_config.thinking_level', \"{given}\""
        )
    beyond = level == "xhigh" and model.startswith("gemini-3")
    if beyond or (level == "minimal" and _WITHOUT_MINIMAL.match(model)):
        raise api_error(400, f"Thinking level {level.upper()} is not supported for this model.")
    return level
