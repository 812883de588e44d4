"""The quota of enqueued tokens: a batch that is too much by itself is cut, and never refused for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from jobs.remote import LONG, Api, Remote

from smartbatch._clock import VirtualClock
from smartbatch.client import BatchingClient
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import Creation, RemoteBatch, RemoteState

ClientOf = Callable[..., BatchingClient]
CODE = "token_limit_exceeded"


def full(limit: int | None) -> ProviderError:
    """Return the refusal as OpenAI words it, or as Gemini does: without a limit."""
    named = "" if limit is None else f" Limit: {limit} enqueued tokens."
    return ProviderError(
        f"Enqueued token limit reached.{named}", kind=ErrorKind.RATE_LIMIT, status=429, code=CODE
    )


def takes(monkeypatch: pytest.MonkeyPatch, api: Api, requests: int, limit: int | None) -> list[int]:
    """Refuse creates of more than ``requests``; return the sizes of all creates, in order."""
    sizes: list[int] = []
    create = api.create

    def picky(creation: Creation, timeout: float) -> RemoteBatch:
        sizes.append(creation.size)
        if creation.size > requests:
            raise full(limit)
        return create(creation, timeout)

    monkeypatch.setattr(api, "create", picky)
    return sizes


@pytest.fixture
def api(remote: Remote) -> Api:
    assert remote.api is not None
    return remote.api


@pytest.mark.full
def test_a_batch_above_the_limit_that_its_refusal_names_is_cut_at_once(
    client: BatchingClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting would not help it; the limit holds for what comes later, too."""
    per_request = 10  # estimated tokens, about: the limit is three requests
    sizes = takes(monkeypatch, api, 4, 3 * per_request)
    job = client.submit_batch([f"p{n}" for n in range(20)])
    assert job.wait(LONG).completed == 20
    assert [size for size in sizes if size > 4] == [20]


@pytest.mark.full
def test_a_batch_refused_repeatedly_while_it_is_alone_is_halved(
    client: BatchingClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemini names no limit: a batch above it would be refused for ever."""
    sizes = takes(monkeypatch, api, 5, None)
    job = client.submit_batch([f"p{n}" for n in range(20)])
    assert job.wait(LONG).completed == 20
    assert sizes[:6] == [20, 20, 20, 10, 10, 10]


def test_a_full_quota_that_others_use_halves_nothing(
    client: BatchingClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two refusals are waited for with pauses that grow, and the batch goes as it is."""
    create, refusals = api.create, iter([full(None), full(None)])

    def busy(creation: Creation, timeout: float) -> RemoteBatch:
        if (refusal := next(refusals, None)) is not None:
            raise refusal
        return create(creation, timeout)

    monkeypatch.setattr(api, "create", busy)
    assert client.submit_batch([f"p{n}" for n in range(20)]).wait(LONG).completed == 20
    assert [len(batch.lines) for batch in api.made.values()] == [20]


@pytest.mark.full
def test_batches_refused_in_validation_although_they_fit_become_smaller(
    client: BatchingClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider's count of tokens may be above ours; refused batches cost nothing, but must end."""
    shown = api.shown

    def failing(batch: object) -> RemoteBatch:
        found = shown(batch)  # type: ignore[arg-type]
        if (found.total or 0) <= 5:
            return found
        error = full(1_000_000)
        return RemoteBatch(found.id, RemoteState.FAILED, "failed", found.created_at, found.mark, error=error)

    monkeypatch.setattr(api, "shown", failing)
    assert client.submit_batch([f"p{n}" for n in range(20)]).wait(LONG).completed == 20


@pytest.mark.full
def test_batches_grow_again_when_they_pass(
    client: BatchingClient, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What others used of the quota for a while does not make small batches for ever."""
    takes(monkeypatch, api, 5, None)
    client.submit_batch([f"p{n}" for n in range(20)]).wait(LONG)
    monkeypatch.undo()
    for _ in range(12):  # each batch that passes doubles what the next may have
        client.submit_batch(["one"]).wait(LONG)
    made = len(api.made)
    client.submit_batch([f"p{n}" for n in range(40)]).wait(LONG)
    assert len(api.made) == made + 1


def enqueued(api: Api) -> int:
    """Return how many requests batches hold that have not ended."""
    return sum(len(batch.lines) for batch in api.made.values() if not api.shown(batch).state.ended)


@pytest.mark.full
def test_processes_with_different_stores_share_enqueued_tokens(
    client_of: ClientOf,
    clock: VirtualClock,
    remote: Remote,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Room for one of their batches, which one of them was told: no create is refused, all are answered."""
    create, most = api.create, []

    def noted(creation: Creation, timeout: float) -> RemoteBatch:
        made = create(creation, timeout)
        most.append(enqueued(api))
        return made

    monkeypatch.setattr(api, "create", noted)
    shared = f"sqlite:///{tmp_path / 'limits.db'}"
    told = [{"batch_enqueued_tokens": 300}, {}, {}]
    clients = [
        client_of(remote, store=str(tmp_path / f"{number}.db"), shared=shared, seed_of_rng=number, **settings)
        for number, settings in enumerate(told)
    ]
    jobs = []
    for client in clients:
        jobs.append(client.submit_batch([f"p{n}" for n in range(20)]))
        clock.sleep(5.0)  # the first of them tells the others of the limit
    assert [job.wait(LONG).completed for job in jobs] == [20, 20, 20]
    assert most == [20, 20, 20]
