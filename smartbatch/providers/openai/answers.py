"""Reads the answers of OpenAI's two generation APIs, and of the servers that imitate them.

Every field is optional until it is read: compatible servers leave out usage, details, refusals, even the
model. What is missing is ``None``; what has the wrong shape is an ``INVALID_RESPONSE``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.error_table import kind_of_status
from smartbatch.providers.foreign_text import PLAIN_ID, PLAIN_WORD, count, short, sound, told
from smartbatch.providers.http.replies import Reply, invalid_response, redirected
from smartbatch.providers.limit_headers import parse_duration, parse_retry_after, read_limits
from smartbatch.types import Answer, LimitReport, Request, Usage

__all__ = [
    "carries_error",
    "chat_usage",
    "decode",
    "limits_of",
    "read_chat",
    "read_error",
    "read_response",
    "request_id_of",
]

_FINISH = {"function_call": "tool_calls", "max_output_tokens": "length", "max_tokens": "length"}
_TRY_AGAIN = re.compile(r"try again in ([0-9.hmsuµn]{1,24}?)\.?(?:\s|$)", re.I)


def decode(reply: Reply) -> dict[str, Any]:
    """Return the JSON object of a successful answer.

    Raises:
        ProviderError: ``INVALID_RESPONSE`` for a page or a value that is no answer of this API,
            ``NETWORK_ERROR`` for a body that is not whole JSON: it was cut or garbled on its way.
    """
    body = reply.body
    if reply.headers.get("content-type", "").startswith("text/html") or body.lstrip()[:1] == b"<":
        raise _unusable(
            reply,
            "html",
            "a web page came back, not the provider: check the base URL, or sign in to the network",
        )
    try:
        data = json.loads(body)
    except RecursionError:
        raise _unusable(reply, "shape", "the answer is nested too deeply") from None
    except ValueError:
        error = _unusable(
            reply, "truncated", "the answer is not whole JSON; it was cut or garbled on its way"
        )
        error.kind = ErrorKind.NETWORK_ERROR
        raise error from None
    if not isinstance(data, dict):
        raise _unusable(reply, "shape", "the answer is not a JSON object")
    return data


def read_chat(data: Mapping[str, Any], reply: Reply) -> Answer:
    """Return the answer of ``/chat/completions``.

    Raises:
        ProviderError: ``INVALID_RESPONSE`` when there is no message in it.
    """
    usage = _usage(data.get("usage"), "prompt", "completion")
    try:
        choice = data["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
        finish = choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        raise _unusable(reply, "shape", "the answer has no choices[0].message", usage) from None
    if isinstance(refusal, str) and refusal and not content:
        content, finish = refusal, "refusal"
    return Answer(
        text=sound(_joined(content, reply, usage)),
        usage=usage,
        finish_reason=_finish(finish),
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=request_id_of(reply),
        limits=limits_of(reply),
        tier=short(data.get("service_tier"), PLAIN_WORD),
    )


def read_response(data: Mapping[str, Any], reply: Reply) -> Answer:
    """Return the answer of ``/responses``, which says in a 200 whether it failed.

    Raises:
        ProviderError: for a failed or unfinished response, or one without output.
    """
    usage = _usage(data.get("usage"), "input", "output")
    status = data.get("status")
    if status in ("failed", "cancelled"):
        raise _failed_response(data, reply, usage)
    output = data.get("output")
    if not isinstance(output, list) or status in ("queued", "in_progress"):
        raise _unusable(reply, "shape", "the response has no output", usage)
    texts, refusals, finish = [], [], "stop"
    for part in _parts(output):
        if part.get("type") == "output_text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            refusals.append(part["refusal"])
    if any(isinstance(item, dict) and item.get("type") == "function_call" for item in output):
        finish = "tool_calls"
    if refusals and not texts:
        texts, finish = refusals, "refusal"
    if status == "incomplete":
        details = data.get("incomplete_details")
        finish = _finish(details.get("reason") if isinstance(details, dict) else "length")
    return Answer(
        text=sound("".join(texts)),
        usage=usage,
        finish_reason=finish,
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=request_id_of(reply),
        limits=limits_of(reply),
        tier=short(data.get("service_tier"), PLAIN_WORD),
    )


def carries_error(data: Mapping[str, Any]) -> bool:
    """Whether a successful status came with an error instead of an answer."""
    return bool(
        data.get("error") and not (data.get("choices") or data.get("data")) and data.get("status") is None
    )


def read_error(
    reply: Reply, requests: Sequence[Request], *secrets: str | None, data: Any = None
) -> ProviderError:
    """Return the meaning of an error answer, without the key and without pieces of the prompt.

    Args:
        reply: the answer.
        requests: whose texts must not come back in the error.
        secrets: further texts that must not.
        data: the decoded body, where it was decoded already.
    """
    if 300 <= reply.status < 400:
        return redirected(reply.status, request_id=request_id_of(reply), limits=limits_of(reply))
    if data is None:
        data = reply.json()
    message, type_, code = _error_fields(data)
    kind = kind_of_status(reply.status, code, type_, message)
    wait = parse_retry_after(reply.headers, time.time())
    if wait is None and kind is ErrorKind.RATE_LIMIT and (found := _TRY_AGAIN.search(message)):
        wait = min(parse_duration(found[1]) or 0.0, 600.0)
    word = short(str(code) if isinstance(code, int) else code, PLAIN_WORD) or short(type_, PLAIN_WORD)
    text = told(message, requests, *secrets)
    return ProviderError(
        f"the provider answered {reply.status}{f' {word}' if word else ''}{f': {text}' if text else ''}",
        kind=kind,
        status=reply.status,
        code=word,
        retry_after=wait,
        provider_request_id=request_id_of(reply),
        limits=limits_of(reply),
        maybe_billed=reply.status in (200, 504),  # a gateway gave up waiting, the work may have been done
    )


def _failed_response(data: Mapping[str, Any], reply: Reply, usage: Usage | None) -> ProviderError:
    error = data.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    kind = kind_of_status(200, code, None, message if isinstance(message, str) else "")
    if kind is ErrorKind.INVALID_RESPONSE:
        kind = ErrorKind.SERVER_ERROR
    word = short(code, PLAIN_WORD)
    return ProviderError(
        f"the provider could not finish the response ({word or 'no code'})",
        kind=kind,
        status=reply.status,
        code=word,
        provider_request_id=request_id_of(reply),
        maybe_billed=True,
        usage=usage,
        limits=limits_of(reply),
    )


def _error_fields(data: Any) -> tuple[str, Any, Any]:
    """Message, type and code of an error body: an object, a bare text, or flat as older vLLM sends it."""
    error = data
    if isinstance(data, list) and data:  # Gemini's compatible layer wraps the object in a list
        error = data = data[0]
    if isinstance(data, dict) and data.get("error") is not None:
        error = data["error"]
    if isinstance(error, str):
        return error, None, None
    if not isinstance(error, dict):
        return "", None, None
    message = error.get("message")
    return message if isinstance(message, str) else "", error.get("type"), error.get("code")


def _unusable(reply: Reply, code: str, text: str, usage: Usage | None = None) -> ProviderError:
    return invalid_response(
        reply.status, code, text, usage, request_id=request_id_of(reply), limits=limits_of(reply)
    )


def chat_usage(usage: Any) -> Usage | None:
    """Return the ``usage`` of a chat completion; ``None`` when it is missing or absurd."""
    return _usage(usage, "prompt", "completion")


def _usage(usage: Any, inward: str, outward: str) -> Usage | None:
    """The billed tokens; ``None`` when they are missing or absurd, so that an estimate takes their place."""
    if not isinstance(usage, dict):
        return None
    taken, made = count(usage.get(f"{inward}_tokens")), count(usage.get(f"{outward}_tokens", 0))
    if taken is None or made is None:
        return None
    cached = _detail(usage.get(f"{inward}_tokens_details"), "cached_tokens")
    reasoning = _detail(usage.get(f"{outward}_tokens_details"), "reasoning_tokens")
    return Usage(taken, made, min(cached, taken), min(reasoning, made))


def _detail(details: Any, name: str) -> int:
    return (count(details.get(name)) or 0) if isinstance(details, dict) else 0


def _joined(content: Any, reply: Reply, usage: Usage | None) -> str:
    """The text of a message; compatible servers may send it in parts, tools leave it out."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    raise _unusable(reply, "shape", "the message's content is neither a text nor a list of parts", usage)


def _parts(output: list[Any]) -> Iterator[dict[str, Any]]:
    for item in output:
        content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


def _finish(reason: Any) -> str:
    if reason is None:
        return "stop"
    word = short(reason, PLAIN_WORD) or "unknown"
    return _FINISH.get(word, word)


def request_id_of(reply: Reply) -> str | None:
    """Return the provider's id of the call."""
    return short(reply.headers.get("x-request-id"), PLAIN_ID)


def limits_of(reply: Reply) -> LimitReport | None:
    """Return what the headers say about limits."""
    if any(name.startswith("x-ratelimit-") for name in reply.headers):
        return read_limits(reply.headers)
    return None
