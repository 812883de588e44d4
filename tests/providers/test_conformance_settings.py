"""Settings of all providers: rejected values and hidden keys."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from services import SERVICES

from smartbatch.errors import ConfigError
from tests.levels import sampled

FOR_ALL: list[tuple[dict[str, Any], str]] = [
    ({"connect_timeout": 0}, "connect_timeout"),
    ({"connect_timeout": float("nan")}, "connect_timeout"),
    ({"max_body": 0}, "max_body"),
    ({"headers": {"Host": "elsewhere"}}, "'Host'"),
    ({"headers": {"content-length": "3"}}, "'content-length'"),
    ({"headers": {"a b": "canary"}}, "name"),
    ({"headers": {"a": ["canary"]}}, "headers must contain strings: 'a' is of type list"),
    ({"headers": "a: canary"}, "headers must be a dictionary, not str"),
    ({"api_key": ["canary"]}, "must be a string, not list"),
    ({"base_url": 3}, "_BASE_URL must be a string, not int"),
    ({"headers": {"a": "canary\r\nx: y"}}, "header a"),
    ({"headers": {"a": "canary\u20ac"}}, "header a"),
    ({"api_key": "AIza\u201ccanary\u201d"}, "characters"),
    ({"api_key": "canary\r\nx: y"}, "characters"),
    ({"base_url": "api.example.com/v1"}, "must look like .* \\(try https://api.example.com/v1\\)"),
    ({"base_url": "localhost:8000/v1"}, "must look like .* \\(try http://localhost:8000/v1\\)"),
    ({"base_url": "ftp://api.example.com"}, "_BASE_URL"),
    ({"base_url": "https://"}, "must look like"),
    ({"base_url": "https://me:canary@api.example.com/v1"}, "name or password"),
    ({"base_url": "https://api.example.com/v1?key=canary"}, "query"),
    ({"base_url": "http://api.example.com/v1"}, "unencrypted"),
    ({"base_url": "http://127.evil.example/v1"}, "unencrypted"),
    ({"base_url": "http://localhost.example/v1"}, "unencrypted"),
    ({"base_url": "http://169.254.169.254/latest"}, "link-local"),
    ({"base_url": "http://[fe80::1]/v1"}, "link-local"),
    ({"base_url": "http://[::1"}, "not a URL"),
]
OF_ONE: dict[str, list[tuple[dict[str, Any], str]]] = {
    "openai": [
        ({"api_key": None}, "OPENAI_API_KEY"),
        ({"api_key": "  "}, "OPENAI_API_KEY"),
        ({"api": "completions"}, "api="),
        ({"organization": "a\nb: canary"}, "header"),
    ],
    "anthropic": [
        ({"api_key": None}, "ANTHROPIC_API_KEY"),
        ({"api_key": "  "}, "ANTHROPIC_API_KEY"),
        ({"auth_token": "canary"}, "pass one of them"),
        ({"api_version": "2024-01-01"}, "api_version"),
        ({"default_max_tokens": 0}, "default_max_tokens"),
    ],
    "gemini": [
        ({"api_key": None}, "GEMINI_API_KEY.*GOOGLE_API_KEY"),
        ({"api_key": "  "}, "GEMINI_API_KEY.*GOOGLE_API_KEY"),
        ({"api_key": "AIza canary"}, "characters"),
        ({"api_key": "auth_tokens/canary"}, "short-lived"),
        ({"api_version": "v1/../x"}, "api_version"),
        ({"headers": {"X-Goog-Api-Key": "canary"}}, "'X-Goog-Api-Key'"),
        ({"headers": {"accept": "canary"}}, "'accept'"),
    ],
}


@pytest.mark.parametrize(
    ("service", "options", "part"),
    sampled(
        [
            pytest.param(service, options, part, id=f"{service.name}-{options}")
            for service in SERVICES
            for options, part in (*FOR_ALL, *OF_ONE[service.name])
        ],
        keep=27,
    ),
)
def test_settings_that_are_refused(service, options, part):
    with pytest.raises(ConfigError, match=part) as caught:
        service.kind(**{"api_key": service.key, **options})
    assert "canary" not in str(caught.value)
    assert service.key not in str(caught.value)


def test_plain_http_is_for_loopback_or_for_those_who_ask(service):
    for host in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "vllm.localhost"):
        service.at(f"http://{host}")
    service.at("http://gateway:8000", allow_http=True)


def test_a_provider_shows_no_key_and_is_not_pickled(service):
    provider = service.kind(service.key)
    assert provider.scope in repr(provider)
    assert service.key not in repr(provider)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(provider)
