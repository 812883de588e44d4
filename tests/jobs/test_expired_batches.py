"""Batches that expired: what was not run is told from what has no line yet, line by line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attrs import evolve
from jobs.remote import Made, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.providers.batch_api import Line, LineOutcome, RemoteBatch, RemoteState
from smartbatch.types import Kind


@pytest.mark.full
def test_a_missing_line_next_to_an_unprocessed_one_is_waited_for(
    client_of: Callable[..., BatchingClient],
    clock: VirtualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its batch says what it did not run, so what it says nothing of may have been run, and paid for."""
    remote = Remote(clock)
    api = remote.api
    assert api is not None
    shown, download, read_line = api.shown, api.download, api.read_line
    sent: list[list[str]] = []

    def expired(batch: Made) -> RemoteBatch:
        found = shown(batch)
        if found.state is RemoteState.COMPLETED and found.id == next(iter(api.made)):
            return evolve(found, state=RemoteState.EXPIRED, completed=None)
        return found

    def late(batch: RemoteBatch, output: str, timeout: float) -> Iterator[bytes]:
        lines = list(download(batch, output, timeout))
        sent.append([json.loads(line)["prompt"] for line in lines])
        first = len(sent) == 1
        yield from lines[:1] if first else lines

    def unrun(line: bytes, kind: Kind) -> Line:
        found = read_line(line, kind)
        if len(api.made) == 1 and json.loads(line)["prompt"] == "not run":
            return evolve(found, outcome=LineOutcome.UNRUN, answer=None)
        return found

    monkeypatch.setattr(api, "shown", expired)
    monkeypatch.setattr(api, "download", late)
    monkeypatch.setattr(api, "read_line", unrun)
    job = client_of(remote, store=str(tmp_path / "jobs.db")).submit_batch(["not run", "run"])
    assert [result.text for result in job.results(timeout=1e6)] == ["by batch: not run", "by batch: run"]
    assert sent == [["not run", "run"], ["not run", "run"], ["not run"]]
    assert job.incidents() == []
