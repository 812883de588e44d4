"""Whatever an error suggests is accepted: keywords, settings, variables and options."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import smartbatch
from smartbatch import BatchingClient, BatchingConfig, ConfigError, InvalidRequest
from smartbatch.cli.main import build_parser
from smartbatch.config import ADAPTER_ARGUMENTS, NEAR_SETTINGS, ClientParams, Settings
from smartbatch.core.preparation.validation import FOREIGN_NAMES, check_params
from smartbatch.keywords import ListParams, RequestParams
from smartbatch.shortcuts import ScriptParams

KNOWN = sorted(
    {
        *ListParams.__optional_keys__,
        *Settings.__optional_keys__,
        *FOREIGN_NAMES,
        *NEAR_SETTINGS,
        *ADAPTER_ARGUMENTS,
    }
)
KNOWN += ["model", "stream", "messages", "input", "n", "user", "reasoning_effort"]


def misspelt(words: list[str]) -> st.SearchStrategy[str]:
    def change(word: str, at: int, letter: str, kind: str) -> str:
        at %= len(word)
        end = {"more": at, "less": at + 1, "other": at + 1}[kind]
        return word[:at] + ("" if kind == "less" else letter) + word[end:]

    letters = st.sampled_from("aeimnostx_")
    kinds = st.sampled_from(["more", "less", "other"])
    changed = st.builds(change, st.sampled_from(words), st.integers(0, 40), letters, kinds)
    return st.sampled_from(words) | changed.filter(str.isidentifier)


@given(misspelt(KNOWN), st.sampled_from([ListParams, RequestParams]))
def test_each_hint_about_a_keyword_is_accepted(name, kind):
    known = kind.__optional_keys__
    if name in known:
        return
    with pytest.raises(InvalidRequest) as caught:
        check_params([name], known)
    text = str(caught.value)
    for other in re.findall(r"did you mean (\w+)\?", text):
        check_params([other], known)
    for setting in re.findall(r"BatchingClient\(…, (\w+)=", text):
        assert setting in ClientParams.__optional_keys__ | {"provider_options"}
    if "extra" in text:
        assert name not in {"model", "stream", "messages", "input", "contents"}


@given(misspelt(KNOWN))
def test_each_hint_of_a_script_is_accepted(name):
    known = ScriptParams.__optional_keys__ | {"model", "progress", "on_progress", "prompts"}
    if name in known:
        return
    with pytest.raises((ConfigError, InvalidRequest, TypeError)) as caught:
        smartbatch.generate([], model="sim:demo", **{name: 1})
    for other in re.findall(r"did you mean (\w+)\?", str(caught.value)):
        assert other in known


def test_the_parallelism_of_a_client_is_no_parameter_of_a_list():
    with BatchingClient("sim:demo?latency=0") as client:
        with pytest.raises(InvalidRequest) as caught:
            client.generate(["a"], parallelism=4)  # type: ignore[call-arg]
        assert "BatchingClient(…, parallelism=…); to change it later, call client.set_parallelism(…)" in str(
            caught.value
        )
        client.set_parallelism(4)


@given(misspelt([f"SMARTBATCH_{name.upper()}" for name in Settings.__optional_keys__ - {"prices"}]))
def test_a_variable_that_resembles_a_setting_is_refused_with_its_name(variable):
    known = {f"SMARTBATCH_{name.upper()}" for name in Settings.__optional_keys__}
    if variable in known or not variable.startswith("SMARTBATCH_"):
        return
    try:
        BatchingConfig.load(environ={variable: "1"})
    except ConfigError as error:
        [suggested] = re.findall(r"did you mean (\w+)\?", str(error)) or [None]
        assert suggested in known


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_required_option_that_is_misspelt_is_suggested(command, capfd):
    parser = build_parser()
    from smartbatch.cli.main import main

    assert main([command, "in.txt", "--modl", "sim:demo"]) == 2
    assert capfd.readouterr().err == (
        f"smartbatch {command}: unrecognized arguments: --modl; did you mean --model?\n"
    )
    assert main([command, "in.txt", "--max-tokens", "5"]) == 2
    assert re.search("required: --model|--model --models is required", capfd.readouterr().err)
    args = parser.parse_args([command, "in.txt", "--model", "m", "--batching-strategy", "batch"])
    assert args.strategy == "batch"
