"""Pages of a list by cursor, as the list endpoints of the three APIs return them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Identified(Protocol):
    """An item of a list."""

    @property
    def id(self) -> str:
        """Its identifier, used as the cursor."""


Item = TypeVar("Item", bound=Identified)


def parse_limit(text: str, most: int) -> int | None:
    """Return the page size in a query parameter; ``None`` when it is no integer from 1 to ``most``."""
    return int(text) if text.isascii() and text.isdigit() and 1 <= int(text) <= most else None


def position_of(items: Sequence[Identified], cursor: str) -> int | None:
    """Return the position of the item with this id; ``None`` when there is none."""
    return next((position for position, item in enumerate(items) if item.id == cursor), None)


def page_after(items: Sequence[Item], limit: int, after: str | None) -> tuple[list[Item], bool] | None:
    """Return one page and whether more items follow; ``None`` when the cursor is not in the list.

    The cursor is the last item of the previous page, so items that are added at the front meanwhile do not
    shift the pages.

    Args:
        items: all of them, in the order of the list.
        limit: items of a page.
        after: the id of the item before the page; ``None`` for the first page.
    """
    begin = 0
    if after is not None:
        position = position_of(items, after)
        if position is None:
            return None
        begin = position + 1
    end = begin + limit
    return list(items[begin:end]), end < len(items)
