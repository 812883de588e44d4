"""A key made of everything in a request that is sent: requests with equal keys may share an answer."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from attrs import asdict

from smartbatch.chats import message_form
from smartbatch.core.preparation.class_schemas import BuiltSchema
from smartbatch.types import Embedding, Generation, Request

VERSION = 1
"""Raised when the form of the key changes, so that stored keys of the old form match nothing."""

_written: dict[int, tuple[weakref.ref[Generation], bytes]] = {}
"""Canonical JSON of parameters that many requests share, by their identity; forgotten with them."""


def fingerprint(request: Request, model: str, scope: str) -> bytes:
    """Return the key of ``request``: 32 bytes, equal only where the provider would receive the same request.

    Args:
        request: as :func:`~smartbatch.core.preparation.validation.normalise` returned it.
        model: the model it goes to.
        scope: the provider's scope: account, server, organisation.

    Keys of requests with different isolation keys differ. The key of a request with its own callable equals
    that of no other living request; that of any other request is the same in every process. Each answer of
    ``n`` has a key of its own, unless ``deduplicate`` is True. The order of a
    dictionary's keys makes no difference, nor does the class that a schema was made of.
    """
    key = hashlib.blake2b(_head(scope, model, request.isolation_key), digest_size=32)
    key.update(_canonical(request.params))
    if request.embedding is not None:
        key.update(_vector(request.embedding))
    if request.call is not None:
        key.update(b"call:%d:" % id(request))
    if request.sample is not None and not request.deduplicate:
        key.update(b"sample:%d:" % request.sample)
    prompt = request.prompt
    if isinstance(prompt, str):
        key.update(b"text:")
        key.update(prompt.encode("utf-8", "surrogatepass"))
    else:
        key.update(b"chat:")
        key.update(_json([message_form(message) for message in prompt]))
    return key.digest()


def shares_answer(request: Request, default: bool | None) -> bool:
    """Whether a request shares one answer with equal ones. The cases, in order:

    1. It has an own callable: no.
    2. The request, or else the client, says so.
    3. It is one of several answers to a prompt, or asks for variety with a temperature above 0: no.
    4. Otherwise yes.

    Args:
        default: the setting ``deduplicate``.
    """
    if request.call is not None:
        return False
    chosen = default if request.deduplicate is None else request.deduplicate
    if chosen is not None:
        return chosen
    return request.sample is None and not _temperature(request.params)


def _temperature(params: Generation) -> Any:
    """Return the temperature that was asked for, also in ``extra``, where Gemini has it one level down."""
    if params.temperature is not None or params.extra is None:
        return params.temperature
    levels = (params.extra, *(value for value in params.extra.values() if isinstance(value, Mapping)))
    return next((level["temperature"] for level in levels if "temperature" in level), None)


def object_key(key: bytes, request: Request) -> bytes:
    """Return a key for requests that may share the object made of their answer, not only the answer.

    It counts in this process, and while one of the requests is there.

    Args:
        key: the :func:`fingerprint` of ``request``.
    """
    schema = request.params.schema
    return key + b"build:%d" % id(schema.build) if isinstance(schema, BuiltSchema) else key


def remember(params: Generation) -> None:
    """Keep the canonical JSON of ``params`` for all requests that carry this very object. Any thread may."""
    number = id(params)
    forget = _written.pop  # bound here: the interpreter's end may take the name before the object
    _written[number] = weakref.ref(params, lambda _: forget(number, None)), _write(params)


def _canonical(params: Generation) -> bytes:
    known = _written.get(id(params))
    return known[1] if known is not None and known[0]() is params else _write(params)


def _write(params: Generation) -> bytes:
    form = asdict(params)
    del form["n"]  # requests are alike without it: each answer is a request
    return _json(form)


@lru_cache(maxsize=256)
def _head(scope: str, model: str, isolation_key: str | None) -> bytes:
    return _json([VERSION, scope, model, isolation_key])


@lru_cache(maxsize=256)
def _vector(asked: Embedding) -> bytes:
    return b"embedding:" + _json([asked.task_type, asked.dimensions])


def _json(value: Any) -> bytes:
    # every part is a JSON text, whose end is unambiguous: two different sequences of parts never look alike
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
