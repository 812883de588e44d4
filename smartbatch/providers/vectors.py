"""Vectors in answers: decoded exactly, counted, checked, and their tokens split over the texts."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import evolve

from smartbatch.errors import ProviderError
from smartbatch.providers.foreign_text import unusable
from smartbatch.types import Answer, Request, Usage, shares

_NUMBERS = frozenset({int, float})


def vector(raw: Any, dimensions: int | None) -> array[float]:
    """Return an embedding as 32-bit floats, exact to the wire.

    ``raw`` is base64 of little-endian 32-bit floats, or a list of numbers (servers that ignore
    ``encoding_format`` send one). Anything else, another length than ``dimensions``, and a number that is not
    finite are an ``INVALID_RESPONSE``.
    """
    if isinstance(raw, str):
        try:
            values = from_base64(raw)
        except ValueError:
            raise unusable("the vector is not base64 of 32-bit floats") from None
    elif isinstance(raw, list) and _NUMBERS.issuperset(map(type, raw)):
        try:
            values = array("f", raw)
        except OverflowError:
            raise unusable("a number of the vector does not fit 32 bits") from None
    else:
        raise unusable("the vector is neither base64 nor a list of numbers")
    if not values or (dimensions is not None and len(values) != dimensions):
        raise unusable(f"the vector has {len(values)} numbers instead of {dimensions or 'some'}")
    if not math.isfinite(sum(values)):  # singles cannot overflow it, and opposite infinities make it nan
        raise unusable("the vector has a number that is not finite")
    return values


@contextmanager
def counted(tokens: int | None) -> Iterator[None]:
    """Let an error say what its call was billed for: the answer is of no use, but it is paid.

    Args:
        tokens: of all texts of the call; ``None`` if the answer does not say.
    """
    try:
        yield
    except ProviderError as error:
        error.usage = None if tokens is None else Usage(input_tokens=tokens)
        raise


def to_base64(values: array[float]) -> str:
    """Return 32-bit floats, little-endian, in base64: exact to the bit."""
    return base64.b64encode(_little(values).tobytes()).decode()


def from_base64(text: str) -> array[float]:
    """Return the vector of :func:`to_base64`; ``ValueError`` for anything else."""
    return _little(array("f", base64.b64decode(text, validate=True)))


def _little(values: array[float]) -> array[float]:
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values


def listed(items: Any, size: int) -> list[Any]:
    """Return the vectors of an answer, still encoded; another number than ``size`` is an
    ``INVALID_RESPONSE``.
    """
    if not isinstance(items, list) or len(items) != size:
        found = len(items) if isinstance(items, list) else "no"
        raise unusable(f"the answer has {found} vectors for {size} texts")
    return items


def spread(
    common: Answer, vectors: Sequence[array[float]], requests: Sequence[Request], tokens: int | None
) -> list[Answer]:
    """Return an answer for each request of a call: its vector, and what all have in ``common``.

    ``tokens`` of the whole call, where it said so, are split by the lengths of the prompts.
    """
    if any(len(each) != len(vectors[0]) for each in vectors):
        raise unusable("the vectors of one call have different lengths")
    if tokens is None:
        return [evolve(common, embedding=each) for each in vectors]
    parts = shares(tokens, [len(request.prompt) for request in requests])
    return [
        evolve(common, embedding=each, usage=Usage(input_tokens=part))
        for each, part in zip(vectors, parts, strict=True)
    ]
