"""The files of answers, written to a folder next to an output."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from attrs import field, frozen

from smartbatch._files import is_foreign_link, lock_file
from smartbatch._words import escape
from smartbatch.media import Media
from smartbatch.media_content import extension_of
from smartbatch.runs.output_file import OutputLost, replaced

MAX_NAME_CHARS: Final = 100
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")


@frozen
class AnswerFolder:
    """The folder ``NAME.files`` of the output ``NAME.jsonl``, created with the first file.

    A file is never replaced by another: an answer that was sent again may be in a copy of the output.

    Args:
        output: path of the output.
    """

    output: str
    path: str = field(init=False)

    @path.default
    def _path(self) -> str:
        return os.path.splitext(os.path.realpath(self.output))[0] + ".files"

    def write(self, name: str, files: Sequence[Media]) -> list[str]:
        """Write the files of an answer, and return their paths relative to the output.

        Args:
            name: name of the answer in the output, such as the id of its row.

        Raises:
            OutputLost: a file cannot be written.
            InvalidRequest: a file of the job is gone.
        """
        if not files:
            return []
        safe = _UNSAFE.sub("_", name).strip(".")[:MAX_NAME_CHARS] or "row"
        folder = os.path.basename(self.path)
        try:
            if is_foreign_link(self.path):
                raise OutputLost(f"{escape(self.path)}: is a symbolic link owned by another user; remove it")
            os.makedirs(self.path, exist_ok=True)
            with self._locked():
                return [f"{folder}/{self._write(f'{safe}-{at}', file)}" for at, file in enumerate(files)]
        except OSError as error:
            raise OutputLost(
                f"{escape(self.path)}: cannot be written: {error.strerror or error}; the store keeps the "
                "answers: run the same command again"
            ) from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Wait until no other output of this name, with another ending, is writing a file."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            lock_file(fd, wait=True)
            yield
        finally:
            os.close(fd)

    def _write(self, stem: str, file: Media) -> str:
        extension = extension_of(file.media_type)
        name = f"{stem}{extension}"
        if os.path.lexists(os.path.join(self.path, name)) and not self._has(name, file):
            name = f"{stem}-{(file.sha256 or '')[:16]}{extension}"
        if not self._has(name, file):
            content = file.content()
            with replaced(os.path.join(self.path, name), "writing") as target:
                target.write(content)
        return name

    def _has(self, name: str, file: Media) -> bool:
        with suppress(FileNotFoundError):
            path = os.path.join(self.path, name)
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) and found.st_size == file.size:
                with open(path, "rb") as there:
                    return hashlib.file_digest(there, "sha256").hexdigest() == file.sha256
        return False
