"""Options of a provider on the command line: texts that are read in the type of the option."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from inside import own_registry

from smartbatch import ConfigError, providers
from smartbatch.cli.clients import options_of
from smartbatch.cli.main import main
from smartbatch.providers import MockProvider
from smartbatch.testing import emulator


def read(pair: str, model: str = "openai:m") -> Any:
    (value,) = options_of(Namespace(model=model, provider_option=[pair])).values()
    return value


@pytest.mark.parametrize("key", ["12345678", "1e5", "true", "[1]", '{"a": 1}', "sk-of-the-test"])
def test_an_option_that_is_a_text_stays_as_it_is_written(key):
    assert read(f"api_key={key}") == key
    assert read(f"project={key}") == key
    assert read(f"batch_window={key}") == key


@pytest.mark.parametrize(
    ("pair", "model", "value"),
    [
        ('api_key="12345678"', "openai:m", "12345678"),
        ("organization=null", "openai:m", None),
        ("api=responses", "openai:m", "responses"),
        ("allow_http=true", "openai:m", True),
        ("flex=null", "openai:m", None),
        ("connect_timeout=5", "anthropic:m", 5),
        ("connect_timeout=5s", "anthropic:m", "5s"),
        ("max_body=1000", "gemini:m", 1000),
        ('headers={"a": "b"}', "gemini:m", {"a": "b"}),
        ("rpm=60", "sim:demo", 60),
        ('faults={"503": 0.5}', "sim:demo", {"503": 0.5}),
        ("faults=0.5", "sim:demo", 0.5),
        ("max_shared=5", "call:json:dumps", 5),
        ("name=5", "call:json:dumps", "5"),
        ("colour=5", "openai:m", 5),
    ],
)
def test_an_option_is_read_in_its_type(pair, model, value):
    found = read(pair, model)
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("pair", "model", "needs"),
    [
        ("allow_http=no", "openai:m", "true or false"),
        ("flex=1", "gemini:m", "true or false"),
        ("max_body=secret", "openai:m", "a whole number"),
        ("headers=secret", "openai:m", "a JSON object whose values are each a string"),
        ('headers={"a": 5, "b": "secret"}', "openai:m", "a JSON object whose values are each a string"),
        ("faults=secret", "sim:demo", "a number or a JSON object whose values are each a number"),
        ("many=secret", "call:json:dumps", "a value that can only be passed in Python"),
    ],
)
def test_a_value_of_another_type_is_refused_and_not_repeated(pair, model, needs):
    with pytest.raises(ConfigError, match=f" needs {needs}$") as caught:
        read(pair, model)
    assert "secret" not in caught.value.message


def test_options_of_an_own_provider_are_json_or_a_text(monkeypatch):
    own_registry(monkeypatch)
    providers.register("mine", lambda name, clock, options: (MockProvider(), name))
    assert [read(f"x={text}", "mine:m") for text in ("5", "true", "a")] == [5, True, "a"]


@pytest.mark.full
def test_a_run_takes_a_key_of_digits(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("in.txt").write_text("a question\n")
    with emulator() as emu:
        options = ["--model", "openai:gpt-5-mini", "--strategy", "individual"]
        options += ["--provider-option", f"base_url={emu.base_url}", "--provider-option", "api_key=12345678"]
        assert main(["run", "in.txt", "-o", "out.jsonl", "--quiet", *options]) == 0
        assert len(emu.ledger.calls) == 1
