"""Answers of OpenAI's generation and embeddings APIs, and of compatible servers.

Every field is optional, because compatible servers omit usage, details, refusals and even the model.
A missing field is ``None``; a field of the wrong type is an ``INVALID_RESPONSE``.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from attrs import evolve

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.answer_parts import (
    ReturnedFiles,
    counted,
    gathered,
    has_value,
    identified,
    listed,
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
    whole,
)
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.bodies import dropped_of
from smartbatch.providers.openai.errors import ERRORS
from smartbatch.providers.openai.schema_modes import read_tool_answer
from smartbatch.types import MESSAGE_BLOCKS, Answer, Kind, Request, TokenLogprob, ToolCall, Usage

_OF_CHATS = ("prompt_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details")
# names of the tokens read and written, and of their details
_OF_RESPONSES = ("input_tokens", "output_tokens", "input_tokens_details", "output_tokens_details")
# names of cached tokens at servers without details: DeepSeek; Moonshot and Together
_CACHED = ("prompt_cache_hit_tokens", "cached_tokens")
_FINISH = {
    "function_call": "tool_calls",
    "max_output_tokens": "length",
    "max_tokens": "length",
    "model_length": "length",  # Mistral: the model's context is full
}
_CALLS = ("tool_calls", "function_call")
# fields with a message's reasoning: DeepSeek, vLLM and xAI; OpenRouter and Groq
REASONING = ("reasoning_content", "reasoning")
KNOWN_IN_MESSAGE = frozenset({"role", "content", "refusal", *_CALLS, *REASONING})
KNOWN_IN_CHOICE = frozenset({"index", "message", "delta", "finish_reason", "logprobs", "error"})
KNOWN_IN_BODY = frozenset({"id", "object", "created", "model", "choices", "usage", "error", "obfuscation"})
_KNOWN_IN_CALL = frozenset({"id", "type", "index", "function"})
_KNOWN_IN_RESPONSE = frozenset(
    {"id", "object", "created_at", "completed_at", "model", "output", "usage", "status", "error"}
    # repeated from the request:
    | {"instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p"}
    | {"max_output_tokens", "max_tool_calls", "text", "reasoning", "store", "truncation", "background"}
    | {"top_logprobs", "user", "previous_response_id", "prompt", "prompt_cache_key", "safety_identifier"}
    | {"prompt_cache_retention", "incomplete_details", "frequency_penalty", "presence_penalty"}
)
_KNOWN_IN_USAGE = frozenset(
    {"prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens"}
    | {"cached_tokens", "cache_write_tokens", "reasoning_tokens", "audio_tokens"}
)
# finish reasons of interrupted answers: vLLM; OpenRouter and Mistral; DeepSeek
_BROKEN_OFF = ("abort", "error", "insufficient_system_resource")


def read_chat(data: Mapping[str, Any], reply: Reply) -> Answer:
    usage = usage_of(data.get("usage"))
    try:
        choice = data["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
        finish = choice.get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        raise ERRORS.unusable(reply, "shape", "the answer has no choices[0].message", usage) from None
    check_choice(choice, reply, usage, cost_of(data.get("usage")))
    if isinstance(refusal, str) and refusal and not content:
        content, finish = refusal, "refusal"
    text = text_of(content)
    if text == "":
        text = text_of(fields(message.get("audio")).get("transcript"))
    if text is None:
        reason = "the message's content is neither a string nor a list of parts"
        raise ERRORS.unusable(reply, "shape", reason, usage)
    files = ReturnedFiles()
    rest = _without_files(unmodelled(message, KNOWN_IN_MESSAGE), files)
    if isinstance(content, list) and not all(map(_is_text, content)):
        rest[MESSAGE_BLOCKS] = content
    logprobs = choice.get("logprobs")
    return _answer(
        data,
        reply,
        text,
        usage,
        finish_word(finish, _FINISH),
        _calls_of(message, data),
        reasoning=_reasoning(message, content),
        logprobs=token_logprobs(fields(logprobs).get("content")),
        extra=gathered(_of_body(data, KNOWN_IN_BODY), unmodelled(choice, KNOWN_IN_CHOICE), rest),
        files=files,
    )


def _without_files(message: dict[str, Any], files: ReturnedFiles) -> dict[str, Any]:
    """Take out audio, and the images of OpenRouter and other gateways."""
    if isinstance(audio := message.get("audio"), Mapping) and "data" in audio:
        message["audio"] = {**audio, "data": files.take(audio.get("data"))}
    if isinstance(images := message.get("images"), list):
        message["images"] = [
            {**image, "image_url": {**address, "url": files.take_url(address.get("url"))}}
            if isinstance(address := fields(image).get("image_url"), Mapping)
            else image
            for image in images
        ]
    return message


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and part.keys() <= {"type", "text"})


def _of_body(data: Mapping[str, Any], known: frozenset[str]) -> dict[str, Any]:
    found = unmodelled(data, known)
    if used := unmodelled_usage(data.get("usage"), _KNOWN_IN_USAGE):
        found["usage"] = used
    return found


def _calls_of(message: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[ToolCall, ...]:
    items, older = message.get("tool_calls"), message.get("function_call")
    if not items and not older:
        return ()
    listed_calls = items if isinstance(items, list) else ()
    calls = [_call(item) for item in listed_calls if isinstance(item, Mapping)]
    if not calls and isinstance(older, Mapping):
        calls = [tool_call(None, older.get("name"), older.get("arguments"))]
    return identified(calls, short(data.get("id"), PLAIN_ID))


def _call(item: Mapping[str, Any]) -> ToolCall | None:
    custom, extra = item.get("custom"), unmodelled(item, _KNOWN_IN_CALL)
    if isinstance(custom, Mapping):
        extra.pop("custom", None)
        return _custom_call(item.get("id"), custom.get("name"), custom.get("input"), extra)
    function = fields(item.get("function"))
    return tool_call(item.get("id"), function.get("name"), function.get("arguments"), extra)


def _custom_call(identity: Any, name: Any, text: Any, extra: Mapping[str, Any]) -> ToolCall | None:
    call = tool_call(identity, name, None, {"type": "custom", **extra})
    return call and evolve(call, arguments=None, arguments_text=text if isinstance(text, str) else "")


def _reasoning(message: Mapping[str, Any], content: Any) -> str | None:
    for name in REASONING:
        if isinstance(text := message.get(name), str) and text:
            return well_formed(text)
    if not isinstance(content, list):
        return None
    # Mistral's models send the reasoning as a part of the content
    thoughts = (part.get("thinking") for part in content if isinstance(part, Mapping))
    found = "".join(text_of(thought) or "" for thought in thoughts if has_value(thought))
    return well_formed(found) or None


def check_choice(
    choice: Mapping[str, Any], reply: Reply, usage: Usage | None, cost: float | None = None
) -> None:
    """Raise the error that ended a choice in a 200. The text up to that point is not an answer."""
    reason = choice.get("finish_reason")
    code = reason if reason in _BROKEN_OFF else None
    if code or says_something(choice.get("error")):
        failure = _unfinished("answer", {"code": code, **error_in(choice)}, reply, usage)
        failure.cost = cost
        raise failure


def read_response(data: Mapping[str, Any], reply: Reply) -> Answer:
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
    items = [item for item in output if isinstance(item, dict)]
    contents = (item.get("content") for item in items if item.get("type") == "message")
    parts = (part for content in contents if isinstance(content, list) for part in content)
    for part in (part for part in parts if isinstance(part, dict)):
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
    calls = [item for item in items if item.get("type") in _CALL_ITEMS]
    files = ReturnedFiles()
    items = [_without_image(item, files) for item in items]
    if others := [item for item in items if item.get("type") not in ("message", *_CALL_ITEMS)]:
        rest.append({"output": others})
    if any(item.get("encrypted_content") for item in others):  # otherwise the items could not be sent again
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
        files=files,
    )


def _without_image(item: dict[str, Any], files: ReturnedFiles) -> dict[str, Any]:
    if item.get("type") == "code_interpreter_call" and isinstance(outputs := item.get("outputs"), list):
        named = [
            {**output, "url": files.take_url(output["url"])} if "url" in fields(output) else output
            for output in outputs
        ]
        return {**item, "outputs": named}
    if item.get("type") != "image_generation_call":
        return item
    form = short(item.get("output_format"), PLAIN_WORD)
    media_type = "image/svg+xml" if form == "svg" else form and f"image/{form}"
    return {**item, "result": files.take(item.get("result"), media_type)}


_CALL_ITEMS = ("function_call", "custom_tool_call")
_KNOWN_IN_PART = frozenset({"type", "text", "logprobs"})
_KNOWN_IN_ITEM = frozenset({"type", "id", "call_id", "name", "arguments", "input", "status"})


def _response_call(item: Mapping[str, Any]) -> ToolCall | None:
    extra = unmodelled(item, _KNOWN_IN_ITEM)
    if item.get("type") == "function_call":
        return tool_call(item.get("call_id"), item.get("name"), item.get("arguments"), extra)
    return _custom_call(item.get("call_id"), item.get("name"), item.get("input"), extra)


def _summary(items: list[dict[str, Any]]) -> str | None:
    """Return the reasoning in a response, or its summary if the server does not send the text."""
    reasoning = (item for item in items if item.get("type") == "reasoning")
    found = (text_of(item.get("content")) or text_of(item.get("summary")) for item in reasoning)
    return well_formed("\n\n".join(filter(None, found))) or None


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
    files: ReturnedFiles,
) -> Answer:
    answer = Answer(
        text=well_formed(text),
        usage=usage,
        # a choice that was forced to call a function ends with "stop"
        finish_reason="tool_calls" if calls and finish == "stop" else finish,
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=ERRORS.request_id(reply),
        cost=cost_of(data.get("usage")),
        limits=ERRORS.limits(reply),
        tier=short(data.get("service_tier"), PLAIN_WORD),
        tool_calls=calls,
        reasoning=reasoning,
        logprobs=logprobs,
        extra=extra,
        files=tuple(files),
    )
    return read_tool_answer(answer) if calls else answer


def _unfinished(name: str, error: Mapping[str, Any], reply: Reply, usage: Usage | None) -> ProviderError:
    code, message = error.get("code"), error.get("message")
    kind = kind_of_status(200, code, None, message if isinstance(message, str) else "")
    if kind is ErrorKind.INVALID_RESPONSE:
        kind = ErrorKind.SERVER_ERROR
    word = short(plain(code), PLAIN_WORD)
    text = f"the provider could not finish the {name} ({word or 'no code'})"
    return ERRORS.unusable(reply, word, text, usage, kind=kind)


def read_embeddings(data: Mapping[str, Any], reply: Reply, requests: Sequence[Request]) -> list[Answer]:
    """Return one answer per request. Vectors are placed by ``index``, or in their order if there are no
    indices.

    The provider counts the tokens of the whole call; they are split by the lengths of the texts.
    """
    wanted = requests[0].embedding
    common = Answer(
        model=short(data.get("model"), PLAIN_ID),
        provider_request_id=ERRORS.request_id(reply),
        cost=cost_of(data.get("usage")),
        limits=ERRORS.limits(reply),
        dropped=dropped_of(wanted),
    )
    usage = fields(data.get("usage"))
    total = count(usage.get("prompt_tokens", usage.get("total_tokens")))  # Voyage reports only the total
    with counted(total):
        vectors = _by_index(data.get("data"), len(requests), wanted.dimensions if wanted else None)
        return spread(common, vectors, requests, total)


def _by_index(items: Any, size: int, dimensions: int | None) -> list[array[float]]:
    found = listed(items, size)
    indices = [item.get("index") if isinstance(item, dict) else None for item in found]
    if indices.count(None) == size:  # some gateways omit all indices
        indices = list(range(size))
    elif indices.count(None) == 1:  # Gemini's OpenAI-compatible layer omits the index 0
        indices[indices.index(None)] = next(index for index in range(size) if index not in indices)
    placed: dict[int, array[float]] = {}
    for index, item in zip(indices, found, strict=True):
        if type(index) is not int or not 0 <= index < size or index in placed:
            raise unusable("the vectors' indices are not those of the texts")
        placed[index] = vector(fields(item).get("embedding"), dimensions)
    return [placed[index] for index in range(size)]


def usage_of(usage: Any) -> Usage | None:
    """Read the billed tokens of either API; ``None`` if they are missing or implausible.

    xAI and Gemini's compatibility layer count reasoning only in the total. The part of the total that no
    other count explains is therefore counted as output.
    """
    if not isinstance(usage, dict):
        return None
    names = _OF_RESPONSES if "input_tokens" in usage else _OF_CHATS
    taken, made = count(usage.get(names[0])), count(usage.get(names[1], 0))
    if taken is None or made is None:
        return None
    details = fields(usage.get(names[2]))
    found = (details.get("cached_tokens"), *map(usage.get, _CACHED))
    cached = min(next(filter(None, map(count, found)), 0), taken)
    written = min(count(details.get("cache_write_tokens")) or 0, taken - cached)
    reasoning = detail(usage.get(names[3]), "reasoning_tokens")
    more = (count(usage.get("total_tokens")) or 0) - taken - made
    if more > 0:
        others = any(count(usage[name]) for name in usage if name not in (*names[:2], "total_tokens"))
        if more == reasoning or not (reasoning or cached or written or others):
            made, reasoning = made + more, more
    return Usage(
        taken,
        made,
        cached,
        min(reasoning, made),
        cache_write_tokens=written,
        audio_tokens=min(count(details.get("audio_tokens")) or 0, taken),
        output_audio_tokens=min(detail(usage.get(names[3]), "audio_tokens"), made),
    )


_TICKS_PER_USD = 10**10  # xAI's page on cost tracking


def cost_of(usage: Any) -> float | None:
    """Return the USD charged for a call, which xAI and OpenRouter report; ``None`` if not reported.

    If the call used the user's own key of an upstream provider, that provider charges its part separately.
    """
    found = fields(usage)
    if _is_usd(ticks := found.get("cost_in_usd_ticks")):
        return ticks / _TICKS_PER_USD
    charged: list[Any] = [found.get("cost")]
    if found.get("is_byok") is True:
        charged.append(fields(found.get("cost_details")).get("upstream_inference_cost"))
    return math.fsum(charged) if all(map(_is_usd, charged)) else None


def _is_usd(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def text_of(content: Any) -> str | None:
    """``None`` if the content is neither a string nor a list.

    Compatible servers may send parts, and a message that calls tools has no text.
    """
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(text for text in texts if isinstance(text, str))
    if content is None:
        return ""
    return content if isinstance(content, str) else None


_TEXT = Request()  # a line has one text; the caller checks that the vector fits the request


def read_line(line: bytes, kind: Kind, api: str, errors: ErrorReader) -> Line:
    """Parse a line of a batch's output or error file (OpenAI's Batch guide, November 2026).

    Args:
        line: a line of the file.
        kind: the kind of the request.
        api: ``chat`` or ``responses``.
        errors: creates the errors.

    Raises:
        ValueError: the line is not a result.
    """

    def read(data: dict[str, Any]) -> Answer:
        response = data.get("response")
        if response is None:
            raise _unanswered(data.get("error"), errors.secrets)
        if not isinstance(response, dict):
            raise ValueError("the line's response is not an object")
        # some servers omit the status, or the body around the answer
        body = response.get("body") if "body" in response else response
        status = response.get("status_code", 200)
        if type(status) is not int or not (status == 0 or 100 <= status <= 599):
            raise ValueError("the line's status is not an HTTP status")
        if status == 0:
            text = "the provider got no answer for this request (status 0)"
            raise unusable(text, "status_0", kind=ErrorKind.SERVER_ERROR)
        request_id = response.get("request_id")
        reply = Reply(status, {"x-request-id": request_id} if isinstance(request_id, str) else {}, b"")
        if not reply.ok:
            # vLLM puts the error next to the response
            raise errors.read(reply, data=body or data.get("error"))
        if not isinstance(body, dict):
            raise errors.unusable(reply, "shape", "the line's answer is not an object")
        errors.check(body, reply)
        if kind is Kind.EMBED:
            return read_embeddings(body, reply, (_TEXT,))[0]
        return read_chat(body, reply) if api == "chat" else read_response(body, reply)

    return line_of(line, "custom_id", read)


def _unanswered(error: Any, secrets: tuple[str, ...]) -> ProviderError | NotRun:
    """A request without an answer was not run, unless its code names another reason.

    The code may be an HTTP status.
    """
    found = error_in({"error": error})
    code, message = short(found.get("code"), PLAIN_WORD), found.get("message", "")
    kind = kind_of_code(found.get("code"), found.get("type"), message)
    status = whole(found.get("code"))
    if kind is None and status is not None and 400 <= status <= 599:
        code, kind = str(status), kind_of_status(status, message=message)
    timed_out = "timeout" in (code or "")
    if timed_out:
        kind = ErrorKind.TIMEOUT
    text = safe_text(message, (), *secrets)
    what = "did not run" if kind is None else "could not answer"
    meaning = ProviderError(
        f"the batch {what} this request ({code or 'no code'}{f': {text}' if text else ''})",
        kind=kind or ErrorKind.SERVER_ERROR,
        code=code,
        maybe_billed=timed_out,
    )
    return NotRun(meaning) if kind is None else meaning
