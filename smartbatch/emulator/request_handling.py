"""What happens to a request between its arrival and its answer: a plain function of request and time.

The order is that of a real service: key, path, body, outage, limits, work. Nothing here touches a socket.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen

from smartbatch.emulator.anthropic.api import AnthropicApi
from smartbatch.emulator.batch_service import BatchCall, Desk
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import Lost
from smartbatch.emulator.faults import FaultPlan
from smartbatch.emulator.gemini.api import GeminiApi
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.emulator.limits import Limits, Refusal
from smartbatch.emulator.openai.api import OpenAIApi
from smartbatch.emulator.openai.parsing import Refused, error_body
from smartbatch.emulator.provider_api import Api, Reply, Task
from smartbatch.emulator.settings import FAULTS, Settings
from smartbatch.errors import ConfigError

__all__ = ["Service"]

_log = logging.getLogger("smartbatch.emulator")
_HTML = b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"
# The first that serves a request; OpenAI's serves what is left.
_APIS: tuple[Api, ...] = (AnthropicApi(), GeminiApi(), OpenAIApi())
FLEX = "flex"
MAX_UPLOAD = 256 * 1024 * 1024
"""Bytes of a body that brings a file or a batch: what Anthropic takes, the most of the three."""
_LIMIT_SETTINGS = frozenset({"rpm", "tpm", "otpm", "burst", "enforce", "count_refused"})


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
        self.backend = BatchBackend(settings, ledger, epoch=time.time() - time.monotonic())
        # The loop that serves has the same clock.
        ledger.follow(lambda: self.backend.advance(time.monotonic()))

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
        self.backend.configure(settings)
        self.ledger.judge_by(limits)

    def reset(self) -> None:
        """Forget every call and start the limits and the seeded plan from the beginning."""
        settings = self.settings
        self._first = None
        self._rules = _Rules(settings, FaultPlan(settings), Limits(settings))
        self.ledger.judge_by(self._rules.limits)
        self.backend.reset()
        self.ledger.reset()

    def most_body(self, head: Head) -> int:
        """Return how many bytes the body of a request may have."""
        most = self.settings.max_body
        return most if _api(head).batch_call(head) is None else max(most, MAX_UPLOAD)

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
        api = _api(head)
        try:
            if (batch_call := api.batch_call(head)) is not None:
                reply = self._answer_batch(api, rules, batch_call, head, body, call, now)
            else:
                reply = self._answer(api, rules, head, body, call, now)
        except Lost as lost:
            call.fault = lost.damage
            reply = Reply(0, b"", damage=lost.damage)
        except Refused as refused:
            reply = Reply(refused.status, refused.body)
        except Exception as error:
            _log.exception("the emulator failed to handle request %d", call.index)
            text = f"The emulator failed: {type(error).__name__}: {error}"
            reply = Reply(500, error_body(text, type_="emulator"))
        headers = api.headers(rules.plan.identity(call.index), reply.delay) + reply.headers
        if rules.limits and rules.settings.limit_headers:
            headers += api.limit_headers(rules.limits, now)
        return evolve(reply, headers=headers, call=call)

    def _answer(self, api: Api, rules: _Rules, head: Head, body: bytes, call: Call, now: float) -> Reply:
        settings = rules.settings
        api.check_key(head, settings)
        parse = api.find(head, body, settings)
        if isinstance(parse, Reply):
            return parse
        fields = api.parse_body(body)
        task = parse(head, fields)
        call.model = task.model
        call.prompt = hashlib.sha256(task.prompt.encode()).hexdigest()
        if settings.keep_prompts:
            call.text = task.prompt
        api.check_model(task.model, settings)
        call.tier = task.tier
        if task.tier == FLEX and not settings.flex:
            raise api.no_tier(task.model)
        if rules.plan.in_outage(call.index, now - (self._first or now)):
            call.fault = "outage"
            return api.overloaded()
        if (refusal := rules.limits.admit(now, task.charge)) is not None:
            call.fault = "limit"
            hint = settings.retry_after and refusal.wait is not None
            return api.limited(refusal, task.model, hint=hint)
        call.admitted = True
        call.fault = _fault(rules, call.index, fields, task.tier)
        return _work(api, rules, task, call, now)

    def _answer_batch(
        self, api: Api, rules: _Rules, answer: BatchCall, head: Head, body: bytes, call: Call, now: float
    ) -> Reply:
        if rules.plan.in_outage(call.index, now - (self._first or now)):
            call.fault = "outage"
            return api.overloaded()
        call.fault = _fault(rules, call.index, {"method": head.method, "path": head.path})
        if (refused := _refused_at_once(api, rules.settings, "", call.fault)) is not None:
            return refused
        url = f"http://{head.headers.get('host', '127.0.0.1')}"
        reply = answer(head, body, Desk(self.backend, rules.settings, now, url))
        delay = call.latency = rules.plan.first_token(call.index)
        return _spoiled(api, evolve(reply, delay=delay), call.fault)

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


def _api(head: Head) -> Api:
    return next(api for api in _APIS if api.serves(head))


def _listed() -> str:
    return ", ".join(sorted(Settings.names()))


def _fault(rules: _Rules, index: int, fields: Mapping[str, Any], tier: str = "") -> str | None:
    chosen = rules.settings.fault_for
    kind = chosen(index, fields) if chosen is not None else None
    if kind is not None and kind not in FAULTS:
        raise ConfigError(f"fault_for named an unknown fault {kind!r}; use one of {', '.join(FAULTS)}")
    kind = kind or rules.plan.fault(index)
    return None if kind == "no_room" and tier != FLEX else kind


def _work(api: Api, rules: _Rules, task: Task, call: Call, now: float) -> Reply:
    """Return the answer, or what the call's fault makes of it."""
    settings, fault = rules.settings, call.fault
    if (refused := _refused_at_once(api, settings, task.model, fault)) is not None:
        return refused
    done = task.perform(settings, rules.plan.identity(call.index), refuse=fault == "refusal")
    slower = settings.flex_slower if task.tier == FLEX else 1.0
    delay = call.latency = slower * rules.plan.latency(call.index, done.output_tokens)
    rules.limits.spend(now, 0 if fault in ("500", "html") else done.output_tokens)
    reply = Reply(200, done.body, delay=delay, billed=done.billed)
    if isinstance(done.body, list) and fault not in ("500", "html"):
        throughput = slower * settings.per_token * done.output_tokens / len(done.body)
        delay = slower * rules.plan.first_token(call.index)
        reply = evolve(reply, content_type="text/event-stream", delay=delay, throughput=throughput)
    return _spoiled(api, reply, fault)


def _refused_at_once(api: Api, settings: Settings, model: str, fault: str | None) -> Reply | None:
    """Return what a fault that comes before any work makes of a request; ``None`` for all others."""
    match fault:
        case "503":
            return api.overloaded()
        case "no_room":
            return api.no_room()
        case "429" | "429_no_header":
            return api.limited(_injected(settings), model, hint=fault == "429")
        case "no_money":
            return api.used_up(model)
        case "reset_before":
            return Reply(0, b"", damage=fault)
    return None


def _spoiled(api: Api, reply: Reply, fault: str | None) -> Reply:
    """Return what a fault that comes after the work makes of its reply."""
    body = reply.body
    match fault:
        case "500":
            return evolve(api.failed(), delay=reply.delay)
        case "html":
            return Reply(502, _HTML, content_type="text/html", delay=reply.delay)
        case "bad_json":
            return evolve(reply, body=b'{"id": "chatcmpl-', throughput=0.0, delivered=None)
        case "empty":
            return evolve(reply, body=b"", throughput=0.0, delivered=None)
        case "html_200":
            return evolve(reply, body=_HTML, content_type="text/html", throughput=0.0, delivered=None)
        case "stream_end" | "stream_error" if isinstance(body, list):
            begun = body[: max(1, len(body) // 2)]
            error = [api.error_event()] if fault == "stream_error" else []
            return evolve(reply, body=begun + error, delivered=None)
        case "stream_end" | "stream_error":
            return evolve(reply, damage="truncated")
        case None | "refusal":
            return reply
    return evolve(reply, damage=fault)


def _injected(settings: Settings) -> Refusal:
    """Return the refusal of a limit that is not there."""
    limit = int(settings.rpm or 500)
    return Refusal("requests", limit, limit, 1, settings.fault_retry_after, real=settings.rpm is not None)
