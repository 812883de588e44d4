"""Files that many requests contain are uploaded once, over HTTP, and deleted in the end."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from inside import inside

import smartbatch
from smartbatch import BatchingClient, Document
from smartbatch._clock import RealClock
from smartbatch.jobs.steps.step import Step
from smartbatch.testing import emulator
from tests.levels import sampled

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
VARIANTS = sampled(("openai", "anthropic", "responses", "gemini"))
QUESTION = "What is the SHA-256? Question "
PDF_BYTES = 600_000  # two uses are worth an upload


class InAnHour(RealClock):
    @staticmethod
    def wall():
        return RealClock.wall() + 3600.0


@pytest.fixture
def emu(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with emulator() as emu:
        for name, url in (("OPENAI", emu.base_url), ("ANTHROPIC", emu.url), ("GOOGLE_GEMINI", emu.url)):
            monkeypatch.setenv(f"{name.removeprefix('GOOGLE_')}_API_KEY", "key")
            monkeypatch.setenv(f"{name}_BASE_URL", url)
        yield emu


def client_of(variant, tmp_path, **params):
    provider = "openai" if variant == "responses" else variant
    if provider == "openai":
        api = "responses" if variant == "responses" else "chat"
        params["provider_options"] = {"api": api, "uploads": True}
    store = str(tmp_path / "jobs.db")
    return BatchingClient(f"{provider}:{MODELS[provider]}", store=store, batch_poll_interval=0.02, **params)


def pdf(tmp_path, number):
    path = tmp_path / f"{number}.pdf"
    path.write_bytes(b"%%PDF-1.7 %d" % number + bytes(PDF_BYTES))
    return Document(path)


def sha256_of(tmp_path, number):
    return hashlib.sha256((tmp_path / f"{number}.pdf").read_bytes()).hexdigest()


def uploads(emu):
    """Return the uploads of PDFs, without batch inputs."""
    return [file for file in emu.ledger.files if file.bytes > PDF_BYTES and ".jsonl" not in file.name]


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_file_of_a_job_is_uploaded_once_and_deleted(variant, emu, tmp_path):
    prompts = [[f"{QUESTION}{n}", pdf(tmp_path, n % 3)] for n in range(12)]
    with client_of(variant, tmp_path) as client:
        job = client.submit_batch(prompts)
        results = list(job.results(timeout=60))
        assert [result.text for result in results] == [sha256_of(tmp_path, n % 3) for n in range(12)]
        assert Counter(file.sha256 for file in uploads(emu)) == dict.fromkeys(
            (sha256_of(tmp_path, n) for n in range(3)), 1
        )
        assert sum(file.bytes for file in emu.ledger.files) - sum(f.bytes for f in uploads(emu)) < 10_000
        deleted = inside(client).jobs.engine.clean(remote=True, dry_run=False).deleted
    assert len([one for one in deleted if one.kind.value == "upload"]) == 3
    assert all(file.deleted_at is not None for file in uploads(emu))


@pytest.mark.parametrize("variant", VARIANTS)
def test_concurrent_requests_in_real_time_share_an_upload(variant, emu, tmp_path):
    prompts = [[f"{QUESTION}{n}", pdf(tmp_path, n % 2)] for n in range(16)]
    with client_of(variant, tmp_path, parallelism=8) as client:
        results = client.generate(prompts, strategy="individual")
        assert [result.text for result in results] == [sha256_of(tmp_path, n % 2) for n in range(16)]
        assert Counter(file.sha256 for file in uploads(emu)) == dict.fromkeys(
            (sha256_of(tmp_path, n) for n in range(2)), 1
        )
        cleaned = inside(client).jobs.engine.clean(remote=True, dry_run=False)
        assert (cleaned.deleted, cleaned.in_use) == ((), 2)  # other requests may be using them
        with client_of(variant, tmp_path, clock=InAnHour()) as later:
            deleted = inside(later).jobs.engine.clean(remote=True, dry_run=False).deleted
        assert [one.kind.value for one in deleted] == ["upload", "upload"]
        results = client.generate(prompts[:4], strategy="individual")
        assert [result.error for result in results] == [None] * 4
    assert all(file.deleted_at is not None for file in uploads(emu)[:2])


def test_nothing_is_uploaded_without_a_store_or_for_a_few_small_files(emu, tmp_path):
    prompts = [[f"{QUESTION}{n}", pdf(tmp_path, 0)] for n in range(4)]
    with BatchingClient("anthropic:claude-haiku-5-5") as client:
        assert {result.text for result in client.generate(prompts)} == {sha256_of(tmp_path, 0)}
    small = tmp_path / "small.pdf"
    small.write_bytes(b"%PDF-1.7")
    with client_of("anthropic", tmp_path) as client:
        client.submit_batch([[QUESTION, Document(small)]] * 3).wait()
        client.submit_batch([[QUESTION, pdf(tmp_path, 0)]]).wait()
    assert emu.ledger.files == ()


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_upload_that_the_provider_has_lost_is_repeated(variant, emu, tmp_path):
    prompts = [[f"{QUESTION}{n}", pdf(tmp_path, 0)] for n in range(4)]
    with client_of(variant, tmp_path) as client:
        client.submit_batch(prompts).wait()
        [first] = uploads(emu)
        provider = inside(client).realtime.model.provider
        provider.files().delete(f"files/{first.id}" if variant == "gemini" else first.id, 10)
        results = list(client.submit_batch(prompts).results(timeout=60))
        assert [result.text for result in results] == [sha256_of(tmp_path, 0)] * 4
        assert len(uploads(emu)) == 2


def test_requests_are_not_read_again_for_each_upload(emu, tmp_path, monkeypatch):
    read = []
    requests_of = Step.requests_of

    def counted(*given, **more):
        for position, request in requests_of(*given, **more):
            read.append(position)
            yield position, request

    monkeypatch.setattr(Step, "requests_of", counted)
    documents = [Document(b"%%PDF-1.7 %d" % n + bytes(60_000)) for n in range(20)]
    with client_of("openai", tmp_path) as client:
        job = client.submit_batch([[f"{QUESTION}{n}", documents[n // 2]] for n in range(40)])
        assert all(result.ok for result in job.results(timeout=60))
    assert len([file for file in emu.ledger.files if file.purpose == "user_data"]) == 20
    assert set(read) == set(range(40))
    assert len(read) <= 4 * 40


def test_a_file_that_cannot_be_uploaded_is_sent_in_its_requests(emu, tmp_path):
    prompts = [[f"{QUESTION}{n}", pdf(tmp_path, 0)] for n in range(4)]
    emu.configure(fault_for=lambda _, fields: "no_money" if fields.get("path") == "/v1/files" else None)
    with client_of("anthropic", tmp_path) as client:
        for strategy in ("batch", "individual"):
            results = client.generate(prompts, strategy=strategy)
            assert [result.text for result in results] == [sha256_of(tmp_path, 0)] * 4
        before = emu.ledger.received
        assert all(result.ok for result in client.generate([[f"Q{n}", prompts[0][1]] for n in range(9)]))
        assert emu.ledger.received == before + 9  # the upload is not tried again at once
    assert emu.ledger.files == ()


def test_uploads_are_deleted_by_a_client_that_does_not_upload(emu, tmp_path):
    prompts = [[f"{QUESTION}{n}", pdf(tmp_path, n % 2)] for n in range(4)]
    with client_of("openai", tmp_path) as client:
        client.submit_batch(prompts).wait()
    with BatchingClient("openai:gpt-5-mini", store=str(tmp_path / "jobs.db")) as other:
        cleaned = inside(other).jobs.engine.clean(remote=True, dry_run=False)
        assert [one.kind.value for one in cleaned.deleted].count("upload") == 2
        assert all(file.deleted_at is not None for file in uploads(emu))
        assert other.generate(prompts, strategy="individual").texts == [
            sha256_of(tmp_path, n % 2) for n in range(4)
        ]
    assert len(uploads(emu)) == 2


def test_a_job_is_finished_by_a_client_that_does_not_upload(emu, tmp_path):
    prompts, store = [[f"{QUESTION}{n}", pdf(tmp_path, 0)] for n in range(4)], str(tmp_path / "jobs.db")
    smartbatch.pause("openai", store=store)
    with client_of("openai", tmp_path) as client:
        job = client.submit_batch(prompts)
    with BatchingClient("openai:gpt-5-mini", store=store, batch_poll_interval=0.02) as other:
        smartbatch.resume("openai", store=store)
        results = list(other.job(job.id).results(timeout=60))
    assert [result.text for result in results] == [sha256_of(tmp_path, 0)] * 4
    assert uploads(emu) == []
