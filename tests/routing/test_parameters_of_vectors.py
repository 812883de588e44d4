"""Parameters for generated text are refused for vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

import smartbatch
from smartbatch import BatchingClient, Embedding, Generation, InvalidRequest, Request, Result
from smartbatch.testing import emulator

MODEL = "sim:x?latency=0"
VECTORS = "openai:text-embedding-3-small"


def options(base_url: str) -> dict[str, str]:
    return {"base_url": base_url, "api_key": "sk-of-the-tests"}


CALLS: dict[str, Callable[[BatchingClient], object]] = {
    "embed": lambda client: client.embed(["a"], temperature=0.5),
    "submit_embedding": lambda client: client.submit_embedding("a", temperature=0.5),
    "request": lambda client: client.submit(Request("a", Generation(temperature=0.5), embedding=Embedding())),
    "job": lambda client: client.submit_batch(["a"], embedding=Embedding(), temperature=0.5),
    "smartbatch.embed": lambda _: smartbatch.embed(["a"], model=MODEL, temperature=0.5),
}


@pytest.mark.parametrize("ask", CALLS.values(), ids=CALLS)
def test_they_are_refused_by_name(ask):
    with BatchingClient(MODEL) as client:
        with pytest.raises(InvalidRequest, match="temperature has no effect on embeddings") as caught:
            ask(client)
        assert caught.value.field == "temperature"
        assert client.jobs() == []


LISTS: dict[str, Callable[[BatchingClient, list[Request]], Iterable[Result]]] = {
    "embed": lambda client, requests: client.embed(requests, task_type="X", dimensions=8),
    "generate": lambda client, requests: client.generate(requests, embedding=Embedding("X", 8)),
    "map": lambda client, requests: client.map(iter(requests), embedding=Embedding("X", 8)),
    "key": lambda client, requests: client.embed(requests, task_type="X", dimensions=8, key="k"),
    "job": lambda client, requests: client.submit_batch(
        requests, embedding=Embedding("X", 8), strategy="individual"
    ).results(),
    "submit_embedding": lambda client, requests: [
        client.submit_embedding(request, task_type="X", dimensions=8).result(30) for request in requests
    ],
}


@pytest.mark.parametrize("ask", LISTS.values(), ids=LISTS)
def test_the_options_of_a_request_win_over_those_of_the_call(ask):
    own = [Request("a", embedding=Embedding(dimensions=4)), Request("b", embedding=Embedding("Y"))]
    with emulator() as emu, BatchingClient(VECTORS, provider_options=options(emu.base_url)) as client:
        vectors = [result.embedding for result in ask(client, [*own, Request("c")])]
    assert [len(vector or ()) for vector in vectors] == [4, 8, 8]


def test_those_of_a_client_are_for_its_texts():
    with emulator() as emu:
        sent = options(emu.base_url)
        with BatchingClient(VECTORS, provider_options=sent, temperature=0.5, system="Be brief.") as client:
            assert client.submit_embedding("a").result(30).ok
            assert client.embed(["a", "b"], temperature=None).succeeded == 2
