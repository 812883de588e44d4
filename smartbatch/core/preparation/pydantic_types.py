"""Types that pydantic knows: their JSON schema, and objects of them made of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from typing import Any

from smartbatch._importing import imported
from smartbatch.core.preparation.keywords import MAX_FLAWS
from smartbatch.core.preparation.plain_schemas import Misfit, broken, keywords


class PydanticType:
    """A type as pydantic validates it; called with decoded JSON it returns an object.

    Args:
        kind: a pydantic model, a dataclass, a TypedDict, or any other type that pydantic knows.

    Attributes:
        schema: its JSON schema.

    Raises:
        Exception: pydantic's own, for a type that it does not know or that JSON cannot express.
    """

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._adapter = imported("pydantic").TypeAdapter(kind)
        self.schema = with_object_root(self._adapter.json_schema(schema_generator=schema_generator()))
        self._names = set(_property_names(self.schema))

    def __reduce__(self) -> tuple[Any, ...]:
        return PydanticType, (self._kind,)

    def __call__(self, value: Any) -> Any:
        """Return the object that ``value`` stands for.

        Raises:
            Misfit: the type does not accept it.
        """
        written = json.dumps(value)  # JSON has rules of its own: a strict type takes a date as a text
        try:
            return self._adapter.validate_json(written)
        except imported("pydantic").ValidationError as error:
            raise self._misfit(error) from None
        except Exception as error:  # of a validator of the user's
            raise unbuilt(error) from None

    def _misfit(self, error: Any) -> Misfit:
        flaws = error.errors(include_url=False, include_context=False)
        # What is no property of the schema may be a key of the answer.
        place = [part for part in flaws[0]["loc"] if part in self._names]
        told = "; ".join(
            f"at {'.'.join(map(str, flaw['loc'])) or 'the top'}: {flaw['msg'][:500]}, not {_shown(flaw)}"
            for flaw in flaws[:MAX_FLAWS]
        )
        return broken(place, flaws[0]["type"], told)


def _shown(flaw: Mapping[str, Any]) -> str:
    """Return in short what a model wrote at a place, or around what it left out."""
    return json.dumps(flaw["input"], ensure_ascii=False, default=repr)[:200]


@lru_cache(maxsize=256)
def pydantic_type(kind: Any) -> PydanticType:
    return PydanticType(kind)


def unbuilt(error: Exception) -> Misfit:
    """Return what an error of the user's class says about an answer."""
    name = type(error).__name__
    problem = f"the answer follows the schema, but no object could be made of it: {name}"
    return Misfit(problem, f"{name}: {error}"[:1000])


@cache
def schema_generator() -> Any:
    """Return pydantic's generator of JSON schemas, without titles that only repeat names."""
    return type(
        "Generator",
        (imported("pydantic.json_schema").GenerateJsonSchema,),
        {
            "ignored_warning_kinds": {"skipped-choice", "non-serializable-default"},
            "field_title_should_be_set": lambda *_: False,
        },
    )


def with_object_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose root is no reference: a recursive class is one, with all the rest below it."""
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in schema.get("$defs", {}):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return {**schema["$defs"][name], **rest}
    return schema


def _property_names(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, value in keywords(schema):
        if key == "properties" and isinstance(value, Mapping):
            yield from value
