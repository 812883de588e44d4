"""Requests and results of jobs as bytes, and back: compact JSON, the same bytes for the same thing.

Dictionaries keep their order, which for a schema is the order in which a model writes its answer. Every text
has a version, so that rows stay readable when the form changes.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

from attrs import asdict, evolve, fields_dict, frozen

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
from smartbatch.jobs.records import EarlierTries, NewItem
from smartbatch.providers.answer_parts import from_base64, to_base64
from smartbatch.providers.http.content import decode_json
from smartbatch.types import Embedding, Generation, Message, Priority, Request, Result, Route, Tool, Usage

VERSION = 1
MESSAGE = 1000
"""Letters of an error's text that are kept."""

_SMALL = 2**63
_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_lenient = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Python reads back what it writes: NaN and infinities."""
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
    """What all requests of a job have in common; requests store only what differs from it.

    Args:
        params: generation parameters.
        embedding: set when vectors are asked for.
    """

    params: Generation = _NOTHING
    embedding: Embedding | None = None


# -- requests ------------------------------------------------------------------------------------------------


def encode_params(params: Generation, embedding: Embedding | None = None) -> bytes:
    """Return what a job's requests share as bytes.

    Raises:
        InvalidRequest: a parameter has no JSON form.
    """
    given = {name: value for name in _NAMES if (value := _form_of(params, name)) is not None}
    form: dict[str, Any] = {"v": VERSION, "params": given}
    if embedding is not None:
        form["embedding"] = [embedding.task_type, embedding.dimensions]
    return _checked(form, None)


def decode_params(data: bytes) -> Shared:
    """Return what :func:`encode_params` was given; a schema made of a class comes back as a plain one.

    Raises:
        StoreError: ``data`` is damaged, or of a newer version.
    """
    return _read(
        data,
        lambda form: Shared(Generation(**_generation(form["params"])), _embedding(form.get("embedding"))),
    )


def encode_request(request: Request, shared: Shared, *, row: int | None = None) -> bytes:
    """Return ``request`` as bytes: all that counts for its answer, and its context.

    Its id is stored next to it. A schema made of a class travels as a schema, so ``Result.parsed`` will be
    plain data, as ``json.loads`` makes.

    Args:
        request: as :func:`~smartbatch.core.preparation.validation.normalise` returned it.
        shared: what the job's other requests have in common with it.
        row: its position in the list, from 0, for errors.

    Raises:
        InvalidRequest: it has an own callable, a context without a JSON form, or a lone surrogate; names the
            field and the row.
    """
    if request.call is not None:
        problem = "is an own callable, which cannot be kept for another process: use submit() for it"
        _refuse("call", problem, row)
    prompt = request.prompt
    form: dict[str, Any] = {"v": VERSION}
    if isinstance(prompt, str):
        form["prompt"] = prompt
    else:
        form["chat"] = [message_form(message) for message in prompt]
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
    # the common case: one text and a context of a few, which the encoder itself can judge
    if "prompt" in form and len(form) == 2 + ("context" in form) and _is_flat(form.get("context")):
        try:
            return _strict(form).encode() if _fast is None else _copied(_fast(form))
        except (UnicodeEncodeError, TypeError):
            pass
    return _checked(form, row)


def decode_request(data: bytes, shared: Shared, *, id: str | None, timeout: float | None = None) -> Request:
    """Return the request :func:`encode_request` was given, with ``id``; of its own it has what it had then.

    Args:
        timeout: seconds for a request that has none of its own.

    Raises:
        StoreError: ``data`` is damaged, or of a newer version.
    """

    def made(form: dict[str, Any]) -> Request:
        params = shared.params
        if different := form.get("params"):
            params = evolve(params, **_generation(different))
        prompt: str | tuple[Message, ...]
        if "chat" in form:
            prompt = tuple(map(read_message, form["chat"]))
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
        )

    return _read(data, made)


def context_of(data: bytes) -> Any:
    """Return the context of the request that :func:`encode_request` was given; raises as
    :func:`decode_request`."""
    return _read(data, lambda form: form.get("context")) if b'"context"' in data else None


def model_of(data: bytes) -> str | None:
    """Return the model that the request named which :func:`encode_request` was given, without the provider's
    prefix; raises as :func:`decode_request`."""
    return _read(data, lambda form: form.get("model")) if b'"model"' in data else None


def place_of(data: bytes) -> tuple[int | None, int | None]:
    """Return ``row`` and ``sample`` of the request that :func:`encode_request` was given; raises as
    :func:`decode_request`."""
    if b'"row"' not in data:
        return None, None
    return _read(data, lambda form: (form.get("row"), form.get("sample")))


class RunningDigest:
    """The digest of a job whose items come one by one.

    Args:
        head: what the job has besides its items, such as its model and what :func:`encode_params` returned.
    """

    def __init__(self, head: bytes) -> None:
        self._running = hashlib.blake2b(b"%d:" % len(head) + head, digest_size=32)

    def add(self, item: NewItem) -> None:
        """Take the next item into account."""
        own = None if item.user_id is None else item.user_id.encode("utf-8", "surrogatepass")
        name = b"-" if own is None else b"%d:" % len(own) + own
        self._running.update(b"%b%d:" % (name, len(item.payload)))  # lengths first: no two rows of parts
        self._running.update(item.payload)  # look alike

    def value(self) -> bytes:
        """Return 32 bytes for all items so far: other ids, other requests, another order give others."""
        return self._running.digest()


# -- results -------------------------------------------------------------------------------------------------


def encode_result(result: Result) -> bytes:
    """Return ``result`` as bytes, without its id, which is stored next to it.

    An answer that was paid for is never refused: lone surrogates and numbers that are not finite are kept,
    and a ``parsed`` object without a JSON form is left out; it can be made of the text again. Error texts are
    scrubbed once more.
    """
    form: dict[str, Any] = {"v": VERSION}
    for (name, write, default), value in zip(_WRITTEN, _kept_of(result), strict=True):
        if value is not None and (default is None or value != default):
            form[name] = write(value)
    return _write(form)


def item_id(job_id: str, ix: int, user_id: str | None) -> str:
    """Return the id of an item's result: the request's own, or one made of the job and its place in it."""
    return f"{job_id}-{ix}" if user_id is None else user_id


def decode_result(data: bytes, *, request_id: str, request: bytes = b"") -> Result:
    """Return the result :func:`encode_result` was given.

    Args:
        data: what it returned.
        request_id: the request's id; also of the error.
        request: what :func:`encode_request` returned; has the context of a result that has none.

    Raises:
        StoreError: ``data`` is damaged, or of a newer version.
    """

    def made(form: dict[str, Any]) -> Result:
        given = {name: _READ[name](value) for name, value in form.items() if name in _READ}
        if "context" not in given and b'"context"' in request:
            given["context"] = context_of(request)
        error = _error_of(form, request_id)
        if isinstance(error, UnusableAnswer) and "text" in form:
            error.text = form["text"]
        result = Result(request_id, **{**given, "error": error})
        if error is not None:
            error.attempts, error.route = result.attempts, result.route
        return result

    return _read(data, made)


def with_earlier_tries(result: Result, earlier: EarlierTries | None) -> Result:
    """Return a result with what earlier tries of its item used. Where it has no answer, the one that was
    refused before stands next to both reasons: it was paid for.
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
    """Return the bytes of a result that is nothing but ``error``; they serve many items alike."""
    return encode_result(Result("", error=error, cost=0.0))


def decode_error(data: bytes, *, request_id: str | None = None) -> SmartbatchError | None:
    """Return the error in the bytes of a result, or ``None`` when it has none.

    Raises:
        StoreError: ``data`` is damaged, or of a newer version.
    """
    return _read(data, lambda form: _error_of(form, request_id))


# -- parts of requests ---------------------------------------------------------------------------------------


def _checked(form: Mapping[str, Any], row: int | None) -> bytes:
    """Write what a user gave; refuse what JSON or UTF-8 cannot carry."""
    copied: dict[str, Any] = {}
    for name, value in form.items():
        if name == "params":
            copied[name] = {field: _plain(field, own, row) for field, own in value.items()}
        else:
            copied[name] = _plain("prompt" if name == "chat" else name, value, row)
    return _strict(copied).encode()


def _is_flat(context: Any) -> bool:
    """Whether a context is nothing, or a list of texts and small numbers."""
    if context is None:
        return True
    return type(context) is list and all(
        type(value) is str or (type(value) is int and -_SMALL < value < _SMALL) for value in context
    )


def _is_plain(form: Mapping[str, Any]) -> bool:
    """Whether the quick encoder and decoder keep a form as it is: it has no large whole number."""
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
    """Return the fields that differ, as they would on the wire: there 1, 1.0 and True are three things."""
    return {name: value for name in _NAMES if not _same(value := _form_of(own, name), _form_of(shared, name))}


def _form_of(params: Generation, name: str) -> Any:
    """Return a parameter as JSON has it."""
    value = getattr(params, name)
    return [asdict(tool) for tool in value] if name == "tools" and value is not None else value


def _same(one: Any, other: Any) -> bool:
    if one is other or one is None or other is None:
        return one is other
    try:
        return _strict(one) == _strict(other)
    except (TypeError, ValueError, RecursionError):
        return False  # it is written, and refused there by its name


def _generation(form: Mapping[str, Any]) -> dict[str, Any]:
    read = dict(form)
    if form.get("stop") is not None:
        read["stop"] = tuple(form["stop"])
    if form.get("tools") is not None:
        read["tools"] = tuple(Tool(**tool) for tool in form["tools"])
    return read


def _embedding(form: Any) -> Embedding | None:
    if form is None:
        return None
    task_type, dimensions = form
    return Embedding(task_type, dimensions)


# -- JSON and errors -----------------------------------------------------------------------------------------


def _write(form: dict[str, Any]) -> bytes:
    """Write a result whatever is in it; objects without a form are left out.

    Where there is nothing of the user's, the quick encoder writes the same, but for the exponents of small
    numbers (``1e-5``). It refuses lone surrogates, and writes ``null`` for a number that is not finite, which
    nothing else here is.
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
    """Return a copy of what the quick encoder wrote, which keeps at least 1 kB, as thousands are held."""
    return memoryview(written).tobytes()


def _read(data: bytes, make: Callable[[dict[str, Any]], _T]) -> _T:
    """Return what ``make`` makes of what was written.

    Raises:
        StoreError: it is damaged, or of another version.
    """
    try:
        form = _decoded(data)
        if (version := form["v"]) == VERSION:
            return make(form)
        if type(version) is not int:
            raise TypeError
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise StoreError(
            "a row of the store is damaged and was left as it is; restore the store from a copy"
        ) from None
    raise StoreError(
        f"a row of the store has form {version}, this smartbatch reads form {VERSION}: update it"
    )


def _decoded(data: bytes) -> Any:
    """Return what JSON says, whole numbers of any size as they are: where there may be large ones, the quick
    decoder, which makes floats of them, does not do."""
    form = decode_json(data)
    if isinstance(form, dict) and _is_plain(form):
        return form
    return json.loads(data)


def _usage_form(usage: Usage) -> list[Any]:
    """Return the arguments that make ``usage`` again, but for the last ones that have their default."""
    told = list(_USAGE(usage))
    while told and not told[-1] and len(told) > 4:
        told.pop()
    return told


_TEXTS = ("batch_id", "code", "field", "finish_reason", "job_id", "provider_request_id", "reason")
_DETAILS: Mapping[str, Any] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(("row", "status", "tries"), int),
    **dict.fromkeys(("cost", "retry_after"), int | float),
    "maybe_billed": bool,
}
"""What errors know besides kind and text, by name; other things, such as causes, stay with the process."""


def _error_form(error: SmartbatchError) -> dict[str, Any]:
    """Return what is kept of an error; its texts pass :func:`scrub` once more."""
    known = next(kind for kind in type(error).__mro__ if getattr(errors, kind.__name__, None) is kind)
    form: dict[str, Any] = {"class": known.__name__, "message": scrub(str(error.message), limit=MESSAGE)}
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
    """Return the error of a result, of its class again; of a class not known here, the nearest."""
    if "error" not in result:
        return None
    form = result["error"]
    kind = form.get("kind")
    found = getattr(errors, form["class"], None)
    if not (isinstance(found, type) and issubclass(found, SmartbatchError)):
        found = SmartbatchError if kind is None else ProviderError  # of a later version
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
"""What is kept of a result, in this order, and how each is written and read; for errors see _error_of."""
_READ = {name: read for name, (_, read) in _RESULT.items()}
_WRITTEN = [(name, write, getattr(_DEFAULT, name)) for name, (write, _) in _RESULT.items()]
_kept_of = attrgetter(*_RESULT)
_NO_LARGE = {"v", "prompt", *_RESULT} - {"parsed", "error", "tool_calls"}
"""What holds no large whole number, and nothing of a result that is the user's or the provider's own, but for
a context and ``extra``."""
_USAGE = attrgetter(*fields_dict(Usage))
