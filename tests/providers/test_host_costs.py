"""What a host says it charged is the cost of a request."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest
from asking import KEY, request_of
from batching import result_line
from raw_server import chat, says, streams

from smartbatch import BatchingClient, ResultList
from smartbatch._clock import VirtualClock
from smartbatch.errors import ProviderError
from smartbatch.providers import OpenAIProvider, create
from smartbatch.providers.openai.answers import cost_of
from smartbatch.testing import emulator
from smartbatch.types import Embedding, Kind, Request

USED = {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35}
CHARGED = 0.0125
UNLISTED = "openrouter:some-vendor/unlisted-model"
LISTED = "openrouter:openai/gpt-4o-mini"


def charged(cost: object = CHARGED, **more: object) -> dict:
    return {"usage": {**USED, "cost": cost, **more}}


@pytest.fixture
def provider(serve):
    opened = []

    def start(*scripts) -> OpenAIProvider:
        options = {"api_key": KEY, "base_url": serve(*scripts).base_url}
        found = create("openrouter:m", clock=VirtualClock(), options=options)[0]
        assert isinstance(found, OpenAIProvider)
        opened.append(found)
        return found

    yield start
    for each in opened:
        each.close()


@pytest.fixture
def client(serve):
    with ExitStack() as stack:

        def start(model: str, *scripts, **settings) -> BatchingClient:
            options = {"api_key": KEY, "base_url": serve(*scripts).base_url}
            opened = BatchingClient(model, provider_options=options, shared="off", **settings)
            return stack.enter_context(opened)

        yield start


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost": 0.0125}, 0.0125),
        ({"cost": 0}, 0.0),
        ({"cost": 0.001, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.02}}, 0.021),
        ({"cost": 0.001, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.001}}, 0.001),
        ({"cost": 0.001, "is_byok": True}, None),  # the upstream's part is unknown
        ({"cost_in_usd_ticks": 37756000}, 0.0037756),  # xAI
        ({"cost_in_usd_ticks": "37756000"}, None),
        ({"cost": {"total_cost": 0.006}}, None),  # Perplexity
        *(({"cost": value}, None) for value in (None, "0.01", True, -1, float("inf"), float("nan"))),
        ({}, None),
    ],
)
def test_the_charged_amount_is_read_or_unknown(usage, cost):
    assert cost_of(usage) == (None if cost is None else pytest.approx(cost))


def test_the_charged_amount_of_a_stream_is_its_cost(provider):
    begun = {"choices": [{"index": 0, "delta": {"content": "Lima"}}]}
    ended = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    events = [json.dumps(each).encode() for each in (begun, ended, {"choices": [], **charged()})]
    server = provider(streams(*(b"data: " + each + b"\n\n" for each in (*events, b"[DONE]"))))
    stream = server.stream(request_of(), model="m", attempt=0, timeout=20)
    assert list(stream) == ["Lima"]
    assert stream.answer.cost == CHARGED


def test_the_charged_amount_of_vectors_is_split_by_length(provider):
    body = {
        "data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [2.0]}],
        "usage": {"prompt_tokens": 4, "total_tokens": 4, "cost": 0.004},
    }
    texts = [Request(prompt=text, embedding=Embedding()) for text in ("a", "bcd")]
    answers = provider(says(body)).embed(texts, model="m", attempt=0, timeout=20)
    assert [answer.cost for answer in answers] == pytest.approx([0.001, 0.003])


def test_the_charged_amount_of_a_failed_answer_is_kept(provider):
    choice = {"message": {"content": "Li"}, "finish_reason": "error", "error": {"code": 502}}
    with pytest.raises(ProviderError) as caught:
        provider(says(chat(choices=[choice], **charged()))).generate(
            request_of(), model="m", attempt=0, timeout=20
        )
    assert caught.value.cost == CHARGED


def test_the_charged_amount_in_a_line_of_a_batch_is_its_cost(serve):
    batches = OpenAIProvider(KEY, serve().base_url).batches()
    assert batches is not None
    line = batches.read_line(result_line(body=chat(**charged())), Kind.GENERATE)
    assert line.answer is not None
    assert line.answer.cost == CHARGED


@pytest.mark.parametrize("model", [LISTED, UNLISTED])
def test_a_list_costs_what_was_charged_whatever_the_price_table_says(client, model):
    results = client(model, says(chat(**charged()))).generate(["one", "two"], strategy="individual")
    assert results.cost == pytest.approx(2 * CHARGED)
    assert (results.cost_known, results.unpriced) == (True, ())


def test_what_was_charged_counts_against_the_budget(client):
    opened = client(LISTED, says(chat(**charged())), budget=1.0)
    opened.generate(["one"], strategy="individual", max_tokens=10)
    assert opened.spent == pytest.approx(CHARGED)


def test_failed_tries_add_what_they_cost(client):
    choice = {"message": {"content": "Li"}, "finish_reason": "error", "error": {"code": 502}}
    failing, answering = says(chat(choices=[choice], **charged())), says(chat(**charged(0.002)))
    opened = client(UNLISTED, failing, answering, retry_initial=0.01)
    result = opened.submit("one").result()
    assert (result.attempts, result.cost) == (2, pytest.approx(CHARGED + 0.002))


def test_a_batch_costs_what_was_charged_for_each_of_its_answers(tmp_path):
    prompts = [f"prompt {number}" for number in range(5)]
    settings = {"store": str(tmp_path / "jobs.db"), "batch_poll_interval": 0.05, "max_tokens": 20}
    with emulator(dialect="openrouter") as emu:
        options = {"api_key": KEY, "base_url": emu.base_url}
        with BatchingClient(UNLISTED, provider_options=options, **settings) as client:
            alone = client.generate(prompts, strategy="individual")
            job = client.submit_batch(prompts, key="batch")
            results = ResultList(job.results())
    assert results.cost_known
    assert results.cost == pytest.approx(alone.cost / 2)
    assert job.status().cost == pytest.approx(results.cost)
    assert job.status().unpriced == 0
