"""A parameter that a server rejects fails no request and is not sent again."""

from __future__ import annotations

import pytest

import smartbatch
from smartbatch import BatchingClient, ProviderError
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.events import ParameterDropped, RetryScheduled
from smartbatch.testing import emulator

PROMPTS = [f"prompt {number}" for number in range(12)]


def options(emu, **more):
    return {"api_key": "sk-of-the-test", "base_url": emu.base_url, **more}


def warnings_in(caplog):
    return [text for text in caplog.messages if "is left out" in text]


def refused(emu):
    return sum(call.status == 400 for call in emu.ledger.calls)


def test_a_seed_that_the_server_rejects_costs_no_request_and_is_reported(caplog):
    told = []
    with (
        emulator(rejects=["seed"], latency=0.01) as emu,
        BatchingClient(
            "openai:m",
            provider_options=options(emu),
            shared="off",
            parallelism=4,
            seed=7,
            observers=[told.append],
        ) as client,
    ):
        for part in (PROMPTS, [f"another {prompt}" for prompt in PROMPTS]):
            results = client.generate(part)
            assert results.succeeded == len(PROMPTS)
            assert {tuple(name for name, _ in result.dropped) for result in results} == {("seed",)}
        assert 1 <= refused(emu) <= 4, "only calls that were under way carried it"
        assert client.metrics.snapshot().failed == 0
    assert len(warnings_in(caplog)) == 1
    assert 'provider_options={"send_seed": True} sends it anyway' in warnings_in(caplog)[0]
    retries = [event for event in told if isinstance(event, RetryScheduled)]
    assert {(event.kind, event.delay, event.counted) for event in retries} == {("parameter", 0.0, False)}
    assert any(isinstance(event, ParameterDropped) for event in told)


def test_vectors_come_as_numbers_from_a_server_without_encodings(caplog):
    with emulator(rejects=["encoding_format"]) as emu:
        with BatchingClient(
            "openai:text-embedding-3-small", provider_options=options(emu), shared="off"
        ) as client:
            results = client.embed(PROMPTS, dimensions=8)
            assert [result.embedding for result in results] == [
                vector_for(prompt, "text-embedding-3-small", 8) for prompt in PROMPTS
            ]
            client.embed(["later"], dimensions=8)
        refused, *others = [call.status for call in emu.ledger.calls]
        assert (refused, set(others)) == (400, {200})
    assert len(warnings_in(caplog)) == 1


def test_a_stream_goes_on_without_its_options(caplog):
    with emulator(rejects=["stream_options"]) as emu:
        with BatchingClient("openai:m", provider_options=options(emu), shared="off") as client:
            texts = ["".join(client.stream(prompt)) for prompt in PROMPTS[:3]]
            assert all(texts)
        assert [call.status for call in emu.ledger.calls] == [400, 200, 200, 200]
    assert len(warnings_in(caplog)) == 1


def test_the_output_limit_is_sent_by_its_other_name():
    with emulator(rejects=["max_completion_tokens"]) as emu:
        made = options(emu)
        provider = smartbatch.providers.OpenAIProvider(**made)
        provider._parameters._usual_field = "max_completion_tokens"  # as for OpenAI's own address
        with BatchingClient("m", provider=provider, shared="off", max_tokens=3) as client:
            result = client.submit("a long story").result(30)
            assert result.usage.output_tokens <= 3
            assert result.attempts == 2
            assert result.dropped == ()


def test_the_options_force_a_parameter():
    with emulator(rejects=["seed"]) as emu:
        forced = options(emu, send_seed=True)
        with BatchingClient("openai:m", provider_options=forced, shared="off", seed=7) as client:
            error = client.submit("x").exception(30)
        assert isinstance(error, ProviderError)
        assert "Unsupported parameter: 'seed'" in error.message
        assert refused(emu) == 1


def test_parameters_that_are_rejected_one_after_the_other_use_up_no_tries():
    rejects = ["stream_options", "seed", "max_tokens", "json_schema", "encoding_format"]
    with (
        emulator(rejects=rejects, latency=0.01) as emu,
        BatchingClient(
            "openai:m", provider_options=options(emu), shared="off", parallelism=4, retries=0
        ) as client,
    ):
        given = {"seed": 7, "max_tokens": 50}
        assert client.generate(PROMPTS, schema={"title": "Any", "type": "object"}, **given).failed == 0
        assert "".join(client.stream("another", **given))
        assert client.embed(PROMPTS, dimensions=8).failed == 0
        assert client.metrics.snapshot().failed == 0


@pytest.mark.full
def test_the_lines_of_a_batch_learn_and_are_sent_once_more(tmp_path, caplog):
    with emulator(rejects=["seed"], batch_turnaround=0.05) as emu:
        with BatchingClient(
            "openai:m",
            provider_options=options(emu),
            shared="off",
            seed=7,
            store=str(tmp_path / "s.db"),
            batch_poll_interval=1,
        ) as client:
            results = client.generate(PROMPTS, strategy="batch")
            assert [result.ok for result in results] == [True] * len(PROMPTS)
            assert {tuple(name for name, _ in result.dropped) for result in results} == {("seed",)}
            assert client.submit("x").result(30).attempts == 1, "real time knows it from the batch"
        assert emu.ledger.paid_twice() == []
    assert len([text for text in warnings_in(caplog) if "seed" in text]) == 1


def test_an_effort_that_the_server_rejects_is_never_left_out():
    with (
        emulator(rejects=["reasoning_effort"]) as emu,
        BatchingClient("openai:m", provider_options=options(emu), reasoning_effort="low") as client,
    ):
        error = client.submit("one").exception()
        assert isinstance(error, ProviderError)
        assert "'reasoning_effort' is not supported" in str(error)
        assert client.submit("two", reasoning_effort="high").exception() is not None
        assert refused(emu) == len(emu.ledger.calls) == 2
