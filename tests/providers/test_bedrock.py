"""Anthropic's models at Amazon Bedrock: the vendor's client, over real HTTP, signed with real credentials."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from asking import SECRET_PROMPT, request_of, url_of
from aws_wire import KEY_ID, SECRET, TOKEN, chunk, exception, frame, is_signed
from claude import BLOCK, END, PING, START, delta, event, message
from raw_server import RawServer, says, streams

from smartbatch import BatchingClient
from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers import Provider, create
from smartbatch.providers.price_book import PriceBook, listed_models
from smartbatch.types import Usage

MODEL = "us.anthropic.claude-haiku-5-5"
REGION = "eu-west-3"
METRICS = event("message_stop", **{"amazon-bedrock-invocationMetrics": {"inputTokenCount": 31}})
WHOLE = [chunk(each) for each in (START, BLOCK, PING, delta("Li"), delta("ma"), END, METRICS)]
FRAMES = {"content_type": "application/vnd.amazon.eventstream", "x_amzn_requestid": "req-s"}


@pytest.fixture(autouse=True)
def account(monkeypatch, tmp_path) -> Path:
    """Credentials in the environment, none of this machine's, and the file with profiles."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_BEARER_TOKEN_BEDROCK", "BEDROCK_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("ANTHROPIC_BEDROCK_BASE_URL", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-canary-of-another-host")
    config = tmp_path / "config"
    config.touch()
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": TOKEN,
        "AWS_REGION": REGION,
        "AWS_CONFIG_FILE": str(config),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    return config


@pytest.fixture
def reach_bedrock():
    """``reach_bedrock(server, **options)`` opens a provider for a server, closed after the test."""
    providers: list[Provider] = []

    def start(server: RawServer, **options: object) -> Provider:
        options = {"base_url": url_of(server), **options}
        providers.append(create(f"bedrock:{MODEL}", clock=VirtualClock(), options=options)[0])
        providers[-1].open(4)
        return providers[-1]

    yield start
    for provider in providers:
        provider.close()


def ask(provider: Provider, prompt: Any = "Capital of Peru?", model: str = MODEL, **params: Any) -> Any:
    provider.check(request_of(prompt, **params), model=model)
    return provider.generate(request_of(prompt, **params), model=model, attempt=0, timeout=20.0)


def fails(provider: Provider) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        ask(provider, SECRET_PROMPT)
    return caught.value


def begin(provider: Provider) -> Any:
    return provider.stream(request_of(SECRET_PROMPT), model=MODEL, attempt=0, timeout=20.0)


# -- calls ---------------------------------------------------------------------------------------------------


def test_a_message_is_signed_and_names_model_and_version(serve, reach_bedrock):
    server = serve(says(message(), x_amzn_requestid="req-1"))
    answer = ask(reach_bedrock(server), "Größe der Stadt \ud83d\ude00 Lima?", temperature=0.5, system="short")
    (call,) = server.requests
    assert call.target == f"/model/{MODEL}/invoke"
    assert call.json().keys() == {"anthropic_version", "max_tokens", "messages", "system", "temperature"}
    assert call.json()["anthropic_version"] == "bedrock-2023-05-31"
    assert is_signed(call, REGION)
    assert call.headers["x-amz-security-token"] == TOKEN
    assert "another-host" not in call.head
    assert (answer.text, answer.provider_request_id) == ("Lima", "req-1")
    assert answer.usage == Usage(138, 14, 100, 5, cache_write_tokens=7)


def test_every_call_has_its_own_signature(serve, reach_bedrock):
    server = serve(says(message()))
    provider = reach_bedrock(server)
    for prompt in ("one", "two"):
        ask(provider, prompt)
    assert [is_signed(call, REGION) for call in server.requests] == [True, True]
    assert len({call.headers["authorization"] for call in server.requests}) == 2


def test_the_arn_of_an_inference_profile_is_one_part_of_the_path(serve, reach_bedrock):
    server = serve(says(message()))
    arn = "arn:aws:bedrock:eu-west-3:123456789012:application-inference-profile/abc123"
    ask(reach_bedrock(server), model=arn)
    assert server.requests[0].target == f"/model/{arn.replace('/', '%2F')}/invoke"
    assert is_signed(server.requests[0], REGION)


def test_an_api_key_of_bedrock_replaces_the_signature(serve, reach_bedrock, monkeypatch):
    server = serve(says(message()))
    monkeypatch.setenv("AWS_BEARER_TOKEN_BEDROCK", "bedrock-api-key-canary")
    ask(reach_bedrock(server))
    assert server.requests[0].headers["authorization"] == "Bearer bedrock-api-key-canary"


def test_the_newer_version_sends_no_sampling_parameters(serve, reach_bedrock):
    server = serve(says(message()))
    answer = ask(reach_bedrock(server, api_version="2026-10-21"), temperature=0.5)
    assert server.requests[0].json()["anthropic_version"] == "2026-10-21"
    assert [name for name, _ in answer.dropped] == ["temperature"]


def test_a_list_at_bedrock_is_retried_and_has_its_cost(serve):
    busy = says({"message": "Too many requests"}, "429 x", retry_after="0")
    server = serve(busy, says(message()))
    options = {"base_url": url_of(server)}
    with BatchingClient(f"bedrock:{MODEL}", provider_options=options) as client:
        results = client.generate(["Capital of Peru?"], budget=1.0)
    assert [result.text for result in results] == ["Lima"]
    assert len(server.requests) == 2
    assert results.cost == pytest.approx(31 * 0.11e-6 + 7 * 0.1375e-6 + 100 * 0.011e-6 + 14 * 0.55e-6)


def test_a_region_costs_more_than_the_global_endpoint_of_bedrock():
    near, far = (PriceBook().rates("bedrock", name, time.time()) for name in (MODEL, f"global{MODEL[2:]}"))
    assert near is not None
    assert far is not None
    assert near.bands[0].input == pytest.approx(1.1 * far.bands[0].input)


def test_only_models_with_an_adapter_are_listed():
    assert all("anthropic." in name for name in listed_models("bedrock"))
    assert {name.partition("-")[0] for name in listed_models("vertex")} == {"claude", "gemini"}


def test_a_batch_at_bedrock_is_refused_as_not_supported_yet():
    with (
        BatchingClient(f"bedrock:{MODEL}") as client,
        pytest.raises(ConfigError, match="bedrock has batches, which smartbatch does not support yet"),
    ):
        client.generate(["a"], strategy="batch")


# -- streams -------------------------------------------------------------------------------------------------


def test_a_stream_arrives_in_frames_of_aws(serve, reach_bedrock):
    whole = b"".join(WHOLE)
    server = serve(streams(*(whole[at : at + 37] for at in range(0, len(whole), 37)), **FRAMES))
    stream = begin(reach_bedrock(server))
    assert list(stream) == ["Li", "ma"]
    assert (stream.answer.text, stream.answer.usage) == ("Lima", Usage(31, 14))
    assert stream.answer.provider_request_id == "req-s"
    assert server.requests[0].target == f"/model/{MODEL}/invoke-with-response-stream"
    assert "stream" not in server.requests[0].json()
    assert is_signed(server.requests[0], REGION)


DAMAGED = bytearray(WHOLE[1])
DAMAGED[-1] ^= 1


@pytest.mark.parametrize(
    ("frames", "kind", "code"),
    [
        ([exception("throttlingException", "Too many tokens")], ErrorKind.RATE_LIMIT, "ThrottlingException"),
        (
            [exception("modelStreamErrorException", SECRET_PROMPT)],
            ErrorKind.SERVER_ERROR,
            "ModelStreamErrorException",
        ),
        (
            [frame(b"", message_type="error", error_code="InternalError", error_message="x")],
            ErrorKind.SERVER_ERROR,
            "InternalError",
        ),
        ([bytes(DAMAGED)], ErrorKind.NETWORK_ERROR, "garbled"),
        ([chunk(b"")], ErrorKind.NETWORK_ERROR, "garbled"),
        ([frame(b"[" * 100_000, message_type="event")], ErrorKind.NETWORK_ERROR, "garbled"),
        ([frame(b"{}", message_type="event")], ErrorKind.NETWORK_ERROR, "garbled"),
        ([], ErrorKind.NETWORK_ERROR, "truncated"),
    ],
)
def test_a_stream_can_fail_between_frames(frames, kind, code, serve, reach_bedrock):
    server = serve(streams(*WHOLE[:4], *frames, **FRAMES))
    with pytest.raises(ProviderError) as caught:
        list(begin(reach_bedrock(server)))
    assert (caught.value.kind, caught.value.code) == (kind, code)
    assert caught.value.maybe_billed
    assert caught.value.usage == Usage(31, 1)
    assert "diary" not in str(caught.value)


# -- errors --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "type_", "text", "kind", "advice"),
    [
        (403, "AccessDeniedException", "no access", ErrorKind.AUTH_ERROR, "request access to the model"),
        (403, "ExpiredTokenException", "is expired", ErrorKind.AUTH_ERROR, "aws sso login"),
        (403, "UnrecognizedClientException", "is invalid", ErrorKind.AUTH_ERROR, "set AWS_PROFILE, AWS_ACC"),
        (429, "ThrottlingException", "Too many tokens, please wait", ErrorKind.RATE_LIMIT, ""),
        (429, "ThrottlingException", "Too many tokens per day", ErrorKind.NO_MONEY, "daily token quota"),
        (429, "ModelNotReadyException", "not ready", ErrorKind.SERVER_ERROR, ""),
        (400, "ServiceQuotaExceededException", "quota", ErrorKind.RATE_LIMIT, ""),
        (408, "ModelTimeoutException", "late", ErrorKind.SERVER_ERROR, ""),
        (424, "ModelErrorException", "failed", ErrorKind.SERVER_ERROR, ""),
        (503, "ServiceUnavailableException", "down", ErrorKind.SERVER_ERROR, ""),
        (
            400,
            "ValidationException",
            "The provided model identifier is invalid.",
            ErrorKind.CLIENT_ERROR,
            "id",
        ),
        (400, "ValidationException", "Invalid API version: x", ErrorKind.CLIENT_ERROR, "option api_version"),
        (400, "ValidationException", "Input is too long for requested model", ErrorKind.CONTEXT_TOO_LONG, ""),
        (404, "ResourceNotFoundException", "Could not find it", ErrorKind.CLIENT_ERROR, "inference profile"),
    ],
)
def test_an_error_of_bedrock_names_what_to_do(status, type_, text, kind, advice, serve, reach_bedrock):
    headers = {"x_amzn_errortype": f"{type_}:http://internal.amazon.com/", "x_amzn_requestid": "req-e"}
    found = fails(reach_bedrock(serve(says({"message": text}, f"{status} x", **headers))))
    assert (found.kind, found.status, found.provider_request_id) == (kind, status, "req-e")
    assert advice in found.message
    assert not found.maybe_billed


def test_the_explanation_of_a_wrong_signature_shows_no_token(serve, reach_bedrock):
    canonical = "The Canonical String for this request should have been 'x-amz-security-token:canary'"
    body = {"message": f"does not match. \n\n{canonical}"}
    found = fails(reach_bedrock(serve(says(body, "403 x", x_amzn_errortype="InvalidSignatureException"))))
    assert found.kind is ErrorKind.AUTH_ERROR
    assert "canary" not in str(found)


# -- credentials and regions ---------------------------------------------------------------------------------


def test_missing_credentials_are_reported_before_the_first_call(monkeypatch, reach_bedrock, serve):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    server = serve(says(message()))
    with pytest.raises(ConfigError, match=r"the AWS credentials could .* or set AWS_PROFILE, AWS_ACC"):
        reach_bedrock(server, region="ap-south-1").ready()  # the SDK keeps those found for a region
    assert server.requests == []


def test_credentials_that_cannot_be_renewed_fail_the_call(serve, reach_bedrock, account):
    found = account.with_name("found.json")
    soon = datetime.now(UTC) + timedelta(minutes=5)  # boto3 renews ten minutes before the end
    keys = {"AccessKeyId": KEY_ID, "SecretAccessKey": SECRET, "SessionToken": TOKEN}
    found.write_text(json.dumps({"Version": 1, **keys, "Expiration": soon.isoformat()}))
    account.write_text(f"[profile team]\nregion = {REGION}\ncredential_process = cat {found}\n")
    server = serve(says(message()))
    provider = reach_bedrock(server, profile="team")
    ask(provider)
    assert is_signed(server.requests[0], REGION)
    found.unlink()
    error = fails(provider)
    assert (error.kind, error.code) == (ErrorKind.AUTH_ERROR, "credentials")
    assert "the AWS credentials could not be loaded or renewed" in error.message
    assert len(server.requests) == 1


def test_the_region_decides_the_address(account, monkeypatch):
    assert create(f"bedrock:{MODEL}", clock=VirtualClock())[0].scope.startswith(
        f"bedrock:bedrock-runtime.{REGION}.amazonaws.com:"
    )
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(ConfigError, match="no region: set AWS_REGION or AWS_DEFAULT_REGION, or the provider"):
        create(f"bedrock:{MODEL}", clock=VirtualClock())
    account.write_text("[profile team]\nregion = sa-east-1\n")
    monkeypatch.setenv("AWS_PROFILE", "team")
    assert ".sa-east-1.amazonaws.com" in create(f"bedrock:{MODEL}", clock=VirtualClock())[0].scope
    with pytest.raises(ConfigError, match="the AWS profile is not in AWS's configuration files"):
        create(f"bedrock:{MODEL}", clock=VirtualClock(), options={"profile": "other"})
    with pytest.raises(ConfigError, match=r"'evil\.example/' is not the name of a region"):
        create(f"bedrock:{MODEL}", clock=VirtualClock(), options={"region": "evil.example/"})


def test_without_boto3_the_error_names_the_extra(serve, reach_bedrock, monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ConfigError, match=r"needs boto3: pip install 'smartbatch-llm\[bedrock\]'"):
        reach_bedrock(serve(says(message()))).ready()
