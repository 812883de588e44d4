"""How OpenAI's API and other hosts accept ``reasoning_effort``.

Sources: OpenAI's reasoning guide and its OpenAPI document; Groq's, Mistral's, DeepSeek's and OpenRouter's
guides to reasoning, November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import field, frozen

_SECOND_CONTROLS: Final = ("reasoning_effort", "thinking", "enable_thinking", "thinking_budget")
"""Fields of ``extra`` that control reasoning at some hosts."""
_NESTED_CONTROLS: Final = ("effort", "max_tokens", "enabled")


@frozen(kw_only=True)
class EffortDialect:
    """How a host's chat API accepts ``reasoning_effort``.

    Attributes:
        nested: whether the level is sent as ``{"reasoning": {"effort": …}}``, as in the responses API.
        none: fields sent instead of the level ``none``; empty if the host accepts this level.
        levels: the accepted levels by prefix of the model's name, of which the longest applies; empty for
            models that do not reason. The server checks the levels of all other models.
    """

    nested: bool = False
    none: Mapping[str, Any] = field(factory=dict)
    levels: Mapping[str, tuple[str, ...]] = field(factory=dict)

    def levels_of(self, model: str) -> tuple[str, ...] | None:
        """``None`` if the model is unknown."""
        known = [name for name in self.levels if model.startswith(name)]
        return self.levels[max(known, key=len)] if known else None

    def add_to(self, body: dict[str, Any], effort: str) -> None:
        """Add the level to the body of a chat."""
        if effort == "none" and self.none:
            body.update(self.none)
        elif self.nested:
            add_nested(body, effort)
        else:
            body["reasoning_effort"] = effort


def add_nested(body: dict[str, Any], effort: str) -> None:
    body["reasoning"] = {**(body.get("reasoning") or {}), "effort": effort}


def second_control(extra: Mapping[str, Any]) -> str | None:
    """Return the field of ``extra`` that controls reasoning, if any."""
    nested = extra.get("reasoning")
    if isinstance(nested, Mapping) and (found := [name for name in _NESTED_CONTROLS if name in nested]):
        return f"reasoning.{found[0]}"
    return next((name for name in _SECOND_CONTROLS if name in extra), None)


_O_SERIES: Final = ("low", "medium", "high")
_GPT_5_1: Final = ("none", "low", "medium", "high")
_GPT_5_2: Final = (*_GPT_5_1, "xhigh")
OPENAI_EFFORTS: Final = EffortDialect(
    levels={
        **dict.fromkeys(
            ("gpt-3", "gpt-4", "chatgpt-4o", "ft:gpt-3", "ft:gpt-4", "o1-mini", "o1-preview"), ()
        ),
        **dict.fromkeys(("o1", "o3", "o4-mini"), _O_SERIES),
        "gpt-5": ("minimal", *_O_SERIES),
        "gpt-5-codex": _O_SERIES,
        "gpt-5-pro": ("high",),
        "gpt-5.1": _GPT_5_1,
        "gpt-5.1-codex-max": (*_O_SERIES, "xhigh"),
        **dict.fromkeys(("gpt-5.2", "gpt-5.3", "gpt-5.4", "gpt-5.5"), _GPT_5_2),
        "gpt-5.": ("none", "low", "medium", "high", "xhigh", "max"),
    }
)
GROQ_EFFORTS: Final = EffortDialect(
    levels={"llama": (), "meta-llama/": (), "openai/gpt-oss": _O_SERIES, "qwen/qwen3-32b": ("none",)}
)
MISTRAL_EFFORTS: Final = EffortDialect(
    levels=dict.fromkeys(("mistral-small-latest", "mistral-medium-3-5"), ("none", "high"))
)
DEEPSEEK_EFFORTS: Final = EffortDialect(none={"thinking": {"type": "disabled"}})
OPENROUTER_EFFORTS: Final = EffortDialect(nested=True)
