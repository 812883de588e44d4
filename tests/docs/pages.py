"""Reads the pages: fenced blocks, headings, links, and the marker of a block that is not run.

What becomes of a block is told by its language:

* ``python`` is executed; the blocks of a page share one namespace and one folder. A first line such as
  ``# calls.py`` also saves the block under that name. On a page with ``def test_…`` all of it goes to pytest.
* ``output`` is what the block before it prints.
* ``bash`` and ``console`` are run as a script; in ``console`` the commands begin with ``$`` and the rest is
  what they print. Steps that install something are left out; see :data:`INSTALLS`.
* ``toml`` is loaded as settings, ``json`` is parsed line by line.
* ``text`` is drawn, a formula, or a command that takes too long to be run; it shows no output.

``<!-- not run: reason -->`` before a block keeps it from being run; such blocks are counted.
"""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).parents[2]
LANGUAGES = ("python", "output", "bash", "console", "toml", "yaml", "json", "text")
INSTALLS = re.compile(r"(?:python3 -m venv|\.venv/bin/pip|uv|\.venv/bin/pytest|\. \.venv/bin/activate)\b.*")

_FENCE = re.compile(r"^( *)```(\S*)$")
_MARKER = re.compile(r"<!-- not run: (.+) -->")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@frozen
class Block:
    """One fenced block.

    Attributes:
        language: the word after the fence.
        line: one-based line of the page on which the text begins.
        text: its lines, each with its end.
        not_run: the reason it is not run, or ``None``.
    """

    language: str
    line: int
    text: str
    not_run: str | None = None


@frozen
class Page:
    name: str
    text: str

    @property
    def path(self) -> Path:
        return ROOT / self.name

    def blocks(self) -> list[Block]:
        found: list[Block] = []
        lines = self.text.splitlines(keepends=True)
        number, before = 0, ""
        while number < len(lines):
            opening = _FENCE.match(lines[number].rstrip())
            number += 1
            if opening is None:
                before = lines[number - 1].strip() or before
                continue
            indent, language = opening.groups()
            begin = number
            while lines[number].rstrip() != f"{indent}```":
                number += 1
            text = "".join(line.removeprefix(indent) for line in lines[begin:number])
            marker = _MARKER.fullmatch(before)
            found.append(Block(language, begin + 1, text, marker.group(1) if marker else None))
            number, before = number + 1, ""
        return found

    def prose(self) -> str:
        return re.sub(r"^( *)```.*?^\1```$", "", self.text, flags=re.DOTALL | re.MULTILINE)

    def anchors(self) -> set[str]:
        headings = re.findall(r"^#+ +(.+)$", self.prose(), re.MULTILINE)
        return {
            re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()).replace(" ", "-")
            for heading in headings
        }

    def links(self) -> list[str]:
        """Return the targets of links within the project."""
        return [link for link in _LINK.findall(self.prose()) if not re.match(r"[a-z]+:", link)]


def pages() -> list[Page]:
    own = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
    paths = [*(ROOT / name for name in own), *sorted((ROOT / "docs").rglob("*.md"))]
    return [Page(path.relative_to(ROOT).as_posix(), path.read_text("utf-8")) for path in paths]


def shell_script(block: Block) -> tuple[str, list[str]]:
    """Return the script of a shell block, without installation steps, and the lines it shows."""
    script: list[str] = []
    shown: list[str] = []
    going_on = False
    for line in block.text.splitlines():
        command = block.language == "bash" or line.startswith("$ ") or going_on
        if command:
            script.append(line.removeprefix("$ "))
            going_on = line.endswith("\\")
        else:
            shown.append(line)
    steps = "\n".join(script).replace("\\\n", " ").split("\n")
    kept = [
        " && ".join(part for part in step.split(" && ") if not INSTALLS.fullmatch(part.strip()))
        for step in steps
    ]
    return "\n".join(step for step in kept if step), shown
