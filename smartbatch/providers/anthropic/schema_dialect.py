"""JSON schemas as Anthropic's structured outputs take them.

Source: Anthropic's guide on structured outputs, "JSON Schema limitations", of November 2026, and
``anthropic.transform_schema`` of its SDK, which moves the same keywords into the description but closes every
object, also one that stands for a dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from smartbatch.providers.schema_forms import Dialect, NotExpressible, in_dialect, subschemas

DIALECT = Dialect(
    keywords=frozenset({"format", "minItems"}),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri"})
    | {"ipv4", "ipv6", "uuid"},
    recursion="none",
)
MAX_OPTIONAL = 24
"""Properties of one request that may be left out."""
MAX_UNIONS = 16
"""Parts of one request that have several types."""


def sent_schema(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a schema as it is sent, or ``None`` where the API cannot enforce it."""
    return _sent(json.dumps(schema))


@lru_cache(maxsize=256)  # the requests of a client have the same schema
def _sent(text: str) -> Mapping[str, Any] | None:
    try:
        form = in_dialect(json.loads(text), DIALECT)
    except NotExpressible:
        return None
    parts = list(_parts(form))
    optional = sum(len(set(part.get("properties", ())) - set(part.get("required", ()))) for part in parts)
    unions = sum("anyOf" in part or isinstance(part.get("type"), list) for part in parts)
    return form if optional <= MAX_OPTIONAL and unions <= MAX_UNIONS else None


def _parts(form: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield form
    for part in subschemas(form):
        if isinstance(part, Mapping):
            yield from _parts(part)
