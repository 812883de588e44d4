"""A key made from everything that is sent for a request. Requests with equal keys may share an answer."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from attrs import asdict

from smartbatch.chats import identity_form
from smartbatch.core.preparation.class_schemas import BuiltSchema
from smartbatch.types import Embedding, Generation, Request

KEY_VERSION = 1  # incremented when the form of the key changes, so that stored keys no longer match

# canonical JSON of parameters shared by many requests, by identity; dropped together with the parameters
_written: dict[int, tuple[weakref.ref[Generation], bytes]] = {}


def fingerprint(request: Request, model: str, scope: str) -> bytes:
    """Return a key of 32 bytes, equal only if the provider would receive the same request.

    Requests with different isolation keys have different keys. A request with its own callable shares
    its key with no other living request; any other key is the same in every process. Each answer of
    ``n`` has its own key, unless ``deduplicate`` is True. Neither the order of dictionary keys nor the
    class behind a schema makes a difference.

    Args:
        request: as returned by :func:`~smartbatch.core.preparation.validation.normalise`.
        model: the model it is sent to.
        scope: the provider's scope: account, server, organization.
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
        key.update(_json([identity_form(message) for message in prompt]))
    return key.digest()


def shares_answer(request: Request, default: bool | None) -> bool:
    """True if a request shares one answer with identical ones. ``default`` is the setting ``deduplicate``."""
    # 1. A request with its own callable never shares.
    if request.call is not None:
        return False
    # 2. The request's own setting takes precedence over the client's.
    chosen = default if request.deduplicate is None else request.deduplicate
    if chosen is not None:
        return chosen
    # 3. One of several answers to a prompt does not share, nor does a request for varied answers (with a
    # temperature above 0).
    return request.sample is None and not _temperature(request.params)


def _temperature(params: Generation) -> Any:
    """Also look in ``extra``, in which Gemini's temperature is one level down."""
    if params.temperature is not None or params.extra is None:
        return params.temperature
    levels = (params.extra, *(value for value in params.extra.values() if isinstance(value, Mapping)))
    return next((level["temperature"] for level in levels if "temperature" in level), None)


def object_key(key: bytes, request: Request) -> bytes:
    """Return a key for requests that may share the object made from the answer as well as the answer.

    It is valid in this process, as long as one of the requests exists. ``key`` is the
    :func:`fingerprint`.
    """
    schema = request.params.schema
    return key + b"build:%d" % id(schema.build) if isinstance(schema, BuiltSchema) else key


def remember(params: Generation) -> None:
    """Keep the canonical JSON of ``params`` for all requests with this object. Thread-safe."""
    number = id(params)
    forget = _written.pop  # bound here: at interpreter exit, the name may be gone before the object
    _written[number] = weakref.ref(params, lambda _: forget(number, None)), _write(params)


def _canonical(params: Generation) -> bytes:
    known = _written.get(id(params))
    return known[1] if known is not None and known[0]() is params else _write(params)


def _write(params: Generation) -> bytes:
    form = asdict(params)
    del form["n"]  # each of the n answers is a separate request
    return _json(form)


@lru_cache(maxsize=256)
def _head(scope: str, model: str, isolation_key: str | None) -> bytes:
    return _json([KEY_VERSION, scope, model, isolation_key])


@lru_cache(maxsize=256)
def _vector(asked: Embedding) -> bytes:
    return b"embedding:" + _json([asked.task_type, asked.dimensions])


def _json(value: Any) -> bytes:
    # Every part is JSON, which has an unambiguous end, so different parts always give different keys.
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
