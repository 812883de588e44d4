"""The dialects that the emulator serves, by the name of the host."""

from __future__ import annotations

from collections.abc import Collection

from attrs import evolve

from smartbatch.emulator.hosts.host_dialect import HostDialect
from smartbatch.emulator.hosts.mistral import MISTRAL
from smartbatch.emulator.hosts.openai_hosts import AZURE, DASHSCOPE, GROQ
from smartbatch.emulator.hosts.openrouter import OPENROUTER
from smartbatch.emulator.hosts.together import TOGETHER
from smartbatch.emulator.hosts.xai import XAI
from smartbatch.errors import ConfigError, did_you_mean

DIALECTS = {each.name: each for each in (AZURE, DASHSCOPE, GROQ, MISTRAL, OPENROUTER, TOGETHER, XAI)}


def dialect_named(name: str, variants: Collection[str] = ()) -> HostDialect:
    """Return the dialect of a host.

    Args:
        variants: the interpretations that apply, by their names in the record of the dialect.

    Raises:
        ConfigError: there is no dialect or variant of that name.
    """
    if name not in DIALECTS:
        near = did_you_mean(name, DIALECTS)
        raise ConfigError(f"unknown dialect {name!r}; use one of {', '.join(DIALECTS)}{near}")
    dialect = DIALECTS[name]
    if unknown := sorted(set(variants) - dialect.variants.keys()):
        known = ", ".join(dialect.variants) or "none"
        raise ConfigError(f"unknown variant {unknown[0]!r} of the dialect {name}; known: {known}")
    changes = {name: value for each in variants for name, value in dialect.variants[each].changes.items()}
    return evolve(dialect, chosen=frozenset(variants), **changes)
