"""The emulator's answers: a pure function of the request, so that tests can check every answer."""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

from attrs import evolve, frozen

_MAX_DEPTH = 16  # recursive schemas end at this depth
_MAX_SIZE = 10_000  # recursive schemas with branches end at this size

_FORMATS = {
    "binary": "bytes",
    "date": "2026-01-01",
    "date-time": "2026-01-01T00:00:00Z",
    "duration": "PT1S",
    "time": "00:00:00Z",
    "email": "someone@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "hostname": "example.org",
    "uri-reference": "/a",
    "json-string": "1",
}

_TOLD = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength"),
    *("minItems", "maxItems", "uniqueItems", "minProperties", "prefixItems", "enum"),
)
_decoder = json.JSONDecoder()


def _keywords_in_description(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return keywords that an adapter moved into a description for the model to read."""
    description = schema.get("description")
    found: dict[str, Any] = {}
    if isinstance(description, str) and description.endswith("}"):
        text = description[description.rfind("\n\n") + 2 :] if "\n\n" in description else description
        for word in _TOLD:
            at = max(text.find(f"{{{word}: "), text.find(f", {word}: "))
            if at >= 0:
                with suppress(ValueError):
                    found[word] = _decoder.raw_decode(text, text.index(": ", at) + 2)[0]
        at = max(text.find("{format: "), text.find(", format: "))
        if at >= 0:
            rest = text[text.index(": ", at) + 2 : -1]
            found["format"] = rest.partition(",")[0]
    return found


def instance(schema: Mapping[str, Any], text: str) -> Any:
    """Return a value that follows ``schema``.

    Objects get all their properties, strings get ``text``, and choices are drawn by a digest of ``text``.
    Regular expressions (``pattern``) are ignored; keywords that an adapter moved into a description are not.
    """
    return _Builder(schema, text).value(schema, 0)


class _Builder:
    def __init__(self, root: Mapping[str, Any], text: str) -> None:
        self._root = root
        self._text = text
        self._size = 0
        self._uniform = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")

    def value(self, schema: Any, depth: int) -> Any:
        self._size += 1
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH or self._size > _MAX_SIZE:
            return None
        if isinstance(ref := schema.get("$ref"), str):
            return self.value(self._resolve(ref), depth + 1)
        schema = {**_keywords_in_description(schema), **schema}
        if "const" in schema:
            return schema["const"]
        choices = schema.get("enum")
        if isinstance(choices, list) and choices:
            return choices[self._uniform % len(choices)]
        for word in ("anyOf", "oneOf", "allOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                # Deep in a recursion the last branch is used, which by convention ends it.
                return self.value(branches[0 if depth < _MAX_DEPTH // 2 else -1], depth + 1)
        return self._typed(schema, depth)

    def _typed(self, schema: Mapping[str, Any], depth: int) -> Any:
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((k for k in kind if k != "null"), "null")
        if kind is None:
            kind = "object" if "properties" in schema else "array" if "items" in schema else "string"
        match kind:
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._string(schema)
            case "integer" | "number":
                number = _number_within({**schema, "type": kind}, 0)
                return number if kind == "integer" else float(number)
            case "boolean":
                return self._uniform % 2 == 0
        return None

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            properties = {}
        required = schema.get("required")
        names = list(properties)
        if depth >= _MAX_DEPTH // 2 and isinstance(required, list):
            names = [name for name in names if name in required or _ends(properties[name])]
        if not names and (least := int(schema.get("minProperties", 0))):
            further = schema.get("additionalProperties", {})
            return {str(i): self.value(further, depth + 1) for i in range(min(least, 1000))}
        return {name: self.value(properties.get(name, {}), depth + 1) for name in names}

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        first = schema.get("prefixItems")
        items = [self.value(part, depth + 1) for part in first] if isinstance(first, list) else []
        least = int(schema.get("minItems", 0 if depth > _MAX_DEPTH // 2 or items else 1))
        least = min(least, int(schema.get("maxItems", least)), 1000)
        for i in range(len(items), least):
            item = self.value(schema.get("items", {}), depth + 1)
            items.append(_another(item, i) if schema.get("uniqueItems") else item)
        return items

    def _string(self, schema: Mapping[str, Any]) -> str:
        text = _FORMATS.get(str(schema.get("format")), self._text)
        text = text.ljust(min(int(schema.get("minLength", 0)), 100_000), ".")
        most = schema.get("maxLength")
        return text if most is None else text[: int(most)]

    def _resolve(self, ref: str) -> Any:
        found: Any = self._root
        for part in ref.removeprefix("#").split("/"):
            if part:
                found = (
                    found.get(part.replace("~1", "/").replace("~0", "~"))
                    if isinstance(found, Mapping)
                    else None
                )
        return found


def _ends(schema: Any) -> bool:
    """Whether a schema ends a recursion: it does not contain itself."""
    if not isinstance(schema, Mapping):
        return False
    branches = schema.get("anyOf")
    last = branches[-1] if isinstance(branches, list) and branches else schema
    return isinstance(last, Mapping) and last.get("type") in ("array", "null") and not last.get("minItems")


def _another(item: Any, position: int) -> Any:
    """Return an item that differs from the previous ones, if its type allows that."""
    if isinstance(item, str):
        return f"{item}{position}" if position else item
    return item + position if isinstance(item, int | float) and not isinstance(item, bool) else item


def _number_within(schema: Mapping[str, Any], usual: int) -> int | float:
    """Return a number within the type, bounds and step of a schema: the smallest, or ``usual`` without
    bounds.

    If no number satisfies the bounds, any number is returned.
    """
    step = _exact(schema.get("multipleOf"))
    if schema.get("type") == "integer":
        step = Fraction(step.numerator if step else 1)  # the whole numbers among the multiples of p/q
    low, above = _exact(schema.get("minimum")), _exact(schema.get("exclusiveMinimum"))
    high, below = _exact(schema.get("maximum")), _exact(schema.get("exclusiveMaximum"))
    least = max((bound for bound in (low, above) if bound is not None), default=None)
    most = min((bound for bound in (high, below) if bound is not None), default=None)
    wanted = [] if least is None else [least, least + (step or 1)]
    wanted.append(Fraction(usual))
    wanted += [] if most is None else [most, most - (step or 1)]
    wanted += [] if least is None or most is None else [(least + most) / 2]
    numbers = [
        number
        for each in wanted
        for number in ((ceil(each / step) * step, floor(each / step) * step) if step else (each,))
    ]
    fitting = (
        number
        for number in numbers
        if (least is None or number >= least)
        and (most is None or number <= most)
        and number not in (above, below)
    )
    found = next(fitting, numbers[0])
    return found.numerator if found.denominator == 1 else float(found)


def _exact(number: Any) -> Fraction | None:
    """Return a number exactly as written in the schema: 0.1 is one tenth. ``None`` for anything else."""
    if isinstance(number, int) and not isinstance(number, bool):
        return Fraction(number)
    return Fraction(repr(number)) if isinstance(number, float) and isfinite(number) else None


# the start of a prompt into which the library packed several prompts
_PACK = re.compile(r'\[\{"id": "[a-z2-7]{8}", "check": "[a-z2-7]{6}", "prompt": "')
_WORD = re.compile(r"\s*\S+|\s+")


def answer_for(prompt_text: str, model: str, seed: int = 0) -> str:
    """Return the default answer to a prompt: a sentence with the first 12 hexadecimal digits of a digest.

    Args:
        prompt_text: the text of the last user message.
        model: the model name as sent.
        seed: the emulator's seed.
    """
    digest = hashlib.sha256(f"{seed}\0{model}\0{prompt_text}".encode()).hexdigest()
    return f"answer {digest[:12]}"


def picture_for(prompt: str) -> bytes:
    """Return a PNG of 8 × 8 gray pixels that depend on the prompt."""
    pixels = hashlib.shake_256(prompt.encode("utf-8", "surrogatepass")).digest(64)
    lines = b"".join(b"\0" + pixels[at : at + 8] for at in range(0, 64, 8))
    header = struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def count_tokens(text: str) -> int:
    """Return the number of tokens of a text: a quarter of its UTF-8 bytes, at least 1."""
    return max(1, len(text.encode()) // 4)


def words_of(text: str) -> list[str]:
    """Split ``text`` into words, each with the space before it."""
    return _WORD.findall(text)


def vector_for(text: str, model: str, dimensions: int) -> array[float]:
    """Return the vector of a text: an ``array('f')`` of unit length, the same on every machine.

    Its numbers are exact in single precision, so they do not change in JSON or base64.
    """
    digest = hashlib.shake_256(f"{model}\0{text}".encode()).digest(2 * dimensions)
    numbers = array("h", digest)
    if sys.byteorder == "big":
        numbers.byteswap()
    length = math.sqrt(sum(number * number for number in numbers)) or 1.0
    return array("f", [number / length for number in numbers])


@frozen
class ModelToolCall:
    name: str
    arguments: Any


@frozen
class Completion:
    """An answer before it is encoded as the JSON of an API."""

    text: str
    finish_reason: str  # ``stop``, ``length`` or ``tool_calls``
    tokens: int  # tokens of the text or the calls, and of the reasoning
    calls: tuple[ModelToolCall, ...] = ()  # tool calls, which replace the text
    reasoning: str = ""  # if requested
    hidden_tokens: int = 0  # tokens of further reasoning
    picture: bytes = b""  # a PNG, if one is returned

    @property
    def reasoning_tokens(self) -> int:
        return self.hidden_tokens + (count_tokens(self.reasoning) if self.reasoning else 0)


def compose(
    prompt: str,
    model: str,
    *,
    seed: int,
    answers: Mapping[str, str],
    max_tokens: int | None,
    stop: tuple[str, ...],
    schema: Mapping[str, Any] | None,
) -> Completion:
    """Return the answer to a prompt.

    Args:
        prompt: the text of the last user message.
        answers: scripted answers by the exact prompt; they take precedence.
        max_tokens: the text is truncated to this many tokens.
        stop: the text ends before the first of these sequences.
        schema: a JSON schema for the answer; an empty one allows any object.
    """
    text = answers.get(prompt)
    if text is None:
        text = packed_answers(prompt, lambda each: answers.get(each) or answer_for(each, model, seed))
    if text is None:
        text = answer_for(prompt, model, seed)
        if schema is not None:
            text = json.dumps(instance(schema, text) if schema else {"answer": text})
    for sequence in stop:
        if sequence:
            text = text.partition(sequence)[0]
    tokens = count_tokens(text)
    if max_tokens is not None and tokens > max_tokens:
        return Completion(cut(text, max_tokens), "length", max_tokens)
    return Completion(text, "stop", tokens)


def cut(text: str, tokens: int) -> str:
    """Return the first ``tokens`` tokens of a text, without an incomplete last character."""
    return text.encode()[: tokens * 4].decode(errors="ignore")


def packed_answers(prompt: str, answer_to: Callable[[str], str]) -> str | None:
    """Answer several prompts packed into one, each as if sent alone; ``None`` for any other prompt."""
    if _PACK.match(prompt) is None:
        return None
    try:
        said = [
            {"id": item["id"], "answer": f"{item['check']} {answer_to(item['prompt'])} {item['check']}"}
            for item in json.loads(prompt)
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return json.dumps({"answers": said}, ensure_ascii=False)


NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@frozen
class OfferedTools:
    parameters: Mapping[str, Mapping[str, Any]]  # JSON schemas of the arguments, by tool name
    choice: str = "auto"  # ``auto``, ``none``, ``required`` or the name of a tool
    # whether the conversation ends with tool results, which the model answers with a text
    answered: bool = False


@frozen
class ToolTurn:
    results: Sequence[str] = ()  # IDs of calls whose results are in the message
    calls: Sequence[str] = ()  # IDs of calls made in the message
    results_follow: bool = False  # whether the next message may have further results of earlier calls


@frozen
class ToolTurnFlaw:
    """The reason why turns are refused."""

    place: int  # position of the message with the calls, or with a result without a call
    ids: tuple[str, ...] = ()  # calls without results; empty for a result without a call
    unexpected: str = ""  # ID of a result without a call


def flaw_of(turns: Sequence[ToolTurn]) -> ToolTurnFlaw | None:
    waiting: dict[str, int] = {}
    for place, turn in enumerate(turns):
        for identity in turn.results:
            if waiting.pop(identity, None) is None:
                return ToolTurnFlaw(place, unexpected=identity)
        if waiting and not turn.results_follow:
            break
        waiting |= dict.fromkeys(turn.calls, place)
    return ToolTurnFlaw(min(waiting.values()), tuple(waiting)) if waiting else None


def with_calls(answer: Completion, tools: OfferedTools | None, prompt: str) -> Completion:
    """Return an answer that calls tools instead of containing text, if the model calls any."""
    if tools is None:
        return answer
    names = called_tools(list(tools.parameters), tools.choice, prompt, answered=tools.answered)
    if not names:
        return answer
    calls = tuple(ModelToolCall(name, instance(tools.parameters[name], answer.text)) for name in names)
    tokens = sum(count_tokens(json.dumps(call.arguments)) for call in calls)
    return evolve(answer, text="", finish_reason="tool_calls", tokens=tokens, calls=calls)


def called_tools(names: Sequence[str], choice: str, prompt: str, *, answered: bool) -> list[str]:
    """Return the tools that the simulated model calls.

    These are the required tool (the named one, or the first), or those that the prompt names and whose
    results are missing.
    """
    if choice == "none" or not names:
        return []
    if choice == "auto":
        return [] if answered else [name for name in names if _mentions(prompt, name)]
    return [names[0] if choice == "required" else choice]


def _mentions(prompt: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", prompt) is not None


def logprobs_of(pieces: Sequence[str], alternatives: int) -> list[dict[str, Any]]:
    return [
        {
            **_logprob(piece, -0.125 * (place % 8)),
            "top_logprobs": [
                _logprob(piece if rank == 0 else f"{piece}{rank}", -0.125 * (place % 8) - rank)
                for rank in range(alternatives)
            ],
        }
        for place, piece in enumerate(pieces)
    ]


def _logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
