"""What tests of the dashboard share: a store with jobs, and somebody who looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smartbatch.dashboard import app
from smartbatch.jobs.store import SqlStore
from tests.dashboard.visits import LOCAL, Visitor
from tests.jobs.stores import Bench


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Bench]:
    made = Bench("sqlite", str(tmp_path / "jobs.db"), tmp_path)
    yield made
    made.close()


@pytest.fixture
def opened(shelf: Bench) -> SqlStore:
    return shelf.open()


@pytest.fixture
def visitor(shelf: Bench) -> Visitor:
    return Visitor(app(store=shelf.place, shared="off", access=LOCAL))


@pytest.fixture
def reader_of(shelf: Bench) -> Callable[..., Visitor]:
    def make(*, show_content: bool = False) -> Visitor:
        board = app(store=shelf.place, shared="off", access=lambda environ: "read", show_content=show_content)
        return Visitor(board)

    return make
