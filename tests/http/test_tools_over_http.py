"""Tools, log-probabilities and reasoning over HTTP, on every route."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import smartbatch
from smartbatch import BatchingClient, InvalidRequest, Message, ToolCall
from smartbatch.cli.main import main
from smartbatch.testing import emulator
from tests.levels import sampled

MODELS = {
    "sim": "demo?latency=0",
    "openai": "gpt-5-mini",
    "anthropic": "claude-haiku-5-5",
    "gemini": "gemini-3.8-flash",
}
VARIANTS = ("openai", "responses", "anthropic", "gemini")
PROMPTS = ["Use weather for Lima.", "Use weather and save for Oslo.", "Say nothing of it."]
CALLED = [["weather"], ["weather", "save"], []]


def weather(city: str, unit: str = "C") -> str:
    return f"{city}: 5 {unit}"


def save(label: str) -> None:
    pass


@pytest.fixture
def emu(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with emulator() as emu:
        for name, url in (("OPENAI", emu.base_url), ("ANTHROPIC", emu.url), ("GOOGLE_GEMINI", emu.url)):
            monkeypatch.setenv(f"{name.removeprefix('GOOGLE_')}_API_KEY", "key")
            monkeypatch.setenv(f"{name}_BASE_URL", url)
        yield emu


def client_of(variant, **params):
    provider = "openai" if variant == "responses" else variant
    if variant == "responses":
        params["provider_options"] = {"api": "responses"}
    params.setdefault("batch_poll_interval", 0.02)
    return BatchingClient(f"{provider}:{MODELS[provider]}", **params)


def names_called(results):
    return [[call.name for call in result.tool_calls] for result in results]


def check_calls(result):
    assert result.ok
    assert (result.finish_reason, result.text or "", result.empty) == ("tool_calls", "", False)
    assert len({call.id for call in result.tool_calls}) == len(result.tool_calls) > 0
    for call in result.tool_calls:
        assert call.id
        needed, all_names = ({"city"}, {"city", "unit"}) if call.name == "weather" else ({"label"}, {"label"})
        assert needed <= set(call.arguments) <= all_names


@pytest.mark.parametrize(
    ("variant", "strategy"),
    sampled([(each, way) for each in (*VARIANTS, "sim") for way in ("individual", "batch")], keep=4, first=1),
)
def test_calls_are_in_the_results_of_every_provider_and_route(variant, strategy, emu):
    with client_of(variant, tools=[weather, save]) as client:
        results = client.generate(PROMPTS, strategy=strategy)
    assert names_called(results) == CALLED
    for result in results[:2]:
        check_calls(result)
    assert results[2].finish_reason == "stop"


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_conversation_goes_on_with_the_results_of_its_tools(variant, emu):
    chat = [{"role": "user", "content": PROMPTS[1]}]
    with client_of(variant, tools=[weather, save]) as client:
        first = client.submit(chat).result()
        chat.append(first.message())
        chat += [
            Message("tool", json.dumps({"done": call.name}), tool_call_id=call.id)
            for call in reversed(first.tool_calls)
        ]
        second = client.submit(chat).result()
        assert (second.ok, second.tool_calls, second.finish_reason) == (True, (), "stop")
        third = client.submit([*chat, second.message(), {"role": "user", "content": PROMPTS[0]}]).result()
    assert names_called([first, third]) == [["weather", "save"], ["weather"]]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_choice_names_the_tool_that_is_called(variant, emu):
    with client_of(variant, tools=[weather, save]) as client:
        choices = ("auto", "none", "required", "save")
        results = [client.submit(PROMPTS[0], tool_choice=choice).result() for choice in choices]
    assert names_called(results) == [["weather"], [], ["weather"], ["save"]]
    assert [result.finish_reason for result in results] == ["tool_calls", "stop", "tool_calls", "tool_calls"]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_stream_has_the_calls_in_its_result(variant, emu):
    with client_of(variant, tools=[weather, save]) as client:
        stream = client.stream(PROMPTS[1])
        assert "".join(stream) == ""
        check_calls(stream.result)
        assert names_called([stream.result]) == CALLED[1:2]


CHATS = {
    "openai": [
        {"role": "user", "content": "How cold is it?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c.1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city": "Lima"}'},
                },
                {"id": "c.2", "type": "function", "function": {"name": "weather", "arguments": "{not JSON"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c.2", "content": ""},
        {"role": "tool", "tool_call_id": "c.1", "content": "5"},
    ],
    "anthropic": [
        {"role": "user", "content": "How cold is it?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Lima"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "5"}]},
                {"type": "text", "text": "And now?"},
            ],
        },
    ],
}


@pytest.mark.parametrize(
    ("variant", "form"), sampled([(each, form) for each in VARIANTS for form in CHATS], keep=3)
)
def test_chats_of_either_form_go_to_every_provider(variant, form, emu):
    with client_of(variant, tools=[weather]) as client:
        result = client.submit(CHATS[form]).result()
    assert (result.finish_reason, result.tool_calls) == ("stop", ())


def test_chats_of_a_file_go_with_their_calls(emu, tmp_path):
    (tmp_path / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": CHATS[form]}) + "\n" for form in CHATS)
    )
    assert main(["run", "chats.jsonl", "--model", "anthropic:claude-haiku-5-5", "-o", "out.jsonl"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["error"] for line in lines] == [None, None]


@pytest.mark.parametrize("variant", VARIANTS)
def test_reasoning_is_in_the_result_and_not_in_the_text(variant, emu):
    extra = {
        "openai": {"include_reasoning": True},
        "responses": {"reasoning": {"summary": "auto"}},
        "anthropic": {"thinking": {"type": "adaptive"}},
        "gemini": {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}},
    }[variant]
    with client_of(variant, extra=extra, tools=[weather]) as client:
        results = [client.submit(PROMPTS[2]).result(), client.submit(PROMPTS[0]).result()]
        if variant != "responses":
            stream = client.stream(PROMPTS[2])
            assert "thinking" not in "".join(stream)
            results.append(stream.result)
        if variant == "anthropic":  # signed thinking is sent back before its calls
            chat = [Message("user", PROMPTS[0]), results[1].message()]
            chat += [Message("tool", "5", tool_call_id=call.id) for call in results[1].tool_calls]
            assert chat[1].content[0]["type"] == "thinking"
            assert client.submit(chat).result().ok
    for result in results:
        assert result.reasoning.startswith("thinking about")
        assert "thinking" not in (result.text or "")
        assert result.usage.reasoning_tokens > 0


@pytest.mark.parametrize("variant", sampled((*VARIANTS, "sim"), keep=2))
def test_an_effort_decides_how_much_is_reasoned_on_every_route(variant, emu):
    with client_of(variant, reasoning_effort="low") as client:
        low = client.submit("a").result()
        high = client.submit("a", reasoning_effort="high").result()
        stream = client.stream("a", reasoning_effort="high")
        assert "".join(stream) == high.text == low.text
        [batched] = client.map(["a"], reasoning_effort="high", strategy="batch")
    spent = [each.usage.reasoning_tokens for each in (low, high, stream.result, batched)]
    assert 0 < spent[0] < spent[1] == spent[2] == spent[3]


def test_a_run_sends_the_effort_and_its_rows_depend_on_it(emu, tmp_path, capfd):
    (tmp_path / "in.txt").write_text("a\n")
    command = ["run", "in.txt", "--model", "openai:gpt-5-mini", "-o", "out.jsonl", "--reasoning-effort"]
    assert main([*command, "low"]) == 0
    line = json.loads((tmp_path / "out.jsonl").read_text())
    assert line["usage"]["reasoning_tokens"] == 32
    assert main([*command, "low"]) == 0
    assert main([*command, "high"]) == 2, "another effort is another run"
    assert main(["run", "in.txt", "--model", "anthropic:claude-opus-5-5", "--reasoning-effort", "none"]) == 2
    assert "claude-opus-5-5 has no reasoning_effort='none'; use one of low" in capfd.readouterr().err
    assert len(emu.ledger.calls) == 1


LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
REASONING_MODELS = {
    "anthropic": [
        *("claude-sonnet-4-20250514", "claude-haiku-4-5", "claude-opus-4-6", "claude-opus-4-8"),
        *("claude-sonnet-5-5", "claude-haiku-5-5", "claude-opus-5-5", "claude-fable-5-2"),
    ],
    "gemini": ["gemini-2.5-pro", "gemini-2.5-flash", "gemini-3.1-pro-preview", "gemini-3.8-flash"],
}


@pytest.mark.parametrize("variant", REASONING_MODELS)
def test_every_level_that_is_not_rejected_is_accepted_by_the_service(variant, emu):
    with client_of(variant, max_tokens=30_000) as client:
        for model in REASONING_MODELS[variant]:
            spent = []
            for level in LEVELS:
                try:
                    result = client.submit("a", model=model, reasoning_effort=level).result()
                except InvalidRequest as error:
                    assert model in str(error)
                else:
                    spent.append(result.usage.reasoning_tokens)
            assert spent == sorted(spent)
            assert len(spent) >= 3


def test_a_level_that_the_server_lacks_fails_and_costs_nothing(emu):
    with BatchingClient("openai:gpt-5.9", reasoning_effort="minimal") as client:
        [result] = client.map(["a"])
    assert "Supported values are: 'none', 'low'" in str(result.error)
    assert result.cost == 0


@pytest.mark.parametrize("variant", ["openai", "responses", "gemini"])
def test_logprobs_are_in_the_result(variant, emu):
    with client_of(variant) as client:
        plain, with_two = client.submit("a", logprobs=True).result(), client.submit("a", logprobs=2).result()
        without = client.submit("a").result()
    assert without.logprobs is None
    for result, alternatives in ((plain, 0), (with_two, 2)):
        assert "".join(token.token for token in result.logprobs) == result.text
        assert all(len(token.top) == alternatives and token.logprob <= 0 for token in result.logprobs)
    assert with_two.logprobs[0].top[0] == (with_two.logprobs[0].token, with_two.logprobs[0].logprob)


def test_logprobs_are_refused_for_anthropic_before_anything_is_sent(emu):
    with client_of("anthropic") as client, pytest.raises(InvalidRequest) as caught:
        client.submit("a", logprobs=True)
    assert caught.value.field == "logprobs"
    assert emu.ledger.received == 0


def test_a_schema_next_to_tools_is_for_the_answer_without_calls(emu):
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    for strategy in ("individual", "batch"):
        with client_of("openai", tools=[weather], schema=schema) as client:
            called, answered = client.generate([PROMPTS[0], PROMPTS[2]], strategy=strategy)
        assert (called.ok, called.parsed, len(called.tool_calls)) == (True, None, 1)
        assert set(answered.parsed) == {"a"}


def test_those_who_share_an_answer_have_calls_of_their_own(emu):
    with client_of("openai", tools=[weather]) as client:
        results = client.generate([PROMPTS[0]] * 3)
    assert [result.tool_calls for result in results] == [results[0].tool_calls] * 3
    results[0].tool_calls[0].arguments.clear()
    assert set(results[1].tool_calls[0].arguments) == {"city", "unit"}
    assert emu.ledger.received == 1


def test_the_cache_and_the_store_give_everything_back(emu):
    params = {"model": "openai:gpt-5-mini", "tools": [weather], "logprobs": 1}
    params["extra"] = {"include_reasoning": True}
    for kept in ({"cache": "answers.db"}, {"store": "jobs.db", "key": "tools"}):
        first, second = (smartbatch.generate(PROMPTS, **params, **kept) for _ in range(2))
        for one, other in zip(first, second, strict=True):
            for name in ("text", "tool_calls", "reasoning", "logprobs", "extra", "finish_reason"):
                assert getattr(one, name) == getattr(other, name), name
        assert first[0].tool_calls
        assert first[2].logprobs
        assert first[2].reasoning
        assert first[2].extra["system_fingerprint"] == "fp_emulator"
    assert emu.ledger.received == 2 * len(PROMPTS)


def test_files_and_tables_have_the_calls(emu):
    with client_of("openai", tools=[weather]) as client:
        results = client.generate(PROMPTS[:1])
    (row,) = results.as_dicts()
    (call,) = results[0].tool_calls
    assert row["tool_calls"] == [{"id": call.id, "name": "weather", "arguments": call.arguments}]
    with client_of("openai", tools=[weather], store="jobs.db") as client:
        job = client.submit_batch(PROMPTS[:1])
        job.wait(timeout=60)
    assert main(["jobs", "results", job.id, "--store", "jobs.db", "-o", "calls.jsonl"]) == 0
    line = json.loads(Path("calls.jsonl").read_text())
    assert [each["name"] for each in line["tool_calls"]] == ["weather"]
    assert main(["jobs", "results", job.id, "--store", "jobs.db", "-o", "calls.csv"]) == 0
    assert '""weather""' in Path("calls.csv").read_text()


@pytest.mark.parametrize(
    ("variant", "strict"), sampled([(each, strict) for each in VARIANTS for strict in (True, None)], keep=3)
)
def test_strict_tools_are_written_in_the_dialect_of_each_provider(variant, strict, emu):
    tool = {
        "name": "save",
        "strict": strict,
        "parameters": {
            "type": "object",
            "properties": {"label": {"type": "string", "minLength": 2}, "size": {"type": "integer"}},
            "required": ["label"],
        },
    }
    with client_of(variant, tools=[tool], tool_choice="required") as client:
        (call,) = client.submit("a").result().tool_calls
    assert set(call.arguments) == {"label", "size"}


def test_a_tool_of_the_provider_joins_those_of_the_request(emu):
    tool = {
        "type": "function",
        "function": {"name": "other", "parameters": {"type": "object", "properties": {}}},
    }
    with client_of("openai", tools=[weather], extra={"tools": [tool]}) as client:
        result = client.submit("Use other and weather.").result()
        assert names_called([result]) == [["weather", "other"]]
        assert isinstance(result.tool_calls[0], ToolCall)
        with pytest.raises(InvalidRequest, match="twice"):
            client.submit("a", tool_choice="auto", extra={"tool_choice": "none"})
