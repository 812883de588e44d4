"""Jobs at hosts with their own dialect of the Batch API, through the emulator."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient
from smartbatch.emulator.hosts.host_api import DIALECTS
from smartbatch.errors import ErrorKind
from smartbatch.providers import OpenAIProvider
from smartbatch.providers.hosts import HOSTS
from smartbatch.testing import Emulator, emulator
from smartbatch.types import Kind, Result, Route

FAILING = 20  # one of so many lines fails


def fault(_create: int, position: int, _custom_id: str | None) -> str | None:
    return "item_invalid" if position % FAILING == 0 else None


def client_of(emu: Emulator, host: str, store: Path, **settings: Any) -> BatchingClient:
    return BatchingClient(
        f"{host}:m",
        provider_options={"api_key": "k", "base_url": emu.base_url},
        store=str(store),
        batch_poll_interval=0.05,
        batch_max_requests=400,
        **settings,
    )


def job_of(emu: Emulator, host: str, count: int, store: Path) -> list[Result]:
    with client_of(emu, host, store) as client:
        job = client.submit_batch([f"prompt {number}" for number in range(count)], max_tokens=20)
        results = list(job.results(timeout=60))
        assert job.incidents() == []
    return results


def check_job(emu: Emulator, host: str, count: int, store: Path) -> None:
    """Run a job in which some lines fail; each request must be answered and paid for once, or fail."""
    results = job_of(emu, host, count, store)
    failed = [result for result in results if result.error is not None]
    assert 0.04 * count < len(failed) < 0.06 * count
    assert {result.error.kind for result in failed} == {ErrorKind.CLIENT_ERROR}
    assert {result.route for result in results} == {Route.BATCH}
    assert emu.ledger.paid_twice(excluding_lost=False) == []
    assert len(emu.ledger.billed_by_prompt) == count - len(failed)


def test_a_job_at_a_host_with_another_form_of_batches(tmp_path):
    with emulator(dialect="mistral", batch_line_fault_for=fault) as emu:
        check_job(emu, "mistral", 40, tmp_path / "store.db")


@pytest.mark.full
@pytest.mark.parametrize("host", [name for name in DIALECTS if HOSTS[name].batches is not None])
def test_a_job_of_a_thousand_requests_with_failing_lines_at_each_host(host, tmp_path):
    with emulator(dialect=host, batch_line_fault_for=fault, batch_faults={"shuffled": 1.0}) as emu:
        check_job(emu, host, 1000, tmp_path / "store.db")


@pytest.mark.full
@pytest.mark.parametrize(
    ("host", "variant"), [(name, each) for name, dialect in DIALECTS.items() for each in dialect.variants]
)
def test_a_job_copes_with_every_reading_of_what_a_host_leaves_open(host, variant, tmp_path):
    variants = frozenset({variant})
    with emulator(dialect=host, dialect_variants=variants, batch_line_fault_for=fault) as emu:
        results = job_of(emu, host, 100, tmp_path / "store.db")
    assert sum(result.error is None for result in results) >= 95
    assert {result.error.kind for result in results if result.error} <= {ErrorKind.CLIENT_ERROR}
    assert emu.ledger.paid_twice(excluding_lost=False) == []


@pytest.mark.full
@pytest.mark.parametrize(
    ("host", "variants"), [*((name, ()) for name in DIALECTS), ("xai", ("oldest_first",))]
)
def test_a_batch_whose_create_call_was_not_answered_is_found_at_each_host(host, variants, tmp_path):
    def lose_second(index: int, _label: object) -> str | None:
        return "lost_create" if index == 1 else None

    with emulator(dialect=host, dialect_variants=variants, batch_fault_for=lose_second) as emu:
        results = job_of(emu, host, 1000, tmp_path / "store.db")
    assert all(result.error is None for result in results)
    assert sorted(record.outcome for record in emu.ledger.batches) == ["created", "created", "lost"]
    assert emu.ledger.paid_twice(excluding_lost=False) == []


@pytest.mark.full
@pytest.mark.parametrize("host", [name for name in DIALECTS if Kind.EMBED in HOSTS[name].batches.kinds])
def test_vectors_are_computed_in_batches_where_the_host_has_them(host, tmp_path):
    with emulator(dialect=host) as emu, client_of(emu, host, tmp_path / "store.db") as client:
        results = client.embed([f"text {number}" for number in range(20)], strategy="batch")
    assert {(result.error, result.route) for result in results} == {(None, Route.BATCH)}
    assert all(result.embedding for result in results)


@pytest.mark.full
def test_a_batch_that_never_expires_is_cancelled_when_its_time_is_over(tmp_path):
    with (
        emulator(dialect="azure", batch_fault_for=lambda *_: "stuck", batch_window=1.0) as emu,
        client_of(emu, "azure", tmp_path / "store.db", batch_timeout=1.0) as client,
    ):
        prompts = [f"prompt {number}" for number in range(20)]
        job = client.submit_batch(prompts, batch_fallback="individual", max_tokens=20)
        results = list(job.results(timeout=60))
    assert all(result.error is None for result in results)
    assert Route.INDIVIDUAL in {result.route for result in results}
    assert [record.state for record in emu.ledger.batches] == ["cancelled"]
    assert emu.ledger.paid_twice(excluding_lost=False) == []


@pytest.mark.full
@pytest.mark.parametrize("cancelled", [False, True])
def test_a_batch_that_cannot_be_cancelled_is_waited_for(cancelled, tmp_path):
    created = threading.Event()
    with (
        emulator(dialect="openrouter", batch_turnaround=3.0, batch_fault_for=lambda *_: created.set()) as emu,
        client_of(emu, "openrouter", tmp_path / "store.db", batch_timeout=0.5) as client,
    ):
        prompts = [f"prompt {number}" for number in range(20)]
        job = client.submit_batch(prompts, batch_fallback="individual", max_tokens=20)
        if cancelled:
            assert created.wait(20)
            job.cancel()
        results = list(job.results(timeout=60))
        assert job.incidents() == []
    assert {(result.error, result.route) for result in results} == {(None, Route.BATCH)}
    assert emu.ledger.paid_twice(excluding_lost=False) == []


@pytest.mark.parametrize("host", DIALECTS)
def test_what_a_host_no_longer_has_is_gone(host, tmp_path):
    (tmp_path / "lines").write_bytes(b"{}\n")
    with emulator(dialect=host) as emu:
        provider = OpenAIProvider("k", emu.base_url, host=HOSTS[host])
        batches = provider.batches()
        if batches.abilities.files:
            file = batches.upload("sb-x", tmp_path / "lines", 20)
            batches.delete_file(file.id, 20)
            batches.delete_file(file.id, 20)
            assert batches.find_file("sb-x", 20) is None
        assert batches.get("batch_1", 20) is None
        provider.close()
