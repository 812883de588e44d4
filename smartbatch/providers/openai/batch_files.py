"""Files of OpenAI and its variants: search and deletion, and the upload of batch inputs."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.batch_api import BatchApi, RemoteFile
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import fields, plain, unusable, whole
from smartbatch.providers.http.batch_calls import BatchCalls, CheckedCalls, followed
from smartbatch.providers.http.content import SpooledBody, upload_form
from smartbatch.providers.http.replies import LiveReply, Reply
from smartbatch.providers.openai.batch_reader import MAX_PAGES, endless, next_page, plain_id, quoted
from smartbatch.providers.openai.dialect import BatchDialect

if TYPE_CHECKING:
    from smartbatch.providers.http.requests_bridge import RequestsSession

_FILES = "/files"
_INPUT_SUFFIX = ".jsonl"  # required in the names of batch inputs
_UNREADY = ("pending", "queued", "running", "processing")  # Azure checks a file before it can be used


@frozen
class FileCalls:
    """Finds and deletes files with the purpose of ``dialect``."""

    session: Callable[[], RequestsSession]
    errors: ErrorReader
    calls: CheckedCalls
    dialect: BatchDialect

    def find(self, names: Collection[str], timeout: float) -> RemoteFile | None:
        """Search the account's files, from the newest to the oldest if the host sorts them."""
        query = dict(self.dialect.files_query)
        if "purpose" in query:
            query["purpose"] = self.dialect.purpose
        deadline = time.monotonic() + timeout
        current: str | None = None
        for _ in range(MAX_PAGES):
            if current is not None:
                query[self.dialect.cursor or "after"] = current.partition(" ")[0]
            reply = self.session().ask("GET", _FILES, deadline - time.monotonic(), params=query)
            data, files = self.calls.listed(reply, "data")
            files = [each for each in files if isinstance(each, dict)]
            for each in files:
                if each.get("filename") in names:
                    return read_file(each)
            current = next_page(data, files, current, self.dialect)
            if current is None:
                return None
        raise endless()

    def delete(self, file_id: str, timeout: float) -> None:
        reply = self.session().ask("DELETE", f"{_FILES}/{quoted(file_id)}", timeout)
        if self.calls.gone(reply) or not reply.body.strip():
            return
        if self.errors.decode(reply).get("deleted") is False:
            text = "the provider did not delete the file"
            raise ProviderError(text, kind=ErrorKind.SERVER_ERROR, maybe_billed=True)


class FileInputs(BatchApi):
    """The part of :class:`~smartbatch.providers.openai.batches.OpenAIBatches` that handles files."""

    _session: Callable[[], RequestsSession]
    _errors: ErrorReader
    _calls: BatchCalls
    _files: FileCalls
    _dialect: BatchDialect

    def upload(self, name: str, source: Path, timeout: float) -> RemoteFile:
        """Upload the input while reading it from disk.

        After any error in sending, the file may exist, so the caller looks for it by name. The errors:

        1. The input cannot be read (code ``source``).
        2. The server refuses, or no answer arrives.
        3. The answer has no file id, or the file could not be processed.
        4. The provider reports a size other than the one sent, so the file is not used.
        """
        filename, size = name + _INPUT_SUFFIX, len(SpooledBody(source))
        if self._dialect.file_id_header is None:
            form = {"purpose": self._dialect.purpose, **self._dialect.upload_fields}
            body, content_type = upload_form(form, source, filename)
            headers = {"Content-Type": content_type}
            reply = self._session().ask("POST", _FILES, timeout, data=body, headers=headers)
        else:
            reply = self._upload_by_redirect(self._dialect.file_id_header, filename, source, timeout)
        file = read_file(self._calls.decoded(reply))
        if file.size is not None and file.size != size:
            text = f"the provider stored {file.size} of the input's {size} bytes"
            raise unusable(text, "truncated", kind=ErrorKind.NETWORK_ERROR)
        return RemoteFile(file.id, name, file.size, file.ready)

    def _upload_by_redirect(self, id_header: str, filename: str, source: Path, timeout: float) -> Reply:
        """Announce the input, put its bytes where the redirect leads, and have them processed.

        The same bytes are announced twice only for the same shard; then the server names the first file.
        """
        from urllib3.filepost import encode_multipart_formdata  # most hosts do not need it

        session, deadline = self._session(), time.monotonic() + timeout
        with open(source, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        announced = {
            "purpose": self._dialect.purpose,
            "file_name": filename,
            "file_type": _INPUT_SUFFIX.removeprefix("."),
            "checksum": checksum,
        }
        form, content_type = encode_multipart_formdata(announced)
        url, body = session.url_of(_FILES), SpooledBody(source)
        file_ids: list[str | None] = []

        def begin(address: str, left: float) -> LiveReply:
            if address != url:
                return session.begin("PUT", address, left, data=body)
            live = session.begin("POST", url, left, data=form, headers={"Content-Type": content_type})
            file_ids.append(live.headers.get(id_header))
            return live

        with followed(begin, url, timeout, method="PUT", body=body) as live:
            reply = live.whole()
        left = max(0.001, deadline - time.monotonic())
        if reply.status == 409 and (known := plain_id(fields(reply.json()).get("file_id"))) is not None:
            return session.ask("GET", f"{_FILES}/{quoted(known)}", left)
        self._calls.checked(reply)
        file_id = plain_id(file_ids[0])
        if file_id is None:
            raise unusable("the provider accepted an input file without an id")
        processed = session.ask("POST", f"{_FILES}/{quoted(file_id)}/preprocess", left)
        if not self._calls.gone(processed):
            return processed
        return session.ask("GET", f"{_FILES}/{quoted(file_id)}", left)

    def find_file(self, name: str, timeout: float) -> RemoteFile | None:
        return self._files.find((name, name + _INPUT_SUFFIX), timeout)

    def delete_file(self, file_id: str, timeout: float) -> None:
        self._files.delete(file_id, timeout)


def read_file(data: Mapping[str, Any]) -> RemoteFile:
    file_id = plain_id(data.get("id"))
    if file_id is None:
        raise unusable("the provider returned a file without an id")
    status = plain(data.get("status") or data.get("processing_status")).lower()
    if status in ("error", "failed", "invalid_format"):
        raise ProviderError(
            "the provider could not process the input file", kind=ErrorKind.CLIENT_ERROR, code="file_error"
        )
    name = data.get("filename")
    return RemoteFile(
        id=file_id,
        name=name.removesuffix(_INPUT_SUFFIX) if isinstance(name, str) else "",
        size=whole(data.get("bytes")),
        expires_at=whole(data.get("expires_at")) or math.inf,
        ready=status not in _UNREADY,
    )
