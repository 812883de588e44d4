from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai_batch_world import Customer
from raw_client import RawClient

from smartbatch.testing import Emulator, emulator


@pytest.fixture
def emu() -> Iterator[Emulator]:
    with emulator(hang_seconds=0.05) as running:
        yield running


@pytest.fixture
def raw(emu: Emulator) -> Iterator[RawClient]:
    with RawClient(emu.port) as client:
        yield client


@pytest.fixture
def customer(emu: Emulator) -> Iterator[Customer]:
    with Customer(emu) as made:
        yield made
