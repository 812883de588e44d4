"""What tests of the dashboard share: a store with jobs, and somebody who looks at it."""

from __future__ import annotations

import pytest

from smartbatch.dashboard import app
from tests.dashboard.visits import LOCAL, Visitor
from tests.jobs.stores import Bench


@pytest.fixture
def shelf(tmp_path):
    made = Bench("sqlite", str(tmp_path / "jobs.db"), tmp_path)
    yield made
    made.close()


@pytest.fixture
def opened(shelf):
    return shelf.open()


@pytest.fixture
def visitor(shelf):
    return Visitor(app(store=shelf.place, shared="off", access=LOCAL))


@pytest.fixture
def reader_of(shelf):
    def make(*, show_content: bool = False) -> Visitor:
        board = app(store=shelf.place, shared="off", access=lambda environ: "read", show_content=show_content)
        return Visitor(board)

    return make
