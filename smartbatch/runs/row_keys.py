"""What the rows of a run are recognised by: their keys, and their ids."""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import Any, Final

from attrs import Factory, asdict, field, frozen

from smartbatch.tables.row_prompts import SkippedRow
from smartbatch.types import Embedding, Generation, Request

HALF: Final = 16
"""Bytes of each half of a row's key."""
SKIPPED: Final = hashlib.blake2b(b"a row that is skipped", digest_size=HALF).digest()
"""The half of the key that stands for the prompt of a row that is skipped."""
_AT_ONCE: Final = 100_000
"""Ids that are compared in one set."""


@frozen
class Keys:
    """Digests that tie a line of an output to its request: :data:`HALF` bytes for model and parameters, as
    many for the prompt. Two halves, so that a mismatch can say which of the two is different; and each so
    wide that equal ones mean equal texts.

    Attributes:
        settings: over model, system and parameters; for vectors over their task type and dimensions.
    """

    settings: bytes

    @classmethod
    def of(cls, model: str, params: Generation, embedding: Embedding | None = None) -> Keys:
        sent = {name: value for name, value in asdict(params).items() if value is not None}
        settings = {"model": model, "params": sent}
        if embedding is not None:
            settings["embedding"] = asdict(embedding)
        return cls(hashlib.blake2b(_canonical(settings), digest_size=HALF).digest())

    def key(self, prompt: Any) -> bytes:
        """Return both halves, which identify ``prompt`` under these settings."""
        return self.settings + self.digest(prompt)

    def digest(self, prompt: Any) -> bytes:
        """Return the half of the key that stands for the prompt."""
        if isinstance(prompt, SkippedRow):
            return SKIPPED
        if isinstance(prompt, Request):
            prompt = {"prompt": prompt.prompt, "model": prompt.model}
        data = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else _canonical(prompt)
        return hashlib.blake2b(data, digest_size=HALF).digest()


class RowKeys:
    """The keys of all answers that an input asks for, in order: 16 bytes a row, as they share their settings.

    The answers are numbered by their *places*: with ``n`` answers to each row, the answer ``sample`` to the
    row at ``index`` is at ``index * n + sample``.

    Attributes:
        settings: the half that they share.
        prompts: the other halves, one a row.
        n: answers to each row.
    """

    def __init__(self, settings: bytes, n: int = 1) -> None:
        self.settings = settings
        self.prompts = bytearray()
        self.n = n

    def __len__(self) -> int:
        return self.rows * self.n

    def __getitem__(self, place: int) -> bytes:
        return self.settings + self._prompt(place)

    def _prompt(self, place: int) -> bytearray:
        begin = place // self.n * HALF
        return self.prompts[begin : begin + HALF]

    @property
    def rows(self) -> int:
        """How many rows the input has."""
        return len(self.prompts) // HALF

    def place(self, index: int, sample: int) -> int | None:
        """Return the place of an answer; ``None`` if it is not asked for."""
        return index * self.n + sample if index < self.rows and sample < self.n else None

    def is_skipped(self, place: int) -> bool:
        """Whether the row at a place is skipped."""
        return self._prompt(place) == SKIPPED

    def has_skipped(self, place: int) -> bool:
        """Whether the line of a skipped row belongs at a place; it has one, whatever ``n`` is."""
        return place % self.n == 0 and self.is_skipped(place)

    @property
    def skipped(self) -> int:
        """How many rows are skipped."""
        return sum(map(self.has_skipped, range(len(self))))

    def append(self, digest: bytes) -> None:
        """Add the key of the next row, as :meth:`Keys.digest` returned its half."""
        self.prompts += digest

    def digest(self, places: int, *more: str) -> str:
        """Return 128 bits over the first keys, ``n`` and ``more``, the same on every machine."""
        if self.n > 1:
            more = (*more, f"n={self.n}")
        whole = hashlib.blake2b("".join(f"{each}\n" for each in more).encode(), digest_size=16)
        whole.update(self.settings)
        with memoryview(self.prompts) as prompts:  # a slice of the array itself is a copy of 16 MB a million
            whole.update(prompts[: places // self.n * HALF])
        return whole.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@frozen
class KeyedRow:
    """A row with its id and its key; travels as the context of its request.

    Attributes:
        index: zero-based position in the input.
        id: the row's own id, or its index.
        fields: the row's fields, repeated in the output.
        key: see :class:`Keys`; outputs and the store have it in hexadecimal digits.
        skipped: why no request is made for the row; ``None`` if one is.
        sample: the number of the answer, from 0, where each row has several; ``None`` for a skipped row.
        place: of the answer, see :class:`RowKeys`; the index where each row has one.
    """

    index: int
    id: str | int
    fields: dict[str, Any]
    key: bytes
    skipped: str | None = None
    sample: int | None = None
    place: int = field(default=Factory(lambda self: self.index, takes_self=True))


def digest_of_id(id: str | int) -> bytes:
    """Return 64 bits that stand for an id; a number has those of its text."""
    return hashlib.blake2b(str(id).encode("utf-8", "surrogatepass"), digest_size=8).digest()


class UniqueIds:
    """The ids of rows, as digests."""

    def __init__(self) -> None:
        self._digests = array("Q")

    def add(self, id: str | int) -> None:
        """Add the id of the next row."""
        self._digests.frombytes(digest_of_id(id))

    @property
    def suspects(self) -> set[bytes]:
        """The digests that several ids have: of equal ids, or by chance of different ones."""
        parts = len(self._digests) // _AT_ONCE + 1
        found: set[int] = set()
        for part in range(parts):
            seen: set[int] = set()
            for digest in self._digests:
                if digest % parts == part:
                    (found if digest in seen else seen).add(digest)
        return {array("Q", [digest]).tobytes() for digest in found}
