"""Models named by requests: on every route, with their own prices, limits and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smartbatch import BatchingClient, ConfigError, InvalidRequest, Request
from smartbatch.events import BatchEnded
from smartbatch.testing import MockProvider, emulator
from smartbatch.types import Answer, Usage, evolve

ClientOf = Callable[..., BatchingClient]
LONG = 60.0
BIG, SMALL = "gpt-5", "gpt-5-mini"


@pytest.fixture
def emu():
    with emulator() as running:
        yield running


@pytest.fixture
def client(emu, tmp_path):
    options = {"base_url": emu.base_url, "api_key": "sk-of-the-tests"}
    with BatchingClient(
        f"openai:{SMALL}",
        provider_options=options,
        store=str(tmp_path / "jobs.db"),
        shared="off",
        batch_poll_interval=0.05,
    ) as made:
        yield made


class Named(MockProvider):
    def generate(self, request: Request, *, model: str, attempt: int, timeout: float) -> Answer:
        super().generate(request, model=model, attempt=attempt, timeout=timeout)
        return Answer(f"{model}: {request.prompt}", usage=Usage(10, 5))


# -- one request -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [BIG, f"openai:{BIG}", f"OpenAI: {BIG}"])
def test_a_request_may_name_its_model(client, name):
    usual = client.submit("Hello").result(LONG)
    for future in (client.submit("Hello", model=name), client.submit(Request("Hello!", model=name))):
        assert future.result(LONG).model == f"openai:{BIG}"
        assert (future.result().cost or 0.0) > 3 * (usual.cost or 0.0)
    assert usual.model == f"openai:{SMALL}"
    stream = client.stream("Hello", model=name)
    assert "".join(stream)
    assert stream.result.model == f"openai:{BIG}"


def test_a_model_of_another_provider_is_refused(client):
    for call in (client.submit, lambda prompt, **given: client.generate([prompt], **given)):
        with pytest.raises(
            InvalidRequest, match=r"second client for it, as in BatchingClient\('anthropic:"
        ) as error:
            call("Hello", model="anthropic:claude-haiku-5-5")
        assert error.value.field == "model"
    with pytest.raises(InvalidRequest, match="not a model name"):
        client.submit("Hello", model="openai:")
    assert client.counts.submitted == 0


def test_a_name_may_hold_a_colon(client_of):
    assert client_of(Named()).submit("x", model="llama3:8b").result(LONG).text == "llama3:8b: x"
    with pytest.raises(InvalidRequest, match="options belong to the client"):
        client_of("sim:demo").submit("x", model="sim:demo?latency=1")


def test_a_callable_finds_the_model_in_the_request(client_of):
    client = client_of(lambda request, attempt: str(request.model))
    assert client.submit("x", model="large").result(LONG).text == "large"
    with pytest.raises(InvalidRequest, match="second client"):
        client.submit("x", model="call:json:dumps")


def test_requests_for_two_models_share_neither_answers_nor_cache_entries(client_of, tmp_path):
    provider = Named()
    for _ in range(2):
        client = client_of(provider, cache=str(tmp_path / "cache.db"))
        texts = client.generate([Request("x"), Request("x", model="other")]).texts
        assert texts == ["default: x", "other: x"]
        assert client.submit("x").result(LONG).text == "default: x"
    assert len(provider.calls) == 2


def test_a_hook_may_choose_the_model(client_of):
    client = client_of(Named(), preprocess=[lambda request: evolve(request, model="mock:other")])
    assert client.submit("x").result(LONG).text == "other: x"


# -- lists and jobs --------------------------------------------------------------------------------------

MIXED = [
    Request("a"),
    Request("b", model=BIG),
    Request("c", model=f"openai:{SMALL}"),
    Request("d", model=BIG),
]
MODELS = [f"openai:{SMALL}", f"openai:{BIG}"] * 2


@pytest.mark.parametrize(
    "way", ["list", "iterator", "key", "batch", "job", "realtime job", "durable", "embed"]
)
def test_each_row_of_a_list_goes_to_its_model(client, way):
    ways: dict[str, Callable[[], Any]] = {
        "list": lambda: client.generate(MIXED),
        "iterator": lambda: client.map(iter(MIXED)),
        "key": lambda: client.generate(MIXED, key="k"),
        "batch": lambda: client.generate(MIXED, strategy="batch"),
        "job": lambda: client.submit_batch(MIXED).results(timeout=LONG),
        "realtime job": lambda: client.submit_batch(MIXED, strategy="individual").results(timeout=LONG),
        "durable": lambda: [client.submit(each, durable=True).result(LONG) for each in MIXED],
        "embed": lambda: client.embed(
            [Request("a", model="text-embedding-3-small"), Request("b", model="text-embedding-3-large")] * 2
        ),
    }
    expected = (
        ["openai:text-embedding-3-small", "openai:text-embedding-3-large"] * 2 if way == "embed" else MODELS
    )
    assert [result.model for result in ways[way]()] == expected


def test_each_batch_is_for_one_model(client):
    ended: list[BatchEnded] = []
    client.observe(lambda event: ended.append(event) if isinstance(event, BatchEnded) else None)
    results = list(client.submit_batch(MIXED).results(timeout=LONG))
    assert all(result.ok for result in results)
    prices = [result.cost or 0.0 for result in results]
    assert min(prices[1], prices[3]) > 3 * max(prices[0], prices[2])
    assert sorted((event.model, event.size) for event in ended) == [(MODELS[1], 2), (MODELS[0], 2)]
    (job,) = client.jobs()
    assert job.model == f"openai:{SMALL}"


def test_a_list_may_name_the_model_of_all(client):
    prompts = [f"Question {n}" for n in range(12)]
    plan, usual = client.plan(prompts, model=BIG), client.plan(prompts)
    assert plan.cost is not None
    assert usual.cost is not None
    assert plan.cost > 3 * usual.cost
    job = client.submit_batch(prompts, model=f"openai:{BIG}")
    assert job.model == f"openai:{BIG}"
    assert {result.model for result in job.results(timeout=LONG)} == {f"openai:{BIG}"}


def test_a_plan_of_several_models_adds_up_their_prices(client):
    small, big = (client.plan([f"Question {n}" for n in range(6)], model=name).cost for name in (SMALL, BIG))
    mixed = [Request(f"Question {n}", model=name) for n in range(6) for name in (SMALL, BIG)]
    whole = client.plan(mixed).cost
    assert small is not None
    assert big is not None
    assert whole == pytest.approx(small + big, rel=0.01)


def test_a_budget_needs_the_price_of_each_model(client):
    requests = [Request("a"), Request("b", model="gpt-of-nobody")]
    for call in (
        lambda: client.generate(requests, budget=1.0),
        lambda: list(client.map(iter(requests), budget=1.0)),
        lambda: client.submit_batch(requests, budget=1.0),
    ):
        with pytest.raises(ConfigError, match="gpt-of-nobody"):
            call()


def test_deferrable_requests_wait_for_the_batch_of_their_model(emu, tmp_path):
    options = {"base_url": emu.base_url, "api_key": "sk-of-the-tests"}
    with BatchingClient(
        f"openai:{SMALL}",
        provider_options=options,
        store=str(tmp_path / "jobs.db"),
        shared="off",
        deferrable="batch",
        batch_threshold=2,
        batch_poll_interval=0.05,
    ) as client:
        futures = [client.submit_background(f"{n}", model=name) for n in range(3) for name in (SMALL, BIG)]
        client.flush()
        assert [future.result(LONG).model for future in futures] == MODELS + MODELS[:2]
        assert sorted(job.model for job in client.jobs()) == [f"openai:{BIG}", f"openai:{SMALL}"]
