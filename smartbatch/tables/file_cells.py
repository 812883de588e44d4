"""Cells of a table that name or contain the files of its prompts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from attrs import evolve, frozen

from smartbatch.errors import InvalidRequest
from smartbatch.media import MEDIA_CLASSES, Image, Media, kind_of_file
from smartbatch.media_content import MediaKind
from smartbatch.tables.cells import BadField, MissingFields, is_missing

if TYPE_CHECKING:
    from smartbatch.tables.fetched_files import FetchedFiles

FILE_OPTIONS: Final = ("files", "files_root", "fetch_to", "max_pixels")
"""The keywords for columns with files; see :meth:`FileColumns.given`."""
_MAX_SHOWN_CHARACTERS: Final = 300  # of a path in an error
_LIST: Final = re.compile(r"""\s*\[(\s*["'\[]|.*\]\s*$)""", re.DOTALL)  # what was probably meant as a list
_ADDRESS: Final = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://|(?P<other>data|file|mailto):", re.IGNORECASE)


class MissingFile(MissingFields):
    """A cell names a file that does not exist. The error has its path."""

    @property
    def reason(self) -> str:
        return "missing file " + ", ".join(f"`{name}`" for name in self.names)


@frozen
class FileColumns:
    """The columns of a table whose cells are files.

    A cell contains a path, an https URL, bytes, or a list of these, which may be written as JSON. As in
    Hugging Face ``datasets``, it may also be a mapping with ``bytes`` or ``path``. A blank cell has no file.

    A table may come from a stranger, so each path must lie below a folder, even after links are resolved.

    Attributes:
        kinds: the kind of files in each of these columns.
        root: the folder; relative paths start there.
        fetched: the files at URLs; ``None`` if the provider reads URLs.
        max_pixels: see :class:`~smartbatch.Image`.
    """

    kinds: Mapping[str, MediaKind]
    root: Path
    fetched: FetchedFiles | None = None
    max_pixels: int | None = None

    @classmethod
    def given(
        cls,
        files: Any = None,
        files_root: str | PathLike[str] | None = None,
        fetch_to: str | PathLike[str] | None = None,
        max_pixels: int | None = None,
    ) -> Self | None:
        """Check the keywords of a caller; return ``None`` if there are no columns with files.

        Args:
            files, files_root, fetch_to, max_pixels: see :class:`~smartbatch.keywords.TableParams`.

        Raises:
            InvalidRequest: a kind is unknown, the folder does not exist, or an option has no effect.
        """
        if files is None:
            for name, value in (
                ("files_root", files_root),
                ("fetch_to", fetch_to),
                ("max_pixels", max_pixels),
            ):
                if value is not None:
                    raise InvalidRequest(f"{name} needs files, such as {{'photo': 'image'}}", field=name)
            return None
        root = os.curdir if files_root is None else files_root
        if not (isinstance(files, Mapping) and files and all(isinstance(name, str) for name in files)):
            raise InvalidRequest("files must be a dict such as {'photo': 'image'}", field="files")
        for name, kind in files.items():
            if not isinstance(kind, str) or kind not in MEDIA_CLASSES:
                raise InvalidRequest(
                    f"the files in {name!r:.80} must be of the kind image, document or audio, not "
                    f"{kind!r:.40}",
                    field="files",
                )
        if not os.path.isdir(root):
            raise InvalidRequest(
                f"the folder of the files, {os.fspath(root)!r}, does not exist", field="files_root"
            )
        if max_pixels is not None:
            Image(b"", max_pixels=max_pixels)  # checks the number
            if Image.kind not in files.values():
                raise InvalidRequest("max_pixels needs a column with images", field="max_pixels")
        fetched = None
        if fetch_to is not None:
            # imported late, because few tables need TLS
            from smartbatch.tables.fetched_files import FetchedFiles

            fetched = FetchedFiles(Path(fetch_to).absolute())
        return cls(dict(files), Path(root).resolve(), fetched, max_pixels)

    def __contains__(self, name: str) -> bool:
        return name in self.kinds

    def read(self, name: str, cell: Any) -> list[Media]:
        """Return the files of a cell, in order, after examining their content.

        Raises:
            MissingFile: there is no such file.
            BadField: a file cannot be read, is of another kind or not below the folder, or the cell contains
                something else.
        """
        field = f"field {name!r}"
        try:
            found = (self._local(name, self._file(name, value)) for value in _values_in(cell))
            return [self._scaled(name, media).accepted(field) for media in found]
        except InvalidRequest as error:
            raise BadField(error.message if field in error.message else f"{field}: {error.message}") from None

    def without_content(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a row with hashes in place of the bytes of files."""
        return {name: _hashed(value) if name in self else value for name, value in row.items()}

    def _file(self, name: str, value: Any) -> Media:
        kind = self.kinds[name]
        if isinstance(value, PathLike):
            value = os.fsdecode(value)
        if isinstance(value, str):
            value = self._source(name, value)
        if not isinstance(value, Media):
            return MEDIA_CLASSES[kind](value)
        if value.kind != kind:
            raise BadField(f"field {name!r} is a file of the kind {value.kind}, not {kind}")
        return value

    def _local(self, name: str, media: Media) -> Media:
        """Return a fetched file in place of its URL, if URLs are fetched."""
        if self.fetched is None or media.url is None:
            return media
        from smartbatch.tables.fetched_files import NotFetched

        try:
            path = self.fetched.path_of(media.url)
        except NotFetched as error:
            message = f"field {name!r}: {media.described()} cannot be fetched: {error}"
            raise MissingFile(message, names=[name]) if error.is_gone else BadField(message) from None
        return type(media)(path).accepted(f"field {name!r}, {media.described()},")

    def _scaled(self, name: str, media: Media) -> Media:
        if self.max_pixels is None or not isinstance(media, Image) or media.max_pixels is not None:
            return media
        if media.url is not None:
            raise BadField(
                f"field {name!r}: {media.described()} cannot be scaled unless it is fetched: set fetch_to "
                "(--fetch-to), or leave out max_pixels"
            )
        return evolve(media, max_pixels=self.max_pixels)

    def _source(self, name: str, text: str) -> str:
        """Return an https URL unchanged, and the resolved path of a file below the folder."""
        if (address := _ADDRESS.match(text)) is not None:
            scheme = (address["scheme"] or address["other"]).lower()
            if scheme != "https":
                raise BadField(
                    f"field {name!r} is an address of the kind {scheme}:, but only https URLs and paths are "
                    "accepted"
                )
            return scheme + text[len(scheme) :]
        shown = repr(text[:_MAX_SHOWN_CHARACTERS])
        try:
            path = (self.root / text).resolve()
            is_below = path.is_relative_to(self.root)
            if is_below:
                path.stat()
        except (OSError, ValueError, RuntimeError) as error:
            if _LIST.match(text) and (flaw := _list_flaw(text)) is not None:
                raise BadField(
                    f"field {name!r} begins like a list, but is neither valid JSON ({flaw}) nor the path of "
                    'a file; write a list as ["a.png", "b.png"]'
                ) from None
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                # too long, a null byte, or links in a circle
                reason = getattr(error, "strerror", None) or error
                raise BadField(f"field {name!r}: the file {shown} cannot be read ({reason})") from None
            message = f"field {name!r}: there is no file {str(path)[:_MAX_SHOWN_CHARACTERS]!r}"
            if text.lstrip().startswith("["):
                message += ', and it is not a list such as ["a.png", "b.png"]'
            raise MissingFile(message, names=[name]) from None
        if not is_below:
            raise BadField(
                f"field {name!r}: the file {shown} is not below {str(self.root)!r}, the folder of the files"
            )
        return str(path)


def check_is_text(name: str, value: Any) -> None:
    """Reject a field that contains a file, which text cannot contain.

    Raises:
        BadField: says how to send it as a file.
    """
    unchecked = [value]
    while unchecked:
        one = unchecked.pop()
        if isinstance(one, list | tuple):
            unchecked += one
        elif isinstance(one, Mapping):
            unchecked += one.values()
        elif (kind := kind_of_file(one)) is not None:
            what = "bytes" if isinstance(one, bytes | bytearray | memoryview) else f"a file ({kind})"
            raise BadField(
                f"field {name!r} contains {what}, which cannot be inserted as text: set files={{{name!r}: "
                f"{kind!r}}} (--file {name}={kind}) to put the file into the prompt"
            )


def rejecting_files(name: str, value: Any) -> Any:
    """Return a field whose files raise the error of :func:`check_is_text` when they are read or written."""
    try:
        check_is_text(name, value)
    except BadField as error:
        return _rejecting(value, error)
    return value


def _rejecting(value: Any, error: BadField) -> Any:
    if isinstance(value, list | tuple):
        return [_rejecting(one, error) for one in value]
    if isinstance(value, Mapping):
        return {name: _rejecting(one, error) for name, one in value.items()}
    return value if kind_of_file(value) is None else _UnwritableFile(error)


class _UnwritableFile:
    def __init__(self, error: BadField) -> None:
        self._error = error

    def __getattr__(self, _name: str) -> Any:
        raise self._error

    def __getitem__(self, _place: Any) -> Any:  # loops and filters for lists call it too
        raise self._error

    def __repr__(self) -> str:
        raise self._error


def _values_in(cell: Any) -> Iterator[Any]:
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            cell = json.loads(cell)
    for value in cell if isinstance(cell, list | tuple) else [cell]:
        if isinstance(value, Mapping) and not value.keys().isdisjoint(("bytes", "path")):
            value = value.get("path") if value.get("bytes") is None else value["bytes"]
        if not (is_missing(value) or (isinstance(value, str) and not value.strip())):
            yield value


def _list_flaw(text: str) -> str | None:
    """Return why a string that begins like a list cannot be read; ``None`` for any other string."""
    if not text.lstrip().startswith("["):
        return None
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return f"{error.msg}, character {error.pos + 1}"
    except (ValueError, RecursionError):
        return "it is nested too deeply, or has too long a number"
    return None


def _hashed(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"sha256:{hashlib.sha256(value).hexdigest()}"
    if isinstance(value, list):
        return [_hashed(each) for each in value]
    return {name: _hashed(each) for name, each in value.items()} if isinstance(value, dict) else value
