"""The errors of each host, in the format that its documentation or its users show."""

from __future__ import annotations

import json

import pytest
from asking import KEY, request_of, stream_error, url_of
from gemini_asking import GEMINI_KEY
from raw_server import chat, says, streams

from smartbatch._clock import VirtualClock
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers import Provider, create
from smartbatch.providers.hosts import HOSTS

K = ErrorKind
SOON = {"retry_after": "2"}
PYDANTIC = {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}


@pytest.fixture
def at():
    """``at(host, server)`` opens a provider of a host for a server, closed after the test."""
    opened: list[Provider] = []

    def start(host: str, server, **options) -> Provider:
        options = {"api_key": KEY, "base_url": server.base_url, **options}
        opened.append(create(f"{host}:m", clock=VirtualClock(), options=options)[0])
        return opened[-1]

    yield start
    for provider in opened:
        provider.close()


def failure(provider: Provider, model: str = "m", **params) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        provider.generate(request_of(**params), model=model, attempt=0, timeout=20)
    return caught.value


def error(message: str, **fields) -> dict:
    return {"error": {"message": message, **fields}}


# host, status, headers, body; kind, code, waiting time and a part of the text
CASES = {
    "azure, unknown deployment": (
        ("azure", 404, {}),
        error(
            "The API deployment for this resource does not exist. If you created the deployment within the "
            "last 5 minutes, please wait a moment and try again.",
            code="DeploymentNotFound",
        ),
        (
            K.CLIENT_ERROR,
            "DeploymentNotFound",
            None,
            "the model must be the name of a deployment of this resource",
        ),
    ),
    "azure, filtered prompt": (
        ("azure", 400, {}),
        error(
            "The response was filtered due to the prompt triggering Azure's content management policy.",
            type=None,
            param="prompt",
            code="content_filter",
            status=400,
            innererror={
                "code": "ResponsibleAIPolicyViolation",
                "content_filter_result": {"violence": {"filtered": True, "severity": "medium"}},
            },
        ),
        (K.CLIENT_ERROR, "content_filter", None, "content management policy"),
    ),
    "azure, rate limit in milliseconds": (
        ("azure", 429, {"retry_after_ms": "1500", "retry_after": "2"}),
        error("Rate limit is exceeded. Try again in 2 seconds.", code="RateLimitReached"),
        (K.RATE_LIMIT, "RateLimitReached", 1.5, "Rate limit"),
    ),
    "azure, wait in the text only": (
        ("azure", 429, {}),
        error("Requests have exceeded token rate limit. Please retry after 26 seconds.", code="429"),
        (K.RATE_LIMIT, "429", 26.0, "token rate limit"),
    ),
    "azure, wrong key": (
        ("azure", 401, {}),
        error(
            "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a "
            "valid key for an active subscription.",
            code="401",
        ),
        (K.AUTH_ERROR, "401", None, "check api_key"),
    ),
    "groq, flex capacity": (
        ("groq", 498, {}),
        error("Flex tier capacity exceeded", type="capacity_exceeded"),
        (K.SERVER_ERROR, "capacity_exceeded", None, "capacity"),
    ),
    "groq, rate limit": (
        ("groq", 429, {"retry_after": "7"}),
        error(
            "Rate limit reached for model `m` in organization `org_1`: Limit 6000, Used 5800, Requested 900. "
            "Please try again in 6.71s.",
            type="tokens",
            code="rate_limit_exceeded",
        ),
        (K.RATE_LIMIT, "rate_limit_exceeded", 7.0, "Limit 6000"),
    ),
    "groq, unknown model": (
        ("groq", 404, {}),
        error(
            "The model `m` does not exist or you do not have access to it.",
            type="invalid_request_error",
            code="model_not_found",
        ),
        (K.CLIENT_ERROR, "model_not_found", None, "does not exist"),
    ),
    "openrouter, error in a success": (
        ("openrouter", 200, {}),
        error(
            "Provider returned error", code=502, metadata={"provider_name": "Chutes", "raw": "engine died"}
        ),
        (K.SERVER_ERROR, "502", None, "engine died"),
    ),
    "openrouter, rate limit in a success": (
        ("openrouter", 200, {}),
        error("Rate limit exceeded", code=429, metadata={"error_type": "rate_limit_exceeded"}),
        (K.RATE_LIMIT, "429", None, "Rate limit"),
    ),
    "openrouter, upstream rate limit": (
        ("openrouter", 429, SOON),
        error(
            "Provider returned error",
            code=429,
            metadata={
                "raw": "z-ai/glm-5.3-flash is temporarily rate-limited upstream. Please retry shortly.",
                "provider_name": "BaseTen",
                "limit_source": "upstream_provider_shared_pool",
                "remedy_hint": "Retry shortly, add your own provider key, or route to another provider",
            },
        ),
        (K.RATE_LIMIT, "429", 2.0, "temporarily rate-limited upstream"),
    ),
    "openrouter, own rate limit": (
        (
            "openrouter",
            429,
            {
                "x_ratelimit_limit": "20",
                "x_ratelimit_remaining": "0",
                "x_ratelimit_reset": "1795003230000",
                "date": "Wed, 18 Nov 2026 12:00:10 GMT",
            },
        ),
        error("Rate limit exceeded: free-models-per-min.", code=429),
        (K.RATE_LIMIT, "429", 20.0, "free-models-per-min"),
    ),
    "openrouter, too much in flight": (
        ("openrouter", 402, SOON),
        error(
            "This request would exceed your available credits given your current in-flight requests.",
            code=402,
            metadata={
                "reason": "in_flight_budget_exhausted",
                "limit_source": "openrouter_in_flight_budget",
                "remedy_hint": "Retry after your in-flight requests settle (see the Retry-After header).",
            },
        ),
        (K.RATE_LIMIT, "402", 2.0, "in-flight"),
    ),
    "openrouter, no credits": (
        ("openrouter", 402, {}),
        error("Insufficient credits", code=402, metadata={"limit_source": "openrouter_credits"}),
        (K.NO_MONEY, "402", None, "Insufficient credits"),
    ),
    "openrouter, spent budget of a key": (
        ("openrouter", 403, {}),
        error(
            "Budget limit exceeded",
            code=403,
            metadata={"limit_source": "openrouter_key_limit", "limit_usd": 5},
        ),
        (K.NO_MONEY, "403", None, "Budget limit exceeded"),
    ),
    "openrouter, guardrail": (
        ("openrouter", 403, {}),
        error(
            "Request blocked: prompt injection patterns detected",
            code=403,
            metadata={"patterns": ["ignore all"]},
        ),
        (K.CLIENT_ERROR, "403", None, "Request blocked"),
    ),
    "openrouter, long prompt by its type": (
        ("openrouter", 400, {}),
        error("Too much input", code=400, metadata={"error_type": "context_length_exceeded"}),
        (K.CONTEXT_TOO_LONG, "400", None, "Too much input"),
    ),
    "openrouter, unknown model": (
        ("openrouter", 400, {}),
        error("m is not a valid model ID", code=400),
        (K.CLIENT_ERROR, "model_not_found", None, "not a valid model ID"),
    ),
    "mistral, field that is not permitted": (
        ("mistral", 422, {}),
        {
            "object": "error",
            "message": {"detail": [{**PYDANTIC, "input": 7}]},
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        },
        (K.CLIENT_ERROR, "invalid_request_error", None, "body.seed: Extra inputs are not permitted"),
    ),
    "mistral, list of details": (
        ("mistral", 422, {}),
        {"detail": [{"type": "missing", "loc": ["body", "messages"], "msg": "Field required"}]},
        (K.CLIENT_ERROR, None, None, "body.messages: Field required"),
    ),
    "mistral, rate limit": (
        ("mistral", 429, {}),
        {
            "object": "error",
            "message": "Rate limit exceeded",
            "type": "rate_limited",
            "param": None,
            "code": "1300",
            "raw_status_code": 429,
        },
        (K.RATE_LIMIT, "1300", None, "Rate limit exceeded"),
    ),
    "mistral, unknown model": (
        ("mistral", 400, {}),
        {
            "object": "error",
            "message": "Invalid model: m",
            "type": "invalid_model",
            "param": None,
            "code": "1500",
        },
        (K.CLIENT_ERROR, "model_not_found", None, "Invalid model: m"),
    ),
    "mistral, wrong key": (
        ("mistral", 401, {}),
        {"detail": "Unauthorized"},
        (K.AUTH_ERROR, None, None, "Unauthorized; check api_key"),
    ),
    "deepseek, no balance": (
        ("deepseek", 402, {}),
        error("Insufficient Balance", type="unknown_error", param=None, code="invalid_request_error"),
        (K.NO_MONEY, "invalid_request_error", None, "Insufficient Balance"),
    ),
    "deepseek, invalid parameters": (
        ("deepseek", 422, {}),
        error(
            "Failed to deserialize the JSON body into the target type: response_format.type: invalid type: "
            "map, expected variant identifier at line 1 column 132",
            type="invalid_request_error",
            param=None,
            code="invalid_request_error",
        ),
        (K.CLIENT_ERROR, "invalid_request_error", None, "response_format.type"),
    ),
    "deepseek, plain text": (
        ("deepseek", 422, {"content_type": "text/plain"}),
        "Failed to deserialize the JSON body into the target type: messages[1]: missing field `content`",
        (K.CLIENT_ERROR, None, None, "missing field"),
    ),
    "deepseek, unknown model": (
        ("deepseek", 400, {}),
        error("Model Not Exist", type="invalid_request_error", param=None, code="invalid_request_error"),
        (K.CLIENT_ERROR, "model_not_found", None, "Model Not Exist"),
    ),
    "xai, unknown model": (
        ("xai", 404, {}),
        {
            "code": "Some requested entity was not found",
            "error": "The model m does not exist or your team does not have access to it.",
        },
        (K.CLIENT_ERROR, None, None, "does not exist"),
    ),
    "xai, wrong key": (
        ("xai", 400, {}),
        {
            "code": "Client specified an invalid argument",
            "error": "Incorrect API key provided: xa***ey. You can obtain an API key from the console.",
        },
        (K.AUTH_ERROR, None, None, "check api_key"),
    ),
    "together, overloaded": (
        ("together", 503, SOON),
        error(
            "The server is overloaded or not ready yet.", type="service_unavailable", param=None, code=None
        ),
        (K.SERVER_ERROR, "service_unavailable", 2.0, "overloaded"),
    ),
    "together, dynamic limit": (
        ("together", 429, {"x_ratelimit_limit": "3", "x_ratelimit_remaining": "0", "x_ratelimit_reset": "1"}),
        error("Request limit exceeded", type="dynamic_request_limited", param=None, code=None),
        (K.RATE_LIMIT, "dynamic_request_limited", 1.0, "Request limit exceeded"),
    ),
    "together, unknown model": (
        ("together", 404, {}),
        error(
            "Unable to access model m. Please visit our site to view the list of supported models.",
            type="invalid_request_error",
            param=None,
            code="model_not_available",
        ),
        (K.CLIENT_ERROR, "model_not_available", None, "Unable to access model"),
    ),
    "fireworks, overloaded": (
        ("fireworks", 503, SOON),
        error(
            "Service overloaded, please try again later",
            object="error",
            type="SERVICE_UNAVAILABLE",
            code="SERVICE_UNAVAILABLE",
        ),
        (K.SERVER_ERROR, "SERVICE_UNAVAILABLE", 2.0, "overloaded"),
    ),
    "fireworks, unknown model": (
        ("fireworks", 404, {}),
        error(
            "Model not found, inaccessible, and/or not deployed",
            object="error",
            type="invalid_request_error",
            code="NOT_FOUND",
        ),
        (K.CLIENT_ERROR, "NOT_FOUND", None, "Model not found"),
    ),
    "cerebras, queue is full": (
        ("cerebras", 429, SOON),
        {
            "message": "We're experiencing high traffic right now!",
            "type": "too_many_requests_error",
            "param": "queue",
            "code": "queue_exceeded",
        },
        (K.RATE_LIMIT, "queue_exceeded", 2.0, "high traffic"),
    ),
    "cerebras, wrong key": (
        ("cerebras", 401, {}),
        {
            "message": "Wrong API Key",
            "type": "invalid_request_error",
            "param": "api_key",
            "code": "wrong_api_key",
        },
        (K.AUTH_ERROR, "wrong_api_key", None, "check api_key"),
    ),
    "dashscope, requests per second": (
        ("dashscope", 429, {}),
        error(
            "You have exceeded your current request limit",
            type="limit_requests",
            param=None,
            code="limit_requests",
        ),
        (K.RATE_LIMIT, "limit_requests", None, "request limit"),
    ),
    "dashscope, tokens per minute": (
        ("dashscope", 429, {}),
        error(
            "You exceeded your current quota, please check your plan and billing details.",
            type="insufficient_quota",
            param=None,
            code="insufficient_quota",
        ),
        (K.RATE_LIMIT, "insufficient_quota", None, "quota"),
    ),
    "dashscope, overdue payment": (
        ("dashscope", 400, {}),
        error(
            "Access denied, please make sure your account is in good standing.",
            type="Arrearage",
            param=None,
            code="Arrearage",
        ),
        (K.NO_MONEY, "Arrearage", None, "good standing"),
    ),
    "dashscope, filtered prompt": (
        ("dashscope", 400, {}),
        error(
            "Input data may contain inappropriate content.",
            type="data_inspection_failed",
            param=None,
            code="data_inspection_failed",
        ),
        (K.CLIENT_ERROR, "data_inspection_failed", None, "inappropriate"),
    ),
    "dashscope, unknown model": (
        ("dashscope", 404, {}),
        error(
            "The model `m` does not exist or you do not have access to it.",
            type="invalid_request_error",
            param=None,
            code="model_not_found",
        ),
        (K.CLIENT_ERROR, "model_not_found", None, "does not exist"),
    ),
    "moonshot, engine is overloaded": (
        ("moonshot", 429, {}),
        error("The engine is currently overloaded, please try again later", type="engine_overloaded_error"),
        (K.RATE_LIMIT, "engine_overloaded_error", None, "overloaded"),
    ),
    "moonshot, unknown model": (
        ("moonshot", 404, {}),
        error("Not found the model m or Permission denied", type="resource_not_found_error"),
        (K.CLIENT_ERROR, "resource_not_found_error", None, "Not found the model"),
    ),
    "ollama, unknown model": (
        ("ollama", 404, {}),
        error("model 'm' not found, try pulling it first", type="api_error", param=None, code=None),
        (K.CLIENT_ERROR, "api_error", None, "try pulling it first"),
    ),
    "vllm, unknown model": (
        ("vllm", 404, {}),
        error("The model `m` does not exist.", type="NotFoundError", param="model", code=404),
        (K.CLIENT_ERROR, "404", None, "does not exist"),
    ),
    "lmstudio, unknown model": (
        ("lmstudio", 404, {}),
        error("Model 'm' not found.", type="invalid_request_error", param="model", code="model_not_found"),
        (K.CLIENT_ERROR, "model_not_found", None, "not found"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_error_of_a_host_has_its_kind_code_wait_and_reason(serve, at, case):
    (host, status, headers), body, (kind, code, wait, text) = case
    found = failure(
        at(host, serve(says(body if isinstance(body, str) else json.dumps(body), f"{status} X", **headers)))
    )
    assert (found.kind, found.code, found.retry_after) == (kind, code, wait)
    assert text in found.message
    assert "base URL" not in found.message


@pytest.mark.parametrize(
    ("finish", "error_in_choice", "kind"),
    [
        ("error", {"code": 502, "message": "engine died"}, K.SERVER_ERROR),
        ("error", {"code": 429, "message": "Rate limit exceeded"}, K.RATE_LIMIT),
        ("error", None, K.SERVER_ERROR),
        ("stop", {"code": 400, "message": "bad tool call"}, K.CLIENT_ERROR),
    ],
)
def test_an_error_inside_a_choice_is_not_an_answer(serve, at, finish, error_in_choice, kind):
    choice = {"message": {"role": "assistant", "content": "Li"}, "finish_reason": finish}
    if error_in_choice is not None:
        choice["error"] = error_in_choice
    found = failure(at("openrouter", serve(says(chat(choices=[choice])))))
    assert (found.kind, found.maybe_billed) == (kind, True)
    assert found.usage.input_tokens == 31


def test_an_error_in_the_middle_of_a_stream_has_its_kind(serve, at):
    chunk = {
        "id": "gen-1",
        "model": "m",
        "provider": "OpenAI",
        "error": {
            "code": 429,
            "message": "Rate limit exceeded",
            "metadata": {"error_type": "rate_limit_exceeded"},
        },
        "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
    }
    begun = {"id": "gen-1", "choices": [{"index": 0, "delta": {"content": "Li"}}]}
    events = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in (begun, chunk)]
    provider = at("openrouter", serve(streams(*events)))
    found = stream_error(provider.stream(request_of(), model="m", attempt=0, timeout=20))
    assert found.kind is K.RATE_LIMIT


def test_an_answer_cut_by_a_filter_has_that_finish_reason(serve, at):
    choice = {
        "message": {"role": "assistant", "content": None},
        "finish_reason": "content_filter",
        "content_filter_results": {"violence": {"filtered": True, "severity": "high"}},
    }
    provider = at("azure", serve(says(chat(choices=[choice]))))
    answer = provider.generate(request_of(), model="m", attempt=0, timeout=20)
    assert (answer.text, answer.finish_reason) == ("", "content_filter")


def test_a_full_flex_tier_is_told_apart_from_a_failing_server(serve, at):
    provider = at(
        "groq",
        serve(says(error("Flex tier capacity exceeded", type="capacity_exceeded"), "498 X")),
        flex=True,
    )
    tier = provider.flex("m")
    assert tier is not None
    assert tier.full(failure(provider))


# -- keys ----------------------------------------------------------------------------------------------------

REJECTED = {"error": {"message": "Incorrect API key provided.", "code": "invalid_api_key"}}


OPENAI_HOSTS = [name for name, each in HOSTS.items() if each.api == "openai" and each.needs_key]


@pytest.mark.parametrize("host", [*OPENAI_HOSTS, "anthropic", "gemini"])
def test_a_rejected_key_is_named_by_its_variable(serve, monkeypatch, host):
    variable = HOSTS[host].key_variables[-1]
    monkeypatch.setenv(variable, KEY if host != "gemini" else GEMINI_KEY)
    server = serve(says(REJECTED, "401 Unauthorized"))
    base = server.base_url if host in OPENAI_HOSTS else url_of(server)
    provider = create(f"{host}:m", clock=VirtualClock(), options={"base_url": base})[0]
    found = failure(provider)
    provider.close()
    assert found.kind is K.AUTH_ERROR
    assert found.message.endswith(f"provided; check {variable}")


def test_a_missing_key_is_named_if_a_server_asks_for_one(serve):
    server = serve(says(REJECTED, "401 Unauthorized"))
    provider = create("vllm:m", clock=VirtualClock(), options={"base_url": server.base_url})[0]
    found = failure(provider)
    provider.close()
    assert found.message.endswith("; check VLLM_API_KEY")
