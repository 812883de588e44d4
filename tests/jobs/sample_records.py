"""Records whose fields all differ from the defaults."""

from __future__ import annotations

from smartbatch.jobs.records import JobPolicy
from smartbatch.jobs.shard_records import RemoteProgress
from smartbatch.providers.batch_api import RemoteState
from smartbatch.types import Route

POLICY = JobPolicy(
    fallback="individual",
    on_unknown="hold",
    timeout=1.5,
    settle=2.5,
    max_requests=3,
    deadline=4.5,
    late_penalty=5.5,
    budget=6.5,
    budget_account="account",
    retention=7.5,
    exclusive_workspace=True,
    route=Route.FLEX,
    attended=True,
    keep_going=True,
    traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    models=("openai:gpt-5",),
    caching=True,
    groups=True,
)
PROGRESS = RemoteProgress(
    state=RemoteState.COMPLETED,
    status="finished",
    completed=3,
    failed=0,
    outputs=("file-1", "file-2"),
    cancel_sent_at=1.5,
    rescue="it was late",
    marked=False,
    files_ready=4,
    uploads=2,
    results_fetched=True,
    results_refetched=2,
    results_cut=2,
    results_size=4_711,
    results_gone=True,
    held_job=True,
    checked_for_duplicates=True,
    suspected_duplicates=("batch-2",),
    searched_since=5.5,
    fenced_since=6.5,
    omitted=("seed",),
)
