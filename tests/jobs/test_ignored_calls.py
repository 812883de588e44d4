"""Remote calls that the protocol can do without: when they fail, the job goes on, and the log says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jobs.remote import LONG, Api, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError, StoreError
from smartbatch.jobs.steps import orphans
from smartbatch.observe import logs

ClientOf = Callable[..., BatchingClient]


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []

    def warn(event: str, **fields: Any) -> None:
        if event == "job_call_ignored":
            lines.append((fields["call"], fields["kind"]))

    monkeypatch.setattr(logs, "warn", warn)
    return lines


def no_network(*_: object) -> Any:
    raise ProviderError("no network", kind=ErrorKind.NETWORK_ERROR)


def test_a_list_that_cannot_be_searched_for_duplicates(
    client_of: ClientOf, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, ignored: list[tuple[str, str]]
) -> None:
    remote = Remote(clock)
    page = Api.page

    def flaky(self: Api, after: str | None, timeout: float) -> Any:
        return no_network() if self.made and not ignored else page(self, after, timeout)

    monkeypatch.setattr(Api, "page", flaky)
    assert client_of(remote).submit_batch(["a", "b"]).wait(LONG).completed == 2
    assert ignored == [("list of batches", "network_error")]


def test_an_input_file_that_cannot_be_searched_for(
    client_of: ClientOf, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, ignored: list[tuple[str, str]]
) -> None:
    def refuse(*_: object) -> Any:
        raise ProviderError("no such model", kind=ErrorKind.CLIENT_ERROR, status=400)

    monkeypatch.setattr(Api, "create", refuse)
    monkeypatch.setattr(Api, "find_file", no_network)
    assert client_of(Remote(clock)).submit_batch(["a", "b"]).wait(LONG).failed == 2
    assert ignored == [("search for an input file", "network_error")]


def test_a_batch_that_cannot_be_polled_after_its_cancel_was_refused(
    client_of: ClientOf, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch, ignored: list[tuple[str, str]]
) -> None:
    remote = Remote(clock, turnaround=500.0)
    cancel, get = Api.cancel, Api.get

    def unknown(self: Api, batch_id: str, timeout: float) -> None:
        if ignored:
            cancel(self, batch_id, timeout)
        else:
            raise ProviderError("no such batch", kind=ErrorKind.CLIENT_ERROR, status=404)

    job = client_of(remote).submit_batch(["a", "b"])
    clock.sleep(60.0)
    monkeypatch.setattr(Api, "cancel", unknown)
    monkeypatch.setattr(
        Api, "get", lambda self, *args: get(self, *args) if ignored or not cancelled else no_network()
    )
    cancelled = True
    job.cancel()
    assert job.wait(LONG).cancelled == 2
    assert ignored == [("poll of a batch", "network_error")]


@pytest.mark.catches("StoreError")
def test_an_error_of_the_store_is_not_taken_for_one_of_the_provider(
    client_of: ClientOf, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> Any:
        raise ProviderError("no answer", kind=ErrorKind.TIMEOUT, maybe_billed=True)

    def full(*_: object) -> Any:
        raise StoreError("the disk is full")

    monkeypatch.setattr(Api, "create", lost)
    job = client_of(Remote(clock)).submit_batch(["a", "b"])
    clock.sleep(0.5)
    monkeypatch.setattr(orphans, "find_orphans", full)
    clock.sleep(5.0)
    assert job.status().note == "the disk is full"
