"""A run as SIGKILL leaves it, without its calls: all rows are stored, and the first of them are answered.

    python -m benchmarks.answered_rows 0.5 run rows.jsonl -o out.jsonl --store jobs.db --model sim:demo

The answers of that part of the rows are made up, and are put into the store and the output with the library's
own parts.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from smartbatch.cli.clients import client_of, params_of
from smartbatch.cli.main import build_parser
from smartbatch.jobs.realtime_items import verdict_of
from smartbatch.jobs.store import open_store
from smartbatch.runs.output_file import OutputFile
from smartbatch.runs.output_lines import encode
from smartbatch.runs.row_requests import InputRequests, PromptMaker
from smartbatch.runs.run_identity import RunIdentity
from smartbatch.tables.row_source import RowSource
from smartbatch.types import Result, Route, Usage

GROUP, AT = 1_000, 1.8e9
"""Rows that are stored and written together, and the Unix time of their answers."""


def answer_rows(command: Sequence[str], part: float) -> None:
    """Do what the command of a run would have done until a part of its rows were answered."""
    args = build_parser().parse_args(command)
    with RowSource(args.input) as source, client_of(args) as client, OutputFile(args.output) as output:
        read = InputRequests(source, PromptMaker(), model=args.model, params=params_of(args))
        keys = read.check()
        output.recover(keys)
        identity = RunIdentity(args.output, args.model, keys)
        requests = read.read(lambda _: False, lambda: False, lambda row: [row.index, row.key.hex()])
        plan = client.forecast((), count=len(keys), strategy="individual")
        key, labels = identity.free_key(set(), realtime=True), identity.labels(realtime=True)
        job = client.submit_run(requests, plan, key=key, metadata=labels, carry_on=False)
        store = open_store(args.store)
        lease = store.leases.claim(job.id, 3600.0)
        if lease is None:
            raise RuntimeError("somebody else has taken the job")
        row_at = read.row_lookup(lambda _: False, ordered=True)
        for _ in range(0, int(part * len(keys)), GROUP):
            results = [(item.ix, result_of(item.ix)) for item in store.items.claim_realtime(lease, GROUP)]
            stored = [verdict_of(result).result(ix, None) for ix, result in results]
            store.items.answer(lease, stored, at=AT)
            rows = [(row_at(ix), result) for ix, result in results]
            output.append([(row, encode(row, result, args.model), True) for row, result in rows])
        store.close()


def result_of(number: int) -> Result:
    """Return what the quick server's answer becomes."""
    return Result(
        f"row-{number}",
        text=f"answer {number}",
        usage=Usage(input_tokens=10, output_tokens=4),
        cost=1.05e-05,
        latency=0.0031,
        attempts=1,
        route=Route.INDIVIDUAL,
        finish_reason="stop",
        model="openai:gpt-5-mini",
        provider_request_id="req_0123456789abcdef",
    )


if __name__ == "__main__":
    answer_rows(sys.argv[2:], float(sys.argv[1]))
