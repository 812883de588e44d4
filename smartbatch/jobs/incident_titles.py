"""Incidents in a few words, by their kinds; what each means in full is in the reference of errors."""

from __future__ import annotations

_TITLES = {
    "double_submission": "A batch was created twice",
    "maybe_billed": "Requests may be paid twice",
    "missing_items": "Requests of an ended batch have no result",
    "batch_vanished": "The provider no longer knows a batch",
    "batch_cancelled": "A batch was cancelled at the provider",
    "no_batch_api": "The Batch API cannot be used",
    "deadline_at_risk": "The deadline may be missed",
    "results_at_risk": "Results cannot be fetched so far",
    "results_gone": "Results were deleted before they were fetched",
    "malformed_line": "Lines of the results cannot be read",
    "foreign_line": "Lines of the results belong to nobody",
    "doubled_line": "Requests were answered twice, differently",
    "token_mismatch": "An answer may belong to another request",
}


def incident_title(kind: str) -> str:
    """Return what happened; the kind itself, where a newer release stored it."""
    return _TITLES.get(kind, kind.replace("_", " "))
