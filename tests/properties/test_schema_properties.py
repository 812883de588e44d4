"""Any type a user writes goes to each provider in the form that its documentation takes, and the answers
that follow this form are accepted."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import itertools
import uuid
from typing import Annotated, Any, Literal, Optional

import attrs
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from smartbatch import BatchingClient
from smartbatch.core.preparation.class_schemas import schema_of
from smartbatch.emulator.schema_rules import anthropic_flaw, gemini_flaw, openai_flaw
from smartbatch.providers.anthropic import bodies as anthropic
from smartbatch.providers.gemini import bodies as gemini
from smartbatch.providers.openai import schema_modes as openai
from smartbatch.testing import emulator
from tests.levels import sampled

MODELS = ("openai:gpt-5-mini", "anthropic:claude-haiku-5-5", "gemini:gemini-3.8-flash")
numbers = itertools.count()


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Node(pydantic.BaseModel):
    value: int
    next: Node | None = pydantic.Field(None, description="what follows")
    children: list[Node]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]
    age: int = pydantic.Field(ge=0)


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]
    lives: int | None = 9


@attrs.frozen
class Place:
    name: str
    inside: Place | None = None


LEAVES: list[Any] = [
    *(str, int, bool, float, bytes, decimal.Decimal, Any, None, uuid.UUID),
    *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
    *(Colour, Level, Literal["a", "b"], Literal[1, "a", None], Literal[True], Literal["only"]),
    *(Node, Dog, Annotated[Dog | Cat, pydantic.Field(discriminator="kind")], Dog | Cat),
    *(dict[str, Any], dict[str, int], list, set[int], frozenset[str], tuple[int, ...]),
    *(Annotated[int, pydantic.Field(ge=3, le=7)], Annotated[int, pydantic.Field(multiple_of=5, gt=10)]),
    *(Annotated[float, pydantic.Field(lt=0)], Annotated[str, pydantic.Field(min_length=2, max_length=4)]),
    Annotated[list[Colour], pydantic.Field(min_length=2, max_length=3)],
]


def lengths(item: Any) -> st.SearchStrategy[Any]:
    bounds = st.tuples(st.integers(0, 3), st.integers(3, 5))
    return bounds.map(
        lambda most: Annotated[list[item], pydantic.Field(min_length=most[0], max_length=most[1])]
    )


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    pairs = st.tuples(inner, inner)
    return st.one_of(
        inner.map(lambda kind: list[kind]),
        inner.map(lambda kind: Optional[kind]),  # noqa: UP045
        inner.map(lambda kind: dict[str, kind]),
        pairs.map(lambda both: tuple[both[0], both[1]]),
        inner.flatmap(lengths),
        st.lists(inner, min_size=1, max_size=3).flatmap(classes),
    )


def classes(kinds: list[Any]) -> st.SearchStrategy[Any]:
    makers = st.sampled_from([model, closed_model, described_model, a_dataclass, typed_dict])
    return makers.map(lambda make: make({f"field_{i}": kind for i, kind in enumerate(kinds)}))


def name() -> str:
    return f"Made{next(numbers)}"


def model(fields: dict[str, Any]) -> Any:
    given = {field: (kind, ...) for field, kind in fields.items()}
    return pydantic.create_model(name(), **given, note=(str, "none"), count=(int | None, None))


def closed_model(fields: dict[str, Any]) -> Any:
    config = pydantic.ConfigDict(extra="forbid")
    return pydantic.create_model(
        name(), __config__=config, **{key: (kind, ...) for key, kind in fields.items()}
    )


def described_model(fields: dict[str, Any]) -> Any:
    return pydantic.create_model(
        name(),
        **{
            key: (kind, pydantic.Field(description=f"the {key}", examples=[1]))
            for key, kind in fields.items()
        },
    )


def a_dataclass(fields: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass(name(), [*fields.items(), ("size", int, dataclasses.field(default=3))])


def typed_dict(fields: dict[str, Any]) -> Any:
    return TypedDict(name(), fields) if fields else dict  # type: ignore[operator]


leaves = st.sampled_from(LEAVES)
types = st.recursive(leaves, containers, max_leaves=6)


@pytest.fixture(scope="module")
def emu():
    with emulator() as running:
        yield running


@pytest.fixture(scope="module", params=MODELS)
def client(request, emu):
    base_url = emu.base_url if request.param.startswith("openai") else emu.url
    options = {"api_key": "k", "base_url": base_url}
    with BatchingClient(
        request.param, provider_options=options, shared="off", validation_retries=0, retries=0
    ) as made:
        yield made


def check(client: BatchingClient, kind: Any) -> None:
    future = client.submit(f"prompt {next(numbers)}", schema=kind, max_tokens=100_000)
    error = future.exception(20)
    assert error is None, f"{kind}: {error} {getattr(error, 'text', None)}"


KINDS = [*LEAVES, Place, list[Place], list[Node], Node | None]


@pytest.mark.parametrize("kind", sampled(KINDS, keep=10), ids=str)
def test_each_kind_of_type_is_taken_and_its_answers_are_accepted(client, kind):
    check(client, kind)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(types)
def test_any_type_is_taken_and_its_answers_are_accepted(client, kind):
    check(client, kind)


@pytest.mark.full
@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(types)
def test_a_thousand_types_are_taken(client, kind):
    check(client, kind)


@settings(max_examples=50, deadline=None)
@given(types)
def test_no_dialect_breaks_the_rules_of_its_service(kind):
    schema, _ = schema_of(kind)
    sent = openai.sent_schema(schema)
    assert openai_flaw(sent.schema, strict=sent.strict) is None
    for dialect, flaw in ((anthropic, anthropic_flaw), (gemini, gemini_flaw)):
        written = dialect.sent_schema(schema)
        assert written is None or flaw(written) is None
