"""Libraries that only some files need."""

from __future__ import annotations

from smartbatch.errors import InputError


def missing(package: str, extra: str, purpose: str) -> InputError:
    """Return the error for a library that is not installed, which says what to install."""
    return InputError(
        f"{purpose} needs {package}: pip install {package}, or the extra {extra!r} of smartbatch-llm"
    )
