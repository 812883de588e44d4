"""OpenAI's Files API, for files in prompts: purpose ``user_data``.

Sources: OpenAI's API reference for files and its guides to images and file inputs (November 2026): 512 MB per
file, 50 MB of documents in a request; an expiry of one hour to 30 days. The chat API takes the ids of PDFs,
the responses API also those of images. The model sees the name of an uploaded file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from attrs import evolve

from smartbatch.media import Document, Image, Media
from smartbatch.media_content import PDF, PLAIN_TEXT
from smartbatch.providers.batch_api import RemoteFile
from smartbatch.providers.error_reader import ErrorReader, error_in
from smartbatch.providers.file_api import LIFETIME_SECONDS, FileAbilities, FileApi, RemoteUpload
from smartbatch.providers.http.batch_calls import CheckedCalls
from smartbatch.providers.http.content import file_form
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.batch_files import FileCalls, read_file
from smartbatch.providers.openai.dialect import OPENAI
from smartbatch.providers.openai.parts import IMAGE_TYPES

if TYPE_CHECKING:
    from smartbatch.providers.http.requests_bridge import RequestsSession


class OpenAIFiles(FileApi):
    """OpenAI's Files API for prompts.

    Args:
        uploads: whether files are uploaded. Earlier uploads can be found and deleted in any case.
    """

    abilities = FileAbilities(max_bytes=512_000_000, lifetime=LIFETIME_SECONDS)

    def __init__(
        self,
        session: Callable[[], RequestsSession],
        errors: ErrorReader,
        *,
        scope: str,
        api: Literal["chat", "responses"],
        uploads: bool,
    ) -> None:
        self.scope = scope
        self._uploads = uploads
        self._api = api
        self._session = session
        self._calls = CheckedCalls(errors, _is_refusal)
        self._files = FileCalls(session, errors, self._calls, evolve(OPENAI, purpose="user_data"))

    def takes(self, media: Media) -> bool:
        """A file with a ``name`` is sent in its requests, because its upload has another name."""
        if not self._uploads:
            return False
        if isinstance(media, Image):
            return self._api == "responses" and media.sent_type in IMAGE_TYPES
        if not isinstance(media, Document) or media.name is not None:
            return False
        return media.media_type == PDF or (self._api == "responses" and media.media_type == PLAIN_TEXT)

    def upload(self, name: str, media_type: str, content: bytes, timeout: float) -> RemoteUpload:
        fields = {
            "purpose": "user_data",
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": str(LIFETIME_SECONDS),
        }
        form, content_type = file_form(fields, name, media_type, content)
        headers = {"Content-Type": content_type}
        reply = self._session().ask("POST", "/files", timeout, data=form, headers=headers)
        return _uploaded(read_file(self._calls.decoded(reply)))

    def find(self, name: str, timeout: float) -> RemoteUpload | None:
        found = self._files.find((name,), timeout)
        return None if found is None else _uploaded(found)

    def delete(self, file_id: str, timeout: float) -> None:
        self._files.delete(file_id, timeout)


def _uploaded(file: RemoteFile) -> RemoteUpload:
    return RemoteUpload(file.id, file.expires_at, file.size, file.ready)


def _is_refusal(reply: Reply) -> bool:
    return bool(error_in(reply.json()))
