"""The output of a notebook's cell; programs that show none import no engine of templates."""

from __future__ import annotations

from smartbatch.views.model import View


def in_cell(view: View) -> str:
    """Return a view for the output of a cell."""
    from smartbatch.views.html import notebook

    return notebook(view)
