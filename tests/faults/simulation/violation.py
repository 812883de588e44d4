"""What is raised where an invariant is broken."""

from __future__ import annotations


class Violation(AssertionError):
    pass
