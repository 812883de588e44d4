"""Misspelt names, and names of other libraries, are rejected with the correct one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import smartbatch
from smartbatch.client import BatchingClient
from smartbatch.errors import ConfigError, InvalidRequest
from smartbatch.providers import SimProvider
from smartbatch.types import Request

ClientOf = Callable[..., BatchingClient]
PATIENCE = 30.0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_tokns": 4}, "max_tokens"),
        ({"dedline": "2h"}, "deadline"),
        ({"paralelism": 4}, "parallelism"),
        ({"midleware": []}, "middleware"),
        ({"strategy": "individul"}, "individual"),
        ({"prefer": "sped"}, "speed"),
        ({"on_error": "rase"}, "raise"),
    ],
)
def test_a_script_is_told_the_nearest_name(given, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?$"):
        smartbatch.generate(["a"], model="sim:demo", progress=False, **given)


@pytest.mark.parametrize("name", ["priority", "purpose", "context", "isolation_key"])
def test_a_script_is_told_that_a_name_is_of_single_requests(name):
    with pytest.raises(ConfigError, match=rf"parameter {name}: set it on a request, Request\(…, {name}=…\)$"):
        smartbatch.generate(["a"], model="sim:demo", progress=False, **{name: "a"})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("call", "given", "meant"),
    [
        ("submit", {"max_tokns": 4}, "max_tokens"),
        ("submit", {"priority": "urgnt"}, "urgent"),
        ("map", {"dedline": "2h"}, "deadline"),
        ("map", {"on_error": "rase"}, "raise"),
        ("as_completed", {"strategi": "auto"}, "strategy"),
        ("embed", {"purpos": "search"}, "purpose"),
        ("plan", {"strategy": "individul"}, "individual"),
        ("submit_batch", {"batch_fallback": "individul"}, "individual"),
        ("submit_and_wait", {"budgt": 1}, "budget"),
    ],
)
def test_a_misspelt_word_is_refused_at_once_with_the_nearest(call, given, meant, client_of):
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    prompt = "a" if call == "submit" else iter(["a"])
    with pytest.raises((ConfigError, InvalidRequest), match=f"did you mean {meant}\\?$"):
        getattr(client, call)(prompt, **given)
    assert client.counts.submitted == 0


def test_a_request_and_a_model_are_told_the_nearest_name():
    with pytest.raises(ValueError, match=r"did you mean urgent\?$"):
        Request("a", priority="urgnt")
    with pytest.raises(ConfigError, match=r"unknown provider; use one of .*did you mean openai\?$"):
        BatchingClient("opnai:gpt-5-mini")


@pytest.mark.parametrize(
    ("model", "given", "meant"),
    [
        ("openai:gpt-5-mini", {"base_ulr": "http://localhost"}, "base_url"),
        ("anthropic:claude-haiku-5-5", {"api_kye": "x"}, "api_key"),
        ("gemini:gemini-3.8-flash", {"api_kye": "x"}, "api_key"),
        ("sim:demo", {"latncy": 1}, "latency"),
    ],
)
def test_a_misspelt_option_of_a_provider_is_told_the_nearest(model, given, meant):
    with pytest.raises(ConfigError, match=f"did you mean {meant}\\?$"):
        BatchingClient(model, provider_options=given)


def test_a_job_takes_nothing_that_it_could_not_keep(client_of):
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    with pytest.raises(InvalidRequest, match="timeout is not a parameter here"):
        client.submit_batch(["a"], timeout=5)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("api_key", r"is an option of the provider: provider_options=\{'api_key': …\}"),
        ("base_url", "is an option of the provider"),
        ("max_workers", r"did you mean parallelism\?"),
        ("batch_size", r"did you mean max_batch_size\?"),
    ],
)
def test_a_name_of_another_library_is_told_what_it_is_here(given, told):
    wrong: dict[str, Any] = {given: 3}
    with pytest.raises(ConfigError, match=told):
        BatchingClient("openai:m", **wrong)
    with pytest.raises(ConfigError, match=told):
        smartbatch.generate(["x"], model="openai:m", **wrong)


def test_a_setting_passed_to_a_call_is_refused_with_its_place(client_of):
    client = client_of(SimProvider(sleep=lambda _: None, now=lambda: 0.0))
    for call in (client.generate, client.submit, client.submit_batch):
        with pytest.raises(InvalidRequest, match=r"but a setting of the client: .*parallelism=…"):
            call(["a"], parallelism=8)  # type: ignore[operator]
