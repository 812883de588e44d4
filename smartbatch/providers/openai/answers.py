"""Reads the answers of OpenAI's generation and embeddings APIs, and of the servers that imitate them.

Every field is optional until it is read: compatible servers leave out usage, details, refusals, even the
model. What is missing is ``None``; what has the wrong shape is an ``INVALID_RESPONSE``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.answer_parts import (
    counted,
    gathered,
    identified,
    listed,
    says,
    spread,
    token_logprobs,
    tool_call,
    unmodelled,
    unmodelled_usage,
    vector,
)
from smartbatch.providers.batch_api import Line, NotRun, line_of
from smartbatch.providers.error_reader import ErrorReader, error_in, says_something
from smartbatch.providers.error_table import kind_of_code, kind_of_status
from smartbatch.providers.foreign_text import (
    PLAIN_ID,
    PLAIN_WORD,
    count,
    detail,
    fields,
    finish_word,
    plain,
    safe_text,
    short,
    unusable,
    well_formed,
)
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.bodies import dropped_of
from smartbatch.providers.openai.errors import ERRORS
from smartbatch.providers.openai.schema_modes import read_tool_answer
from smartbatch.types import MESSAGE_BLOCKS, Answer, Kind, Request, TokenLogprob, ToolCall, Usage

_OF_CHATS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details")
_OF_RESPONSES = ("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")
"""Names of the tokens that were read and written, and of their details."""
_FINISH = {
    "function_call": "tool_calls",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral: the end of the model's context
}
_CALLS = ("tool_calls", "function_call")
REASONING = ("reasoning_content", "reasoning")
"""Fields with the reasoning of a message: DeepSeek, vLLM, xAI; OpenRouter, Groq."""
KNOWN_IN_MESSAGE = frozenset({"role", "content", "refusal", *_CALLS, *REASONING})
KNOWN_IN_CHOICE = frozenset({"index", "message", "delta", "finish_reason", "logprobs", "error"})
KNOWN_IN_BODY = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_KNOWN_IN_CALL = frozenset({"id", "type", "index", "function"})
_KNOWN_IN_RESPONSE = frozenset(
    {"id", "object", "created_at", "completed_at", "model", "output", "usage", "status", "error"}
    # what the request said, repeated:
    | {"instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p"}
    | {"max_output_tokens", "max_tool_calls", "text", "reasoning", "store", "truncation", "background"}
    | {"top_logprobs", "user", "previous_response_id", "prompt", "prompt_cache_key", "safety_identifier"}
    | {"prompt_cache_retention", "incomplete_details", "frequency_penalty", "presence_penalty"}
)
_KNOWN_IN_USAGE = frozenset(
    {"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"}
    | {"cached_tokens", "cache_write_tokens", "reasoning_tokens"}
)
_BROKEN_OFF = ("abort", "error", "insufficient_system_resource")
"""Finish reasons of answers that the server could not finish: vLLM; OpenRouter and Mistral; DeepSeek."""


def read_chat(data: Mapping[str, Any], reply: Reply) -> Answer:
    """Return the answer of ``/chat/completions``; ``INVALID_RESPONSE`` when there is no message in it, and
    what :func:`check_choice` raises.
    """
    usage = usage_of(data.get("usage"))
    try:
        choice = data["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
        finish = choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        raise ERRORS.unusable(reply, "shape", "the answer has no choices[0].message", usage) from None
    check_choice(choice, reply, usage)
    if isinstance(refusal, str) and refusal and not content:
        content, finish = refusal, "refusal"
    calls = _calls_of(message, data)
    rest = unmodelled(message, KNOWN_IN_MESSAGE)
    if isinstance(content, list) and (blocks := _other_blocks(content)):
        rest[MESSAGE_BLOCKS] = blocks
    logprobs = choice.get("logprobs")
    return _answer(
        data,
        reply,
        _joined(content, reply, usage),
        usage,
        finish_word(finish, _FINISH),
        calls,
        reasoning=_reasoning(message, content),
        logprobs=token_logprobs(fields(logprobs).get("content")),
        extra=gathered(_of_body(data, KNOWN_IN_BODY), unmodelled(choice, KNOWN_IN_CHOICE), rest),
    )


def _of_body(data: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    found = unmodelled(data, known)
    if used := unmodelled_usage(data.get("usage"), _KNOWN_IN_USAGE):
        found["usage"] = used
    return found


def _calls_of(message: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    listed_calls, older = message.get("tool_calls"), message.get("function_call")
    if not listed_calls and not older:
        return ()
    items = listed_calls if isinstance(listed_calls, list) else ()
    calls = [_call(item) for item in items if isinstance(item, Mapping)]
    if not calls and isinstance(older, Mapping):
        calls = [tool_call(None, older.get("name"), older.get("arguments"))]
    return identified(calls, short(data.get("id"), PLAIN_ID))


def _call(item: Mapping[str, Any]) -> ToolCall | None:
    """A call of a chat, of a function or of a custom tool, whose input is a text."""
    custom, extra = item.get("custom"), unmodelled(item, _KNOWN_IN_CALL)
    if isinstance(custom, Mapping):
        text = custom.get("input")
        extra = {"type": "custom", **{name: value for name, value in extra.items() if name != "custom"}}
        call = tool_call(item.get("id"), custom.get("name"), None, extra)
        return call and evolve(call, arguments=None, arguments_text=text if isinstance(text, str) else "")
    function = fields(item.get("function"))
    return tool_call(item.get("id"), function.get("name"), function.get("arguments"), extra)


def _reasoning(message: Mapping[str, Any], content: Any) -> str | None:
    """The reasoning next to the text; Mistral and Magistral send it as a part of the content."""
    for name in REASONING:
        if isinstance(text := message.get(name), str) and text:
            return well_formed(text)
    if not isinstance(content, list):
        return None
    thoughts = (part.get("thinking") for part in content if isinstance(part, Mapping))
    found = "".join(text_of(thought) or "" for thought in thoughts if says(thought))
    return well_formed(found) or None


def _other_blocks(content: list[Any]) -> list[Any]:
    """Return the parts of a message, if some are more than text."""
    plain_text = all(
        isinstance(part, str) or (isinstance(part, Mapping) and part.keys() <= {"type", "text"})
        for part in content
    )
    return [] if plain_text else content


def check_choice(choice: Mapping[str, Any], reply: Reply, usage: Usage | None) -> None:
    """Raise the failure that ended a choice in a 200: what came of its text is not the answer."""
    reason = choice.get("finish_reason")
    code = reason if reason in _BROKEN_OFF else None
    if code or says_something(choice.get("error")):
        raise _unfinished("answer", {"code": code, **error_in(choice)}, reply, usage)


def read_response(data: Mapping[str, Any], reply: Reply) -> Answer:
    """Return the answer of ``/responses``, which says in a 200 whether it failed.

    A failed or unfinished response, or one without output, is an error.
    """
    usage = usage_of(data.get("usage"))
    status = data.get("status")
    if status in ("failed", "cancelled"):
        raise _unfinished("response", fields(data.get("error")), reply, usage)
    output = data.get("output")
    if not isinstance(output, list) or status in ("queued", "in_progress"):
        raise ERRORS.unusable(reply, "shape", "the response has no output", usage)
    texts, refusals, finish = [], [], "stop"
    logprobs: list[TokenLogprob] = []
    rest: list[dict[str, Any]] = []
    for part in _parts(output):
        if part.get("type") == "output_text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
            logprobs += token_logprobs(part.get("logprobs")) or ()
            rest.append(unmodelled(part, _KNOWN_IN_PART))
        elif part.get("type") == "refusal" and isinstance(part.get("refusal"), str):
            refusals.append(part["refusal"])
        else:
            rest.append({"content": part})
    if refusals and not texts:
        texts, finish = refusals, "refusal"
    if status == "incomplete":
        finish = finish_word(fields(data.get("incomplete_details")).get("reason") or "length", _FINISH)
    items = [item for item in output if isinstance(item, dict)]
    calls = [item for item in items if item.get("type") in _CALL_ITEMS]
    if others := [item for item in items if item.get("type") not in ("message", *_CALL_ITEMS)]:
        rest.append({"output": others})
    if any(item.get("encrypted_content") for item in others):  # else nothing is stored that could be named
        kept = [item for item in items if item.get("type") in ("message", "reasoning")]
        rest.append({MESSAGE_BLOCKS: kept})
    return _answer(
        data,
        reply,
        "".join(texts),
        usage,
        finish,
        identified(map(_response_call, calls), short(data.get("id"), PLAIN_ID)),
        reasoning=_summary(items),
        logprobs=tuple(logprobs) or None,
        extra=gathered(_of_body(data, _KNOWN_IN_RESPONSE), *rest),
    )


_CALL_ITEMS = ("function_call", "custom_tool_call")
_KNOWN_IN_PART = frozenset({"type", "text", "logprobs"})
_KNOWN_IN_ITEM = frozenset({"type", "id", "call_id", "name", "arguments", "input", "status"})


def _response_call(item: Mapping[str, Any]) -> ToolCall | None:
    extra = unmodelled(item, _KNOWN_IN_ITEM)
    if item.get("type") == "function_call":
        return tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), extra)
    text = item.get("input")
    call = tool_call(item.get("call_id"), item.get("name"), None, {"type": "custom", **extra})
    return call and evolve(call, arguments=None, arguments_text=text if isinstance(text, str) else "")


def _summary(items: list[dict[str, Any]]) -> str | None:
    """The reasoning in a response: its text where the server gives it, else its summary."""
    texts = []
    for item in items:
        if item.get("type") == "reasoning":
            found = text_of(item.get("content")) or text_of(item.get("summary"))
            if found:
                texts.append(found)
    return well_formed("\n\n".join(texts)) or None


def _answer(
    data: Mapping[str, Any],
    reply: Reply,
    text: str,
    usage: Usage | None,
    finish: str,
    calls: tuple[ToolCall, ...],
    *,
    reasoning: str | None,
    logprobs: tuple[TokenLogprob, ...] | None,
    extra: Mapping[str, Any] | None,
) -> Answer:
    answer = Answer(
        text=well_formed(text),
        usage=usage,
        # a choice that was forced to call a function ends with "stop"
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=ERRORS.request_id(reply),
        limits=ERRORS.limits(reply),
        tier=short(data.get("service_tier"), PLAIN_WORD),
        tool_calls=calls,
        reasoning=reasoning,
        logprobs=logprobs,
        extra=extra,
    )
    return read_tool_answer(answer) if calls else answer


def _unfinished(what: str, error: Mapping[str, Any], reply: Reply, usage: Usage | None) -> ProviderError:
    code, message = error.get("code"), error.get("message")
    kind = kind_of_status(200, code, None, message if isinstance(message, str) else "")
    if kind is ErrorKind.INVALID_RESPONSE:
        kind = ErrorKind.SERVER_ERROR
    word = short(plain(code), PLAIN_WORD)
    text = f"the provider could not finish the {what} ({word or 'no code'})"
    return ERRORS.unusable(reply, word, text, usage, kind=kind)


def read_embeddings(data: Mapping[str, Any], reply: Reply, requests: Sequence[Request]) -> list[Answer]:
    """Return an answer for each request, placed by the ``index`` of each vector; without any, in their order.

    The provider counts the tokens of the call only; they are split over its texts by their length. Doubled
    and foreign indices are an ``INVALID_RESPONSE``, as are several that are missing, and vectors that are not
    what was asked for.
    """
    wanted = requests[0].embedding
    common = Answer(
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=ERRORS.request_id(reply),
        limits=ERRORS.limits(reply),
        dropped=dropped_of(wanted),
    )
    usage = fields(data.get("usage"))
    total = count(usage.get("prompt_tokens", usage.get("total_tokens")))  # Voyage tells the total only
    with counted(total):
        vectors = _by_index(data.get("data"), len(requests), wanted.dimensions if wanted else None)
        return spread(common, vectors, requests, total)


def _by_index(items: Any, size: int, dimensions: int | None) -> list[array[float]]:
    """The vectors by their index; a single one without is the one left over. Gemini's layer omits zeros, and
    some gateways all of them.
    """
    found = listed(items, size)
    told = [item.get("index") if isinstance(item, dict) else None for item in found]
    if told.count(None) == size:
        told = list(range(size))
    elif told.count(None) == 1:
        told[told.index(None)] = next(index for index in range(size) if index not in told)
    placed: dict[int, array[float]] = {}
    for index, item in zip(told, found, strict=True):
        if type(index) is not int or not 0 <= index < size or index in placed:
            raise unusable("the vectors' indices are not those of the texts")
        placed[index] = vector(fields(item).get("embedding"), dimensions)
    return [placed[index] for index in range(size)]


def usage_of(usage: Any) -> Usage | None:
    """Return the billed tokens, by the names of either API.

    ``None`` when they are missing or absurd, so that an estimate takes their place. xAI and Gemini's layer
    count the reasoning in the total only: what no other count explains of it was written.
    """
    if not isinstance(usage, dict):
        return None
    names = _OF_RESPONSES if "input_tokens" in usage else _OF_CHATS
    taken, made = count(usage.get(names[0])), count(usage.get(names[1], 0))
    if taken is None or made is None:
        return None
    details = usage.get(names[2])
    cached = min(detail(details, "cached_tokens"), taken)
    written = min(detail(details, "cache_write_tokens"), taken - cached)
    reasoning = detail(usage.get(names[3]), "reasoning_tokens")
    more = detail(usage, "total_tokens") - taken - made
    if more > 0:
        others = any(count(usage[name]) for name in usage if name not in (*names[:2], "total_tokens"))
        if more == reasoning or not (reasoning or cached or written or others):
            made, reasoning = made + more, more
    return Usage(taken, made, cached, min(reasoning, made), cache_write_tokens=written)


def _joined(content: Any, reply: Reply, usage: Usage | None) -> str:
    text = text_of(content)
    if text is None:
        text = "the message's content is neither a text nor a list of parts"
        raise ERRORS.unusable(reply, "shape", text, usage)
    return text


def text_of(content: Any) -> str | None:
    """Return the text of a message or of a piece of one; ``None`` for what is neither a text nor parts.

    Compatible servers may send it in parts, and a message that calls tools has none.
    """
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    if content is None:
        return ""
    return content if isinstance(content, str) else None


def _parts(output: list[Any]) -> Iterator[dict[str, Any]]:
    for item in output:
        content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
        if isinstance(content, list):
            yield from (part for part in content if isinstance(part, dict))


_TEXT = Request()
"""Stands for a vector's request: a line has one text, and what was asked of it is the caller's to check."""


def read_line(line: bytes, kind: Kind, api: str, errors: ErrorReader) -> Line:
    """Understand a line of a batch's output or error file, as OpenAI's Batch guide of November 2026 has them.

    ``api`` is ``chat`` or ``responses``; what is no line of results is a ``ValueError``.
    """

    def read(data: dict[str, Any]) -> Answer:
        response = data.get("response")
        if response is None:
            raise _without_response(data.get("error"), errors.secrets)
        if not isinstance(response, dict):
            raise ValueError("the line's response is no object")
        return _line_answer(response, data.get("error"), kind, api, errors)

    return line_of(line, "custom_id", read)


def _line_answer(response: dict[str, Any], told: Any, kind: Kind, api: str, errors: ErrorReader) -> Answer:
    """A request that was run; some servers leave out the status, or the body around the answer, and vLLM puts
    an error next to the response: ``told``.
    """
    body = response.get("body") if "body" in response else response
    status = response.get("status_code", 200)
    if type(status) is not int or not (status == 0 or 100 <= status <= 599):
        raise ValueError("the line's status is none of HTTP")
    if status == 0:
        text = "the provider got no answer for this request (status 0)"
        raise unusable(text, "status_0", kind=ErrorKind.SERVER_ERROR)
    request_id = response.get("request_id")
    reply = Reply(status, {"x-request-id": request_id} if isinstance(request_id, str) else {}, b"")
    if not reply.ok:
        raise errors.read(reply, data=body or told)
    if not isinstance(body, dict):
        raise errors.unusable(reply, "shape", "the line's answer is no object")
    errors.check(body, reply)
    if kind is Kind.EMBED:
        return read_embeddings(body, reply, (_TEXT,))[0]
    return read_chat(body, reply) if api == "chat" else read_response(body, reply)


def _without_response(error: Any, secrets: tuple[str, ...]) -> ProviderError | NotRun:
    """A request without an answer: not executed, unless its code says that it was refused or broke off."""
    told = error_in({"error": error})
    code, message = short(told.get("code"), PLAIN_WORD), told.get("message", "")
    kind = kind_of_code(told.get("code"), told.get("type"), message)
    broke_off = "timeout" in (code or "")
    if broke_off:
        kind = ErrorKind.TIMEOUT
    text = safe_text(message, (), *secrets)
    meaning = ProviderError(
        f"the batch did not run this request ({code or 'no code'}{f': {text}' if text else ''})",
        kind=kind or ErrorKind.SERVER_ERROR,
        code=code,
        maybe_billed=broke_off,
    )
    return NotRun(meaning) if kind is None else meaning
