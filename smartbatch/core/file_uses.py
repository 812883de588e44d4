"""Decides which files are uploaded once and referred to by id, and puts the ids into requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from attrs import define, evolve, field, frozen

from smartbatch.media import Media
from smartbatch.types import Message, Request

MIN_USES: Final = 2
"""An upload and its deletion are additional calls, so a file sent only once is sent in its request."""
MIN_SENT_BYTES: Final = 100_000
"""A file is not uploaded if fewer bytes would be sent in total: sending them takes less time than the calls
for an upload and its deletion (0.1 s at 8 Mbit/s)."""


@frozen
class FileUse:
    """How many requests contain a file."""

    key: str  # Media.upload_key
    size: int  # bytes of the file
    uses: int
    too_large: bool = False  # a request with the file is too large for a batch

    @property
    def is_worth_uploading(self) -> bool:
        if self.too_large:
            return True
        return self.uses >= MIN_USES and self.uses * self.size >= MIN_SENT_BYTES


@define(eq=False)
class FileUses:
    """Counts the requests that contain each file, per account."""

    _of: dict[tuple[str, str], FileUse] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._of)

    def add(self, media: Media, *, account: str = "", too_large: bool = False) -> FileUse:
        at = account, media.upload_key
        before = self._of.get(at) or FileUse(media.upload_key, media.size or 0, 0)
        after = evolve(before, uses=before.uses + 1, too_large=before.too_large or too_large)
        self._of[at] = after
        return after

    def chosen(self) -> list[str]:
        """Return the keys of the files to upload, in the order of their first use."""
        return [use.key for use in self._of.values() if use.is_worth_uploading]


def local_files(request: Request) -> Iterator[Media]:
    """Yield the accepted files of a request whose content is known here, without URLs and uploaded files."""
    if isinstance(request.prompt, str):
        return
    for message in request.prompt:
        if isinstance(message.content, tuple):
            for part in message.content:
                if isinstance(part, Media) and part.sha256 is not None:
                    yield part


def _with_local_files(request: Request, change: Callable[[Media], Media]) -> Request:
    """Return ``request`` with ``change`` applied to each of :func:`local_files`."""
    if isinstance(request.prompt, str) or not any(True for _ in local_files(request)):
        return request

    def changed(message: Message) -> Message:
        if not isinstance(message.content, tuple):
            return message
        parts = (
            change(part) if isinstance(part, Media) and part.sha256 is not None else part
            for part in message.content
        )
        return evolve(message, content=tuple(parts))

    return evolve(request, prompt=tuple(map(changed, request.prompt)))


def with_file_ids(request: Request, id_of: Callable[[Media], str | None]) -> Request:
    """Return ``request`` with ids in place of the files for which ``id_of`` returns one."""

    def uploaded(media: Media) -> Media:
        return media if (file_id := id_of(media)) is None else media.uploaded(file_id)

    return _with_local_files(request, uploaded)


@define(eq=False)
class LineSizes:
    """Sizes of encoded requests. Each file is read once, however many requests contain it."""

    _added: dict[tuple[str, str | None], int] = field(factory=dict)  # bytes, by content and name

    def size_of(self, request: Request, encode: Callable[[Request], bytes]) -> int:
        small = _with_local_files(request, lambda media: media.stand_in())
        size = least = len(encode(small))
        for media in local_files(request):
            at = media.upload_key, media.name
            if at not in self._added:
                self._added[at] = (len(encode(_alone(request, at))) - least) // _times(request, at)
            size += self._added[at]
        return size


def _alone(request: Request, at: tuple[str, str | None]) -> Request:
    return _with_local_files(
        request, lambda media: media if (media.upload_key, media.name) == at else media.stand_in()
    )


def _times(request: Request, at: tuple[str, str | None]) -> int:
    return sum((media.upload_key, media.name) == at for media in local_files(request))
