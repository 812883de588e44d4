"""Names that are sent to a provider: the nonce of a shard, and the ids of its requests.

A nonce is 128 random bits in base62, 22 characters, so that ``nonce-position`` fits the tightest rule of the
three providers, Anthropic's ``[a-zA-Z0-9_-]{1,64}``, and OpenAI's metadata values. Every shard has its own,
and none is used again: with an old one, a late create could be taken for a new shard's.
"""

from __future__ import annotations

import re
from random import Random

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_WIRE_ID = re.compile(r"([0-9A-Za-z]{22})-([0-9A-Za-z]{1,6})")


def new_nonce(rng: Random) -> str:
    """Return 128 random bits as 22 characters of base62."""
    return _base62(rng.getrandbits(128)).rjust(22, "0")


def wire_id(nonce: str, position: int) -> str:
    """Return the id of the request at ``position`` (from 0) of the shard with ``nonce``."""
    return f"{nonce}-{_base62(position)}"


def parse_wire_id(text: str) -> tuple[str, int] | None:
    """Return nonce and position of an id :func:`wire_id` made; ``None`` for any other text."""
    found = _WIRE_ID.fullmatch(text)
    if found is None:
        return None
    if len(found.group(2)) > 1 and found.group(2).startswith("0"):
        return None  # a number has one spelling only, so that an id cannot come twice under two names
    position = 0
    for digit in found.group(2):
        position = position * 62 + _DIGITS.index(digit)
    return found.group(1), position


def file_name(nonce: str, uploads: int) -> str:
    """Return the file name of a shard's input, after ``uploads`` uploads that cannot be found."""
    return f"sb-{nonce}-{uploads}" if uploads else f"sb-{nonce}"


def _base62(number: int) -> str:
    digits = []
    while True:
        number, digit = divmod(number, 62)
        digits.append(_DIGITS[digit])
        if not number:
            return "".join(reversed(digits))
