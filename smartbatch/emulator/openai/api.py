"""OpenAI's API: real-time calls, models, errors and headers, without files and batches.

Source: OpenAI's API reference and guides (rate limits, error codes, flex processing) of November 2026.
"""

from __future__ import annotations

import math
from typing import Any

from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import LimitExceeded, Limits, retry_after_seconds
from smartbatch.emulator.openai import batches, bodies
from smartbatch.emulator.openai.model_calls import MODEL_CALLS, parse_call
from smartbatch.emulator.openai.parsing import api_error, error_body, parse_body
from smartbatch.emulator.parsed_requests import ApiError
from smartbatch.emulator.provider_api import Api, BatchContext, BatchEndpoint, Parse, ServerReply, json_reply
from smartbatch.emulator.settings import EmulatorSettings


class OpenAIApi(Api):
    max_body = 512_000_000

    def serves(self, head: Head) -> bool:  # noqa: ARG002
        return True

    def check_key(self, head: Head, settings: EmulatorSettings) -> None:
        scheme, _, key = head.authorization.partition(" ")
        if scheme.lower() != "bearer":
            key = head.headers.get("api-key", "")  # as Azure's SDK sends it
        if not key.strip():
            message = (
                "You didn't provide an API key. Provide it in an Authorization header using Bearer auth."
            )
            raise api_error(401, message)
        if settings.keys is not None and key.strip() not in settings.keys:
            raise api_error(401, "Incorrect API key provided.", code="invalid_api_key")

    def account(self, head: Head) -> tuple[str, str]:
        return batches.API_NAME, _key(head)

    def batch_endpoint(self, head: Head) -> BatchEndpoint | None:
        return None if batches.PATH.fullmatch(head.path) is None else self._answer_batch

    def _answer_batch(self, head: Head, body: bytes, context: BatchContext) -> ServerReply:
        self.check_key(head, context.settings)
        return batches.answer(head, body, context, _key(head))

    def find(self, head: Head, body: bytes, context: BatchContext) -> Parse | ServerReply:  # noqa: ARG002
        if head.path == "/v1/models" or head.path.startswith("/v1/models/"):
            return self._models(head, context.settings)
        if head.path not in MODEL_CALLS:
            raise api_error(404, f"Invalid URL ({head.method} {head.path})")
        if head.method != "POST":
            raise api_error(405, f"Not allowed to {head.method} on {head.path} (HINT: use POST)")
        find = context.find_upload(*self.account(head))
        return lambda head, body: parse_call(head.path, body, context.settings, find)

    def too_large(self, limit: int) -> ApiError:
        return api_error(413, f"The request body is larger than the maximum of {limit} bytes.")

    def parse_body(self, body: bytes) -> dict[str, Any]:
        return parse_body(body)

    def check_model(self, model: str, settings: EmulatorSettings) -> None:
        if settings.models is not None and model not in settings.models:
            message = f"The model `{model}` does not exist or you do not have access to it."
            raise api_error(404, message, code="model_not_found", param="model")

    def overloaded(self) -> ServerReply:
        message = "The server is currently overloaded. Please try again later."
        return ServerReply(503, error_body(message, type_="server_error", code="server_overloaded"))

    def internal_error(self) -> ServerReply:
        return ServerReply(500, error_body("The server had an error.", type_="server_error"))

    def rate_limited(self, exceeded: LimitExceeded, model: str, *, hint: bool) -> ServerReply:
        headers = _retry_after(exceeded.wait) if hint else []
        return ServerReply(429, bodies.limit_error(exceeded, model), headers=headers)

    def quota_exhausted(self, model: str) -> ServerReply:  # noqa: ARG002
        return ServerReply(429, bodies.INSUFFICIENT_QUOTA)

    def no_capacity(self) -> ServerReply:
        message = "Resource Unavailable: flex processing has no capacity for your request at this time."
        return ServerReply(
            429, error_body(message, type_="resource_unavailable", code="resource_unavailable")
        )

    def unsupported_tier(self, model: str) -> ApiError:
        message = f"Invalid service_tier argument: flex is not available for the model `{model}`."
        return api_error(400, message, param="service_tier")

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:
        return [
            ("x-request-id", f"req_{identity}"),
            ("openai-processing-ms", str(int(seconds * 1000))),
            ("openai-version", "2020-10-01"),
        ]

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:
        return limits.headers(now)

    def _models(self, head: Head, settings: EmulatorSettings) -> ServerReply:
        if head.method != "GET":
            raise api_error(405, f"Not allowed to {head.method} on {head.path} (HINT: use GET)")
        name = head.path.removeprefix("/v1/models").removeprefix("/")
        if not name:
            return json_reply(bodies.models_body(settings.models))
        self.check_model(name, settings)
        return json_reply(bodies.model_body(name))


def _key(head: Head) -> str:
    return head.authorization.partition(" ")[2].strip()


def _retry_after(wait: float | None) -> list[tuple[str, str]]:
    milliseconds = math.ceil(max(0.0, wait or 0.0) * 1000 - 1e-6)
    return [("retry-after", retry_after_seconds(wait)), ("retry-after-ms", str(milliseconds))]
