"""Documents of HTML and the parts that all pages have: sections, tables, facts, bars of progress.

A document has no address of another host. Its style sheet (``style.css``, to which the dashboard adds its
own) stands in its head, and the policy names its hash and allows nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files

from smartbatch._html import Child, Html, el, fragment

NUMBER = "n"
"""Class of cells that stand at the right, with digits of one width."""


@cache
def style_sheet() -> str:
    """Return the style sheet of all pages: colours in light and dark, tables, charts, print."""
    return files("smartbatch.reports").joinpath("style.css").read_text("utf-8")


def document(title: str, *body: Child, head: Child = None) -> Html:
    """Return a whole document; ``head`` comes after what each one needs."""
    return fragment(
        Html("<!doctype html>\n"),
        el(
            "html",
            el(
                "head",
                el("meta", charset="utf-8"),
                el("meta", name="viewport", content="width=device-width, initial-scale=1"),
                el("meta", name="color-scheme", content="light dark"),
                el("title", title),
                head,
            ),
            el("body", body),
            lang="en",
        ),
        "\n",
    )


def standalone(title: str, *body: Child) -> Html:
    """Return a document that is one file: its style sheet is in it, and nothing else is loaded or run."""
    styles = style_sheet()
    policy = f"default-src 'none'; style-src {source_of(styles)}; base-uri 'none'; form-action 'none'"
    head = fragment(
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="referrer", content="no-referrer"),
        el("style", Html(styles)),
    )
    return document(title, body, head=head)


def source_of(styles: str) -> str:
    """Return how a policy allows a style sheet that stands in the document, and no other."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(styles.encode()).digest()).decode()}'"


def section(name: str, title: str, *body: Child) -> Html:
    """Return a section of a page with its heading; ``name`` is its id."""
    return el("section", el("h2", title, id=f"{name}-title"), body, id=name, aria_labelledby=f"{name}-title")


def facts(rows: Iterable[tuple[str, Child]]) -> Html:
    """Return names with what they are."""
    return el("dl", (el("div", el("dt", name), el("dd", what)) for name, what in rows), class_="facts")


def table(
    caption: str,
    head: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    numbers: Sequence[int] = (),
    chosen: int | None = None,
) -> Html:
    """Return a table that scrolls by itself where the screen is narrow.

    Args:
        caption: what it shows, for those who do not see the heading next to it.
        numbers: columns that stand at the right.
        chosen: the position of a row that is marked; its first cell says so in words, too.
    """
    kinds = [NUMBER if at in numbers else None for at in range(len(head))]
    titles = (el("th", name, scope="col", class_=kind) for name, kind in zip(head, kinds, strict=True))
    lines = (
        el(
            "tr",
            (el("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)),
            class_="chosen" if at == chosen else None,
        )
        for at, row in enumerate(rows)
    )
    whole = el("table", el("caption", caption), el("thead", el("tr", titles)), el("tbody", lines))
    return scrolling(caption, whole)


def scrolling(label: str, *content: Child, from_end: bool = False) -> Html:
    """Return a part that scrolls by itself where it is wider than the screen, also by keyboard.

    Args:
        from_end: its right end is seen first.
    """
    kind = "scroll from-end" if from_end else "scroll"
    return el("div", content, class_=kind, tabindex=0, role="region", aria_label=label)


def progress(label: str, done: float, total: float) -> Html:
    """Return a bar that is filled as far as ``done`` of ``total``, with its share in words."""
    share = min(max(done / total, 0.0), 1.0) if total > 0 else 0.0
    words = f"{share:.0%}"
    return el(
        "span",
        el("progress", words, value=round(share, 4), max=1, aria_label=label),
        " ",
        words,
        class_="progress",
    )


def state(name: str, kind: str = "") -> Html:
    """Return a state in words; ``kind`` (``good``, ``bad``, ``warn`` or none) adds a sign and a colour."""
    return el("span", name, class_=f"state {kind}".strip())
