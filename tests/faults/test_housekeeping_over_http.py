"""Over HTTP, what a store created at a provider is deleted there, and nothing else."""

from __future__ import annotations

import pytest
from inside import inside

from tests.faults.world import HOUR, MINUTE, PROVIDERS, Seen, World, texts


@pytest.mark.full
@pytest.mark.parametrize("provider", PROVIDERS)
def test_only_what_a_job_with_a_retention_left_is_deleted(provider, new_world):
    w: World = new_world(rare=60, batch_turnaround=MINUTE)
    w.wait(w.process(batch_retention="none").submit_batch(texts(2, "kept")))
    client = w.process(batch_retention=HOUR)
    job = client.submit_batch(texts(2))
    w.wait(job)
    w.pass_time(HOUR / 2)
    assert _deletions(w) == []
    w.pass_time(HOUR)
    [shard] = inside(client).jobs.engine.store.shards.of_job(job.id)
    ids = {
        "openai": [shard.file_id, *shard.remote.outputs],
        "anthropic": [shard.batch_id],  # with its results
        "gemini": [shard.file_id, shard.batch_id],  # results cannot be deleted
    }[provider]
    sent = _deletions(w)
    assert len(sent) == len(ids)
    assert all(any(seen.path.endswith(f"/{name}") for seen in sent) for name in ids)
    assert [result.text for result in w.results(job)] == w.right(texts(2))


def _deletions(w: World) -> list[Seen]:
    return [seen for seen in w.service.seen if seen.head.method == "DELETE"]
