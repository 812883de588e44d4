"""The cost of unusable answers is counted, or reported as unknown and kept reserved."""

from __future__ import annotations

import json
import math
from contextlib import contextmanager

import pytest
from small_servers import JSONHandler, served

from smartbatch import AllRequestsFailed, BatchingClient, ProviderError

PRICES = {"m": {"input": 1_000_000.0, "output": 2_000_000.0}}
"""One USD per input token."""
TEXTS = ["one", "two", "three"]


@contextmanager
def server(answer):
    class Handler(JSONHandler):
        def answer(self):
            self.reply(answer(self.read_json()))

    with served(Handler) as url:
        yield f"{url}/v1"


def client_at(url, **settings):
    options = {"api_key": "k", "base_url": url}
    settings = {"shared": "off", "prices": PRICES, **settings}
    return BatchingClient("openai:m", provider_options=options, **settings)


def vectors(texts, change, tokens):
    data = [{"index": n, "embedding": [float(TEXTS.index(text)), 1.0]} for n, text in enumerate(texts)]
    change(data)
    usage = {} if tokens is None else {"usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return json.dumps({"data": data, **usage}).encode()


def without_index(data):
    for item in data:
        del item["index"]


def test_vectors_without_an_index_are_taken_in_order():
    def answer(body):
        return vectors(body["input"], without_index, 10 * len(body["input"]))

    with server(answer) as url, client_at(url) as client:
        results = client.embed(TEXTS)
        assert [list(result.embedding or ()) for result in results] == [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]
        assert client.spent == pytest.approx(30.0)


def results_of(client):
    try:
        return list(client.embed(TEXTS, dimensions=2))
    except AllRequestsFailed as error:
        return list(error.results)


DISCARDS = {
    "one too few": lambda data: data.pop(),
    "not finite": lambda data: data[0].update(embedding=[math.nan, 1.0]),
    "different lengths": lambda data: data[0].update(embedding=[1.0]),
    "a doubled index": lambda data: data[-1].update(index=0) if len(data) > 1 else data[0].update(index=7),
    "no vector": lambda data: data[0].update(embedding={"a": 1}),
}


@pytest.mark.parametrize("change", DISCARDS.values(), ids=list(DISCARDS))
def test_what_discarded_vectors_cost_is_counted(change):
    billed = []

    def answer(body):
        billed.append(10 * len(body["input"]))
        return vectors(body["input"], change, billed[-1])

    with server(answer) as url, client_at(url, budget=1000.0) as client:
        results = results_of(client)
        assert any(result.error is not None for result in results)
        assert sum(result.cost or 0.0 for result in results) == pytest.approx(sum(billed))
        assert client.spent == pytest.approx(sum(billed))
        assert client.unconfirmed_cost == 0.0


BROKEN = [b'{"object": "chat.completion"}', b'{"usage": {"prompt_tokens": 1', b"<p>Hi"]


@pytest.mark.parametrize("body", BROKEN)
def test_a_discarded_answer_without_usage_is_held_back(body):
    with server(lambda _: body) as url, client_at(url, retries=0, max_tokens=5) as client:
        with pytest.raises(ProviderError):
            client.submit("hello").result(30)
        assert client.spent == 0.0
        assert client.unconfirmed_cost >= 10.0


def test_what_a_discarded_answer_with_usage_cost_is_counted():
    body = json.dumps({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}).encode()
    with server(lambda _: body) as url, client_at(url, retries=0, max_tokens=5) as client:
        with pytest.raises(ProviderError):
            client.submit("hello").result(30)
        assert (client.spent, client.unconfirmed_cost) == (pytest.approx(7.0 + 2 * 2.0), 0.0)
        assert client.metrics.snapshot().cost == pytest.approx(11.0)
