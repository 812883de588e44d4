"""A prompt as one string, in the order in which the provider reads it.

Tools, schema and instructions come first: they form the head, which requests with the same parameters share.
The messages follow, part by part.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

from attrs import asdict, frozen

from smartbatch.chats import Message, Part, identity_form
from smartbatch.core.preparation.tokens import MESSAGE_TOKENS, estimate, estimate_request
from smartbatch.media import Media, media_identity
from smartbatch.media_tokens import UNKNOWN_TOKENS, media_rule
from smartbatch.shared_prefixes import SharedPrefix, names_cache
from smartbatch.types import Generation, Request

_NOT_READ = ("max_tokens", "temperature", "top_p", "stop", "seed", "n", "logprobs")
"""Parameters that are not part of the model's input."""
_LABELS = frozenset({"metadata", "user", "safety_identifier", "store", "service_tier", "stream_options"})
"""Fields of ``extra`` that are not part of the model's input."""
_INSTRUCTIONS = ("system", "developer")
_MIN_CUT_CHARS = 256
"""Text is not cut to add fewer characters than this to the parts before it."""
_CLEAN_CUT_CHARS = 200
"""A prefix that ends within text is cut at a line or word boundary at most this far before its end."""
_KEY_BYTES = 12


@frozen
class PromptHead:
    """Instructions and tools, which precede the messages."""

    digest: bytes
    tokens: int
    markable: bool  # it contains instructions or tools
    own_marks: bool  # the user controls the cache


@frozen
class _Piece:
    """A content part: ``text[start:end]``. Only text parts can be cut."""

    start: int
    end: int
    message: int
    part: int
    is_text: bool
    tokens: int  # tokens in addition to those of the text, such as those of a file


@frozen(eq=False)
class Rendering:
    """The input of a request up to its last message.

    Attributes:
        text: the messages.
        pieces: the parts in ``text``; empty if the prompt is a single string.
        message_ends: where each message ends in ``text``; empty if the prompt is a single string.
    """

    head: PromptHead
    text: str
    pieces: tuple[_Piece, ...] = ()
    message_ends: tuple[int, ...] = ()

    @property
    def ends_with_part(self) -> bool:
        """Whether the end of the whole prompt can be marked: a chat that ends with a tool's result cannot."""
        return bool(self.pieces) and self.pieces[-1].end + 1 == len(self.text)

    def tokens_between(self, start: int, end: int) -> int:
        """Return the estimated tokens of ``text[start:end]``."""
        extra = sum(piece.tokens for piece in self.pieces if start < piece.end <= end)
        return estimate(self.text[start:end]) + extra

    def prefix(self, depth: int, tokens: int, uses: int, *, whole: bool = False) -> SharedPrefix | None:
        """Return the prefix that ends at or shortly before ``depth`` characters of :attr:`text`.

        Returns ``None`` if it would contain no complete part and no text can be cut.

        Args:
            whole: whether all requests that begin with it are identical.
        """
        place = self._place(depth, whole=whole)
        if place is None:
            return None
        message, part, chars, end = place
        key = hashlib.blake2b(self.head.digest, digest_size=_KEY_BYTES)
        key.update(self.text[:end].encode("utf-8", "surrogatepass"))
        key.update(b"%d:%d" % (message, part))
        return SharedPrefix(message, part, chars, tokens, uses, key.hexdigest())

    def _place(self, depth: int, *, whole: bool) -> tuple[int, int, int | None, int] | None:
        if not self.pieces and depth >= (_MIN_CUT_CHARS if self.head.markable else 1):
            end = depth if whole else _clean_cut(self.text, 0, depth)
            return 0, 0, None if whole else end, end
        for piece in reversed(self.pieces):
            if piece.end < depth:  # the separator after it is shared too
                return piece.message, piece.part, None, piece.end
            if piece.is_text and piece.start + _MIN_CUT_CHARS <= depth:
                end = _clean_cut(self.text, piece.start, depth)
                return piece.message, piece.part, end - piece.start, end
        return (-1, 0, None, 0) if self.head.markable else None

    def turns(self) -> Iterator[str]:
        """Yield the key of each beginning of the chat that ends with a message."""
        running, at = hashlib.blake2b(self.head.digest, digest_size=_KEY_BYTES), 0
        for end in self.message_ends:
            running.update(self.text[at:end].encode("utf-8", "surrogatepass"))
            at = end
            yield running.hexdigest()

    def ends(self) -> Iterator[SharedPrefix]:
        """Yield the prefixes that end with the instructions or with a part, shortest first.

        Their keys are those of :meth:`prefix`. Their number of uses is unknown.
        """
        if self.head.markable:
            first = self.prefix(0, self.head.tokens, 0)
            assert first is not None
            yield first
        running = hashlib.blake2b(self.head.digest, digest_size=_KEY_BYTES)
        tokens, at = self.head.tokens, 0
        for piece in self.pieces:
            running.update(self.text[at : piece.end].encode("utf-8", "surrogatepass"))
            tokens += self.tokens_between(at, piece.end)
            at = piece.end
            key = running.copy()
            key.update(b"%d:%d" % (piece.message, piece.part))
            yield SharedPrefix(piece.message, piece.part, None, tokens, 0, key.hexdigest())


def rendering_of(request: Request) -> Rendering | None:
    """Return ``None`` if the request has no input that could be cached, or controls the cache itself."""
    if request.embedding is not None or request.call is not None:
        return None
    head = head_of(request.params)
    if head.own_marks:
        return None
    prompt = request.prompt
    if isinstance(prompt, str):
        return Rendering(head, prompt)
    return _of_chat(head, prompt)


def _of_chat(head: PromptHead, messages: tuple[Message, ...]) -> Rendering | None:
    written: list[str] = []
    pieces: list[_Piece] = []
    message_ends: list[int] = []
    at, begun = 0, False
    for number, message in enumerate(messages):
        instructs = message.role in _INSTRUCTIONS
        if instructs and begun:
            return None  # providers move later instructions to the beginning
        begun = begun or not instructs
        frame = f"\x1e{message.role}\x1f"
        written.append(frame)
        at += len(frame)
        content = message.content
        parts: tuple[Part | str, ...] = (content,) if isinstance(content, str) else content
        calls = bool(message.tool_calls) or message.role == "tool"
        for index, part in enumerate(parts):
            text, is_text, tokens = _written(part)
            if text is None:
                return None
            tokens += MESSAGE_TOKENS if index == 0 else 0
            if not calls:
                pieces.append(_Piece(at, at + len(text), number, index, is_text, tokens))
            written.append(text + "\x1f")
            at += len(text) + 1
        if calls:  # a message with calls is shared as a whole or not at all, and nothing in it is marked
            rest = json.dumps(identity_form(message)[2:], default=str)
            written.append(rest)
            at += len(rest)
        message_ends.append(at)
    return Rendering(head, "".join(written), tuple(pieces), tuple(message_ends))


def _written(part: Part | str) -> tuple[str | None, bool, int]:
    """Return a part's text, whether the model reads exactly this text, and the part's additional tokens.

    The text is ``None`` if the user marked the part.
    """
    if isinstance(part, str):
        return part, True, 0
    if isinstance(part, Media):
        rule = media_rule("")
        return _digest(media_identity(part)), False, rule.expected(part)
    if names_cache(part):
        return None, False, 0
    text = part.get("text")
    if isinstance(text, str) and part.get("type") in ("text", "input_text", None) and len(part) <= 2:
        return text, True, 0
    return _digest(part), False, UNKNOWN_TOKENS


def _digest(form: Mapping[str, Any]) -> str:
    written = json.dumps(form, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(
        written
    ).hexdigest()  # 128 characters, so that the tree does not take it for a tail


def _clean_cut(text: str, start: int, end: int) -> int:
    least = max(start, end - _CLEAN_CUT_CHARS)
    for mark in ("\n", " "):
        found = text.rfind(mark, least, end)
        if found >= 0:
            return found + 1
    return end


_heads: dict[int, tuple[weakref.ref[Generation], PromptHead]] = {}


def head_of(params: Generation) -> PromptHead:
    """Return the head of all requests with these parameters, which is computed once. Thread-safe."""
    number = id(params)
    known = _heads.get(number)
    if known is not None and known[0]() is params:
        return known[1]
    head = _head(params)
    forget = _heads.pop  # bound here: at interpreter exit, the name may be gone before the object
    _heads[number] = weakref.ref(params, lambda _: forget(number, None)), head
    return head


def _head(params: Generation) -> PromptHead:
    form = {
        name: value
        for name, value in asdict(params).items()
        if value is not None and name not in (*_NOT_READ, "extra")
    }
    extra = {name: value for name, value in (params.extra or {}).items() if name not in _LABELS}
    if extra:
        form["extra"] = extra
    # neither sorted nor compact: the order of properties is part of the input
    written = json.dumps(form, default=str).encode("utf-8", "surrogatepass")
    return PromptHead(
        hashlib.blake2b(written, digest_size=16).digest(),
        estimate_request(Request("", params)),
        markable=bool(params.system or params.tools),
        own_marks=names_cache(params.extra),
    )


def controls_cache(request: Request) -> bool:
    """Whether the user set one of :data:`~smartbatch.shared_prefixes.MARK_FIELDS` in the request."""
    if request.params.extra and head_of(request.params).own_marks:
        return True
    if isinstance(request.prompt, str):
        return False
    contents = (message.content for message in request.prompt)
    return any(names_cache(part) for content in contents if not isinstance(content, str) for part in content)
