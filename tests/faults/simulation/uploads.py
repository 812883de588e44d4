"""Files in the prompts of a simulated job, and the provider's files, to which requests refer by id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.ledger import Ledger
from smartbatch.media import Document, Media
from smartbatch.providers.file_api import FileAbilities, FileApi, RemoteUpload
from smartbatch.types import Message, Request
from tests.faults.simulation.crash_points import Crash, Violation

if TYPE_CHECKING:
    from tests.faults.simulation.simulated_remote import SimApi

FILES = 3
_PURPOSE = "user_data"


class JobFiles:
    """The files of a job, each in every third request."""

    def __init__(self, folder: Path) -> None:
        self.media: list[Media] = []
        for number in range(FILES):
            path = folder / f"{number}.pdf"
            path.write_bytes(b"%%PDF-1.7 %d" % number)
            self.media.append(Document(path).accepted("prompt"))

    def request(self, number: int, prompt: str) -> Request:
        text = {"type": "text", "text": prompt}
        return Request((Message("user", (text, self.media[number % FILES])),))

    def keys(self) -> list[str]:
        return [media.upload_key for media in self.media]

    def check_end(self, ledger: Ledger) -> None:
        """I13: no file is uploaded twice, and none is left."""
        uploads = [file for file in ledger.files if file.purpose == _PURPOSE]
        whole = {media.sha256 for media in self.media}
        times = Counter(file.sha256 for file in uploads if file.sha256 in whole)
        if max(times.values(), default=0) > 1:
            raise Violation("I13 a file was uploaded twice")
        if left := [file.name for file in uploads if file.deleted_at is None]:
            raise Violation(f"I13 {len(left)} uploads are left")


def text_of(request: Request) -> str:
    """Return the text of a request, with or without a file."""
    if isinstance(request.prompt, str):
        return request.prompt
    part = request.prompt[0].content[0]
    assert isinstance(part, Mapping)
    return str(part["text"])


def file_of(request: Request) -> Mapping[str, str]:
    """Return the field of a line that refers to an uploaded file."""
    if isinstance(request.prompt, str):
        return {}
    media = request.prompt[0].content[1]
    assert isinstance(media, Media)
    return {} if media.file_id is None else {"file": media.file_id}


def check_files(
    backend: BatchBackend, api: str, key: str, lines: Sequence[Mapping[str, str]], now: float
) -> None:
    """I13: a batch refers only to files that are there."""
    for line in lines:
        if "file" in line and backend.file(api, key, line["file"], now) is None:
            raise Violation("I13 a batch refers to a file that is not there")


class SimFiles(FileApi):
    """Files for prompts; calls fail and crash like those of :class:`.SimApi`."""

    abilities = FileAbilities(max_bytes=1000)

    def __init__(self, api: SimApi) -> None:
        self.scope = api.scope
        self._api = api

    def takes(self, media: Media) -> bool:
        return True

    def upload(self, name: str, media_type: str, content: bytes, timeout: float) -> RemoteUpload:
        self._api.change("file_upload")
        self._api.check_storage()
        try:
            self._api.network.points.reach("file_upload.part")
        except Crash:
            if self._api.network.rng.random() < 0.5:
                self._put(name, content[: len(content) // 2])
            raise
        found = self._put(name, content)
        self._api.answer("file_upload")
        return found

    def find(self, name: str, timeout: float) -> RemoteUpload | None:
        self._api.look("find_upload")
        found = [file for file in self._backend.files(*self._account) if file.name == name]
        return RemoteUpload(found[0].id, size=len(found[0].data)) if found else None

    def delete(self, file_id: str, timeout: float) -> None:
        self._api.network.check_upload_deletion(file_id)
        self._api.change("delete_upload")
        backend, (api, key, now) = self._backend, self._account
        backend.delete_file(api, key, file_id, now)
        self._api.answer("delete_upload")

    @property
    def _backend(self) -> BatchBackend:
        return self._api.network.backend

    @property
    def _account(self) -> tuple[str, str, float]:
        return self._api.network.flavour.api, self._api.key, self._api.network.clock.now()

    def _put(self, name: str, content: bytes) -> RemoteUpload:
        api, key, now = self._account
        file = self._backend.put_file(api, key, name, content, now, purpose=_PURPOSE)
        return RemoteUpload(file.id, size=len(content))
