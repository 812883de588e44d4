"""Parameters of texts have no effect on vectors: given for them they are refused, not left out in silence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import smartbatch
from smartbatch import BatchingClient, Embedding, Generation, InvalidRequest, Request
from smartbatch.testing import emulator

MODEL = "sim:x?latency=0"

CALLS: dict[str, Callable[[BatchingClient], object]] = {
    "embed": lambda client: client.embed(["a"], temperature=0.5),
    "submit_embedding": lambda client: client.submit_embedding("a", temperature=0.5),
    "request": lambda client: client.submit(Request("a", Generation(temperature=0.5), embedding=Embedding())),
    "job": lambda client: client.submit_batch(["a"], embedding=Embedding(), temperature=0.5),
    "smartbatch.embed": lambda _: smartbatch.embed(["a"], model=MODEL, temperature=0.5),
}


@pytest.mark.parametrize("ask", CALLS.values(), ids=CALLS)
def test_they_are_refused_by_name(ask: Callable[[BatchingClient], object]) -> None:
    with BatchingClient(MODEL) as client:
        with pytest.raises(InvalidRequest, match="temperature is about texts") as caught:
            ask(client)
        assert caught.value.field == "temperature"
        assert client.jobs() == []


def test_those_of_a_client_are_for_its_texts() -> None:
    with emulator() as emu:
        options = {"base_url": emu.base_url, "api_key": "sk-of-the-tests"}
        model = "openai:text-embedding-3-small"
        with BatchingClient(model, provider_options=options, temperature=0.5, system="Be brief.") as client:
            assert client.submit_embedding("a").result(30).ok
            assert client.embed(["a", "b"], temperature=None).succeeded == 2
