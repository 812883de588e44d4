"""The marks of batches: what decides them, and that the input of a batch keeps them."""

from __future__ import annotations

import re

import pytest
from inside import inside

from smartbatch import Request
from smartbatch.core.prefixes.batch_reads import LEAST_TOKENS
from smartbatch.events import CachingStopped
from smartbatch.jobs.batch_caching import note_reads, reads_of
from smartbatch.jobs.store.shards import ShardTable
from smartbatch.providers.openai.provider import OpenAIProvider
from smartbatch.testing import PromptCaching
from smartbatch.usage import Usage
from tests.faults.world import MINUTE, world

SYSTEM = "One of our many rules, which are long. " * 410  # about 4,000 tokens
QUESTIONS = [f"Question {n}?" for n in range(12)]
MODELS = {"openai": "gpt-5.6", "anthropic": "claude-haiku-5-5"}
MODEL, OTHER_MODEL = MODELS["openai"], "gpt-5.7"
NEVER_HIT = PromptCaching(batch_hit_rate=0.0, batch_far_hit_rate=0.0)
MARK = b"prompt_cache_breakpoint"


def process(w, **settings):
    options = {"prompt_cache": True} if w.provider == "openai" else {}
    return w.process(model=MODELS[w.provider], options=options, batch_fallback="batch", **settings).start()


def store_and_scope(client, job):
    store = inside(client).jobs.engine.store
    [scope] = {shard.scope for shard in store.shards.of_job(job.id)}
    return store, scope


def learn(w, client, job, *, read=0, written=0):
    rules = OpenAIProvider("any-key", prompt_cache=True).caching(MODEL)
    assert rules is not None
    usage = Usage(cached_tokens=read, cache_write_tokens=written)
    label = f"{w.provider}:{MODELS[w.provider]}"
    note_reads(*store_and_scope(client, job), label, rules, usage, w.clock.wall())


def lines_of(upload):
    """The rest of the multipart form has the name of the file and a random boundary."""
    return re.findall(rb"^\{.*\}\r?$", upload.body, re.MULTILINE)


@pytest.mark.full
@pytest.mark.parametrize(("provider", "surcharge"), [("openai", 0.25), ("anthropic", 1.0)])
def test_batches_that_wait_learn_from_the_first_batches_of_their_job(provider, surcharge, tmp_path):
    questions = [f"Question {n}?" for n in range(112)]
    with world(provider, tmp_path, prompt_caching=NEVER_HIT, batch_turnaround=5 * MINUTE) as w:
        of_one_batch = {"batch_max_requests": 28, "batch_enqueued_tokens": 150_000}
        job = process(w, **of_one_batch).submit_batch(questions, system=SYSTEM)
        usage = [result.usage for result in w.results(job)]
        assert not w.incidents(job)
        sizes = [batch.total for batch in w.creates]
        assert len(sizes) >= 4
        # the second batch may be created when the first one has ended but its results are not stored yet
        assert sum(each.cache_write_tokens > 0 for each in usage) in (sizes[0], sizes[0] + sizes[1])
        extra = surcharge * sum(each.cache_write_tokens for each in usage)
        assert extra / sum(each.input_tokens for each in usage) < surcharge * 0.51
        assert [type(event) for event in w.events].count(CachingStopped) == 1


def test_an_input_is_uploaded_again_with_the_marks_that_it_had_before_a_crash(tmp_path):
    """Another machine takes over the job, and other batches were read in the meantime."""

    accepted, refused = set(), []

    def meet(seen):
        if seen.what != "upload" or (MARK in seen.body) in accepted:
            return None
        refused.append(seen)
        return w.refusal(500)

    def taken_over(client, *, marked, read=0, written=0):
        """Take the job over after a refused upload. From now on, such inputs are accepted."""
        w.pass_time(1.0)
        [_] = refused
        refused.clear()
        accepted.add(marked)
        learn(w, client, job, read=read, written=written)
        w.stop(client)
        for file in tmp_path.glob("*.spool/*.in"):
            file.unlink()
        return process(w)

    with world("openai", tmp_path, prompt_caching=True) as w:
        w.service.meet = meet
        client = process(w)
        job = client.submit_batch(QUESTIONS, system=SYSTEM)
        client = taken_over(client, marked=True, written=LEAST_TOKENS)
        client = taken_over(client, marked=False, read=10 * LEAST_TOKENS)
        before = reads_of(*store_and_scope(client, job), f"openai:{MODEL}")
        read = {"prompt_tokens_details": {"cached_tokens": 1_000}}
        w.edit_answers(lambda _, answer: answer["usage"].update(read))
        [*_, last] = w.results(client.job(job.id))
        assert last.usage.cached_tokens == 1_000
        w.pass_time(1.0)
        assert (
            reads_of(*store_and_scope(client, job), f"openai:{MODEL}") == before
        )  # without marks, no evidence
        marked, again, unmarked, sent = (lines_of(upload) for upload in w.requests("upload"))
        assert marked == again
        assert len(marked) == sum(MARK in line for line in marked) == len(QUESTIONS)
        assert unmarked == sent
        assert len(sent) == sum(MARK not in line for line in sent) == len(QUESTIONS)
        assert [batch.total for batch in w.creates] == [len(QUESTIONS)]


def test_the_batches_of_each_model_of_a_job_teach_about_that_model(tmp_path):
    rows = [
        Request(question, model=model) for question in QUESTIONS for model in (None, OTHER_MODEL, OTHER_MODEL)
    ]
    with world("openai", tmp_path, prompt_caching=PromptCaching(batch_hit_rate=1.0)) as w:
        client = process(w)
        job = client.submit_batch(rows, system=SYSTEM, deduplicate=False)
        usage = [result.usage for result in w.results(job)]
        w.pass_time(1.0)  # results are read before the totals of their batch are stored
        store, scope = store_and_scope(client, job)
        for model, own in ((MODEL, usage[::3]), (OTHER_MODEL, usage[1::3] + usage[2::3])):
            reads = reads_of(store, scope, f"openai:{model}")
            assert reads.read == sum(each.cached_tokens for each in own) > 0
            assert reads.written == sum(each.cache_write_tokens for each in own) > 0


def test_a_batch_without_marks_reserves_no_writes_in_the_budget_of_its_job(tmp_path, monkeypatch):
    """It stays without marks, even if they pay off again before its input is written."""
    plan = ShardTable.plan

    def planned(table, lease, shard):
        row = plan(table, lease, shard)
        if row.no == 2:
            learn(w, client, job, read=10 * LEAST_TOKENS)
        return row

    monkeypatch.setattr(ShardTable, "plan", planned)
    with world("anthropic", tmp_path, prompt_caching=NEVER_HIT) as w:
        w.service.meet = lambda seen: w.refusal(503) if seen.what == "list" else None
        client = process(w, max_tokens=1)
        job = client.submit_batch(QUESTIONS[:4], system=SYSTEM, budget=1.0)
        w.pass_time(1.0)
        store, _ = store_and_scope(client, job)
        [marked] = store.shards.of_job(job.id)
        learn(w, client, job, written=LEAST_TOKENS)
        w.pass_time(10.0)
        [discarded, unmarked] = store.shards.of_job(job.id)
        assert (discarded.id, discarded.reserved) == (marked.id, 0.0)
        assert 0.5 < unmarked.reserved / marked.reserved < 0.53  # a write costs twice as much as plain input
        assert store.jobs.get(job.id).reserved == pytest.approx(unmarked.reserved)
        w.service.meet = lambda seen: None
        assert sum(result.usage.cache_write_tokens for result in w.results(job)) == 0
