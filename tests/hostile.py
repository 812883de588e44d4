"""Texts that try to break out of a page: names, IDs, keys and error messages from others."""

from __future__ import annotations

from html.parser import HTMLParser

HOSTILE = {
    "a script": "<script>alert(1)</script>",
    "an end of what is around it": "</td></style></title></svg><img src=x onerror=alert(1)>",
    "a quote": '" onmouseover="alert(1)" x=\'',
    "a comment": "--><!--<b>",
    "an entity": "&lt;b&gt; &#60;script&#62;",
    "a link": "javascript:alert(1)",
    "controls": "\x00\x01\x1b[31mred\x7f",
    "half a pair": "\ud800 and \udfff",
    "an override": "invoice\u202efdp.exe",
    "long": "x" * 100_000,
    "long once escaped": '"' * 1_000,
}


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
