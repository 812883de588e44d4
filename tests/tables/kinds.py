"""Tables of each supported kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Rows = list[dict[str, Any]]


def _arrow(rows: Rows) -> Any:
    return pytest.importorskip("pyarrow").Table.from_pylist(rows)


def _datasets(rows: Rows) -> Any:
    """Return a dataset whose rows are selected from a larger one in another order."""
    shuffled = pytest.importorskip("datasets").Dataset.from_list([*rows[::-1], *rows])
    return shuffled.select(range(len(rows) - 1, -1, -1))


TABLES: dict[str, Callable[[Rows], Any]] = {
    "rows": lambda rows: [dict(row) for row in rows],
    "pandas": lambda rows: pytest.importorskip("pandas").DataFrame(rows),
    "polars": lambda rows: pytest.importorskip("polars").DataFrame(rows),
    "arrow": _arrow,
    "record batch": lambda rows: _arrow(rows).to_batches()[0],
    "datasets": _datasets,
}
