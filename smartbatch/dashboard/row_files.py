"""Files of the rows of an output: those that columns of the input name, and those in answers.

A request for a file contains a row, a column and a number, never a path. Only images of a few types are
shown; other files are sent as downloads.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import field, frozen

from smartbatch._words import size
from smartbatch.dashboard.page import Query, number_of
from smartbatch.dashboard.web_application import Refused, Response
from smartbatch.errors import SmartbatchError
from smartbatch.media import Media, returned_file
from smartbatch.media_content import BROWSER_IMAGES, PDF, PLAIN_TEXT, extension_of
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.runs.answer_files import AnswerFolder
from smartbatch.tables.cells import BadField
from smartbatch.tables.file_cells import FileColumns
from smartbatch.views.model import Facts, Link, Thumbnail, Value

MAX_SHOWN_BYTES: Final = 50 * 2**20  # larger files are named only
_THUMBNAIL_PIXELS: Final = 240  # maximum width and height
_DOWNLOAD_TYPES: Final[Mapping[str | None, str]] = {PDF: PDF, PLAIN_TEXT: "text/plain; charset=utf-8"}
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]+")
_HASH: Final = re.compile(r"sha256:[0-9a-f]{64}")  # takes the place of bytes in an output


@frozen
class RowFiles:
    """The files of an output's rows.

    Args:
        output: its path. Files of answers are in the folder ``NAME.files`` next to it.
        columns: the columns of the input with files.
    """

    output: str
    columns: FileColumns | None = None
    _folder: Path = field(init=False)

    @_folder.default
    def _folder_of_output(self) -> Path:
        return Path(AnswerFolder(self.output).path)

    def part(self, row: RecordedRow, position: int, query: Query) -> Facts | None:
        """Return the files of a row, as thumbnails and links; ``None`` if it has none."""
        shown = []
        for name in self._names(row):
            values = self._values(row, name, position, query)
            if values:
                shown.append((name or "answer", values))
        return Facts(tuple(shown), "Files") if shown else None

    def response(self, row: RecordedRow, query: Query) -> Response:
        """Return the file that a request names by column (none for those of the answer) and number.

        Raises:
            Refused: the row has no such file, or it cannot be read.
        """
        name, number = query.values.get("column"), number_of(query.values.get("number"))
        try:
            found = self._read(row, name) if name in self._names(row) else []
            if number is None or number >= len(found) or _is_named_only(found[number]):
                raise Refused("404 Not Found", "There is no such file.")
            content = found[number].content()
        except SmartbatchError:
            raise Refused("404 Not Found", "The file is missing or has changed.") from None
        headers: tuple[tuple[str, str], ...] = (("Cache-Control", "no-store"),)
        kind = found[number].media_type
        if kind not in BROWSER_IMAGES:
            file = f"row-{row.index}-{_UNSAFE.sub('_', name or 'answer')[:80]}-{number}"
            disposition = f'attachment; filename="{file}{extension_of(kind)}"'
            headers += (("Content-Disposition", disposition),)
            kind = _DOWNLOAD_TYPES.get(kind, "application/octet-stream")
        return Response(kind=kind, body=iter([content]), headers=headers)

    def _names(self, row: RecordedRow) -> list[str | None]:
        """Return the columns with files; ``None`` stands for the answer."""
        kinds = () if self.columns is None else self.columns.kinds
        return [*(name for name in kinds if name in row.input), *((None,) if row.files else ())]

    def _read(self, row: RecordedRow, name: str | None) -> list[Media]:
        """Return the files in a column, or of the answer, in order.

        Raises:
            BadField: a file cannot be read, or is not below its folder.
        """
        if name is None:
            return list(map(self._answer_file, row.files))
        assert self.columns is not None
        cell = row.input[name]
        if isinstance(cell, str) and _HASH.fullmatch(cell):
            raise BadField("given as bytes, of which the output has only the hash")
        return self.columns.read(name, cell)

    def _answer_file(self, name: str) -> Media:
        with suppress(OSError, ValueError, RuntimeError):  # a null byte, or links in a circle
            path = (self._folder.parent / name).resolve()
            if path.is_relative_to(self._folder.resolve()):
                found = path.stat()
                if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_SHOWN_BYTES:
                    return returned_file(path.read_bytes())
        raise BadField(f"cannot be shown: {name}")

    def _values(self, row: RecordedRow, name: str | None, position: int, query: Query) -> tuple[Value, ...]:
        try:
            found = self._read(row, name)
        except BadField as error:
            return (error.message,)
        return tuple(self._shown(found, name, position, query))

    def _shown(self, files: list[Media], name: str | None, position: int, query: Query) -> Iterator[Value]:
        for number, file in enumerate(files):
            if _is_named_only(file):
                yield file.url or f"{size(file.size or 0)}, too large to be shown"
                continue
            label = f"{name or 'answer'} {number}" if len(files) > 1 else name or "answer"
            href = query.link("file", row=position, column=name, number=number)
            if file.media_type in BROWSER_IMAGES:
                yield Thumbnail(label, href, *_fitted(file))
            else:
                yield Link(f"{label} ({file.media_type}, {size(file.size or 0)})", href, is_download=True)


def _is_named_only(file: Media) -> bool:
    return file.size is None or file.size > MAX_SHOWN_BYTES


def _fitted(file: Media) -> tuple[int, int]:
    width, height = file.width or _THUMBNAIL_PIXELS, file.height or _THUMBNAIL_PIXELS
    factor = min(1.0, _THUMBNAIL_PIXELS / max(width, height))
    return max(1, round(width * factor)), max(1, round(height * factor))
