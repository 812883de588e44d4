"""The world of a fault test."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from tests.faults.world import World, world


@pytest.fixture
def provider():
    return "openai"


@pytest.fixture
def new_world(provider, tmp_path):
    """Makes a world, and checks at the end that nothing was paid for twice."""
    with ExitStack() as stack:

        def new(*, may_pay_twice: bool = False, **settings: Any) -> World:
            made = stack.enter_context(world(provider, tmp_path, **settings))
            stack.callback(lambda: _check(made, may_pay_twice=may_pay_twice))
            return made

        yield new


def _check(made: World, *, may_pay_twice: bool) -> None:
    assert may_pay_twice or not made.emu.ledger.paid_twice(excluding_lost=False)
