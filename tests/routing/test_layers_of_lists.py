"""Hooks and middleware around lists that are sent as a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from jobs.remote import Remote

from smartbatch.client import BatchingClient
from smartbatch.errors import InvalidRequest
from smartbatch.events import Event, RouteScored
from smartbatch.types import Answer, Request, Route

ClientOf = Callable[..., BatchingClient]
PROMPTS = [f"p{n}" for n in range(30)]

each_way = pytest.mark.parametrize("way", ["individual", "batch", "hybrid"])


def made(remote: Remote) -> int:
    assert remote.api is not None
    return len(remote.api.made)


@each_way
def test_a_list_that_a_hook_answers_by_itself_is_not_sent(
    way: str, client_of: ClientOf, remote: Remote
) -> None:
    events: list[Event] = []

    def known(request: Request) -> Answer | str:
        return Answer("known", value=7) if request.prompt == "p3" else "text"

    client = client_of(remote, preprocess=[known], observers=[events.append])
    results = client.generate(PROMPTS, strategy=way)
    assert {result.route for result in results} == {Route.LOCAL}
    assert (results[3].text, results[3].parsed, results[4].text) == ("known", 7, "text")
    assert client.jobs() == []
    assert (made(remote), remote.asked) == (0, [])
    assert [event.cost for event in events if isinstance(event, RouteScored)] == [0.0]


@each_way
def test_a_row_that_a_hook_refuses_is_named_and_leaves_no_job_behind(
    way: str, client_of: ClientOf, remote: Remote
) -> None:
    def strict(request: Request) -> None:
        if request.prompt == "p20":
            raise InvalidRequest("not this one", field="prompt")

    client = client_of(remote, preprocess=[strict])
    with pytest.raises(InvalidRequest, match="not this one") as refused:
        client.generate(PROMPTS, strategy=way)
    if way == "individual":
        assert refused.value.__notes__ == ["raised while prompt 20 (counted from 0) was read"]
        return
    assert str(refused.value).startswith("row 20 (counted from 0)")
    assert refused.value.row == 20
    assert client.jobs() == []
    assert (made(remote), remote.asked) == (0, [])


@each_way
def test_middleware_is_around_calls_and_a_batch_is_none(
    way: str, client_of: ClientOf, remote: Remote
) -> None:
    seen: list[Any] = []

    def watching(call: Any, proceed: Callable[[Any], Sequence[Any]]) -> Sequence[Any]:
        seen.extend(request.prompt for request in call.requests)
        return proceed(call)

    results = client_of(remote, middleware=[watching]).generate(PROMPTS, strategy=way)
    alone = [PROMPTS[n] for n, result in enumerate(results) if result.route is Route.INDIVIDUAL]
    assert sorted(seen) == sorted(alone)
    assert len(alone) == {"individual": 30, "batch": 0}.get(way, len(alone))
    assert results.succeeded == 30
