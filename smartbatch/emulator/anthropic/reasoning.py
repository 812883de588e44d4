"""Checks effort and thinking in Anthropic's requests, and sets the simulated model's thinking tokens.

Source: Anthropic's guide "Troubleshooting thinking", with the configurations that each model rejects,
November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from smartbatch.emulator.anthropic.parsing import api_error
from smartbatch.emulator.parsed_requests import HIDDEN_TOKENS, GenerationRequest

_KINDS: Final = ("adaptive", "enabled", "disabled", "between_tools")
_EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_BUDGETED: Final = re.compile(r"claude-(?:3|(?:opus|sonnet|haiku)-4(?:-[0-5])?(?:-\d{8})?$)")
# kinds of thinking that a model rejects; the first form that matches applies
_REJECTED: Final = (
    (re.compile(r"claude-(?:fable|mythos)|claude-opus-5-5"), ("enabled", "disabled", "between_tools")),
    (re.compile(r"claude-sonnet-5-5"), ("enabled", "disabled")),
    (_BUDGETED, ("adaptive", "between_tools")),
    (re.compile(r"claude-(?:opus|sonnet)-4-6"), ("between_tools",)),
    (re.compile(r"claude-"), ("enabled", "between_tools")),
)
_MIN_BUDGET: Final = 1024
_TOKENS_PER_HIDDEN: Final = 32  # budget tokens per thinking token of the simulated model


def with_thinking(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Add the number of hidden thinking tokens to a parsed request.

    Raises:
        ApiError: the API or the model does not accept the effort or the thinking.
    """
    effort = (body.get("output_config") or {}).get("effort")
    if effort is not None and effort not in _EFFORTS:
        known = " or ".join(f"'{level}'" for level in _EFFORTS)
        raise api_error(400, f"output_config.effort: Input should be {known}")
    thinking = body.get("thinking")
    if thinking is None:
        return request
    kind = thinking.get("type") if isinstance(thinking, Mapping) else None
    if kind not in _KINDS:
        raise api_error(400, f"thinking.type: Input should be one of {', '.join(_KINDS)}")
    rejected = next((kinds for form, kinds in _REJECTED if form.match(request.model)), ())
    if kind in rejected:
        raise api_error(400, f'"thinking.type.{kind}" is not supported for this model.')
    if kind in ("disabled", "between_tools"):
        if effort in ("xhigh", "max"):
            raise api_error(
                400,
                f"output_config.effort '{effort}' is not supported when thinking is disabled on this model.",
            )
        return request
    _check_others(body)
    if kind == "adaptive":
        return evolve(request, hidden_tokens=HIDDEN_TOKENS[effort] if effort else 0)
    budget = thinking.get("budget_tokens")
    if type(budget) is not int or budget < _MIN_BUDGET:
        message = f"thinking.enabled.budget_tokens: Input should be greater than or equal to {_MIN_BUDGET}"
        raise api_error(400, message)
    if request.max_tokens is not None and request.max_tokens <= budget:
        raise api_error(400, "`max_tokens` must be greater than `thinking.budget_tokens`.")
    return evolve(request, hidden_tokens=budget // _TOKENS_PER_HIDDEN)


def _check_others(body: Mapping[str, Any]) -> None:
    """Reject parameters that exclude thinking."""
    if body.get("temperature") not in (None, 1):
        raise api_error(400, "`temperature` may only be set to 1 when thinking is enabled.")
    if (body.get("top_p") or 1) < 0.95:
        raise api_error(400, "`top_p` must be greater than or equal to 0.95 when thinking is enabled.")
    choice = body.get("tool_choice")
    if isinstance(choice, Mapping) and choice.get("type") in ("any", "tool"):
        raise api_error(400, "Thinking may not be enabled when tool_choice forces tool use.")
