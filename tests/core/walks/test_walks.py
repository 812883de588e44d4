"""No decision of the core changes unnoticed: random steps lead to the recorded figures.

Record an intended change with ``PYTHONPATH=tests:. python -m tests.core.walks.walking``.
"""

from __future__ import annotations

import pytest

from tests import figures
from tests.core.walks.walking import RECORDED, WALKS, blocks, group_of, walked

FURTHER = [(name, seeds) for name in WALKS for seeds in blocks(name)[1:]]


def differences(name: str, seeds: range) -> list[str]:
    found = walked(name, seeds)
    return figures.differences(figures.groups_of(RECORDED, *found), found)


@pytest.mark.full
@pytest.mark.parametrize("name", WALKS)
def test_the_first_walks_decide_as_recorded(name):
    assert differences(name, blocks(name)[0]) == []


@pytest.mark.full
@pytest.mark.parametrize(("name", "seeds"), FURTHER, ids=[group_of(*each) for each in FURTHER])
def test_further_walks_decide_as_recorded(name, seeds):
    assert differences(name, seeds) == []


def test_each_recorded_group_is_walked():
    assert set(figures.read(RECORDED)) == {group_of(name, seeds) for name in WALKS for seeds in blocks(name)}
