"""Measures how large a store becomes in a year of jobs that are forgotten after their batch.

There are 50 jobs a day, in virtual time. Each has a batch of 1,000 rows, ten of which fail, a route decision,
a file that is uploaded for its prompts, and a webhook event that is delivered twice. Its results are stored,
the job is forgotten, and what it left at the provider is deleted after a week. A year takes about ten
minutes.

    python -m benchmarks.store_year --days 365
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from random import Random

from smartbatch.core.forecast import Forecaster
from smartbatch.core.routing.choice import Decision, choose
from smartbatch.core.routing.offers import BatchOffer, Offer, Throughput
from smartbatch.core.routing.options import Constraints
from smartbatch.core.routing.workload import Cost, Load
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import encode_error
from smartbatch.jobs.records import DAY, JobPolicy, JobRow, NewItem, NewResult
from smartbatch.jobs.shard_records import NewShard, RemoteProgress, ShardState, new_nonce
from smartbatch.jobs.store import SqlStore, open_store
from smartbatch.jobs.store.uploads import FileRef, Sending
from smartbatch.providers.file_api import RemoteUpload
from smartbatch.routing.history import BATCH_PRIOR, CALL_PRIOR
from smartbatch.types import Route

JOBS_PER_DAY = 50
MAX_BYTES = 200e6
MODEL, SCOPE = "openai:gpt-5-mini", "openai:benchmark"
ROWS, FAILED_ROWS = 1_000, 10
RETENTION = 7 * DAY
TURNAROUND = 600.0


def run_job(store: SqlStore, rng: Random, number: int, at: float, place: Path) -> int:
    """Store a job with its results, forget it, and delete what is due at the provider.

    Returns:
        the largest size of the store in bytes.
    """
    policy, file_key = JobPolicy(retention=RETENTION), f"{rng.getrandbits(256):064x}"
    job = JobRow(f"job-{number:016d}", f"key {number}", SCOPE, MODEL, "generate", b"{}", {}, policy, at)
    items = [NewItem(None, rng.randbytes(200), 250, 50) for _ in range(ROWS)]
    row, _ = store.jobs.accept(job, items, decision=decision(), uploaded=lambda: [file_key])
    lease = store.leases.claim(row.id, 60.0)
    assert lease is not None
    file = FileRef(SCOPE, MODEL, file_key, ".pdf", at, RETENTION)
    sending = store.uploads.obtain(file, at=at, lease=lease)
    assert isinstance(sending, Sending)
    store.uploads.complete(sending, RemoteUpload(f"file-{number}", at + 14 * DAY), 100_000)
    nonce = new_nonce(rng)
    new = NewShard(f"shard-{nonce}", nonce, tuple(range(ROWS)), 250 * ROWS, 50 * ROWS, at)
    shard = store.shards.advance(lease, store.shards.plan(lease, new), ShardState.READY, file_id=nonce)
    submitting = store.shards.mark_submitting(lease, shard, exclusive=False, submitted_at=at)
    assert submitting is not None
    shard = submitting
    for _ in range(2):
        store.webhook_events.add(f"event about {nonce}", f"batch-{nonce}", at=at + TURNAROUND)
    store.webhook_events.mark_used(f"batch-{nonce}", store.webhook_events.last())
    for state in (ShardState.SUBMITTED, ShardState.ENDED, ShardState.INGESTING):
        remote = RemoteProgress(outputs=(f"out-{nonce}",))
        shard = store.shards.advance(lease, shard, state, batch_id=f"batch-{nonce}", remote=remote)
    store.facts.observe_turnarounds(MODEL, [(ROWS, TURNAROUND, at)])
    store.shards.ingest(lease, shard, results(rng, number), at=at + TURNAROUND)
    store.shards.settle(lease, shard, at=at + TURNAROUND, cleaned_up=True)
    store.leases.release(lease)
    most = size_of(place)
    store.jobs.forget(row.id, "benchmark")
    while (one := store.remote_objects.take(SCOPE, at=at, most=600)) is not None:
        store.remote_objects.remove(one)
    return max(most, size_of(place))


def decision() -> Decision:
    call, times = Forecaster(CALL_PRIOR).at(0.0), Forecaster(BATCH_PRIOR).at(0.0)
    cost = Cost(0.9, 1.0, 1.2)
    offers = [Offer(Route.INDIVIDUAL, Throughput(call, parallelism=8), cost)]
    batch = BatchOffer(times, cost.of(0.5), alone=cost, cancelling=times)
    return choose(Load(ROWS, 250e3, 50e3), offers, batch, Constraints())


def results(rng: Random, number: int) -> list[NewResult]:
    error = ProviderError(f"the prompt of job {number} was rejected", kind=ErrorKind.CLIENT_ERROR, status=400)
    failed = encode_error(error)
    return [
        NewResult(ix, "failed", failed, cost=0.0)
        if ix < FAILED_ROWS
        else NewResult(ix, "succeeded", rng.randbytes(300), cost=1e-4)
        for ix in range(ROWS)
    ]


def size_of(place: Path) -> int:
    files = [place, *place.parent.glob(f"{place.name}-*"), *place.parent.glob(f"{place.name}.spool/*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def rows_of(store: SqlStore) -> str:
    tables = ("remote_object", "upload_use", "webhook_event", "turnaround", "decision", "error_group", "act")
    counts = {name: store.jobs.db.rows(f"SELECT count(*) FROM {name}")[0][0] for name in tables}
    return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=int, default=365, metavar="N", help="number of days")
    days = parser.parse_args().days
    began, most = time.monotonic(), 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        place = Path(folder) / "jobs.db"
        now = 1_700_000_000.0
        store = open_store(str(place), wall=lambda: now, rng=Random(1))
        for day in range(1, days + 1):
            for each in range(JOBS_PER_DAY):
                now += DAY / JOBS_PER_DAY
                number = JOBS_PER_DAY * day + each
                most = max(most, run_job(store, Random(number), number, now, place))
            if day % 30 == 0 or day == days:
                size, seconds = size_of(place) / 1e6, time.monotonic() - began
                print(f"day {day}: {size:.1f} MB, at most {most / 1e6:.1f} MB ({seconds:,.0f} s)", flush=True)
        print(f"rows: {rows_of(store)}")
        store.clean(at=now, dry_run=False)
        print(f"after smartbatch jobs clean: {size_of(place) / 1e6:.1f} MB")
        store.close()
    assert most < MAX_BYTES


if __name__ == "__main__":
    main()
