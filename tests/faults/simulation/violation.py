"""What is raised where an invariant is broken."""

from __future__ import annotations

__all__ = ["Violation"]


class Violation(AssertionError):
    pass
