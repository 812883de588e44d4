"""Handles a request: a function of request and time that returns the reply, without sockets.

The checks are in the order of the real services: key, path, body, outage, limits. Then the model runs.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, Unpack

from attrs import evolve, frozen

from smartbatch.emulator.anthropic.api import AnthropicApi
from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_records import AnswerLost
from smartbatch.emulator.batches.webhook_sender import KEYS_PATH, SigningKeys
from smartbatch.emulator.gemini.api import GeminiApi
from smartbatch.emulator.hosts.host_api import HostApi, dialect_named
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.emulator.limits import LimitExceeded, Limits
from smartbatch.emulator.openai.api import OpenAIApi
from smartbatch.emulator.openai.parsing import error_body
from smartbatch.emulator.parsed_requests import ApiError, ModelCall
from smartbatch.emulator.prompt_cache import CacheAccess, CacheLookup
from smartbatch.emulator.provider_api import Api, BatchContext, BatchEndpoint, ServerReply, json_reply
from smartbatch.emulator.settings import FAULTS, EmulatorParams, EmulatorSettings, FaultPlan
from smartbatch.errors import ConfigError

_logger = logging.getLogger("smartbatch.emulator")
_HTML_PAGE = (
    b"<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>\n"
)
FLEX = "flex"
# bytes of a body with a file or a batch: the limit of Gemini's API, the largest of the three
MAX_UPLOAD = 2_000_000_000
_LIMIT_SETTINGS = frozenset({"rpm", "tpm", "otpm", "burst", "enforce", "count_refused"})


@frozen
class _Policy:
    """The settings and values derived from them. They are always replaced as a whole, so any thread may
    replace them.
    """

    settings: EmulatorSettings
    faults: FaultPlan
    limits: Limits
    # The first API that serves a request handles it. The last one serves all paths.
    apis: tuple[Api, ...]

    def api(self, head: Head) -> Api:
        return next(api for api in self.apis if api.serves(head))


@frozen
class _Exchange:
    """A request in progress. ``now`` is monotonic seconds."""

    api: Api
    policy: _Policy
    backend: BatchBackend
    head: Head
    body: bytes
    call: Call
    now: float
    in_outage: bool

    @property
    def context(self) -> BatchContext:
        url = f"http://{self.head.headers.get('host', '127.0.0.1')}"
        return BatchContext(self.backend, self.settings, self.now, url)

    @property
    def settings(self) -> EmulatorSettings:
        return self.policy.settings


class RequestHandler:
    """Handles the requests of all three APIs, or of one host.

    Raises:
        ConfigError: no host's dialect has the name in the settings.
    """

    def __init__(self, settings: EmulatorSettings, ledger: Ledger) -> None:
        self.ledger = ledger
        self._first: float | None = None
        self._policy = _Policy(settings, FaultPlan(settings), Limits(settings), _apis(settings))
        ledger.use_limits(self._policy.limits)
        self.signing_keys = SigningKeys()
        self.backend = BatchBackend(settings, ledger, epoch=time.time() - time.monotonic())
        # The server's event loop uses the same clock.
        ledger.update_with(lambda: self.backend.advance(time.monotonic()))

    @property
    def settings(self) -> EmulatorSettings:
        return self._policy.settings

    def configure(self, **changes: Unpack[EmulatorParams]) -> None:
        """Change settings. New limits start with a full bucket.

        Raises:
            ConfigError: a name is unknown or a value out of range; nothing is changed.
        """
        settings = evolve(self.settings, **EmulatorSettings.check_names(changes))
        limits = Limits(settings) if _LIMIT_SETTINGS & changes.keys() else self._policy.limits
        self._policy = _Policy(settings, FaultPlan(settings), limits, _apis(settings))
        self.backend.configure(settings)
        self.ledger.use_limits(limits)

    def reset(self) -> None:
        """Delete the ledger, files and batches, and restart limits, faults and indexes."""
        settings = self.settings
        self._first = None
        self._policy = _Policy(settings, FaultPlan(settings), Limits(settings), self._policy.apis)
        self.ledger.use_limits(self._policy.limits)
        self.backend.reset()
        self.ledger.reset()

    def max_body_size(self, head: Head) -> int:
        api = self._policy.api(head)
        limit = self.settings.max_body or api.max_body
        return limit if api.batch_endpoint(head) is None else max(limit, MAX_UPLOAD)

    def too_large(self, head: Head) -> ApiError:
        """Return the error for a body larger than :meth:`max_body_size`."""
        return self._policy.api(head).too_large(self.max_body_size(head))

    def handle(self, head: Head, body: bytes, now: float) -> ServerReply:
        """Return the reply to a request. ``now`` is monotonic seconds."""
        if head.foreign:
            text = "the emulator serves this machine only: its Host, and an Origin, must be loopback"
            return ServerReply(403, error_body(text, type_="emulator"))
        if head.path.startswith("/_ledger"):
            return self._ledger_page(head)
        if head.path == KEYS_PATH:
            return json_reply(self.signing_keys.published())
        policy = self._policy
        if self._first is None:
            self._first = now
        call = Call(self.ledger.received, now, f"{head.method} {head.path}")
        self.ledger.open(call)
        self.backend.prune(now)
        api = policy.api(head)
        in_outage = policy.faults.in_outage(call.index, now - self._first)
        exchange = _Exchange(api, policy, self.backend, head, body, call, now, in_outage)
        try:
            endpoint = api.batch_endpoint(head)
            reply = _answer(exchange) if endpoint is None else _answer_batch(exchange, endpoint)
        except AnswerLost as lost:
            call.fault = lost.damage
            reply = ServerReply(0, b"", damage=lost.damage)
        except ApiError as error:
            reply = api.error_reply(error, head)
        except Exception as error:
            _logger.exception("the emulator failed to handle request %d", call.index)
            text = f"The emulator failed: {type(error).__name__}: {error}"
            reply = ServerReply(500, error_body(text, type_="emulator"))
        own = api.headers(policy.faults.identity(call.index), reply.delay)
        headers = [("date", formatdate(usegmt=True)), *own, *reply.headers]
        if policy.limits and policy.settings.limit_headers:
            headers += api.limit_headers(policy.limits, now)
        return evolve(reply, headers=headers, call=call)

    def _ledger_page(self, head: Head) -> ServerReply:
        if head.path == "/_ledger" and head.method == "GET":
            full = "full=1" in head.query.split("&")
            page = self.ledger.full() if full else self.ledger.summary()
            return json_reply(page)
        if head.path == "/_ledger/reset" and head.method == "POST":
            self.reset()
            return json_reply({"reset": True})
        return ServerReply(
            404, error_body("GET /_ledger, GET /_ledger?full=1 or POST /_ledger/reset", type_="emulator")
        )


def _apis(settings: EmulatorSettings) -> tuple[Api, ...]:
    if settings.dialect is None:
        return AnthropicApi(), GeminiApi(), OpenAIApi()
    return (HostApi(dialect_named(settings.dialect, settings.dialect_variants)),)


def _answer(exchange: _Exchange) -> ServerReply:
    api, head, call, settings = exchange.api, exchange.head, exchange.call, exchange.settings
    api.check_key(head, settings)
    parse = api.find(head, exchange.body, exchange.context)
    if isinstance(parse, ServerReply):
        return parse
    fields = api.parse_body(exchange.body)
    model_call = parse(head, fields)
    call.model = model_call.model
    call.prompt = hashlib.sha256(model_call.prompt.encode()).hexdigest()
    if settings.keep_prompts:
        call.text = model_call.prompt
    api.check_model(model_call.model, settings)
    call.tier = model_call.tier
    if model_call.tier == FLEX and not settings.flex:
        raise api.unsupported_tier(model_call.model)
    if exchange.in_outage:
        call.fault = "outage"
        return api.overloaded()
    lookup = _look_up(exchange, model_call)
    if (exceeded := exchange.policy.limits.admit(exchange.now, model_call.charge)) is not None:
        call.fault = "limit"
        hint = settings.retry_after and exceeded.wait is not None
        return api.rate_limited(exceeded, model_call.model, hint=hint)
    call.admitted = True
    call.fault = _fault(exchange.policy, call.index, fields, model_call.tier)
    return _run_model(exchange, model_call, lookup)


def _look_up(exchange: _Exchange, model_call: ModelCall) -> CacheLookup | None:
    """Return what the call reads from the prompt cache and writes to it; ``None`` without one."""
    settings = exchange.settings.prompt_caching
    prompt = None if settings is None else model_call.cacheable(settings)
    if settings is None or prompt is None:
        return None
    # by prompt, not by arrival, so that clients with another order have the same hits
    chance = exchange.policy.faults.uniform(b"cache %s" % str(exchange.call.prompt).encode(), 0)
    access = CacheAccess(exchange.api.account(exchange.head), exchange.now, chance)
    lookup = exchange.backend.caches.look_up(prompt, access, settings)
    model_call.cache = lookup.use
    return lookup


def _answer_batch(exchange: _Exchange, endpoint: BatchEndpoint) -> ServerReply:
    api, policy, head, call = exchange.api, exchange.policy, exchange.head, exchange.call
    if exchange.in_outage:
        call.fault = "outage"
        return api.overloaded()
    call.fault = _fault(policy, call.index, {"method": head.method, "path": head.path})
    if (immediate := _immediate_error(api, policy.settings, "", call.fault)) is not None:
        return immediate
    reply = endpoint(head, exchange.body, exchange.context)
    call.cache_saved = reply.cache_saved
    delay = call.latency = policy.faults.first_token(call.index)
    return _apply_fault(api, evolve(reply, delay=delay), call.fault)


def _fault(policy: _Policy, index: int, fields: Mapping[str, Any], tier: str = "") -> str | None:
    chosen = policy.settings.fault_for
    kind = chosen(index, fields) if chosen is not None else None
    if kind is not None and kind not in FAULTS:
        raise ConfigError(f"fault_for named an unknown fault {kind!r}; use one of {', '.join(FAULTS)}")
    kind = kind or policy.faults.fault(index)
    return None if kind == "no_room" and tier != FLEX else kind


def _run_model(exchange: _Exchange, model_call: ModelCall, lookup: CacheLookup | None) -> ServerReply:
    """Reply to an admitted call, with the effect of its fault."""
    api, policy, call = exchange.api, exchange.policy, exchange.call
    settings, fault = policy.settings, call.fault
    if (immediate := _immediate_error(api, settings, model_call.model, fault)) is not None:
        return immediate
    output = model_call.run(settings, policy.faults.identity(call.index), refuse=fault == "refusal")
    tier_factor = settings.flex_slower if model_call.tier == FLEX else 1.0
    delay = call.latency = tier_factor * policy.faults.latency(call.index, output.output_tokens)
    first_token = tier_factor * policy.faults.first_token(call.index)
    answered = fault not in ("500", "html")
    policy.limits.spend(exchange.now, output.output_tokens if answered else 0)
    if lookup is not None and answered:
        exchange.backend.caches.keep(lookup, exchange.now + first_token)
        call.cache_read, call.cache_written = lookup.use.read, lookup.use.written
        call.cache_saved = lookup.saved
    reply = ServerReply(200, output.body, delay=delay, billed=output.billed)
    if isinstance(output.body, list) and answered:
        event_interval = tier_factor * settings.per_token * output.output_tokens / len(output.body)
        reply = evolve(
            reply, content_type="text/event-stream", delay=first_token, event_interval=event_interval
        )
    return _apply_fault(api, reply, fault)


def _immediate_error(
    api: Api, settings: EmulatorSettings, model: str, fault: str | None
) -> ServerReply | None:
    """Return the reply for a fault that occurs before the model runs; ``None`` for other faults."""
    match fault:
        case "503":
            return api.overloaded()
        case "no_room":
            return api.no_capacity()
        case "429" | "429_no_header":
            return api.rate_limited(_injected_limit(settings), model, hint=fault == "429")
        case "no_money":
            return api.quota_exhausted(model)
        case "reset_before":
            return ServerReply(0, b"", damage=fault)
    return None


def _apply_fault(api: Api, reply: ServerReply, fault: str | None) -> ServerReply:
    """Change a reply by a fault that occurs after the model has run."""
    body = reply.body
    match fault:
        case "500":
            return evolve(api.internal_error(), delay=reply.delay)
        case "html":
            return ServerReply(502, _HTML_PAGE, content_type="text/html", delay=reply.delay)
        case "bad_json":
            return evolve(reply, body=b'{"id": "chatcmpl-', event_interval=0.0, delivered=None)
        case "empty":
            return evolve(reply, body=b"", event_interval=0.0, delivered=None)
        case "html_200":
            return evolve(
                reply, body=_HTML_PAGE, content_type="text/html", event_interval=0.0, delivered=None
            )
        case "stream_end" | "stream_error" if isinstance(body, list):
            first_half = body[: max(1, len(body) // 2)]
            error = [api.error_event()] if fault == "stream_error" else []
            return evolve(reply, body=first_half + error, delivered=None)
        case "stream_end" | "stream_error":
            return evolve(reply, damage="truncated")
        case None | "refusal":
            return reply
    return evolve(reply, damage=fault)


def _injected_limit(settings: EmulatorSettings) -> LimitExceeded:
    limit = int(settings.rpm or 500)
    return LimitExceeded(
        "requests", limit, limit, 1, settings.fault_retry_after, real=settings.rpm is not None
    )
