"""``reasoning_effort`` in the bodies of every provider, and the levels that a model does not have."""

from __future__ import annotations

import pytest
from asking import KEY, request_of
from gemini_asking import GEMINI_KEY

from smartbatch.errors import InvalidRequest
from smartbatch.providers import AnthropicProvider, GeminiProvider, OpenAIProvider
from smartbatch.providers.anthropic.bodies import message_body
from smartbatch.providers.gemini.bodies import generate_body
from smartbatch.providers.hosts import HOSTS
from smartbatch.providers.openai.bodies import chat_body, response_body
from smartbatch.providers.openai.errors import ServerParameters

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def chat_to(host: str, effort: str, **params) -> dict:
    request = request_of("Hi", reasoning_effort=effort, **params)
    return chat_body(request, "m", ServerParameters(HOSTS[host]))


def claude(model: str, effort: str, **params) -> dict:
    body, _ = message_body(request_of("Hi", reasoning_effort=effort, **params), model, "2026-10-21", 4096)
    return {name: body[name] for name in ("thinking", "output_config") if name in body}


def gemini(model: str, effort: str, **params) -> dict:
    return generate_body(request_of("Hi", reasoning_effort=effort, **params), model)["generationConfig"]


def refusal(provider, model: str, effort: str, **params) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        provider.check(request_of("Hi", reasoning_effort=effort, **params), model=model)
    return caught.value


def accepted(provider, model: str) -> set[str]:
    found = set()
    for effort in EFFORTS:
        try:
            provider.check(request_of("Hi", reasoning_effort=effort, max_tokens=30_000), model=model)
        except InvalidRequest as error:
            assert error.field == "reasoning_effort"
        else:
            found.add(effort)
    return found


def test_chats_and_responses_carry_the_level():
    assert chat_to("openai", "low")["reasoning_effort"] == "low"
    extra = {"reasoning": {"summary": "auto"}}
    request = request_of("Hi", reasoning_effort="high", extra=extra)
    body = response_body(request, "gpt-5-mini", ServerParameters())
    assert body["reasoning"] == {"summary": "auto", "effort": "high"}


def test_hosts_receive_the_level_in_their_own_form():
    assert chat_to("deepseek", "none")["thinking"] == {"type": "disabled"}
    assert "reasoning_effort" not in chat_to("deepseek", "none")
    assert chat_to("deepseek", "high")["reasoning_effort"] == "high"
    hidden = chat_to("openrouter", "low", extra={"reasoning": {"exclude": True}})
    assert hidden["reasoning"] == {"exclude": True, "effort": "low"}
    assert chat_to("mistral", "none")["reasoning_effort"] == "none"


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        ("gpt-4o-mini", ""),
        ("o3-2025-04-16", "low medium high"),
        ("gpt-5-mini", "minimal low medium high"),
        ("gpt-5.1", "none low medium high"),
        ("gpt-5.1-codex-max", "low medium high xhigh"),
        ("gpt-5.4-mini", "none low medium high xhigh"),
        ("gpt-5.6-sol", "none low medium high xhigh max"),
        ("gpt-6.1-sol", "none minimal low medium high xhigh max"),  # unknown: the server decides
    ],
)
def test_levels_of_openais_models_are_checked(model, levels):
    assert accepted(OpenAIProvider(KEY), model) == set(levels.split())


@pytest.mark.parametrize(
    ("host", "model", "levels"),
    [
        ("groq", "openai/gpt-oss-120b", "low medium high"),
        ("groq", "qwen/qwen3-32b", "none"),
        ("groq", "llama-3.3-70b-versatile", ""),
        ("mistral", "mistral-small-latest", "none high"),
        ("xai", "grok-4.3", "none minimal low medium high xhigh max"),
    ],
)
def test_levels_of_hosts_are_checked(host, model, levels):
    assert accepted(OpenAIProvider(KEY, host=HOSTS[host]), model) == set(levels.split())


def test_other_servers_check_the_level_themselves():
    server = OpenAIProvider(KEY, base_url="http://127.0.0.1:1/v1")
    assert accepted(server, "gpt-4o-mini") == set(EFFORTS)
    azure = OpenAIProvider(KEY, base_url="https://acme.openai.azure.com/openai/v1")
    assert accepted(azure, "gpt-4o-mini") == set(EFFORTS)  # the name of a deployment


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        ("claude-3-5-haiku-latest", ""),
        ("claude-3-7-sonnet-latest", "none low medium high"),
        ("claude-sonnet-4-20250514", "none low medium high"),
        ("us.anthropic.claude-haiku-4-5-20251001-v1:0", "none low medium high"),
        ("claude-sonnet-4-6", "none low medium high max"),
        ("claude-opus-4-7", "none low medium high xhigh max"),
        ("claude-opus-5", "none low medium high xhigh max"),
        ("claude-opus-5-5", "low medium high xhigh max"),
        ("claude-fable-5-2", "low medium high xhigh max"),
        ("claude-mythos-preview", "low medium high xhigh max"),
        ("claude-haiku-5-5", "none low medium high xhigh max"),
    ],
)
def test_levels_of_claude_models_are_checked(model, levels):
    assert accepted(AnthropicProvider(KEY), model) == set(levels.split())


def test_claude_models_receive_an_effort_or_a_budget():
    adaptive = {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}}
    assert claude("claude-haiku-5-5", "low") == adaptive
    assert claude("claude-opus-4-6", "low") == adaptive
    budget = {"thinking": {"type": "enabled", "budget_tokens": 8192}}
    assert claude("claude-haiku-4-5", "medium") == budget
    assert claude("claude-3-7-sonnet-20250219", "medium") == budget
    assert claude("claude-haiku-5-5", "none") == {"thinking": {"type": "disabled"}}
    assert claude("claude-sonnet-5-5", "none") == {"thinking": {"type": "between_tools"}}


def test_an_effort_is_merged_with_other_claude_fields():
    extra = {"thinking": {"display": "summarized"}}
    found = claude("claude-haiku-5-5", "high", extra=extra, schema={"type": "object", "properties": {}})
    assert found["thinking"] == {"display": "summarized", "type": "adaptive"}
    assert found["output_config"].keys() == {"effort", "format"}


def test_parameters_that_exclude_thinking_are_named():
    old = AnthropicProvider(KEY, api_version="2023-06-01")
    for name, value in (("temperature", 0.2), ("top_p", 0.5), ("tool_choice", "required")):
        error = refusal(old, "claude-haiku-5-5", "low", **{name: value})
        assert error.field == name
        assert "reasoning_effort='low' conflicts" in str(error)
        old.check(request_of("Hi", reasoning_effort="none", **{name: value}), model="claude-haiku-5-5")
    for name, value in (("temperature", 1.0), ("top_p", 0.95), ("tool_choice", "none")):
        old.check(request_of("Hi", reasoning_effort="low", **{name: value}), model="claude-haiku-5-5")
    new = AnthropicProvider(KEY)  # drops temperature and top_p
    new.check(request_of("Hi", reasoning_effort="low", temperature=0.2, top_p=0.5), model="claude-haiku-5-5")
    for given in ({}, {"max_tokens": 8192}):  # 4,096 tokens by default
        error = refusal(new, "claude-haiku-4-5", "medium", **given)
        assert (error.field, "8,192" in str(error)) == ("max_tokens", True)
    new.check(request_of("Hi", reasoning_effort="medium", max_tokens=8193), model="claude-haiku-4-5")


@pytest.mark.parametrize(
    ("model", "levels"),
    [
        ("gemini-2.0-flash", ""),
        ("gemini-2.5-pro", "minimal low medium high"),
        ("gemini-2.5-flash-lite", "none minimal low medium high"),
        ("gemini-3.1-pro-preview", "low medium high"),
        ("models/gemini-3.8-flash", "low medium high"),
        ("gemini-3.5-flash-lite", "minimal low medium high"),
        ("gemini-pro-latest", "minimal low medium high xhigh"),
        ("gemini-4-argon", "minimal low medium high xhigh"),
    ],
)
def test_levels_of_gemini_models_are_checked(model, levels):
    assert accepted(GeminiProvider(GEMINI_KEY), model) == set(levels.split())


def test_gemini_models_receive_a_level_or_a_budget():
    assert gemini("gemini-3.8-flash", "low") == {"thinkingConfig": {"thinkingLevel": "LOW"}}
    assert gemini("gemini-2.5-flash", "high") == {"thinkingConfig": {"thinkingBudget": 24_576}}
    assert gemini("gemini-2.5-flash", "none") == {"thinkingConfig": {"thinkingBudget": 0}}
    extra = {"generation_config": {"thinking_config": {"include_thoughts": True}}}
    merged = {"thinkingConfig": {"include_thoughts": True, "thinkingLevel": "HIGH"}}
    assert gemini("gemini-3.8-flash", "high", extra=extra) == merged


@pytest.mark.parametrize(
    ("provider", "model", "extra", "name"),
    [
        (OpenAIProvider(KEY), "gpt-5-mini", {"reasoning_effort": "low"}, "reasoning_effort"),
        (OpenAIProvider(KEY), "gpt-5-mini", {"reasoning": {"max_tokens": 9}}, "reasoning.max_tokens"),
        (AnthropicProvider(KEY), "claude-haiku-5-5", {"thinking": {"type": "disabled"}}, "thinking.type"),
        (
            AnthropicProvider(KEY),
            "claude-haiku-5-5",
            {"output_config": {"effort": "low"}},
            "output_config.effort",
        ),
        (
            GeminiProvider(GEMINI_KEY),
            "gemini-3.8-flash",
            {"generationConfig": {"thinkingConfig": {"thinkingBudget": 5}}},
            "generationConfig.thinkingConfig.thinkingBudget",
        ),
    ],
)
def test_extra_cannot_set_the_effort_a_second_time(provider, model, extra, name):
    error = refusal(provider, model, "high", extra=extra)
    assert f"by reasoning_effort and by {name} in extra" in str(error)


def test_messages_say_which_levels_the_model_has():
    error = refusal(GeminiProvider(GEMINI_KEY), "gemini-3.8-flash", "none")
    assert str(error).endswith(
        "gemini-3.8-flash has no reasoning_effort='none'; use one of low, medium, high"
    )
    error = refusal(OpenAIProvider(KEY), "gpt-4.1", "low")
    assert str(error).endswith("gpt-4.1 does not reason: leave reasoning_effort out")
