"""Patterns of schemas, matched by the engine that pydantic uses, in time that is linear in the text.

The engine of :mod:`re` backtracks: some patterns take hours for thirty letters and hold the interpreter's
lock meanwhile. It runs no pattern of a schema on a model's answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from smartbatch._importing import imported


class PatternError(ValueError):
    """The engine does not take a pattern; the message says why."""


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Callable[[str], bool]:
    """Return a function that tells whether ``pattern`` matches anywhere in a text.

    Raises:
        PatternError: it is no pattern, needs backtracking (look-around, references back), or is too large.
    """
    core = imported("pydantic_core")
    schema = core.core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")
    try:
        matcher = core.SchemaValidator(schema)
    except core.SchemaError as error:
        reason = str(error).strip().rpartition("\n")[2].strip()
        raise PatternError(f"is not taken by the engine: {reason.removeprefix('SchemaError: ')}") from None
    found_in: Callable[[str], bool] = matcher.isinstance_python
    return found_in
