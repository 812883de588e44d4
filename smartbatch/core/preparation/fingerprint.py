"""A key made of everything in a request that is sent: requests with equal keys may share an answer."""

from __future__ import annotations

import hashlib
import json
import weakref
from functools import lru_cache
from typing import Any

from attrs import asdict

from smartbatch.chats import message_form
from smartbatch.core.preparation.schemas import BuiltSchema
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
    that of no other living request; that of any other request is the same in every process. The order of a
    dictionary's keys makes no difference, nor does the class that a schema was made of.
    """
    key = hashlib.blake2b(_head(scope, model, request.isolation_key), digest_size=32)
    key.update(_canonical(request.params))
    if request.embedding is not None:
        key.update(_vector(request.embedding))
    if request.call is not None:
        key.update(b"call:%d:" % id(request))
    prompt = request.prompt
    if isinstance(prompt, str):
        key.update(b"text:")
        key.update(prompt.encode("utf-8", "surrogatepass"))
    else:
        key.update(b"chat:")
        key.update(_json([message_form(message) for message in prompt]))
    return key.digest()


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
    return _json(asdict(params))


@lru_cache(maxsize=256)
def _head(scope: str, model: str, isolation_key: str | None) -> bytes:
    return _json([VERSION, scope, model, isolation_key])


@lru_cache(maxsize=256)
def _vector(asked: Embedding) -> bytes:
    return b"embedding:" + _json([asked.task_type, asked.dimensions])


def _json(value: Any) -> bytes:
    # every part is a JSON text, whose end is unambiguous: two different sequences of parts never look alike
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
