"""HTML: one way to escape a text and to build an element.

What is an :class:`Html` was built here, from escaped texts; every other text is escaped where it becomes part
of an element. Attributes have the names of a fixed list, no link leads to another host or runs a script, and
no script stands in a page, so no name, id or error text can add an element, an attribute or an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias, Union

_FORBIDDEN = "\ufffd"
"""In place of what is no character of a page, or would turn the text after it around."""

_ESCAPES: dict[int, str] = {
    **{code: _FORBIDDEN for code in (*range(0x20), 0x7F) if chr(code) not in "\t\n\r"},
    **dict.fromkeys(range(0xD800, 0xE000), _FORBIDDEN),  # halves of a pair, which no encoding has
    **dict.fromkeys((0x202D, 0x202E), _FORBIDDEN),  # overrides of the direction of a text
    **{ord(sign): f"&{name};" for sign, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"))},
    ord("'"): "&#x27;",
}

_VOID = frozenset(
    {"br", "hr", "img", "input", "link", "meta", "line", "circle", "rect", "polyline", "polygon"}
)
"""Elements without content."""

_ATTRIBUTES = re.compile(
    "action|autocomplete|charset|checked|class|colspan|content|data-[a-z-]+|datetime|defer|dir|disabled|download"
    "|for|hidden|href|http-equiv|id|inputmode|lang|max|maxlength|media|method|min|name|open|placeholder|rel"
    "|required|role|rowspan|sandbox|scope|selected|src|srcdoc|step|style|tabindex|title|translate|type|value"
    "|aria-(current|describedby|hidden|label|labelledby|live|sort)"
    "|cx|cy|d|dx|dy|fill|fill-opacity|font-family|font-size|font-weight|height|opacity|points"
    "|preserveAspectRatio|r|rx|stroke|stroke-(dasharray|linejoin|opacity|width)|text-anchor|transform|viewBox"
    "|width|x|x1|x2|xmlns|y|y1|y2"
)
"""Names of attributes. There is none that runs a script; ``style`` is for notebooks alone, whose own style
sheet nothing else overrules: pages have classes."""

_LINKS = frozenset({"action", "href", "src"})
_ELSEWHERE = re.compile(r"[\x00-\x20]*([a-zA-Z][a-zA-Z0-9+.\-]*:|[/\\][\x00-\x20]*[/\\])")
"""An address with a scheme or a host."""


class Html(str):
    """A text that is HTML: what is in it is escaped. Made by :func:`el` and :func:`fragment`; of a constant
    or of a file of the library also directly."""

    __slots__ = ()


Child: TypeAlias = Union[str, int, float, Iterable["Child"], None]  # noqa: UP007 - it names itself
"""What an element holds: HTML, a text, a number, nothing, or several of them."""


def escaped(text: object) -> Html:
    """Return a text as HTML."""
    return Html(str(text).translate(_ESCAPES))


def fragment(*children: Child) -> Html:
    """Return what stands one after the other, without an element around it."""
    return Html("".join(_pieces(children)))


def el(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element.

    Args:
        attributes: by their names, with ``_`` for ``-`` and ``_`` after a word of Python (``class_``,
            ``aria_label``, ``data_section``). ``None`` and ``False`` leave one out, ``True`` has no value.

    Raises:
        ValueError: an attribute that is not in the list, a link that leaves the host, or a script with text.
    """
    shown = "".join(
        f' {_attribute(name)}="{_value(_attribute(name), value)}"'
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    if tag in _VOID:
        return Html(f"<{tag}{shown}/>")
    inside = fragment(*children)
    if tag == "script" and inside:
        raise ValueError("a script is a file of its own")
    return Html(f"<{tag}{shown}>{inside}</{tag}>")


def _pieces(children: Iterable[Child]) -> Iterable[str]:
    for child in children:
        if isinstance(child, Html):
            yield child
        elif isinstance(child, str | int | float):
            yield escaped(child)
        elif child is not None:
            yield from _pieces(child)


@lru_cache(maxsize=256)
def _attribute(name: str) -> str:
    found = name.rstrip("_").replace("_", "-")
    if not _ATTRIBUTES.fullmatch(found):
        raise ValueError(f"no attribute {found!r}")
    return found


def _value(name: str, value: str | int | float | bool) -> str:
    if value is True:
        return ""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if name in _LINKS and _ELSEWHERE.match(text):
        raise ValueError(f"{name} leads to another host or scheme: {text[:80]!r}")
    return escaped(text)
