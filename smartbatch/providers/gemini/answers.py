"""Reads the answers of the Gemini API. Zero counters are left out on the wire, so every field is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from smartbatch.errors import ProviderError
from smartbatch.providers.answer_parts import (
    add_piece,
    counted,
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
from smartbatch.providers.batch_api import Line, NotRun, line_of, not_run
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import (
    PLAIN_ID,
    PLAIN_WORD,
    count,
    fields,
    short,
    unusable,
    well_formed,
    whole,
)
from smartbatch.providers.gemini.errors import BATCH_EXPIRED, CANCELLED, DEADLINE, rpc_code, status_error
from smartbatch.providers.http.event_stream import EventReader
from smartbatch.providers.http.replies import Reply
from smartbatch.types import MESSAGE_BLOCKS, Answer, Kind, Request, TokenLogprob, ToolCall, Usage

_FINISH = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",  # there is more to come, which would be a further call; it is not made
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
"""Finish reasons (reference of ``FinishReason``); those not listed keep their own word in lower case."""

_UNSAID = "_UNSPECIFIED"
"""How the name ends that an enumeration has for "no value"."""


class Gathered:
    """An answer put together from the one body of a call, or from the chunks of a stream.

    Attributes:
        ended: True once a finish reason, or a block of the prompt, has come.
        usage: the tokens of the call, where they have come.
    """

    def __init__(self) -> None:
        self.ended = False
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._parts: list[Mapping[str, Any]] = []
        self._calls: list[ToolCall | None] = []
        self._logprobs: list[TokenLogprob] = []
        self._extra: dict[str, Any] = {}
        self._finish: str | None = None
        self.usage: Usage | None = None
        self._model: str | None = None
        self._identity: str | None = None
        self._tier: str | None = None

    def add(self, data: Mapping[str, Any]) -> str:
        """Take in a body or a chunk and return its text; another shape is an ``INVALID_RESPONSE``."""
        self._model = short(data.get("modelVersion"), PLAIN_ID) or self._model
        self._identity = short(data.get("responseId"), PLAIN_ID) or self._identity
        metadata = data.get("usageMetadata")
        self.usage = usage_of(metadata) or self.usage
        self._tier = _tier(fields(metadata).get("serviceTier")) or self._tier
        add_piece(self._extra, unmodelled(data, _KNOWN))
        if used := _unmodelled_usage(metadata):
            self._extra["usageMetadata"] = used
        candidates = data.get("candidates")
        if candidates:
            text = self._candidate(candidates)
            self._texts.append(text)
            return text
        reason = fields(data.get("promptFeedback")).get("blockReason")
        if isinstance(reason, str) and not reason.endswith(_UNSAID):
            self._finish, self.ended = "content_filter", True
        return ""

    @property
    def answer(self) -> Answer:
        """What has come so far."""
        finish = "tool_calls" if self._calls and self._finish == "stop" else self._finish
        extra = dict(self._extra)
        if not all(map(_is_plain, self._parts)):
            extra[MESSAGE_BLOCKS] = _replayed(self._parts)
        return Answer(
            text=well_formed("".join(self._texts)),
            usage=self.usage,
            finish_reason=finish or "unknown",
            model=self._model,
            provider_request_id=self._identity,
            tier=self._tier,
            tool_calls=identified(self._calls, self._identity) if self._calls else (),
            reasoning=well_formed("".join(self._thoughts)) or None,
            logprobs=tuple(self._logprobs) or None,
            extra=extra or None,
        )

    def _candidate(self, candidates: Any) -> str:
        try:
            candidate = candidates[0]
            content = candidate.get("content") or {}
            parts = content.get("parts") or ()
            reason = candidate.get("finishReason")
            said = [part for part in parts if not part.get("thought")]
            texts = [part.get("text") for part in said]
            thoughts = [part.get("text") for part in parts if part.get("thought")] if parts != said else ()
            self._calls += [_call(part) for part in said if "functionCall" in part]
        except (LookupError, TypeError, AttributeError):
            raise _shapeless(self.usage) from None
        self._parts += said
        self._thoughts += [text for text in thoughts if isinstance(text, str)]
        self._logprobs += _logprobs(candidate.get("logprobsResult"))
        add_piece(self._extra, unmodelled(candidate, _KNOWN_IN_CANDIDATE))
        if isinstance(reason, str) and not reason.endswith(_UNSAID):
            self.ended = True
            self._finish = _FINISH.get(reason) or (short(reason, PLAIN_WORD) or "unknown").lower()
        return "".join(text for text in texts if isinstance(text, str))


_KNOWN = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "createTime"})
_KNOWN_IN_CANDIDATE = frozenset({"content", "finishReason", "index", "logprobsResult"})
_KNOWN_IN_CALL = frozenset({"id", "name", "args"})
_KNOWN_IN_USAGE = frozenset(
    {"promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount"}
    | {"toolUsePromptTokenCount", "totalTokenCount", "serviceTier"}
)


def _call(part: Mapping[str, Any]) -> ToolCall | None:
    """A call; the signature next to it has to go back with it."""
    call = fields(part["functionCall"])
    extra = unmodelled(call, _KNOWN_IN_CALL)
    if says(signature := part.get("thoughtSignature")):
        extra["thoughtSignature"] = signature
    return tool_call(call.get("id"), call.get("name"), call.get("args"), extra)


def _is_plain(part: Mapping[str, Any]) -> bool:
    return "functionCall" in part or part.keys() <= {"text"}


def _replayed(parts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the parts of an answer that go back as they came, without its calls and with texts that came in
    pieces put together.
    """
    blocks: list[Mapping[str, Any]] = []
    for plain, group in groupby((part for part in parts if "functionCall" not in part), _is_plain):
        if plain:
            blocks.append({"text": "".join(str(part.get("text", "")) for part in group)})
        else:
            blocks += group
    return blocks


def _logprobs(result: Any) -> list[TokenLogprob]:
    """Log-probabilities: those of the tokens, and next to them the most likely ones at each position."""
    chosen, top = fields(result).get("chosenCandidates"), fields(result).get("topCandidates")
    if not isinstance(chosen, list):
        return []
    found = []
    for place, candidate in enumerate(chosen):
        beside = fields(top[place]).get("candidates") if isinstance(top, list) and place < len(top) else ()
        others = [_openai_form(each) for each in beside] if isinstance(beside, list) else []
        found.append({**_openai_form(candidate), "top_logprobs": others})
    return list(token_logprobs(found) or ())


def _openai_form(candidate: Any) -> dict[str, Any]:
    return {"token": fields(candidate).get("token"), "logprob": fields(candidate).get("logProbability")}


def _unmodelled_usage(metadata: Any) -> dict[str, Any]:
    """The counts that are not modelled; those by modality if there is another one than text."""
    return {
        name: value
        for name, value in unmodelled_usage(metadata, _KNOWN_IN_USAGE).items()
        if not (isinstance(value, list) and all(fields(each).get("modality") == "TEXT" for each in value))
    }


def _tier(told: Any) -> str | None:
    """The tier that answered; enumerated values may come in capitals, and say nothing when unspecified."""
    word = (short(told, PLAIN_WORD) or "unspecified").lower()
    return None if word.endswith("unspecified") else word


def read_answer(data: Mapping[str, Any]) -> Answer:
    """Return the answer of ``:generateContent``; of a blocked prompt an empty text with ``content_filter``.

    Neither a candidate nor a reason for that is an ``INVALID_RESPONSE``.
    """
    gathered = Gathered()
    gathered.add(data)
    if not data.get("candidates") and not gathered.ended:
        raise _shapeless(gathered.usage)
    return gathered.answer


def read_embeddings(data: Mapping[str, Any], requests: Sequence[Request]) -> list[Answer]:
    """Return an answer for each request; the API sends the vectors in the requests' order, without an index.

    Vectors that are not what was asked for are an ``INVALID_RESPONSE``.
    """
    wanted = requests[0].embedding
    dimensions = wanted.dimensions if wanted is not None else None
    common = Answer(
        model=short(data.get("modelVersion"), PLAIN_ID),
        provider_request_id=short(data.get("responseId"), PLAIN_ID),
    )
    usage = usage_of(data.get("usageMetadata"))
    tokens = None if usage is None else usage.input_tokens
    with counted(tokens):
        vectors = [
            vector(fields(each).get("values"), dimensions)
            for each in listed(data.get("embeddings"), len(requests))
        ]
        return spread(common, vectors, requests, tokens)


def usage_of(found: Any) -> Usage | None:
    """Return the billed tokens; ``None`` when there is none or it is absurd. Thoughts count as output."""
    if not isinstance(found, dict) or not found:
        return None
    prompt, cached, made, thought, tools = (
        count(found.get(name, 0))
        for name in (
            "promptTokenCount",
            "cachedContentTokenCount",
            "candidatesTokenCount",
            "thoughtsTokenCount",
            "toolUsePromptTokenCount",
        )
    )
    if prompt is None or made is None or thought is None:
        return None
    taken = prompt + (tools or 0)
    return Usage(taken, made + thought, min(cached or 0, taken), thought)


def _shapeless(usage: Usage | None) -> ProviderError:
    return unusable(
        "the answer has neither a candidate nor a reason why there is none", status=200, usage=usage
    )


def read_result(line: bytes, kind: Kind, errors: ErrorReader) -> Line:
    """Return what one line of a batch's results says; what is no such line is a ``ValueError``."""

    def read(data: dict[str, Any]) -> Answer:
        if data.get("error") is not None:
            raise _failure(data["error"], errors)
        response = data.get("response")
        if not isinstance(response, dict):
            raise unusable("the result has neither a response nor an error", status=200)
        return _read_vector(response) if kind is Kind.EMBED else read_answer(response)

    return line_of(line, "key", read)


def _failure(found: Any, errors: ErrorReader) -> ProviderError | NotRun:
    code, text = rpc_code(found), fields(found).get("message")
    if code == CANCELLED:
        return not_run("cancelled")
    if code == DEADLINE and isinstance(text, str) and BATCH_EXPIRED.search(text[:500]):
        return not_run("expired")
    return status_error(found, errors)


def _read_vector(response: Mapping[str, Any]) -> Answer:
    usage = usage_of(response.get("usageMetadata"))
    if usage is None and (tokens := whole(response.get("tokenCount"))) is not None:
        usage = Usage(input_tokens=tokens)
    try:
        values = vector(fields(response.get("embedding")).get("values"), None)
    except ProviderError as error:
        error.usage = usage
        raise
    return Answer(
        embedding=values,
        usage=usage,
        model=short(response.get("modelVersion"), PLAIN_ID),
        provider_request_id=short(response.get("responseId"), PLAIN_ID),
    )


class ChunkReader(EventReader):
    """The chunks of ``:streamGenerateContent``; only a finish reason says that the answer is whole."""

    to_the_end = True

    def __init__(self, errors: ErrorReader) -> None:
        super().__init__(errors)
        self._gathered = Gathered()

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        text = self._gathered.add(data)
        self.usage, self.ended = self._gathered.usage, self._gathered.ended
        return text

    def finish(self, text: str, head: Reply) -> Answer:  # noqa: ARG002
        return self._gathered.answer

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:  # noqa: ARG002
        return read_answer(data)
