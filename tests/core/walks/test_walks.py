"""No decision of the core or the output file changes unnoticed: random steps lead where they led before."""

from __future__ import annotations

import re

import pytest
from levels import sampled

from tests.core.walks.walking import FEW, RECORDED, WALKS, walked


def recorded(name: str) -> list[str]:
    return [line for line in RECORDED.read_text().splitlines() if re.match(rf"{name} \d", line)]


@pytest.mark.full
@pytest.mark.parametrize("name", sampled(WALKS, keep=9))
def test_walks_end_where_they_did(name: str) -> None:
    """A change that is meant is recorded with ``PYTHONPATH=tests:. python -m tests.core.walks.walking``."""
    assert walked(name, FEW.get(name)) == recorded(name)[: FEW.get(name)]


@pytest.mark.full
@pytest.mark.parametrize("name", FEW)
def test_all_walks_end_where_they_did(name: str) -> None:
    assert walked(name) == recorded(name)
