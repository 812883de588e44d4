"""Lists at the Gemini API create explicit caches of shared prefixes, read them, and delete them."""

from __future__ import annotations

import json
import multiprocessing
import time
import urllib.request
from collections import Counter

import pytest
from inside import inside

from smartbatch import BatchingClient, Message
from smartbatch.events import CallFinished
from smartbatch.providers.gemini.provider import GeminiProvider
from smartbatch.testing import emulator

SYSTEM = "One of our many rules, which are long. " * 410  # about 4,000 tokens
QUESTIONS = [f"Question {n}?" for n in range(40)]


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def emu():
    with emulator(prompt_caching=True, latency=0.01) as emu:
        yield emu


def gemini(emu, store, *, api_version=None, **settings):
    provider = GeminiProvider("any-key", emu.url, api_version=api_version)
    settings = {"max_tokens": 20, "prefer": "cost", "parallelism": 8, "batch_poll_interval": 0.02, **settings}
    return BatchingClient("gemini-3.8-flash", provider=provider, store=store and str(store), **settings)


def cache_calls(emu):
    """Count the calls about caches."""
    calls = Counter(call.endpoint.partition("/cachedContents")[0] for call in emu.ledger.calls)
    return {name.split()[0]: count for name, count in calls.items() if name.endswith("/v1beta")}


class Faults:
    """Faults of the first calls about caches, by method."""

    def __init__(self, **faults):
        self.faults = faults

    def __call__(self, _, fields):
        is_about_caches = "cachedContents" in str(fields.get("path"))
        faults = self.faults.get(fields["method"]) if is_about_caches else None
        return faults.pop(0) if faults else None


def http(emu, method, path):
    headers = {"x-goog-api-key": "any-key"}
    asked = urllib.request.Request(f"{emu.url}/v1beta/{path}", headers=headers, method=method)
    with urllib.request.urlopen(asked) as reply:
        return json.load(reply)


def live_caches(emu):
    """Return the caches without counting this call."""
    now = time.monotonic()
    return [{"name": cache.id} for cache in emu.handler.backend.caches.explicit(("gemini", "any-key"), now)]


def paid_tokens(results):
    """Return the cost of the input, as a number of uncached input tokens."""
    usages = [result.usage for result in results]
    plain = sum(usage.input_tokens - 0.9 * usage.cached_tokens for usage in usages)
    return plain + sum(usage.explicit_cache_tokens for usage in usages)


def billed_tokens(emu):
    calls = [call for call in emu.ledger.calls if call.billed and call.prompt is not None]
    return sum(call.billed for call in calls) - 4 * len(calls) - emu.ledger.prompt_cache()["saved"]


def test_a_list_creates_one_cache_which_all_requests_read_and_deletes_it(emu, tmp_path):
    with gemini(emu, tmp_path / "jobs.db") as client:
        results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
        assert all(result.usage.cached_tokens > 3_900 for result in results)
    assert cache_calls(emu) == {"POST": 1, "DELETE": 1}
    assert live_caches(emu) == []
    assert paid_tokens(results) == pytest.approx(billed_tokens(emu), abs=5)
    with gemini(emu, tmp_path / "jobs.db", prompt_caching="off") as client:
        plain = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
    assert results.texts == plain.texts
    assert results.cost < 0.5 * plain.cost  # implicit hits


@pytest.mark.parametrize("searches", [1, 2])
def test_a_cache_whose_creation_was_not_answered_is_found_again(tmp_path, searches):
    lost = Faults(POST=["reset"], GET=["503"] * (searches - 1))
    with emulator(prompt_caching=True, latency=0.01, fault_for=lost) as emu:
        with gemini(emu, tmp_path / "jobs.db") as client:
            results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
        assert all(result.usage.cached_tokens > 3_900 for result in results[searches:])
        assert cache_calls(emu) == {"POST": 1, "GET": searches, "DELETE": 1}
        assert live_caches(emu) == []
        assert paid_tokens(results) == pytest.approx(billed_tokens(emu), abs=5)


@pytest.mark.parametrize("fault", ["503", "429"])
def test_requests_are_sent_whole_if_no_cache_can_be_created(tmp_path, fault):
    refused = Faults(POST=[fault] * 9)
    with emulator(prompt_caching=True, latency=0.01, fault_for=refused) as emu:
        with gemini(emu, tmp_path / "jobs.db") as client:
            results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
        assert results.failed == 0
        assert results.usage.explicit_cache_tokens == 0
        assert 1 <= cache_calls(emu)["POST"] <= 2


def test_requests_are_sent_whole_if_their_cache_is_gone(emu, tmp_path):
    def delete_caches(event):
        if isinstance(event, CallFinished) and len(read) < 2:
            read.append(event)
            for cache in live_caches(emu):
                http(emu, "DELETE", cache["name"])

    read = []
    with gemini(emu, tmp_path / "jobs.db", observers=[delete_caches]) as client:
        results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
    assert results.failed == 0
    assert cache_calls(emu)["POST"] == 1
    assert paid_tokens(results) == pytest.approx(billed_tokens(emu), abs=5)


@pytest.mark.parametrize(("chosen", "calls_of_v1"), [(None, 1), ("v1", 1 + len(QUESTIONS)), ("v1beta", 0)])
def test_calls_with_caches_use_the_beta_version(emu, tmp_path, chosen, calls_of_v1):
    with gemini(emu, tmp_path / "jobs.db", api_version=chosen) as client:
        client.submit("A request without a cache").result()
        results = client.generate(QUESTIONS, system=SYSTEM, strategy="individual")
    assert results.failed == 0
    versions = [call.endpoint.split("/")[1] for call in emu.ledger.calls]
    assert versions.count("v1") == calls_of_v1
    assert cache_calls(emu) == ({} if chosen == "v1" else {"POST": 1, "DELETE": 1})


@pytest.mark.full
def test_no_cache_is_created_without_a_store_or_known_uses_or_in_batches(emu, tmp_path):
    with gemini(emu, None) as client:
        assert client.generate(QUESTIONS, system=SYSTEM, strategy="individual").failed == 0
    with gemini(emu, tmp_path / "jobs.db", prompt_caching="off") as client:
        assert client.generate(QUESTIONS, system=SYSTEM, strategy="individual").failed == 0
    with gemini(emu, tmp_path / "jobs.db") as client:
        assert client.generate(QUESTIONS, system=SYSTEM, strategy="batch").failed == 0
        assert client.generate(QUESTIONS[:3], system=SYSTEM, strategy="individual").failed == 0
        for question in QUESTIONS:
            client.submit(question, system=SYSTEM).result()
    assert cache_calls(emu) == {}


@pytest.mark.full
def test_documents_and_examples_are_cut_where_the_cache_ends(emu, tmp_path):
    examples = [Message(role, f"{role} {n}. " * 60) for n in range(30) for role in ("user", "assistant")]
    documents = [f"Document {n}.\n" + f"It says {n} many times. " * 400 for n in range(3)]
    chats = [[*examples, Message("user", question)] for question in QUESTIONS[:10]]
    prompts = [f"{document}\nQuestion {n}: why?" for document in documents for n in range(10)]
    for number, rows in enumerate((chats, prompts)):
        with gemini(emu, tmp_path / f"{number}.db") as client:
            results = client.generate(rows, system="Answer briefly.", strategy="individual")
        with gemini(emu, None, prompt_caching="off") as client:
            plain = client.generate(rows, system="Answer briefly.")
        # the emulator rounds each part to tokens
        assert results.usage.input_tokens == pytest.approx(plain.usage.input_tokens, abs=len(rows))
        assert results.usage.cached_share > 0.9
        assert live_caches(emu) == []
    assert cache_calls(emu) == {"POST": 4, "DELETE": 4}


def create_and_hang(url, folder):
    """What a killed process leaves."""
    provider = GeminiProvider("any-key", url)
    with BatchingClient("gemini-3.8-flash", provider=provider, store=f"{folder}/jobs.db") as client:
        client.generate(QUESTIONS, system=SYSTEM, strategy="individual")


@pytest.mark.full
def test_the_cache_of_a_killed_process_is_deleted_by_the_next(tmp_path):
    context = multiprocessing.get_context("forkserver")
    with emulator(prompt_caching=True, latency=0.2) as emu:
        process = context.Process(target=create_and_hang, args=(emu.url, tmp_path))
        process.start()
        while not live_caches(emu):
            process.join(0.05)
        with gemini(emu, tmp_path / "jobs.db") as client:
            cleaned = inside(client).jobs.engine.clean(remote=True, dry_run=False)
            assert (cleaned.deleted, cleaned.left, len(live_caches(emu))) == ((), (), 1)  # in use
            process.kill()
            process.join()
            [deleted] = inside(client).jobs.engine.clean(remote=True, dry_run=False).deleted
        assert deleted.kind.value == "cache"
        assert live_caches(emu) == []
