"""The dialects that the emulator serves, and the API of their hosts: OpenAI's, with the host's paths, key,
errors and batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cached_property
from typing import Any

from attrs import evolve

from smartbatch.emulator.hosts import host_batches
from smartbatch.emulator.hosts.host_dialect import BatchCall, HostDialect
from smartbatch.emulator.hosts.mistral import MISTRAL
from smartbatch.emulator.hosts.openai_hosts import AZURE, DASHSCOPE, GROQ
from smartbatch.emulator.hosts.openrouter import OPENROUTER
from smartbatch.emulator.hosts.together import TOGETHER
from smartbatch.emulator.hosts.xai import XAI
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import LimitExceeded
from smartbatch.emulator.openai.api import OpenAIApi
from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import ApiError
from smartbatch.emulator.provider_api import BatchContext, BatchEndpoint, Parse, ServerReply
from smartbatch.emulator.settings import EmulatorSettings
from smartbatch.errors import ConfigError, did_you_mean

DIALECTS = {each.name: each for each in (AZURE, DASHSCOPE, GROQ, MISTRAL, OPENROUTER, TOGETHER, XAI)}
"""By the name of the host."""


def dialect_named(name: str, variants: Collection[str] = ()) -> HostDialect:
    """Return the dialect of a host.

    Args:
        variants: the interpretations that apply, by their names in the record of the dialect.

    Raises:
        ConfigError: there is no dialect or variant of that name.
    """
    if name not in DIALECTS:
        near = did_you_mean(name, DIALECTS)
        raise ConfigError(f"unknown dialect {name!r}; use one of {', '.join(DIALECTS)}{near}")
    dialect = DIALECTS[name]
    if unknown := sorted(set(variants) - dialect.variants.keys()):
        known = ", ".join(dialect.variants) or "none"
        raise ConfigError(f"unknown variant {unknown[0]!r} of the dialect {name}; known: {known}")
    changes = {name: value for each in variants for name, value in dialect.variants[each].changes.items()}
    return evolve(dialect, chosen=frozenset(variants), **changes)


class HostApi(OpenAIApi):
    def __init__(self, dialect: HostDialect) -> None:
        self.dialect = dialect

    @cached_property
    def _batch_paths(self) -> re.Pattern[str]:
        return re.compile(rf"{self.dialect.path}/(?:files|{self.dialect.jobs})(?:[/:].*)?")

    def check_key(self, head: Head, settings: EmulatorSettings) -> None:
        self._key(head, settings)

    def _key(self, head: Head, settings: EmulatorSettings) -> str:
        given = head.headers.get(self.dialect.key_header or "")
        if given is not None:
            head = evolve(head, headers={**head.headers, "authorization": f"Bearer {given}"})
        super().check_key(head, settings)
        return head.authorization.partition(" ")[2].strip()

    def batch_endpoint(self, head: Head) -> BatchEndpoint | None:
        is_open = head.path.startswith(self.dialect.open_paths)
        return self._answer_batch if is_open or self._batch_paths.fullmatch(head.path) else None

    def _answer_batch(self, head: Head, body: bytes, context: BatchContext) -> ServerReply:
        is_open = head.path.startswith(self.dialect.open_paths)
        key = "" if is_open else self._key(head, context.settings)
        return host_batches.answer(BatchCall(self.dialect, head, body, context, key))

    def find(self, head: Head, body: bytes, context: BatchContext) -> Parse | ServerReply:
        path = self.dialect.path
        if not head.path.startswith(f"{path}/"):
            raise api_error(404, f"Invalid URL ({head.method} {head.path})")
        inner = evolve(head, path=f"/v1{head.path.removeprefix(path)}")
        found = super().find(inner, body, context)
        if isinstance(found, ServerReply):
            return found
        return lambda _, body: self.dialect.parse(inner.path, body, context.settings)

    def error_reply(self, error: ApiError, head: Head) -> ServerReply:
        return self._converted(ServerReply(error.status, error.body), head.path)

    def overloaded(self) -> ServerReply:
        return self._converted(super().overloaded())

    def internal_error(self) -> ServerReply:
        return self._converted(super().internal_error())

    def rate_limited(self, exceeded: LimitExceeded, model: str, *, hint: bool) -> ServerReply:
        reply = self._converted(super().rate_limited(exceeded, model, hint=hint))
        if self.dialect.retry_after_ms:
            return reply
        return evolve(reply, headers=[each for each in reply.headers if each[0] != "retry-after-ms"])

    def quota_exhausted(self, model: str) -> ServerReply:
        return self._converted(super().quota_exhausted(model))

    def no_capacity(self) -> ServerReply:
        return evolve(self._converted(super().no_capacity()), status=self.dialect.flex_status)

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:  # noqa: ARG002
        return [("x-request-id", f"req_{identity}")]

    def _converted(self, reply: ServerReply, path: str = "/v1/chat/completions") -> ServerReply:
        assert isinstance(reply.body, bytes)
        status, value = self.dialect.error(reply.status, reply.body, path)
        return evolve(reply, status=status, body=_encoded(value))


def _encoded(value: Any) -> bytes:
    return json.dumps(value).encode()
