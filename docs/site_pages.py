"""Adds pages from outside this folder to the site and adjusts the links to them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE")
"""Files of the root, shown on the site below ``project``."""

_OUTSIDE = re.compile(rf"\]\((?:\.\./)+({'|'.join(PAGES)})((?:#[\w-]+)?)\)")
_INSIDE = re.compile(r"\]\(docs/([^)]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name in PAGES:
        text = _INSIDE.sub(r"](../\1)", (ROOT / name).read_text("utf-8"))
        text = text.replace("(LICENSE)", "(LICENSE.md)")
        files.append(File.generated(config, f"project/{_page(name)}", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    up = "../" * page.file.src_uri.count("/")
    return _OUTSIDE.sub(lambda link: f"]({up}project/{_page(link[1])}{link[2]})", markdown)


def _page(name: str) -> str:
    return name if name.endswith(".md") else f"{name}.md"
