"""Embeddings over HTTP, from many threads (C3, C7)."""

from __future__ import annotations

import pytest

import smartbatch
from smartbatch import BatchingClient, Embedding, Request, Route
from smartbatch.emulator.composed_answers import vector_for
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import emulator
from tests.threads_together import run_together

MODEL = "text-embedding-3-small"


@pytest.fixture
def emu():
    with emulator(latency=0.02) as emu:
        yield emu


@pytest.fixture
def client(emu):
    provider = OpenAIProvider("sk-of-the-test", emu.base_url)
    with BatchingClient(MODEL, provider=provider, parallelism=16) as client:
        yield client


@pytest.mark.full
def test_each_text_gets_exactly_its_vector_from_any_thread(emu, client):
    wrong = []

    def ask(thread):
        for number in range(20):
            text = f"text {number} of thread {thread}"
            vector = client.submit_embedding(text, dimensions=32).result(60).embedding
            if vector != vector_for(text, MODEL, 32):
                wrong.append(text)

    run_together(ask, range(32))
    assert wrong == []
    assert client.counts.succeeded == 640
    assert emu.ledger.received < 640 / 4, "requests of many threads should share calls"


def test_a_lone_request_goes_alone_and_at_once(emu, client):
    result = client.submit_embedding("alone", dimensions=8).result(30)
    assert result.embedding == vector_for("alone", MODEL, 8)
    assert result.queued < client.config.batch_window
    assert emu.ledger.received == 1


@pytest.mark.full
def test_a_list_is_embedded_in_order_and_split_by_the_providers_cap(emu):
    texts = [f"number {number}" for number in range(5_000)]
    options = {"api_key": "sk-of-the-test", "base_url": emu.base_url}
    results = smartbatch.embed(
        texts, model=f"openai:{MODEL}", dimensions=16, provider_options=options, queue_capacity=10_000
    )
    assert all(
        result.embedding == vector_for(text, MODEL, 16) for text, result in zip(texts, results, strict=True)
    )
    assert len(results.vectors) == 5_000
    assert {call.status for call in emu.ledger.calls} == {200}, "the server refuses more than 2,048 texts"
    assert emu.ledger.received < 5_000 / 20


def test_what_a_call_costs_is_split_over_its_texts_exactly(emu, client):
    results = client.embed([f"{'word ' * number}end" for number in range(50)], dimensions=8)
    assert results.usage.input_tokens == sum(call.billed for call in emu.ledger.calls)
    assert results.cost is not None
    assert results.cost > 0


def test_a_poison_text_is_found_by_halves_and_hurts_nobody_else(emu, client):
    texts = [f"text {number}" for number in range(100)]
    texts[37] = "too long " * 8_000
    with client:
        results = client.embed(texts, dimensions=8)
    assert [number for number, result in enumerate(results) if not result.ok] == [37]
    assert results[37].error is not None
    assert results[37].error.kind is smartbatch.ErrorKind.CONTEXT_TOO_LONG
    assert all(
        result.embedding == vector_for(text, MODEL, 8)
        for number, (text, result) in enumerate(zip(texts, results, strict=True))
        if number != 37
    )
    assert emu.ledger.received <= 2 * 7 + 10  # the calls for the list depend on how fast it is queued


def test_a_task_type_openai_does_not_know_is_left_out_and_said(client):
    result = client.submit_embedding("a text", task_type="RETRIEVAL_QUERY").result(30)
    assert [field for field, _ in result.dropped] == ["task_type"]


def test_a_call_carries_no_more_tokens_than_the_provider_takes(emu, client):
    texts = [f"{number} " + "word" * 7_000 for number in range(45)]
    results = client.embed(texts, dimensions=8)
    assert results.failed == 0
    assert {call.status for call in emu.ledger.calls} == {200}
    assert emu.ledger.received >= 2


def test_vectors_are_a_matrix_where_numpy_is_installed(client):
    numpy = pytest.importorskip("numpy")
    texts = ["one", "two", "three"]
    vectors = client.embed(texts, dimensions=16).vectors
    assert (vectors.shape, vectors.dtype) == ((3, 16), numpy.float32)
    assert [list(row) for row in vectors] == [list(vector_for(text, MODEL, 16)) for text in texts]


def test_vectors_are_a_list_where_one_is_missing(client):
    vectors = client.embed(["one", "too long " * 8_000, "three"], dimensions=8).vectors
    assert [vector is None for vector in vectors] == [False, True, False]


@pytest.mark.full
def test_requests_for_vectors_are_stored_as_a_run_by_the_batch_api(emu, tmp_path):
    texts = [f"text {number}" for number in range(12)]
    asked = Embedding(dimensions=8)
    settings = {"store": str(tmp_path / "jobs.db"), "batch_poll_interval": 0.05}
    with BatchingClient(MODEL, provider=OpenAIProvider("sk-of-the-test", emu.base_url), **settings) as client:
        plan = client.forecast(texts, embedding=asked, strategy="batch")
        job = client.submit_run([Request(text, embedding=asked) for text in texts], plan)
        results = list(job.results(timeout=60))
        assert ">dimensions<" in job.report().html
    assert [result.embedding for result in results] == [vector_for(text, MODEL, 8) for text in texts]
    assert {result.route for result in results} == {Route.BATCH}
