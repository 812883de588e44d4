"""The options of a provider as they are written on a command line: ``--provider-option K=V``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from smartbatch.errors import ConfigError
from smartbatch.providers.registry import option_types, parse_model

_WORDS: Final = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the provider, from ``K=V`` pairs, each in the type that the option has.

    A value that is JSON of that type is that, and anything else the text as it is written: a key of digits
    stays a text. Where no type is known, whatever is JSON is that.

    Raises:
        ConfigError: for a pair without ``=``, and for a value of another type, which is not repeated.
    """
    types: Mapping[str, Any] = {}
    if args.provider_option:
        types = option_types(parse_model(args.model)[0])
    options: dict[str, Any] = {}
    for pair in args.provider_option:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ConfigError(f"--provider-option {name!r:.40} needs the form K=V, such as api=responses")
        options[name] = _read(name, text, types.get(name, Any))
    return options


def _read(name: str, text: str, kind: Any) -> Any:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if _fits(value, kind):
        return value
    if _fits(text, kind):
        return text
    raise ConfigError(f"--provider-option {name} needs {_words(kind)}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value of JSON is of a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is Literal:
        return type(value) in map(type, inner)
    if origin is Mapping:
        return isinstance(value, dict) and all(_fits(each, inner[1]) for each in value.values())
    return kind is Any or type(value) in ((int, float) if kind is float else (kind,))


def _words(kind: Any) -> str:
    """Return what is written for a type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(_words(each) for each in inner if each is not NoneType)
    if origin is Mapping:
        return f"a JSON object, each value of it {_words(inner[1])}"
    return _WORDS.get(kind, "what only a program can give")
