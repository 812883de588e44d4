"""What the result lines of every Batch API have in common: how they are decoded, and what an error means."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import Line, LineOutcome

__all__ = ["decode_line", "failed_line", "outcome_of", "shapeless_line", "unrun_line"]

_WIRE_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FINAL = frozenset({ErrorKind.CLIENT_ERROR, ErrorKind.CONTEXT_TOO_LONG, ErrorKind.AUTH_ERROR})


def decode_line(line: bytes, *names: str) -> tuple[dict[str, Any], str]:
    """Return one line of results, and the id it carries.

    Args:
        line: as it came, with or without its end.
        names: the fields that may hold the id, the usual one first.

    Raises:
        ValueError: for what is no JSON object with an id of the kind that is sent.
    """
    try:
        data = json.loads(line)
    except RecursionError:
        raise ValueError("the line is nested too deeply") from None
    except ValueError:
        # not chained: the decoder's error holds the whole line
        raise ValueError("the line is no JSON") from None
    if not isinstance(data, dict):
        raise ValueError("the line is no JSON object")
    found = next((data[name] for name in names if data.get(name) is not None), None)
    if not isinstance(found, str) or not _WIRE_ID.fullmatch(found):
        raise ValueError("the line has no id that was ever sent")
    return data, found


def outcome_of(error: ProviderError) -> LineOutcome:
    """Return what the error of one request says about asking it again.

    Without money nothing was run, and nothing is wrong with the request: it stays open.
    """
    if error.kind is ErrorKind.NO_MONEY:
        return LineOutcome.UNRUN
    return LineOutcome.FAILED if error.kind in _FINAL else LineOutcome.RETRY


def failed_line(wire_id: str, error: ProviderError) -> Line:
    """Return the line of a request that failed with ``error``."""
    return Line(wire_id, outcome_of(error), error=error)


def shapeless_line(wire_id: str, text: str) -> Line:
    """Return the line of a request whose result is neither an answer nor an error the API knows."""
    return failed_line(
        wire_id,
        ProviderError(text, kind=ErrorKind.INVALID_RESPONSE, status=200, code="shape", maybe_billed=True),
    )


def unrun_line(wire_id: str, ended: Literal["cancelled", "expired"]) -> Line:
    """Return the line of a request that was never run, because of how its batch ended."""
    how = "was cancelled" if ended == "cancelled" else "expired"
    error = ProviderError(
        f"the batch {how} before this request was run; it was not billed",
        kind=ErrorKind.SERVER_ERROR,
        code=f"batch_{ended}",
    )
    return Line(wire_id, LineOutcome.UNRUN, error=error)
