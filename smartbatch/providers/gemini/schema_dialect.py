"""JSON schemas as the Gemini API takes them in ``responseJsonSchema``.

Source: Google's reference of ``GenerationConfig.responseJsonSchema`` of November 2026.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from smartbatch.providers.schema_forms import Dialect, NotExpressible, in_dialect

DIALECT = Dialect(
    keywords=frozenset({"format", "minimum", "maximum", "minItems", "maxItems"}),
    formats=frozenset({"date-time", "date", "time"}),
    open_objects=True,
    tuples=True,
    constants=(str, int, float),
    recursion="optional",
)


def sent_schema(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return a schema as it is sent, or ``None`` where the API cannot enforce it."""
    return _sent(json.dumps(schema))


@lru_cache(maxsize=256)  # the requests of a client have the same schema
def _sent(text: str) -> Mapping[str, Any] | None:
    try:
        return in_dialect(json.loads(text), DIALECT)
    except NotExpressible:
        return None
