"""OpenAI's API as the service speaks it: real-time calls; files and batches are answered elsewhere."""

from __future__ import annotations

import json
import math
from typing import Any

from smartbatch.emulator.batch_service import BatchCall, Desk
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.limits import Limits, Refusal
from smartbatch.emulator.openai import batches, bodies
from smartbatch.emulator.openai.parsing import Refused, error_body, parse_body
from smartbatch.emulator.openai.tasks import TASKS, composed
from smartbatch.emulator.provider_api import Api, Parse, Reply
from smartbatch.emulator.settings import Settings

__all__ = ["OpenAIApi", "composed", "retry_after"]


class OpenAIApi(Api):
    """Chat completions, responses, embeddings and models."""

    def serves(self, head: Head) -> bool:  # noqa: ARG002
        return True

    def check_key(self, head: Head, settings: Settings) -> None:
        scheme, _, key = head.authorization.partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            message = (
                "You didn't provide an API key. Provide it in an Authorization header using Bearer auth."
            )
            raise Refused(401, message)
        if settings.keys is not None and key.strip() not in settings.keys:
            raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")

    def batch_call(self, head: Head) -> BatchCall | None:
        if batches.PATH.fullmatch(head.path) is None:
            return None

        def answer(head: Head, body: bytes, service: Desk) -> Reply:
            self.check_key(head, service.settings)
            return batches.answer(head, body, service, head.authorization.partition(" ")[2].strip())

        return answer

    def find(self, head: Head, body: bytes, settings: Settings) -> Parse | Reply:  # noqa: ARG002
        if head.path == "/v1/models" or head.path.startswith("/v1/models/"):
            return self._models(head, settings)
        parse = TASKS.get(head.path)
        if parse is None:
            raise Refused(404, f"Invalid URL ({head.method} {head.path})")
        if head.method != "POST":
            raise Refused(405, f"Not allowed to {head.method} on {head.path} (HINT: use POST)")
        return parse

    def parse_body(self, body: bytes) -> dict[str, Any]:
        return parse_body(body)

    def check_model(self, model: str, settings: Settings) -> None:
        if settings.models is not None and model not in settings.models:
            message = f"The model `{model}` does not exist or you do not have access to it."
            raise Refused(404, message, code="model_not_found", param="model")

    def overloaded(self) -> Reply:
        message = "The server is currently overloaded. Please try again later."
        return Reply(503, error_body(message, type_="server_error", code="server_overloaded"))

    def failed(self) -> Reply:
        return Reply(500, error_body("The server had an error.", type_="server_error"))

    def limited(self, refusal: Refusal, model: str, *, hint: bool) -> Reply:
        headers = retry_after(refusal.wait) if hint else []
        return Reply(429, bodies.limit_error(refusal, model), headers=headers)

    def used_up(self, model: str) -> Reply:  # noqa: ARG002
        message = "You exceeded your current quota, please check your plan and billing details."
        return Reply(429, error_body(message, type_="insufficient_quota", code="insufficient_quota"))

    def no_room(self) -> Reply:
        message = "Resource Unavailable: flex processing has no capacity for your request at this time."
        return Reply(429, error_body(message, type_="resource_unavailable", code="resource_unavailable"))

    def no_tier(self, model: str) -> Refused:
        message = f"Invalid service_tier argument: flex is not available for the model `{model}`."
        return Refused(400, message, param="service_tier")

    def headers(self, identity: str, seconds: float) -> list[tuple[str, str]]:
        return [
            ("x-request-id", f"req_{identity}"),
            ("openai-processing-ms", str(int(seconds * 1000))),
            ("openai-version", "2020-10-01"),
        ]

    def limit_headers(self, limits: Limits, now: float) -> list[tuple[str, str]]:
        return limits.headers(now)

    def _models(self, head: Head, settings: Settings) -> Reply:
        if head.method != "GET":
            raise Refused(405, f"Not allowed to {head.method} on {head.path} (HINT: use GET)")
        name = head.path.removeprefix("/v1/models").removeprefix("/")
        if not name:
            return Reply(200, json.dumps(bodies.models_body(settings.models)).encode())
        self.check_model(name, settings)
        return Reply(200, json.dumps(bodies.model_body(name)).encode())


def retry_after(seconds: float | None) -> list[tuple[str, str]]:
    """Return the headers that ask to wait."""
    wait = max(0.0, seconds or 0.0)
    return [
        ("retry-after", str(math.ceil(wait - 1e-6))),
        ("retry-after-ms", str(math.ceil(wait * 1000 - 1e-6))),
    ]
