"""Encodes requests and results of jobs as compact JSON, and decodes them.

Equal content always gives equal bytes. Dictionaries keep their order because a model writes its answer in the
order of the schema. Each encoded value has a version, so that rows stay readable when the format changes.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

from attrs import asdict, astuple, evolve, fields_dict, frozen

from smartbatch import errors
from smartbatch.chats import PART_FORMS, message_form, read_message
from smartbatch.core.preparation.json_recovery import NotJson, snapshot
from smartbatch.errors import (
    ErrorKind,
    InvalidRequest,
    ProviderError,
    SmartbatchError,
    StoreError,
    UnusableAnswer,
    after_refusal,
    scrub,
)
from smartbatch.jobs.records import EarlierTries
from smartbatch.media import KeepContent, media_form, read_media
from smartbatch.providers.answer_parts import from_base64, to_base64
from smartbatch.providers.http.content import decode_json
from smartbatch.shared_prefixes import CacheMark, SharedPrefix
from smartbatch.types import Embedding, Generation, Message, Priority, Request, Result, Route, Tool, Usage

FORMAT_VERSION = 1
MAX_MESSAGE_CHARS = 1000
"""Longer error messages are cut."""

_SMALL_INT = 2**63
_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_lenient = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""It writes NaN and infinities in a form that Python can read back."""
_fast: Callable[[Any], bytes] | None
try:
    from orjson import dumps as _fast
except ImportError:  # the extra "fast" is not installed
    _fast = None
_NAMES = tuple(fields_dict(Generation))
_DEFAULT = Result("")
_NOTHING = Generation()
_T = TypeVar("_T")


@frozen
class Shared:
    """What all requests of a job share. Each request stores only the parameters that differ.

    Attributes:
        files: the folder with files given as bytes; ``None`` if their content is not needed.
    """

    params: Generation = _NOTHING
    embedding: Embedding | None = None
    files: str | None = None


# -- requests ------------------------------------------------------------------------------------------------


def encode_params(params: Generation, embedding: Embedding | None = None) -> bytes:
    given = {name: value for name in _NAMES if (value := _form_of(params, name)) is not None}
    form: dict[str, Any] = {"v": FORMAT_VERSION, "params": given}
    if embedding is not None:
        form["embedding"] = [embedding.task_type, embedding.dimensions]
    return _checked(form, None)


def decode_params(data: bytes, files: str | None = None) -> Shared:
    """Inverse of :func:`encode_params`, except that a schema made from a class becomes a plain schema."""
    return _read(
        data,
        lambda form: Shared(
            Generation(**_generation(form["params"])), _embedding(form.get("embedding")), files
        ),
    )


def encode_request(
    request: Request, shared: Shared, *, row: int | None = None, keep: KeepContent | None = None
) -> bytes:
    """Encode everything that affects the answer to ``request``, and its context. Its id is stored separately,
    and its shared prefixes are added with :func:`with_cache`.

    A schema made from a class is written as a plain schema, so ``Result.parsed`` will be plain data.

    Args:
        request: as returned by :func:`~smartbatch.core.preparation.validation.normalise`.
        shared: the parameters that the job's requests share.
        row: position in the list, from 0, for error messages.
        keep: writes files given as bytes; ``None`` rejects them.

    Raises:
        InvalidRequest: the request contains a callable, a context that JSON cannot represent, or a lone
            surrogate. The message names the field and the row.
        StoreError: a file given as bytes could not be written.
    """
    if request.call is not None:
        problem = "is a callable, which cannot be stored for another process: use submit() for it"
        _refuse("call", problem, row)
    prompt = request.prompt
    form: dict[str, Any] = {"v": FORMAT_VERSION}
    if isinstance(prompt, str):
        form["prompt"] = prompt
    else:
        form["chat"] = [message_form(message, partial(media_form, keep=keep)) for message in prompt]
    if request.params is not shared.params and (different := difference(request.params, shared.params)):
        form["params"] = different
    if (own := request.embedding) != shared.embedding:
        form["embedding"] = None if own is None else [own.task_type, own.dimensions]
    for name in ("purpose", "isolation_key", "context", "max_wait", "timeout"):
        if (value := getattr(request, name)) is not None:
            form[name] = value
    if request.priority is not Priority.NORMAL:
        form["priority"] = int(request.priority)
    for name in ("deduplicate", "model", "sample", "row"):
        if (value := getattr(request, name)) is not None:
            form[name] = value
    # common case: a single string and a short context, which the encoder itself can check
    if "prompt" in form and len(form) == 2 + ("context" in form) and _is_flat(form.get("context")):
        try:
            return _strict(form).encode() if _fast is None else _copied(_fast(form))
        except (UnicodeEncodeError, TypeError):
            pass
    return _checked(form, row)


def with_cache(payload: bytes, mark: CacheMark | None) -> bytes:
    """Add to an encoded request the prefixes that it shares with others."""
    return payload if mark is None else payload[:-1] + _cache_form(mark)


@lru_cache(maxsize=256)
def _cache_form(mark: CacheMark) -> bytes:
    return b',"cache":' + _strict([astuple(prefix) for prefix in mark.prefixes]).encode() + b"}"


def decode_request(data: bytes, shared: Shared, *, id: str | None, timeout: float | None = None) -> Request:
    """Inverse of :func:`encode_request`.

    Args:
        timeout: seconds, for a request without its own.

    Raises:
        StoreError: ``data`` is damaged, or was written by a newer version.
    """

    def made(form: dict[str, Any]) -> Request:
        params = shared.params
        if different := form.get("params"):
            params = evolve(params, **_generation(different))
        prompt: str | tuple[Message, ...]
        if "chat" in form:
            prompt = tuple(read_message(message, shared.files) for message in form["chat"])
        else:
            prompt = form["prompt"]
            if not isinstance(prompt, str):
                raise TypeError("prompt")
        return Request(
            prompt,
            params,
            priority=form.get("priority", Priority.NORMAL),
            id=id,
            context=form.get("context"),
            max_wait=form.get("max_wait"),
            timeout=form.get("timeout", timeout),
            purpose=form.get("purpose"),
            isolation_key=form.get("isolation_key"),
            embedding=_embedding(form["embedding"]) if "embedding" in form else shared.embedding,
            deduplicate=form.get("deduplicate"),
            model=form.get("model"),
            sample=form.get("sample"),
            row=form.get("row"),
            cache=_cache(form.get("cache")),
        )

    return _read(data, made)


def is_chat(data: bytes) -> bool:
    """Whether an encoded request may be a chat. Only chats contain files."""
    return b'"chat":' in data


def context_of(data: bytes) -> Any:
    return _read(data, lambda form: form.get("context")) if b'"context"' in data else None


def model_of(data: bytes) -> str | None:
    """Return the model of an encoded request, without the provider prefix."""
    return _read(data, lambda form: form.get("model")) if b'"model"' in data else None


def place_of(data: bytes) -> tuple[int | None, int | None]:
    """Return ``row`` and ``sample``."""
    if b'"row"' not in data:
        return None, None
    return _read(data, lambda form: (form.get("row"), form.get("sample")))


def prefixes_of(data: bytes) -> tuple[SharedPrefix, ...]:
    """Return the prefixes that an encoded request shares with others, shortest first."""
    mark = _cache(_read(data, lambda form: form.get("cache"))) if b'"cache"' in data else None
    return () if mark is None else mark.prefixes


class RunningDigest:
    """Computes the digest of a job whose items arrive one at a time.

    Args:
        head: the job's model and common parameters, encoded.
    """

    def __init__(self, head: bytes) -> None:
        self._running = hashlib.blake2b(b"%d:" % len(head) + head, digest_size=32)

    def include(self, user_id: str | None, payload: bytes) -> None:
        own = None if user_id is None else user_id.encode("utf-8", "surrogatepass")
        name = b"-" if own is None else b"%d:" % len(own) + own
        self._running.update(b"%b%d:" % (name, len(payload)))  # lengths first, so that different items
        self._running.update(payload)  # never produce the same bytes

    def value(self) -> bytes:
        """The digest covers ids, requests and order."""
        return self._running.digest()


# -- results -------------------------------------------------------------------------------------------------


def encode_result(result: Result, keep: KeepContent | None = None) -> bytes:
    """Encode ``result`` without its id, which is stored separately.

    A paid answer is never rejected: lone surrogates and non-finite numbers are kept. A ``parsed`` object that
    JSON cannot represent is left out, because it can be parsed again from the text. Secrets are removed from
    error messages once more.

    Args:
        keep: writes the answer's files, of which only the hash is encoded.

    Raises:
        StoreError: a file could not be written.
    """
    form: dict[str, Any] = {"v": FORMAT_VERSION}
    for (name, write, default), value in zip(_WRITTEN, _kept_of(result), strict=True):
        if value is not None and (default is None or value != default):
            form[name] = write(value)
    if result.files:
        form["files"] = [media_form(file, keep) for file in result.files]
    return _write(form)


def item_id(job_id: str, ix: int, user_id: str | None) -> str:
    """Use the request's own id, or make one from the job and the position."""
    return f"{job_id}-{ix}" if user_id is None else user_id


def decode_result(data: bytes, *, request_id: str, request: bytes = b"", files: str | None = None) -> Result:
    """Inverse of :func:`encode_result`.

    Args:
        request_id: the request's id, which the error also contains.
        request: the encoded request, whose context is used if the result has none.
        files: the folder with the answer's files; ``None`` if their content is not needed.

    Raises:
        StoreError: ``data`` is damaged, or was written by a newer version.
    """

    def made(form: dict[str, Any]) -> Result:
        given = {name: _READ[name](value) for name, value in form.items() if name in _READ}
        if "context" not in given and b'"context"' in request:
            given["context"] = context_of(request)
        if "files" in form:
            given["files"] = tuple(filter(None, (read_media(file, files) for file in form["files"])))
        error = _error_of(form, request_id)
        if isinstance(error, UnusableAnswer) and "text" in form:
            error.text = form["text"]
        result = Result(request_id, **{**given, "error": error})
        if error is not None:
            error.attempts, error.route = result.attempts, result.route
        return result

    return _read(data, made)


def with_earlier_tries(result: Result, earlier: EarlierTries | None) -> Result:
    """Add the usage of earlier tries to a result.

    If it has no answer but an earlier answer was rejected, that answer is included with both reasons, because
    it was paid for.
    """
    if earlier is None:
        return result
    cost = None if result.cost is None or earlier.cost is None else result.cost + earlier.cost
    result = evolve(result, cost=cost, usage=earlier.usage + result.usage)
    if result.error is None or result.text is not None or earlier.refused is None:
        return result
    refused = decode_result(earlier.refused, request_id=result.request_id)
    if not isinstance(refused.error, UnusableAnswer):
        return result
    error = after_refusal(result.error, refused.error)
    return evolve(result, text=refused.text, finish_reason=refused.finish_reason, error=error)


def encode_error(error: SmartbatchError) -> bytes:
    """Encode a result that contains only ``error``. The same bytes serve many items."""
    return encode_result(Result("", error=error, cost=0.0))


def decode_error(data: bytes, *, request_id: str | None = None) -> SmartbatchError | None:
    return _read(data, lambda form: _error_of(form, request_id))


# -- parts of requests ---------------------------------------------------------------------------------------


def _checked(form: Mapping[str, Any], row: int | None) -> bytes:
    """Encode a user's values; reject values that JSON or UTF-8 cannot represent."""
    copied: dict[str, Any] = {}
    for name, value in form.items():
        if name == "params":
            copied[name] = {field: _plain(field, own, row) for field, own in value.items()}
        else:
            copied[name] = _plain("prompt" if name == "chat" else name, value, row)
    return _strict(copied).encode()


def _is_flat(context: Any) -> bool:
    """True for ``None`` and for lists of strings and small integers."""
    if context is None:
        return True
    return type(context) is list and all(
        type(value) is str or (type(value) is int and -_SMALL_INT < value < _SMALL_INT) for value in context
    )


def _is_plain(form: Mapping[str, Any]) -> bool:
    """False if the value contains a large integer, which the fast encoder and decoder would change."""
    if not (form.keys() <= _NO_LARGE and _is_flat(form.get("context"))):
        return False
    extra = form.get("extra")
    return extra is None or (isinstance(extra, dict) and all(type(value) is str for value in extra.values()))


def _plain(field: str, value: Any, row: int | None) -> Any:
    try:
        return snapshot(value)
    except NotJson as error:
        place = f"at {error.path[:120]} it " if error.path else "it "
        _refuse(field, f"of a job must be JSON: {place}{error.reason}", row)


def _refuse(field: str, problem: str, row: int | None) -> NoReturn:
    place = "" if row is None else f"row {row} (counted from 0): "
    raise InvalidRequest(f"{place}{field} {problem}", field=field, row=row)


def difference(own: Generation, shared: Generation) -> dict[str, Any]:
    """Return the differing fields; 1, 1.0 and True are three different values."""
    return {name: value for name in _NAMES if not _same(value := _form_of(own, name), _form_of(shared, name))}


def _form_of(params: Generation, name: str) -> Any:
    value = getattr(params, name)
    return [asdict(tool) for tool in value] if name == "tools" and value is not None else value


def _same(one: Any, other: Any) -> bool:
    if one is other or one is None or other is None:
        return one is other
    try:
        return _strict(one) == _strict(other)
    except (TypeError, ValueError, RecursionError):
        return False  # the encoder reports the error with the field's name


def _generation(form: Mapping[str, Any]) -> dict[str, Any]:
    read = dict(form)
    if form.get("stop") is not None:
        read["stop"] = tuple(form["stop"])
    if form.get("tools") is not None:
        read["tools"] = tuple(Tool(**tool) for tool in form["tools"])
    return read


def _cache(form: Any) -> CacheMark | None:
    return None if form is None else CacheMark(tuple(SharedPrefix(*prefix) for prefix in form))


def _embedding(form: Any) -> Embedding | None:
    if form is None:
        return None
    task_type, dimensions = form
    return Embedding(task_type, dimensions)


# -- JSON and errors -----------------------------------------------------------------------------------------


def _write(form: dict[str, Any]) -> bytes:
    """Encode any result; objects that JSON cannot represent are left out.

    For values without user data, the fast encoder writes the same bytes except for the exponents of small
    numbers (``1e-5``). It rejects lone surrogates and writes ``null`` for non-finite numbers; it writes no
    other value as ``null``.
    """
    if _fast is not None and _is_plain(form):
        try:
            written = _fast(form)
        except TypeError:
            pass
        else:
            if b"null" not in written:
                return _copied(written)
    for optional in ("parsed", "context", "extra"):
        try:
            text = _lenient(form)
            break
        except (TypeError, ValueError, RecursionError):
            form.pop(optional, None)
    else:
        text = _lenient(form)
    return text.encode("utf-8", "surrogatepass")


def _copied(written: bytes) -> bytes:
    """Copy the fast encoder's output: its buffers take at least 1 kB each, and thousands of them are kept."""
    return memoryview(written).tobytes()


def _read(data: bytes, make: Callable[[dict[str, Any]], _T]) -> _T:
    """Decode ``data``, and pass the value to ``make``.

    Raises:
        StoreError: ``data`` is damaged, or was written by another version.
    """
    try:
        form = _decoded(data)
        if (version := form["v"]) == FORMAT_VERSION:
            return make(form)
        if type(version) is not int:
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise StoreError(
            "a row of the store is damaged and was left unchanged; restore the store from a copy"
        ) from None
    raise StoreError(
        f"a row of the store has format {version}, but this smartbatch reads format {FORMAT_VERSION}: "
        "update it"
    )


def _decoded(data: bytes) -> Any:
    form = decode_json(data)
    if isinstance(form, dict) and _is_plain(form):
        return form
    return json.loads(data)  # the fast decoder turns large integers into floats


def _usage_form(usage: Usage) -> list[Any]:
    """Return the arguments that recreate ``usage``, without trailing defaults."""
    arguments = list(_USAGE(usage))
    while arguments and not arguments[-1] and len(arguments) > 4:
        arguments.pop()
    return arguments


_TEXTS = ("batch_id", "code", "field", "finish_reason", "job_id", "provider_request_id", "reason")
_DETAILS: Mapping[str, Any] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("row", "status", "tries"), int),
    **dict.fromkeys(("cost", "retry_after"), int | float),
    "maybe_billed": bool,
}
"""Attributes of errors that are stored in addition to kind and message. Others, such as causes, are not."""


def _error_form(error: SmartbatchError) -> dict[str, Any]:
    """Secrets are removed from the strings once more."""
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    form: dict[str, Any] = {
        "class": known.__name__,
        "message": scrub(str(error.message), limit=MAX_MESSAGE_CHARS),
    }
    if error.kind is not None:
        form["kind"] = error.kind.value
    for name, type_ in _DETAILS.items():
        value = error.__dict__.get(name)
        if isinstance(value, type_):
            form[name] = scrub(value) if isinstance(value, str) else value
    if isinstance(usage := error.__dict__.get("usage"), Usage):
        form["usage"] = _usage_form(usage)
    if isinstance(error, errors.ParameterRejected):
        form["omitted"] = [list(each) for each in error.omitted]
    return form


def _error_of(result: Mapping[str, Any], request_id: str | None) -> SmartbatchError | None:
    """An unknown class is replaced by the closest known one."""
    if "error" not in result:
        return None
    form = result["error"]
    kind = form.get("kind")
    found = getattr(errors, form["class"], None)
    if not (isinstance(found, type) and issubclass(found, SmartbatchError)):
        found = SmartbatchError if kind is None else ProviderError  # written by a newer version
    details: dict[str, Any] = {name: form[name] for name in _DETAILS if name in form}
    if kind is not None:
        details["kind"] = ErrorKind(kind) if kind in _KINDS else ErrorKind.UNKNOWN
    if "usage" in form:
        details["usage"] = Usage(*form["usage"])
    if "omitted" in form:
        details["omitted"] = tuple((name, reason) for name, reason in form["omitted"])
    return found(form["message"], request_id=request_id, **details)


_KINDS = frozenset(kind.value for kind in ErrorKind)


def _as_it_is(value: Any) -> Any:
    return value


_PLAIN = (_as_it_is, _as_it_is)
_RESULT: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    **dict.fromkeys(("text", "finish_reason", "model", "provider_request_id", "cost"), _PLAIN),
    **dict.fromkeys(("time_to_first_chunk", "latency", "queued", "attempts", "deduplicated"), _PLAIN),
    "unconfirmed_cost": _PLAIN,
    "usage": (_usage_form, lambda form: Usage(*form)),
    "route": (attrgetter("value"), Route),
    "dropped": (_as_it_is, lambda form: tuple((name, reason) for name, reason in form)),
    "embedding": (lambda vector: to_base64(array("f", vector)), from_base64),
    "error": (_error_form, _as_it_is),
    **PART_FORMS,
    "context": _PLAIN,
    "parsed": _PLAIN,
}
"""The stored fields of a result, in this order, with their encoders and decoders. For errors see _error_of.
"""
_READ = {name: read for name, (_, read) in _RESULT.items()}
_WRITTEN = [(name, write, getattr(_DEFAULT, name)) for name, (write, _) in _RESULT.items()]
_kept_of = attrgetter(*_RESULT)
_NO_LARGE = {"v", "prompt", *_RESULT} - {"parsed", "error", "tool_calls"}
"""Fields without large integers and without data of the user or provider, except a context and ``extra``."""
_USAGE = attrgetter(*fields_dict(Usage))
