"""User functions as providers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from smartbatch import Document, Image
from smartbatch.client import BatchingClient
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers import CallableProvider
from smartbatch.providers.callable import load_callable, normalise, usage_of
from smartbatch.types import Answer, Request, Usage

REQUEST = Request(prompt="p")


def call(provider: CallableProvider, attempt: int = 0) -> Answer:
    return provider.generate(REQUEST, model="m", attempt=attempt, timeout=1.0)


def shout(request: Request, attempt: int) -> str:
    return f"{request.prompt.upper()}{attempt}"


def test_a_function_gets_request_and_attempt():
    assert call(CallableProvider(shout), attempt=2) == Answer(text="P2")


@pytest.mark.parametrize("value", [None, 3, ("a", 1), {"a": 1}, [1], b"x"])
def test_any_other_object_is_the_value(value):
    assert normalise(value) == Answer(value=value)


def test_an_answer_is_passed_on():
    answer = Answer(text="t", usage=Usage(1, 2), cost=0.5)
    assert call(CallableProvider(lambda *_: answer)) is answer


@pytest.mark.parametrize("value", ["t", Answer(text="t"), 7])
def test_an_answer_may_come_with_its_usage(value):
    answer = normalise((value, Usage(5, 3)))
    assert answer.usage == Usage(5, 3)
    assert (answer.text, answer.value) == ((None, 7) if value == 7 else ("t", None))


@pytest.mark.parametrize(
    "stated",
    [
        {"input_tokens": 5, "output_tokens": 3, "cache": None},
        {"prompt_tokens": 5, "completion_tokens": 3},
        SimpleNamespace(prompt_tokens=5, completion_tokens=3, total_tokens=8),
    ],
)
def test_a_providers_own_usage_is_understood(stated):
    error = ValueError("x")
    error.usage = stated
    assert normalise(("t", stated)) == Answer(text="t", usage=Usage(5, 3))
    assert usage_of(error) == Usage(5, 3)


@pytest.mark.parametrize(
    "other", [{"input_tokens": 5}, {"input_tokens": "5", "output_tokens": 3}, (1, 2), "t"]
)
def test_what_is_no_usage_is_a_part_of_the_answer(other):
    assert normalise(("t", other)).value == ("t", other)


class Failed(Exception):
    def __init__(self, usage: Usage) -> None:
        super().__init__("failed")
        self.usage = usage


def test_the_usage_of_failed_attempts_is_collected():

    def ask(request: Request, attempt: int) -> object:
        if attempt == 1:
            return "done", Usage(1, 1)
        try:
            try:
                raise Failed(Usage(10, 1))
            except Failed as first:
                raise ValueError("no usage here") from first
        except ValueError as second:
            raise Failed(Usage(100, 5)) from second

    with BatchingClient(ask, shared="off", retry_initial=0.01) as client:
        for call in (None, ask):
            result = client.submit("q", call=call).result(30)
            assert (result.text, result.usage, result.attempts) == ("done", Usage(111, 7), 2)
        failing = client.submit("q", call=lambda *_: ask(REQUEST, 0)).exception(30)
    assert isinstance(failing, ProviderError)
    assert failing.usage == Usage(110, 6)
    assert usage_of(ValueError("x")) is None


def test_a_coroutine_is_refused():
    async def later(request, attempt):
        return "x"

    with pytest.raises(ConfigError, match="coroutine"):
        CallableProvider(later)
    with pytest.raises(TypeError, match=r"asyncio\.run"):
        call(CallableProvider(lambda *a: later(*a)))


def test_a_function_for_many_shares_calls():
    lost = ValueError("alone")
    provider = CallableProvider(shout, many=lambda requests, attempt: ["a", lost, None, 3], max_shared=4)
    assert provider.capabilities.max_shared == 4
    assert CallableProvider(shout).capabilities.max_shared == 1
    answers = provider.generate_many([REQUEST] * 4, model="m", attempt=0, timeout=1.0)
    assert answers == [Answer(text="a"), lost, None, Answer(value=3)]
    with pytest.raises(TypeError, match="list"):
        CallableProvider(shout, many=lambda *_: "text").generate_many(
            [REQUEST], model="m", attempt=0, timeout=1.0
        )
    with pytest.raises(NotImplementedError):
        CallableProvider(shout).generate_many([REQUEST], model="m", attempt=0, timeout=1.0)


def test_an_own_classifier_decides_first():
    verdict = ProviderError("mine", kind=ErrorKind.NO_MONEY)
    said: list[object] = [ErrorKind.RATE_LIMIT, verdict, None]
    provider = CallableProvider(shout, classify=lambda error: said.pop(0))
    assert provider.classify(ValueError("x")).kind is ErrorKind.RATE_LIMIT
    assert provider.classify(ValueError("x")) is verdict
    assert provider.classify(TimeoutError("x")).kind is ErrorKind.TIMEOUT


@pytest.mark.parametrize("options", [{"fn": 3}, {"many": 3}, {"classify": 3}, {"max_shared": 0}])
def test_settings_that_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        CallableProvider(**{"fn": shout, **options})


def test_a_function_is_found_by_its_name(monkeypatch):
    assert load_callable("os.path:join").__name__ == "join"
    assert load_callable("smartbatch.types:Priority.parse")(75).name == "HIGH"


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("os.path", "must name a module and a function"),
        (":f", "must name a module and a function"),
        ("no_such_module_here:f", "importing no_such_module_here failed"),
        ("os.path:no_such", "os.path has no no_such"),
        ("os.path:sep", "is a str, not a function"),
    ],
)
def test_a_name_that_cannot_be_used_says_which_part(path, part):
    with pytest.raises(ConfigError, match=part):
        load_callable(path)


def test_a_function_may_return_files_which_jobs_keep(tmp_path):
    png = b"\x89PNG\r\n\x1a\nimage"
    (tmp_path / "cat.png").write_bytes(png)
    given = (png, Image(png), Image(tmp_path / "cat.png"), b"\0unknown")

    def draw(request, attempt):
        return Answer("Here.", files=given)

    with BatchingClient("own", provider=CallableProvider(draw), store=str(tmp_path / "jobs.db")) as client:
        for durable in (False, True):
            result = client.submit("Draw a cat", durable=durable).result()
            assert [file.content() for file in result.files] == [png, png, png, b"\0unknown"]
            assert [type(file) for file in result.files] == [Image, Image, Image, Document]
