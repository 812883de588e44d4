"""Effort and thinking in the emulated APIs, with the real SDKs."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors, types

from smartbatch.testing import emulator

QUESTION = {"role": "user", "content": "Why?"}
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def emu():
    with emulator() as emu:
        yield emu


@pytest.mark.full
def test_openais_models_reason_for_the_effort_and_know_their_levels(emu):
    with openai.OpenAI(base_url=emu.base_url, api_key="k", max_retries=0) as sdk:
        ask = sdk.chat.completions.create

        def reasoned(effort: Any, model: str = "gpt-5.2") -> int:
            usage = ask(model=model, messages=[QUESTION], reasoning_effort=effort).usage
            return usage.completion_tokens_details.reasoning_tokens

        assert 0 == reasoned("none") < reasoned("low") < reasoned("high")
        answer = sdk.responses.create(model="gpt-5-mini", input="Why?", reasoning={"effort": "low"})
        assert answer.usage.output_tokens_details.reasoning_tokens == reasoned("low")
        for model, effort in (("gpt-5-mini", "none"), ("gpt-5.1", "minimal"), ("o3", "max"), ("m", "huge")):
            with pytest.raises(openai.BadRequestError, match=f"Unsupported value: '{effort}'") as caught:
                reasoned(effort, model)
            assert (caught.value.param, caught.value.code) == ("reasoning_effort", "unsupported_value")
        with pytest.raises(openai.BadRequestError, match="Unsupported parameter"):
            reasoned("low", "gpt-4o-mini")


def test_reasoning_counts_towards_the_output_limit(emu):
    with openai.OpenAI(base_url=emu.base_url, api_key="k", max_retries=0) as sdk:
        answer = sdk.chat.completions.create(
            model="gpt-5-mini", messages=[QUESTION], reasoning_effort="high", max_completion_tokens=20
        )
    assert (answer.choices[0].finish_reason, answer.choices[0].message.content) == ("length", "")
    assert answer.usage.completion_tokens == answer.usage.completion_tokens_details.reasoning_tokens == 20


@pytest.mark.full
def test_anthropics_models_think_for_the_effort_or_the_budget(emu):
    with anthropic.Anthropic(base_url=emu.url, api_key="k", max_retries=0) as sdk:

        def thought(model: str, **options: Any) -> int:
            options = {"max_tokens": 10_000, **options}
            answer = sdk.messages.create(model=model, messages=[QUESTION], **options)
            return answer.usage.output_tokens_details.thinking_tokens

        adaptive: dict[str, Any] = {"type": "adaptive"}
        low, high = ({"thinking": adaptive, "output_config": {"effort": each}} for each in ("low", "high"))
        assert 0 < thought("claude-haiku-5-5", **low) < thought("claude-haiku-5-5", **high)
        budget: dict[str, Any] = {"type": "enabled", "budget_tokens": 2048}
        assert thought("claude-haiku-4-5", thinking=budget) > 0
        assert thought("claude-haiku-5-5", thinking={"type": "disabled"}) == 0
        for model, options, reason in (
            ("claude-haiku-5-5", {"thinking": budget}, "thinking.type.enabled"),
            ("claude-haiku-4-5", {"thinking": adaptive}, "thinking.type.adaptive"),
            ("claude-opus-5-5", {"thinking": {"type": "disabled"}}, "thinking.type.disabled"),
            ("claude-sonnet-5-5", {"thinking": {"type": "disabled"}}, "thinking.type.disabled"),
            ("claude-haiku-4-5", {"thinking": budget, "max_tokens": 2048}, "must be greater than"),
            ("claude-haiku-4-5", {"thinking": {**budget, "budget_tokens": 9}}, "1024"),
            ("claude-haiku-5-5", {"output_config": {"effort": "minimal"}}, "output_config.effort"),
            ("claude-haiku-5-5", {**low, "tools": [TOOL], "tool_choice": {"type": "any"}}, "forces tool use"),
            (
                "claude-haiku-5-5",
                {"thinking": {"type": "disabled"}, "output_config": {"effort": "max"}},
                "is not supported when thinking is disabled",
            ),
        ):
            with pytest.raises(anthropic.BadRequestError, match=reason):
                thought(model, **options)


@pytest.mark.full
def test_geminis_models_think_for_the_level_or_the_budget(emu):
    options = types.HttpOptions(base_url=emu.url, api_version="v1beta")
    with genai.Client(api_key="k", http_options=options) as sdk:

        def thought(model: str, **config: Any) -> int:
            answer = sdk.models.generate_content(
                model=model,
                contents="Why?",
                config=types.GenerateContentConfig(thinking_config=types.ThinkingConfig(**config)),
            )
            return answer.usage_metadata.thoughts_token_count or 0

        low, high = (thought("gemini-3.8-flash", thinking_level=each) for each in ("low", "high"))
        assert 0 < low < high
        assert (
            thought("gemini-2.5-flash", thinking_budget=0)
            == 0
            < thought("gemini-2.5-flash", thinking_budget=8192)
        )
        for model, config, reason in (
            ("gemini-3.8-flash", {"thinking_level": "minimal"}, "MINIMAL is not supported"),
            ("gemini-2.5-flash", {"thinking_level": "low"}, "Thinking level is not supported"),
            ("gemini-2.5-pro", {"thinking_budget": 0}, "only works in thinking mode"),
            ("gemini-3.8-flash", {"thinking_level": "low", "thinking_budget": 5}, "only set only one"),
            ("gemini-2.0-flash", {"thinking_budget": 5}, "not enabled for this model"),
        ):
            with pytest.raises(errors.ClientError, match=reason):
                thought(model, **config)
