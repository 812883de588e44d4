"""The parts of a client's jobs are made with the first job, once, and know of a stop that came before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from inside import inside
from jobs.remote import LONG, Remote

from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed
from smartbatch.jobs.jobs_engine import JobsEngine

ClientOf = Callable[..., BatchingClient]


def test_a_client_stopped_before_its_first_job_takes_none_until_started(client: BatchingClient) -> None:
    client.stop()
    with pytest.raises(ClientClosed):
        client.submit_batch(["a"])
    client.start()
    (result,) = client.submit_batch(["a"]).results(timeout=LONG)
    assert result.ok


def test_without_a_job_no_store_is_opened(client_of: ClientOf, remote: Remote) -> None:
    client = client_of(remote, store=None)
    assert client.submit("a").result(LONG).ok
    assert (client.uses_store, inside(client)._jobs) == (False, None)
    client.stop()
    assert client.spent == 0.0


def test_a_signal_handler_that_needs_jobs_while_they_are_made_makes_them(
    client: BatchingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs on the very thread that makes them."""
    made: list[object] = []
    really = JobsEngine.__init__

    def interrupted(self: JobsEngine, *args: Any, **options: Any) -> None:
        really(self, *args, **options)
        made.append(self)
        if len(made) == 1:
            inside(client).jobs  # noqa: B018  # as a handler would

    monkeypatch.setattr(JobsEngine, "__init__", interrupted)
    (result,) = client.submit_batch(["a"]).results(timeout=LONG)
    assert result.ok
    assert len(made) == 2
    assert inside(client).jobs.engine is made[1]


def test_what_fails_to_be_made_is_made_by_the_next_who_needs_it(
    client: BatchingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no space")

    with monkeypatch.context() as patched:
        patched.setattr(JobsEngine, "__init__", fails)
        with pytest.raises(OSError, match="no space"):
            client.submit_batch(["a"])
    (result,) = client.submit_batch(["a"]).results(timeout=LONG)
    assert result.ok
