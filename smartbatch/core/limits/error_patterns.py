"""Groups of errors: what failures have in common."""

from __future__ import annotations

import re

LONGEST = 200
"""Characters of a message that tell groups apart."""
OTHERS = "(further messages)"
"""The message under which errors of a kind are counted beyond the groups that are told apart."""
_IDS = re.compile(
    r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"  # UUIDs
    r"|\b(?=[a-z]*\d|[a-z]*[A-Z])[A-Za-z0-9]{16,}\b"  # random characters
    r"|\b[a-z]{2,12}_(?=\w*\d)\w{6,}"  # req_0123abcd
    r"|\b(?:job|shard|batch|file|msg|resp|row)-(?=[\w-]*\d)[\w-]+"
)
_NUMBERS = re.compile(r"(?<![\w.-])[+-]?\d[\w.,:%/-]*(?:\s\d[\d.,]*)*")
_STATUS = re.compile(r"[1-5]\d\d[,:.]?")


def pattern_of(message: str) -> str:
    """Return what a message has in common with those that differ only in ids and numbers.

    Each of these becomes ``#``. A number of three digits that may be an HTTP status stays: there are few, and
    they mean different things.
    """
    text = _IDS.sub("#", message)
    text = _NUMBERS.sub(lambda found: found[0] if _STATUS.fullmatch(found[0]) else "#", text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
