"""What is a list of prompts, and what is not: told before anything is read, so nothing is sent by mistake."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, NoReturn

from smartbatch.errors import InvalidRequest
from smartbatch.types import Message, Prompt, Request

_TABLE_MARKS = ("__dataframe__", "columns", "column_names")
"""What DataFrames, Arrow tables and datasets have and a single column has not."""


def prompt_list(prompts: Iterable[Prompt]) -> Iterable[Prompt]:
    """Return prompts fit to be read: a sequence where their number is known, anything else as it is.

    A column of a table, an array and any other collection that has an order is read whole; an iterator, a
    generator and whatever has no length are left to be read lazily.

    Raises:
        InvalidRequest: for what can be iterated, but not prompt by prompt. The cases, in order:

            1. A single prompt (text, message, mapping or request): a text would be asked letter by letter.
            2. A table: iterating it gives the names of its columns, or chunks.
            3. Bytes: iterating them gives numbers.
            4. A set: it has no order, so nobody could tell which answer belongs to which prompt.
            5. What cannot be iterated.
    """
    if isinstance(prompts, Sequence) and not isinstance(prompts, str | bytes | bytearray):
        return prompts
    kind = type(prompts).__name__
    if isinstance(prompts, str | Mapping | Message | Request):
        _refuse(f"must be a list of prompts, not a single one ({kind}): put it into a list, or use submit()")
    if any(_has(prompts, mark) for mark in _TABLE_MARKS):
        _refuse(
            f"is a table ({kind}), not a list of prompts: give one column, such as table['text'], or a list "
            "with a text made of each row"
        )
    if isinstance(prompts, bytes | bytearray | memoryview):
        _refuse(f"must be a list of prompts, not {kind}: decode it, and split it into a list of texts")
    if isinstance(prompts, set | frozenset):
        _refuse(
            f"is a {kind}, which has no order to tell the results by: give a list, such as sorted(prompts)"
        )
    if not isinstance(prompts, Iterable):
        _refuse(f"must be a list of prompts, not {kind}")
    return list(prompts) if isinstance(prompts, Sized) else prompts


def _has(value: Any, name: str) -> bool:
    """Whether the class of a value has an attribute; a property of a lazy table is not run."""
    return hasattr(type(value), name) or name in getattr(value, "__dict__", ())


def _refuse(problem: str) -> NoReturn:
    raise InvalidRequest(f"prompts {problem}", field="prompts")
