"""Selects which of many similar cases the default run includes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

__all__ = ["sampled"]


def sampled(cases: Iterable[Any], *, keep: int = 1, first: int = 0) -> list[Any]:
    """Return parameters for ``pytest.mark.parametrize``, of which the default run includes ``keep``.

    Those are spread evenly over the cases, starting at ``first``; the others are marked ``full``. A case for
    several names is a tuple.
    """
    listed = list(cases)
    kept = {(first + place * len(listed) // keep) % len(listed) for place in range(keep)}
    return [case if at in kept else _full(case) for at, case in enumerate(listed)]


def _full(case: Any) -> ParameterSet:
    if isinstance(case, ParameterSet):
        return pytest.param(*case.values, marks=[*case.marks, pytest.mark.full], id=case.id)
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.full)
