"""Answers of the Gemini API, complete and streamed. It omits zero counters, so every field is optional."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from smartbatch.errors import ProviderError
from smartbatch.providers.answer_parts import (
    ReturnedFiles,
    add_piece,
    counted,
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
from smartbatch.providers.batch_api import Line, line_of, not_run
from smartbatch.providers.error_reader import ErrorReader
from smartbatch.providers.foreign_text import (
    PLAIN_ID,
    PLAIN_WORD,
    count,
    detail,
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

# finish reasons (reference of ``FinishReason``); unlisted ones keep their own name in lower case
_FINISH = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",  # the answer is incomplete; no call is made to continue it
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}

_UNSPECIFIED_SUFFIX = "_UNSPECIFIED"  # suffix of an enumeration's "no value"


class Gathered:
    """An answer assembled from a response body or from the chunks of a stream."""

    def __init__(self) -> None:
        self.ended = False  # a finish reason, or the reason for blocking the prompt, has arrived
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._parts: list[Mapping[str, Any]] = []
        self._calls: list[ToolCall | None] = []
        self._logprobs: list[TokenLogprob] = []
        self._extra: dict[str, Any] = {}
        self._files = ReturnedFiles()
        self._finish: str | None = None
        self.usage: Usage | None = None
        self._model: str | None = None
        self._identity: str | None = None
        self._tier: str | None = None

    def add_chunk(self, data: Mapping[str, Any]) -> str:
        """Add a body or a chunk and return its text."""
        self._model = short(data.get("modelVersion"), PLAIN_ID) or self._model
        self._identity = short(data.get("responseId"), PLAIN_ID) or self._identity
        metadata = data.get("usageMetadata")
        self.usage = usage_of(metadata) or self.usage
        tier = (short(fields(metadata).get("serviceTier"), PLAIN_WORD) or "unspecified").lower()
        if not tier.endswith("unspecified"):
            self._tier = tier
        add_piece(self._extra, unmodelled(data, _KNOWN))
        used = unmodelled_usage(metadata, _KNOWN_IN_USAGE)
        if used := {name: value for name, value in used.items() if not _is_text_only(value)}:
            self._extra["usageMetadata"] = used
        candidates = data.get("candidates")
        if candidates:
            text = self._candidate(candidates)
            self._texts.append(text)
            return text
        reason = fields(data.get("promptFeedback")).get("blockReason")
        if isinstance(reason, str) and not reason.endswith(_UNSPECIFIED_SUFFIX):
            self._finish, self.ended = "content_filter", True
        return ""

    @property
    def answer(self) -> Answer:
        finish = "tool_calls" if self._calls and self._finish == "stop" else self._finish
        extra = dict(self._extra)
        if not all(map(_is_plain, self._parts)):
            # Later turns return these parts unchanged, without calls and with joined texts.
            blocks: list[Mapping[str, Any]] = []
            others = (part for part in self._parts if "functionCall" not in part)
            for plain, group in groupby(others, _is_plain):
                if plain:
                    blocks.append({"text": "".join(str(part.get("text", "")) for part in group)})
                else:
                    blocks += group
            extra[MESSAGE_BLOCKS] = blocks
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
            files=tuple(self._files),
        )

    def _candidate(self, candidates: Any) -> str:
        try:
            candidate = candidates[0]
            content = candidate.get("content") or {}
            parts = content.get("parts") or ()
            reason = candidate.get("finishReason")
            said = [self._without_file(part) for part in parts if not part.get("thought")]
            texts = [part.get("text") for part in said]
            thoughts = [part.get("text") for part in parts if part.get("thought")]
            self._calls += [_call(part) for part in said if "functionCall" in part]
        except (LookupError, TypeError, AttributeError):
            raise _shapeless(self.usage) from None
        self._parts += said
        self._thoughts += [text for text in thoughts if isinstance(text, str)]
        self._logprobs += _logprobs(candidate.get("logprobsResult"))
        add_piece(self._extra, unmodelled(candidate, _KNOWN_IN_CANDIDATE))
        if isinstance(reason, str) and not reason.endswith(_UNSPECIFIED_SUFFIX):
            self.ended = True
            self._finish = _FINISH.get(reason) or (short(reason, PLAIN_WORD) or "unknown").lower()
        return "".join(text for text in texts if isinstance(text, str))

    def _without_file(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        blob = part.get("inlineData")
        if not isinstance(blob, Mapping):
            return part
        return {
            **part,
            "inlineData": {**blob, "data": self._files.take(blob.get("data"), blob.get("mimeType"))},
        }


_KNOWN = frozenset({"candidates", "usageMetadata", "modelVersion", "responseId", "createTime"})
_KNOWN_IN_CANDIDATE = frozenset({"content", "finishReason", "index", "logprobsResult"})
_KNOWN_IN_CALL = frozenset({"id", "name", "args"})
_KNOWN_IN_USAGE = frozenset(
    {"promptTokenCount", "cachedContentTokenCount", "candidatesTokenCount", "thoughtsTokenCount"}
    | {"toolUsePromptTokenCount", "totalTokenCount", "serviceTier"}
)


def _call(part: Mapping[str, Any]) -> ToolCall | None:
    call = fields(part["functionCall"])
    extra = unmodelled(call, _KNOWN_IN_CALL)
    if has_value(signature := part.get("thoughtSignature")):  # must be returned with the call
        extra["thoughtSignature"] = signature
    return tool_call(call.get("id"), call.get("name"), call.get("args"), extra)


def _is_plain(part: Mapping[str, Any]) -> bool:
    return "functionCall" in part or part.keys() <= {"text"}


def _is_text_only(counts: Any) -> bool:
    return isinstance(counts, list) and all(fields(each).get("modality") == "TEXT" for each in counts)


def _logprobs(result: Any) -> list[TokenLogprob]:
    chosen, top = fields(result).get("chosenCandidates"), fields(result).get("topCandidates")
    if not isinstance(chosen, list):
        return []

    def in_openai_form(candidate: Any) -> dict[str, Any]:
        return {"token": fields(candidate).get("token"), "logprob": fields(candidate).get("logProbability")}

    found = []
    for place, candidate in enumerate(chosen):
        beside = fields(top[place]).get("candidates") if isinstance(top, list) and place < len(top) else ()
        others = [in_openai_form(each) for each in beside] if isinstance(beside, list) else []
        found.append({**in_openai_form(candidate), "top_logprobs": others})
    return list(token_logprobs(found) or ())


def read_answer(data: Mapping[str, Any]) -> Answer:
    """Read an answer of ``:generateContent``; a blocked prompt has an empty text and ``content_filter``."""
    gathered = Gathered()
    gathered.add_chunk(data)
    if not data.get("candidates") and not gathered.ended:
        raise _shapeless(gathered.usage)
    return gathered.answer


def read_embeddings(data: Mapping[str, Any], requests: Sequence[Request]) -> list[Answer]:
    """The API returns vectors in the order of the requests, without an index."""
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
    """Read the billed tokens; ``None`` if they are missing or implausible. Thoughts count as output."""
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
    return Usage(
        taken,
        made + thought,
        min(cached or 0, taken),
        thought,
        audio_tokens=min(_of_modality("AUDIO", found, *_INPUT_DETAILS), taken),
        cached_audio_tokens=min(_of_modality("AUDIO", found, "cacheTokensDetails"), cached or 0, taken),
        output_audio_tokens=min(_of_modality("AUDIO", found, "candidatesTokensDetails"), made),
        output_image_tokens=min(_of_modality("IMAGE", found, "candidatesTokensDetails"), made),
    )


_INPUT_DETAILS = ("promptTokensDetails", "toolUsePromptTokensDetails")


def _of_modality(modality: str, usage: Mapping[str, Any], *names: str) -> int:
    counts = (each for name in names if isinstance(found := usage.get(name), list) for each in found)
    return sum(detail(each, "tokenCount") for each in counts if fields(each).get("modality") == modality)


def _shapeless(usage: Usage | None) -> ProviderError:
    return unusable(
        "the answer has neither a candidate nor a reason for its absence", status=200, usage=usage
    )


def read_result(line: bytes, kind: Kind, errors: ErrorReader) -> Line:
    def read(data: dict[str, Any]) -> Answer:
        if (found := data.get("error")) is not None:
            code, text = rpc_code(found), fields(found).get("message")
            if code == CANCELLED:
                raise not_run("cancelled")
            if code == DEADLINE and isinstance(text, str) and BATCH_EXPIRED.search(text[:500]):
                raise not_run("expired")
            raise status_error(found, errors)
        response = data.get("response")
        if not isinstance(response, dict):
            raise unusable("the result has neither a response nor an error", status=200)
        return _read_vector(response) if kind is Kind.EMBED else read_answer(response)

    return line_of(line, "key", read)


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
    """Reads the chunks of ``:streamGenerateContent``. Only a finish reason completes the answer."""

    to_the_end = True

    def __init__(self, errors: ErrorReader) -> None:
        super().__init__(errors)
        self._gathered = Gathered()

    def take(self, data: Mapping[str, Any], name: str, head: Reply) -> str:  # noqa: ARG002
        text = self._gathered.add_chunk(data)
        self.usage, self.ended = self._gathered.usage, self._gathered.ended
        return text

    def finish(self, text: str, head: Reply) -> Answer:  # noqa: ARG002
        return self._gathered.answer

    def whole(self, data: Mapping[str, Any], reply: Reply) -> Answer:  # noqa: ARG002
        return read_answer(data)
