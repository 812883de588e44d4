"""The flex tier of OpenAI and Gemini: selection, refusals and the tier of an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers import AnthropicProvider, GeminiProvider, OpenAIProvider
from smartbatch.providers.gemini.answers import read_answer
from smartbatch.providers.gemini.bodies import generate_body
from smartbatch.providers.gemini.errors import ERRORS as GEMINI_ERRORS
from smartbatch.providers.gemini.errors import FLEX_TIER as GEMINI
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import read_chat, read_response
from smartbatch.providers.openai.bodies import chat_body, response_body
from smartbatch.providers.openai.errors import ERRORS as OPENAI_ERRORS
from smartbatch.providers.openai.errors import FLEX_TIER as OPENAI
from smartbatch.providers.openai.errors import ServerParameters
from smartbatch.types import Embedding, Generation, Request

KEY = "sk-canary-1234567890abcdef"
PROMPT = Request(prompt="Capital of Peru?", params=Generation(max_tokens=20, extra={"seed": 7}))
AZURE = "https://mine.openai.azure.com/openai/v1"


def said_by_openai(status: int, message: str, **fields: Any) -> ProviderError:
    body = {"error": {"message": message, "type": None, "param": None, "code": None, **fields}}
    return OPENAI_ERRORS.read(Reply(status, {}, json.dumps(body).encode()), (PROMPT,))


def said_by_gemini(status: int, message: str, *details: dict[str, Any]) -> ProviderError:
    error = {"code": status, "message": message, "status": "ANY", "details": list(details)}
    return GEMINI_ERRORS.read(Reply(status, {}, json.dumps({"error": error}).encode()), (PROMPT,))


class TestWhoHasIt:
    def test_only_the_providers_own_servers_are_taken_to_have_it(self):
        assert OpenAIProvider(KEY).flex("gpt-5-mini") is OPENAI
        assert GeminiProvider(KEY).flex("gemini-3.8-flash") is GEMINI
        for address in ("http://127.0.0.1:1/v1", AZURE, "https://api.groq.com/openai/v1"):
            assert OpenAIProvider(KEY, address).flex("gpt-5-mini") is None
        assert GeminiProvider(KEY, "http://127.0.0.1:1").flex("gemini-3.8-flash") is None
        assert AnthropicProvider(KEY).flex("claude-haiku-5-5") is None

    def test_others_have_it_when_told_and_the_own_ones_do_not_when_told(self):
        assert OpenAIProvider(KEY, AZURE, flex=True).flex("gpt-5-mini") is OPENAI
        assert GeminiProvider(KEY, "http://127.0.0.1:1", flex=True).flex("gemini-3.8-flash") is GEMINI
        assert OpenAIProvider(KEY, flex=False).flex("gpt-5-mini") is None
        assert GeminiProvider(KEY, flex=False).flex("gemini-3.8-flash") is None


class TestHowItIsAsked:
    def test_both_apis_of_openai_get_the_parameter_next_to_the_users_own(self):
        asked, server = OPENAI.apply_to(PROMPT), ServerParameters()
        for body in (chat_body(asked, "gpt-5-mini", server), response_body(asked, "gpt-5", server)):
            assert body["service_tier"] == "flex"
            assert body["seed"] == 7
        assert PROMPT.params.extra == {"seed": 7}, "the request itself may go on at the standard price"

    def test_gemini_gets_it_at_the_top_of_the_body(self):
        body = generate_body(GEMINI.apply_to(Request(prompt="Capital of Peru?")), "gemini-3.8-flash")
        assert body["serviceTier"] == "flex"
        assert "serviceTier" not in body.get("generationConfig", {})

    @pytest.mark.parametrize(
        ("tier", "named"),
        [(OPENAI, {"service_tier": "priority"}), (GEMINI, {"serviceTier": "standard"}),
         (GEMINI, {"service_tier": "priority"})],
    )  # fmt: skip
    def test_a_request_that_names_a_tier_keeps_it(self, tier, named):
        assert not tier.suits(Request(prompt="x", params=Generation(extra=named)))

    @pytest.mark.parametrize("tier", [OPENAI, GEMINI])
    def test_texts_may_go_there_vectors_and_own_calls_may_not(self, tier):
        assert tier.suits(PROMPT)
        assert tier.suits(Request(prompt="x"))
        assert not tier.suits(Request(prompt="x", embedding=Embedding()))
        assert not tier.suits(Request(call=lambda request, attempt: "mine"))


class TestWhatItSays:
    @pytest.mark.parametrize(
        ("message", "fields"),
        [
            ("Resource Unavailable", {}),
            ("There is no capacity now.", {"code": "resource_unavailable"}),
            ("Flex is not available right now, try later.", {"type": "server_error"}),
        ],
    )
    def test_openai_without_capacity_is_no_limit_of_the_user(self, message, fields):
        assert OPENAI.full(said_by_openai(429, message, **fields))

    @pytest.mark.parametrize(
        ("status", "message", "fields"),
        [
            (429, "Rate limit reached for gpt-5 (flex) on tokens per min", {"code": "rate_limit_exceeded"}),
            (429, "Too Many Requests", {}),
            (429, "You exceeded your current quota: no flex", {"code": "insufficient_quota"}),
            (503, "The server is overloaded; capacity is short", {}),
            (400, "Invalid service_tier argument", {}),
        ],
    )
    def test_limits_money_and_outages_of_openai_are_what_they_are_elsewhere(self, status, message, fields):
        assert not OPENAI.full(said_by_openai(status, message, **fields))

    def test_gemini_without_capacity_answers_503_or_a_429_that_names_no_quota(self):
        assert GEMINI.full(said_by_gemini(503, "The model is overloaded."))
        assert GEMINI.full(said_by_gemini(429, "Resource has been exhausted (e.g. check quota)."))

    def test_a_quota_of_gemini_is_a_limit(self):
        violation = {"quotaId": "GenerateRequestsPerMinutePerProjectPerModel", "quotaValue": "10"}
        named = said_by_gemini(429, "You exceeded your current quota.", {"violations": [violation]})
        waits = said_by_gemini(429, "Resource has been exhausted.", {"retryDelay": "12s"})
        used_up = said_by_gemini(429, "x", {"violations": [{"quotaId": "RequestsPerDay", "quotaValue": "9"}]})
        assert not any(map(GEMINI.full, (named, waits, used_up, said_by_gemini(500, "internal"))))

    @pytest.mark.parametrize(
        "message",
        [
            "Invalid service_tier argument",
            "Flex is not available for this model.",
            "Service tier flex is not supported for models/gemini-x.",
        ],
    )
    def test_a_model_without_the_tier_is_told_from_a_bad_request(self, message):
        assert OPENAI.is_missing(said_by_openai(400, message))
        assert GEMINI.is_missing(said_by_gemini(400, message))

    def test_a_bad_request_is_not_taken_for_a_model_without_the_tier(self):
        assert not OPENAI.is_missing(said_by_openai(400, "temperature is too flexible"))
        assert not OPENAI.is_missing(ProviderError("flex broke", kind=ErrorKind.SERVER_ERROR))


class TestWhichTierAnswered:
    def test_openai_says_it_in_both_apis(self):
        choice = {"message": {"content": "Lima"}, "finish_reason": "stop"}
        reply = Reply(200, {}, b"")
        assert read_chat({"choices": [choice], "service_tier": "flex"}, reply).tier == "flex"
        assert read_chat({"choices": [choice]}, reply).tier is None
        assert read_chat({"choices": [choice], "service_tier": ["no word"]}, reply).tier is None
        assert read_response({"output": [], "service_tier": "default"}, reply).tier == "default"

    @pytest.mark.parametrize(
        ("told", "tier"),
        [("flex", "flex"), ("FLEX", "flex"), ("STANDARD", "standard"), ("UNSPECIFIED", None), (7, None)],
    )
    def test_gemini_says_it_with_the_usage(self, told, tier):
        candidate = {"content": {"parts": [{"text": "Lima"}]}, "finishReason": "STOP"}
        data = {"candidates": [candidate], "usageMetadata": {"promptTokenCount": 3, "serviceTier": told}}
        assert read_answer(data).tier == tier
