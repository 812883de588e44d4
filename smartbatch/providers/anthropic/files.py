"""Anthropic's Files API, for files in prompts, through the vendor's SDK.

Sources: ``anthropic`` 2.14, whose Files API needs no beta header under version 2026-10-21, and Anthropic's
guide to it (November 2026): 500 MB per file; an expiry of one hour to 90 days; names need not be unique, and
the list has no filter.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from smartbatch.media import Audio, Image, Media
from smartbatch.media_content import PDF, PLAIN_TEXT
from smartbatch.providers.anthropic.batches import is_own_error
from smartbatch.providers.anthropic.parts import IMAGE_TYPES
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.file_api import LIFETIME_SECONDS, FileAbilities, FileApi, RemoteUpload
from smartbatch.providers.foreign_text import fields, unix_seconds, unusable, whole
from smartbatch.providers.http.batch_calls import CheckedCalls, check_id

if TYPE_CHECKING:
    from smartbatch.providers.anthropic.sdk import MessagesSdk

_PATH = "/v1/files"
_FILES_PER_PAGE = 1000
_MAX_PAGES = 1000
_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")


class AnthropicFiles(FileApi):
    abilities = FileAbilities(max_bytes=500_000_000, lifetime=LIFETIME_SECONDS)

    def __init__(self, scope: str, errors: ErrorReader, *, sdk: Callable[[], MessagesSdk]) -> None:
        self.scope = scope
        self._sdk = sdk
        self._calls = CheckedCalls(errors, is_own_error)

    def takes(self, media: Media) -> bool:
        if isinstance(media, Image):
            return media.sent_type in IMAGE_TYPES
        return not isinstance(media, Audio) and (media.media_type in (PDF, PLAIN_TEXT))

    def upload(self, name: str, media_type: str, content: bytes, timeout: float) -> RemoteUpload:
        reply = self._sdk().ask(
            "post",
            _PATH,
            timeout,
            headers={"Content-Type": "multipart/form-data"},
            data={"expires_in_seconds": LIFETIME_SECONDS},
            files=[("file", (name, content, media_type))],
        )
        return _read(self._calls.decoded(reply))

    def find(self, name: str, timeout: float) -> RemoteUpload | None:
        deadline = time.monotonic() + timeout
        params = {"limit": str(_FILES_PER_PAGE)}
        for _ in range(_MAX_PAGES):
            reply = self._sdk().ask("get", _PATH, deadline - time.monotonic(), params=params)
            data, files = self._calls.listed(reply, "data")
            for each in files:
                if fields(each).get("filename") == name:
                    return _read(each)
            if (token := data.get("next_page")) is None:
                return None
            if not (isinstance(token, str) and _TOKEN.fullmatch(token)):
                break
            params["page"] = token
        raise unusable("the list of files does not end, or has no usable page token", status=200)

    def delete(self, file_id: str, timeout: float) -> None:
        path = f"{_PATH}/{quote(check_id(file_id), safe='')}"
        self._calls.gone(self._sdk().ask("delete", path, timeout))


def _read(data: Any) -> RemoteUpload:
    if not isinstance(data, dict):
        raise unusable("the provider returned an invalid file", status=200)
    expires_at = unix_seconds(data.get("expires_at")) or math.inf
    return RemoteUpload(check_id(data.get("id")), expires_at, whole(data.get("size_bytes")))
