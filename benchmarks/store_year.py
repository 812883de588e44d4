"""Measures how large a store becomes in a year of jobs that are forgotten after their batch.

Each job has a batch of 1,000 rows, whose results are stored and whose files at the provider are deleted
later. There are 50 jobs a day. A year takes long to simulate, so only its beginning is run; the growth per
job in the second half of that gives the size after the year.

    python -m benchmarks.store_year --jobs 730
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from random import Random

from smartbatch.jobs.records import JobPolicy, JobRow, NewItem, NewResult
from smartbatch.jobs.shard_records import NewShard, RemoteProgress, ShardState, new_nonce
from smartbatch.jobs.store import SqlStore, open_store

DAY_SECONDS = 86_400.0
JOBS_PER_DAY = 50
JOBS_PER_YEAR = 365 * JOBS_PER_DAY
MAX_BYTES = 200e6
SCOPE = "openai:benchmark"
ROWS = 1_000


def run_job(store: SqlStore, rng: Random, number: int, at: float) -> None:
    """Store a job with its results, forget it, and delete what is due at the provider."""
    policy = JobPolicy(retention=7 * DAY_SECONDS)
    job = JobRow(
        f"job-{number:016d}", f"key {number}", SCOPE, "openai:gpt-5-mini", "generate", b"{}", {}, policy, at
    )
    row, _ = store.jobs.accept(job, [NewItem(None, rng.randbytes(200), 250, 50) for _ in range(ROWS)])
    lease = store.leases.claim(row.id, 60.0)
    assert lease is not None
    nonce = new_nonce(rng)
    new = NewShard(f"shard-{nonce}", nonce, tuple(range(ROWS)), 250 * ROWS, 50 * ROWS, at)
    shard = store.shards.advance(lease, store.shards.plan(lease, new), ShardState.READY, file_id=nonce)
    submitting = store.shards.mark_submitting(lease, shard, exclusive=False, submitted_at=at)
    assert submitting is not None
    shard = submitting
    for state in (ShardState.SUBMITTED, ShardState.ENDED, ShardState.INGESTING):
        remote = RemoteProgress(outputs=(f"out-{nonce}",))
        shard = store.shards.advance(lease, shard, state, batch_id=f"batch-{nonce}", remote=remote)
    store.facts.observe_turnarounds("openai:gpt-5-mini", [(ROWS, 600.0, at)])
    results = [NewResult(ix, "succeeded", rng.randbytes(300), cost=1e-4) for ix in range(ROWS)]
    store.shards.ingest(lease, shard, results, at=at + 600.0)
    store.shards.settle(lease, shard, at=at + 600.0, cleaned_up=True)
    store.leases.release(lease)
    store.jobs.forget(row.id, "benchmark")
    while (one := store.remote_objects.take(SCOPE, at=at, most=600)) is not None:
        store.remote_objects.remove(one)


def size_of(place: Path) -> int:
    files = [place, *place.parent.glob(f"{place.name}-*"), *place.parent.glob(f"{place.name}.spool/*")]
    return sum(file.stat().st_size for file in files if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=730, metavar="N", help="number of jobs to run")
    count = parser.parse_args().jobs
    sizes, most = {}, 0
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        place = Path(folder) / "jobs.db"
        now = 1_700_000_000.0
        store = open_store(str(place), wall=lambda: now, rng=Random(1))
        for number in range(count):
            now += DAY_SECONDS / JOBS_PER_DAY
            run_job(store, Random(number), number, now)
            most = max(most, size_of(place))
            if number + 1 in (count // 2, count):
                store.clean(at=now, dry_run=False)
                sizes[number + 1] = size_of(place)
        store.close()
    half, whole = sizes.values()
    growth = (whole - half) / (count - count // 2)
    year = whole + growth * (JOBS_PER_YEAR - count)
    print(
        f"{count:,} jobs of {ROWS:,} rows: {half / 1e6:.2f} MB after half of them, {whole / 1e6:.2f} MB "
        "after all"
    )
    print(f"largest size meanwhile: {most / 1e6:.2f} MB")
    print(f"growth: {growth:,.0f} bytes per job, so {year / 1e6:.1f} MB after {JOBS_PER_YEAR:,} jobs")
    assert year < MAX_BYTES


if __name__ == "__main__":
    main()
