"""Checks the effort in OpenAI's requests, and sets the simulated model's reasoning tokens.

Source: OpenAI's reasoning guide and the wording of its errors, November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve

from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import HIDDEN_TOKENS, GenerationRequest

_WITHOUT: Final = re.compile(r"(?:ft:)?(?:gpt-[34]|chatgpt-4o|o1-mini|o1-preview)")
# levels that some models lack
_LACKING: Final = (
    (re.compile(r"o\d"), ("none", "minimal", "xhigh", "max")),
    (re.compile(r"gpt-5(?!\.)"), ("none", "xhigh", "max")),
    (re.compile(r"gpt-5\.1"), ("minimal", "xhigh", "max")),
    (re.compile(r"gpt-5\.[2-5]"), ("minimal", "max")),
    (re.compile(r"gpt-5\."), ("minimal",)),
)


def with_effort(request: GenerationRequest, body: Mapping[str, Any]) -> GenerationRequest:
    """Add the number of hidden reasoning tokens to a parsed request.

    The level is in ``reasoning_effort``, or in ``reasoning.effort`` in the Responses API and at OpenRouter.

    Raises:
        ApiError: the API or the model does not accept the level.
    """
    name, effort = "reasoning_effort", body.get("reasoning_effort")
    nested = body.get("reasoning")
    if effort is None and isinstance(nested, Mapping):
        name, effort = "reasoning.effort", nested.get("effort")
    if effort is None:
        return request
    if _WITHOUT.match(request.model):
        raise api_error(
            400,
            f"Unsupported parameter: '{name}' is not supported with this model.",
            code="unsupported_parameter",
            param=name,
        )
    lacking = next((levels for form, levels in _LACKING if form.match(request.model)), ())
    if effort not in HIDDEN_TOKENS or effort in lacking:
        known = ", ".join(f"'{level}'" for level in HIDDEN_TOKENS if level not in lacking)
        raise api_error(
            400,
            f"Unsupported value: '{effort}' is not supported with the '{request.model}' model. "
            f"Supported values are: {known}.",
            code="unsupported_value",
            param=name,
        )
    return evolve(request, hidden_tokens=HIDDEN_TOKENS[effort])
