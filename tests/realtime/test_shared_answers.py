"""Requests that share an answer share only what the provider returned (A17)."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest
from attrs import define
from jobs.remote import Api, Remote
from scenes import PATIENCE, Scripted

from smartbatch import Request, Route
from smartbatch.errors import SmartbatchError
from smartbatch.providers.base import Capabilities
from smartbatch.types import Answer, Kind, Usage, evolve
from tests.levels import sampled


@define
class City:
    name: str


class Vectors(Scripted):
    def __init__(self, clock):
        super().__init__(clock)
        self.capabilities = Capabilities(max_texts=10)

    def embed(self, requests, **_):
        self._call(tuple(requests), 0, 0.0)
        return [Answer(embedding=array("f", [1.0, 2.0])) for _ in requests]


@define
class Prefixing:
    mark: Callable[[Request], str]
    shareable: bool = False
    seen: int = 0

    def __call__(self, call, proceed):
        self.seen += 1
        return [
            evolve(outcome, text=self.mark(request) + str(outcome.text))
            if isinstance(outcome, Answer)
            else outcome
            for request, outcome in zip(call.requests, proceed(call), strict=True)
        ]


def asked_together(clock, client, contexts, **params):
    with clock.held():
        futures = [client.submit("x", context=context, **params) for context in contexts]
    return [future.outcome for future in futures if future.exception(PATIENCE) or future.outcome]


def test_post_process_runs_for_each_who_asked_with_its_own_context(clock, client_of):
    provider = Scripted(clock)
    hook = lambda result: evolve(result, parsed=f"for {result.context}: {result.cost}")  # noqa: E731
    results = asked_together(clock, client_of(provider, post_process=hook), ["a", "b", "c"])
    assert [str(result.parsed)[:5] for result in results] == ["for a", "for b", "for c"]
    assert [result.deduplicated for result in results] == [False, True, True]
    assert len(provider.starts) == 1


def test_what_post_process_refuses_for_one_is_not_refused_for_another(clock, client_of):
    def hook(result):
        if result.context != "b":
            raise ValueError("not for you")
        return result

    client = client_of(Scripted(clock), post_process=hook)
    results = asked_together(clock, client, ["a", "b", "c"])
    assert [result.ok for result in results] == [False, True, False]
    errors = [result.error for result in results if isinstance(result.error, SmartbatchError)]
    assert [error.request_id for error in errors] == [results[0].request_id, results[2].request_id]
    assert [result.context for result in results] == ["a", "b", "c"]
    client.stop()
    figures = client.metrics.snapshot()
    assert (figures.succeeded, figures.failed) == (1, 2)


@pytest.mark.parametrize("params", [{"schema": City}, {"response_format": {"type": "json_object"}}, {}])
def test_each_who_asked_has_an_object_of_its_own(params, clock, client_of):
    def hook(result):
        if result.context == "a" and isinstance(result.parsed, City):
            result.parsed.name = "changed"

    said = Answer('{"name": "Lima"}', value=None if params else City("Lima"))
    provider = Scripted(clock, lambda *_: said)
    results = asked_together(clock, client_of(provider, post_process=hook), ["a", "b", "c"], **params)
    assert len({id(result.parsed) for result in results}) == 3
    assert [result.parsed for result in results[1:]] == [results[2].parsed] * 2
    assert results[2].parsed in (City("Lima"), {"name": "Lima"})
    assert len(provider.starts) == 1


def test_each_who_asked_has_a_vector_of_its_own(clock, client_of):
    provider = Vectors(clock)
    client = client_of(provider)
    with clock.held():
        futures = [client.submit_embedding("x") for _ in range(3)]
    vectors = [future.result(PATIENCE).embedding for future in futures]
    assert vectors == [array("f", [1.0, 2.0])] * 3
    assert len({id(vector) for vector in vectors}) == 3
    assert len(provider.starts) == 1


def test_an_asker_with_the_same_id_gets_its_own_context(clock, client_of):
    client = client_of(Scripted(clock, latency=5.0))
    with clock.held():
        client.submit("x", id="same", context="first", timeout=2.0)
        second = client.submit("x", id="same", context="second")
    assert second.result(PATIENCE).context == "second"


@pytest.mark.parametrize("shareable", [False, True])
def test_with_a_middleware_nothing_is_shared_unless_it_says_so(shareable, clock, client_of):
    provider = Scripted(clock)
    layer = Prefixing(lambda request: f"{request.context} ", shareable=shareable)
    results = asked_together(clock, client_of(provider, middleware=[layer]), ["a", "b"])
    assert len(provider.starts) == (1 if shareable else 2)
    assert [result.text for result in results] == ["a re: x", "b re: x"]
    assert layer.seen == 2


def test_one_middleware_that_says_nothing_is_enough(clock, client_of):
    provider = Scripted(clock)
    layers = [Prefixing(lambda _: "", shareable=True), Prefixing(lambda _: "")]
    asked_together(clock, client_of(provider, middleware=layers), ["a", "b"])
    assert len(provider.starts) == 2


def answered(client):
    result = client.submit("x").result(PATIENCE)
    return result.text, result.route, result.cost, result.attempts


@pytest.mark.parametrize("shareable", [False, True])
def test_two_clients_of_one_cache_keep_their_middleware_apart(shareable, tmp_path, clock, client_of):
    provider = Scripted(clock, lambda *_: Answer("said", usage=Usage(1, 1)), scope="scripted:one")
    cache = str(tmp_path / "answers.db")
    layers = [Prefixing(lambda _, mark=mark: f"{mark} ", shareable=shareable) for mark in "AB"]
    first, second = (client_of(provider, cache=cache, middleware=[layer]) for layer in layers)
    plain = client_of(provider, cache=cache)
    assert answered(first) == ("A said", Route.INDIVIDUAL, 0.0, 1)
    if shareable:
        assert answered(second) == ("B said", Route.CACHED, 0.0, 0)
        assert answered(first) == ("A said", Route.CACHED, 0.0, 0)
        assert answered(plain) == ("said", Route.CACHED, 0.0, 0)
        assert [layer.seen for layer in layers] == [2, 1]
        assert len(provider.starts) == 1
    else:
        assert answered(second) == ("B said", Route.INDIVIDUAL, 0.0, 1)
        assert answered(first) == ("A said", Route.INDIVIDUAL, 0.0, 1)
        assert answered(plain) == ("said", Route.INDIVIDUAL, 0.0, 1)


def test_what_a_middleware_asked_instead_is_kept_as_that(tmp_path, clock, client_of):
    @define
    class Asking:
        shareable: bool = True

        def __call__(self, call, proceed):
            changed = tuple(evolve(request, prompt=f"please {request.prompt}") for request in call.requests)
            return proceed(evolve(call, requests=changed))

    provider = Scripted(clock, scope="scripted:one")
    cache = str(tmp_path / "answers.db")
    polite, plain = client_of(provider, cache=cache, middleware=[Asking()]), client_of(provider, cache=cache)
    assert polite.submit("x").result(PATIENCE).text == "re: please x"
    assert plain.submit("x").result(PATIENCE).text == "re: x"
    assert plain.submit("please x").result(PATIENCE).route is Route.CACHED


class Objects(Api):
    def read_line(self, line, kind):
        read = super().read_line(line, kind)
        assert read.answer is not None
        return evolve(read, answer=evolve(read.answer, text='{"name": "Lima"}'))


def test_a_wrongly_shareable_middleware_fails_instead_of_mixing_answers(clock, client_of):
    @define
    class Telling:
        shareable: bool = True

        def __call__(self, call, proceed):
            changed = tuple(evolve(request, prompt=f"for {request.context}") for request in call.requests)
            return proceed(evolve(call, requests=changed))

    results = asked_together(clock, client_of(Scripted(clock), middleware=[Telling()]), ["a", "b"])
    assert results[0].text == "re: for a"
    assert results[1].text is None
    assert "marked as shareable" in str(results[1].error)


@pytest.mark.parametrize("ordered", sampled([True, False]))
@pytest.mark.parametrize("way", ["individual", "batch", "hybrid", "job"])
def test_equal_rows_are_post_processed_each_with_their_own(way, ordered, tmp_path, clock, client_of):
    def hook(result):
        result.parsed["row"] = result.context["row"]
        return result

    remote = Remote(clock, reply=lambda prompt: '{"name": "Lima"}')
    remote.api = Objects(remote, clock, 100.0, frozenset({Kind.GENERATE}))
    client = client_of(remote, post_process=hook, store=str(tmp_path / "jobs.db"))
    requests = [Request(f"p{n % 4}", context={"row": n}) for n in range(24)]
    asked = {"response_format": {"type": "json_object"}}
    if way == "job":
        results = list(client.submit_batch(requests, **asked).results(ordered=ordered))
    else:
        results = list(client.as_completed(requests, strategy=way, ordered=ordered, **asked))
    assert sorted(result.context["row"] for result in results) == list(range(24))
    assert [result.parsed["row"] for result in results] == [result.context["row"] for result in results]
    assert len({result.request_id for result in results}) == 24
    assert sum(result.deduplicated for result in results) >= (0 if way == "individual" else 12)


@pytest.mark.parametrize("shareable", [False, True])
def test_equal_rows_have_own_answers_with_unshareable_middleware(shareable, tmp_path, clock, client_of):
    remote = Remote(clock)
    layer = Prefixing(lambda request: f"{request.context} ", shareable=shareable)
    client = client_of(remote, middleware=[layer], store=str(tmp_path / "jobs.db"))
    results = list(client.submit_batch(["x"] * 5).results())
    assert sum(result.deduplicated for result in results) == (4 if shareable else 0)
