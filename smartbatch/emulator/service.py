"""What happens to a request between its arrival and its answer: a plain function of request and time.

The order is that of a real service: key, path, body, outage, limits, work. Nothing here touches a socket.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Mapping
from typing import Any

from attrs import evolve, field, frozen

from smartbatch.emulator import openai, streams
from smartbatch.emulator.answers import Composed, compose
from smartbatch.emulator.faults import FaultPlan
from smartbatch.emulator.head import Head
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.emulator.limits import Limits, Refusal
from smartbatch.emulator.requests import (
    Asked,
    Refused,
    error_body,
    parse_body,
    parse_chat,
    parse_responses,
)
from smartbatch.emulator.settings import FAULTS, Settings
from smartbatch.errors import ConfigError

__all__ = ["Reply", "Service"]

_log = logging.getLogger("smartbatch.emulator")
_JSON = "application/json"
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"
_GENERATE = {"/v1/chat/completions": parse_chat, "/v1/responses": parse_responses}
_LIMIT_SETTINGS = frozenset({"rpm", "tpm", "burst", "enforce", "count_refused"})


@frozen
class Reply:
    """What to send, when, and how it goes wrong on the way.

    Attributes:
        status: HTTP status.
        body: the body, or the events of a stream.
        headers: besides length and type.
        content_type: of the body.
        delay: seconds until it is sent.
        pace: seconds between a stream's events.
        damage: ``reset``, ``reset_before``, ``hang``, ``truncated`` or ``slow_body``: on the connection.
        billed: tokens billed when the delay is over.
        call: the ledger's entry; ``None`` for the emulator's own pages.
    """

    status: int
    body: bytes | list[bytes]
    headers: list[tuple[str, str]] = field(factory=list)
    content_type: str = _JSON
    delay: float = 0.0
    pace: float = 0.0
    damage: str | None = None
    billed: int = 0
    call: Call | None = None


@frozen
class _Rules:
    """Settings and what follows from them, replaced as one so that another thread may do it."""

    settings: Settings
    plan: FaultPlan
    limits: Limits


class Service:
    """The emulated service.

    Args:
        settings: how it behaves.
        ledger: where it books.
    """

    def __init__(self, settings: Settings, ledger: Ledger) -> None:
        self.ledger = ledger
        self._first: float | None = None
        self._rules = _Rules(settings, FaultPlan(settings), Limits(settings))
        ledger.judge_by(self._rules.limits)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._rules.settings

    def configure(self, **changes: Any) -> None:
        """Change settings; limits start afresh (with a full bucket) when one of theirs is among them.

        Raises:
            ConfigError: for an unknown name or a value out of its range; then nothing changes.
        """
        if unknown := changes.keys() - Settings.names():
            raise ConfigError(f"unknown setting {', '.join(sorted(unknown))}; known: {_listed()}")
        settings = evolve(self.settings, **changes)
        limits = Limits(settings) if _LIMIT_SETTINGS & changes.keys() else self._rules.limits
        self._rules = _Rules(settings, FaultPlan(settings), limits)
        self.ledger.judge_by(limits)

    def reset(self) -> None:
        """Forget every call and start the limits and the seeded plan from the beginning."""
        settings = self.settings
        self._first = None
        self._rules = _Rules(settings, FaultPlan(settings), Limits(settings))
        self.ledger.judge_by(self._rules.limits)
        self.ledger.reset()

    def handle(self, head: Head, body: bytes, now: float) -> Reply:
        """Return the reply to a request.

        Args:
            head: its head.
            body: its body.
            now: monotonic seconds.
        """
        if head.path.startswith("/_ledger"):
            return self._own_page(head)
        rules = self._rules
        if self._first is None:
            self._first = now
        call = Call(self.ledger.received, now, f"{head.method} {head.path}")
        self.ledger.open(call)
        try:
            reply = self._answer(rules, head, body, call, now)
        except Refused as refused:
            reply = Reply(refused.status, refused.body)
        except Exception as error:
            _log.exception("the emulator failed to handle request %d", call.index)
            text = f"The emulator failed: {type(error).__name__}: {error}"
            reply = Reply(500, error_body(text, type_="emulator"))
        identity = rules.plan.identity(call.index)
        headers = [
            ("x-request-id", f"req_{identity}"),
            ("openai-processing-ms", str(int(reply.delay * 1000))),
            ("openai-version", "2020-10-01"),
            *reply.headers,
        ]
        if rules.limits and rules.settings.limit_headers:
            headers += rules.limits.headers(now)
        return evolve(reply, headers=headers, call=call)

    def _answer(self, rules: _Rules, head: Head, body: bytes, call: Call, now: float) -> Reply:
        _check_key(head, rules.settings)
        if head.path == "/v1/models" or head.path.startswith("/v1/models/"):
            return _models(head, rules.settings)
        parse = _GENERATE.get(head.path)
        if parse is None:
            raise Refused(404, f"Invalid URL ({head.method} {head.path})")
        if head.method != "POST":
            raise Refused(405, f"Not allowed to {head.method} on {head.path} (HINT: use POST)")
        fields = parse_body(body)
        asked = parse(fields)
        call.model = asked.model
        call.prompt = hashlib.sha256(asked.prompt.encode()).hexdigest()
        if rules.settings.keep_prompts:
            call.text = asked.prompt
        _check_model(asked.model, rules.settings)
        if rules.plan.in_outage(call.index, now - (self._first or now)):
            call.fault = "outage"
            return _overloaded()
        if (refusal := rules.limits.admit(now, asked.charge)) is not None:
            call.fault = "limit"
            return _limited(refusal, asked.model, rules.settings)
        call.admitted = True
        call.fault = _fault(rules, call.index, fields)
        return _work(rules, head, asked, call)

    def _own_page(self, head: Head) -> Reply:
        if head.path == "/_ledger" and head.method == "GET":
            full = "full=1" in head.query.split("&")
            page = self.ledger.full() if full else self.ledger.summary()
            return Reply(200, json.dumps(page).encode())
        if head.path == "/_ledger/reset" and head.method == "POST":
            self.reset()
            return Reply(200, b'{"reset": true}')
        return Reply(
            404, error_body("GET /_ledger, GET /_ledger?full=1 or POST /_ledger/reset", type_="emulator")
        )


def _listed() -> str:
    return ", ".join(sorted(Settings.names()))


def _check_key(head: Head, settings: Settings) -> None:
    scheme, _, key = head.authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        message = "You didn't provide an API key. Provide it in an Authorization header using Bearer auth."
        raise Refused(401, message)
    if settings.keys is not None and key.strip() not in settings.keys:
        raise Refused(401, "Incorrect API key provided.", code="invalid_api_key")


def _check_model(model: str, settings: Settings) -> None:
    if settings.models is not None and model not in settings.models:
        message = f"The model `{model}` does not exist or you do not have access to it."
        raise Refused(404, message, code="model_not_found", param="model")


def _models(head: Head, settings: Settings) -> Reply:
    if head.method != "GET":
        raise Refused(405, f"Not allowed to {head.method} on {head.path} (HINT: use GET)")
    name = head.path.removeprefix("/v1/models").removeprefix("/")
    if not name:
        return Reply(200, json.dumps(openai.models_body(settings.models)).encode())
    _check_model(name, settings)
    return Reply(200, json.dumps(openai.model_body(name)).encode())


def _fault(rules: _Rules, index: int, fields: Mapping[str, Any]) -> str | None:
    chosen = rules.settings.fault_for
    kind = chosen(index, fields) if chosen is not None else None
    if kind is not None and kind not in FAULTS:
        raise ConfigError(f"fault_for named an unknown fault {kind!r}; use one of {', '.join(FAULTS)}")
    return kind or rules.plan.fault(index)


def _work(rules: _Rules, head: Head, asked: Asked, call: Call) -> Reply:
    """Return the answer, or what the call's fault makes of it."""
    settings, fault = rules.settings, call.fault
    match fault:
        case "503":
            return _overloaded()
        case "429" | "429_no_header":
            return _injected_limit(settings, asked.model, hint=fault == "429")
        case "reset_before":
            return Reply(0, b"", damage=fault)
    answer = _compose(settings, asked)
    delay = call.latency = rules.plan.latency(call.index, answer.tokens)
    match fault:
        case "500":
            return Reply(500, error_body("The server had an error.", type_="server_error"), delay=delay)
        case "html":
            return Reply(502, _HTML, content_type="text/html", delay=delay)
    tokens = asked.input_tokens + answer.tokens * asked.choices
    if asked.stream:
        reply = _streamed(rules, head, asked, answer, call.index)
    else:
        make = openai.chat_body if head.path == "/v1/chat/completions" else openai.response_body
        identity = rules.plan.identity(call.index)
        body = json.dumps(make(asked, answer, identity=identity, created=int(time.time()))).encode()
        reply = Reply(200, body, delay=delay)
    reply = evolve(reply, billed=tokens)
    match fault:
        case "bad_json":
            return evolve(reply, body=b'{"id": "chatcmpl-', pace=0.0)
        case "empty":
            return evolve(reply, body=b"", pace=0.0)
        case "html_200":
            return evolve(reply, body=_HTML, content_type="text/html", pace=0.0)
    return evolve(reply, damage=fault) if fault else reply


def _compose(settings: Settings, asked: Asked) -> Composed:
    try:
        return compose(
            asked.prompt,
            asked.model,
            seed=settings.seed,
            answers=settings.answers,
            max_tokens=asked.max_tokens,
            stop=asked.stop,
            form=asked.form,
        )
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        if asked.form is None:
            raise
        raise Refused(400, "Invalid schema for response_format.", param="response_format") from error


def _streamed(rules: _Rules, head: Head, asked: Asked, answer: Composed, index: int) -> Reply:
    make = streams.chat_events if head.path == "/v1/chat/completions" else streams.response_events
    events = make(asked, answer, identity=rules.plan.identity(index), created=int(time.time()))
    pace = rules.settings.per_token * answer.tokens / len(events)
    return Reply(
        200, events, content_type="text/event-stream", delay=rules.plan.first_token(index), pace=pace
    )


def _overloaded() -> Reply:
    message = "The server is currently overloaded. Please try again later."
    return Reply(503, error_body(message, type_="server_error", code="server_overloaded"))


def _limited(refusal: Refusal, model: str, settings: Settings) -> Reply:
    hint = settings.retry_after and refusal.wait is not None
    return Reply(429, openai.limit_error(refusal, model), headers=_retry_after(refusal.wait) if hint else [])


def _injected_limit(settings: Settings, model: str, *, hint: bool) -> Reply:
    refusal = Refusal(
        "requests", int(settings.rpm or 500), int(settings.rpm or 500), 1, settings.fault_retry_after
    )
    body = openai.limit_error(refusal, model)
    return Reply(429, body, headers=_retry_after(settings.fault_retry_after) if hint else [])


def _retry_after(seconds: float | None) -> list[tuple[str, str]]:
    wait = max(0.0, seconds or 0.0)
    return [
        ("retry-after", str(math.ceil(wait - 1e-6))),
        ("retry-after-ms", str(math.ceil(wait * 1000 - 1e-6))),
    ]
