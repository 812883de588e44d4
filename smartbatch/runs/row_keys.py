"""Keys and ids, by which the rows of a run are recognized."""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import Any, Final

from attrs import Factory, asdict, field, frozen

from smartbatch.tables.row_prompts import SkippedRow
from smartbatch.types import Embedding, Generation, Request

HALF: Final = 16  # bytes of each half of a row's key
SKIPPED: Final = hashlib.blake2b(b"a row that is skipped", digest_size=HALF).digest()
"""The prompt half of the key of a skipped row."""
_MAX_IDS_PER_SET: Final = 100_000


@frozen
class Keys:
    """Digests that link a line of an output to its request: :data:`HALF` bytes for model and parameters, and
    as many for the prompt, so that an error can name the half that differs. Equal digests mean equal texts.
    """

    settings: bytes  # digest of model, system and parameters; for vectors, also of task type and dimensions

    @classmethod
    def of(cls, model: str, params: Generation, embedding: Embedding | None = None) -> Keys:
        sent = {name: value for name, value in asdict(params).items() if value is not None}
        settings = {"model": model, "params": sent}
        if embedding is not None:
            settings["embedding"] = asdict(embedding)
        return cls(hashlib.blake2b(_canonical(settings), digest_size=HALF).digest())

    def key(self, prompt: Any) -> bytes:
        return self.settings + self.digest(prompt)

    def digest(self, prompt: Any) -> bytes:
        if isinstance(prompt, SkippedRow):
            return SKIPPED
        if isinstance(prompt, Request):
            prompt = {"prompt": prompt.prompt, "model": prompt.model}
        data = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else _canonical(prompt)
        return hashlib.blake2b(data, digest_size=HALF).digest()


class RowKeys:
    """The keys of all answers that an input needs, in order; 16 bytes per row, because they share a half.

    Answers are numbered by their *places*: with ``n`` answers per row, the answer ``sample`` to the row at
    ``index`` has the place ``index * n + sample``.
    """

    def __init__(self, settings: bytes, n: int = 1) -> None:
        self.settings = settings  # the half that all keys share
        self.prompts = bytearray()  # the other halves, one per row
        self.n = n  # answers per row

    def __len__(self) -> int:
        return self.rows * self.n

    def __getitem__(self, place: int) -> bytes:
        return self.settings + self._prompt(place)

    def _prompt(self, place: int) -> bytearray:
        begin = place // self.n * HALF
        return self.prompts[begin : begin + HALF]

    @property
    def rows(self) -> int:
        return len(self.prompts) // HALF

    def place(self, index: int, sample: int) -> int | None:
        """Return the place of an answer; ``None`` if it is not needed."""
        return index * self.n + sample if index < self.rows and sample < self.n else None

    def is_skipped(self, place: int) -> bool:
        return self._prompt(place) == SKIPPED

    def has_skipped(self, place: int) -> bool:
        """Whether the line of a skipped row belongs at a place; such a row has one line for any ``n``."""
        return place % self.n == 0 and self.is_skipped(place)

    @property
    def skipped(self) -> int:
        return sum(map(self.has_skipped, range(len(self))))

    def append(self, digest: bytes) -> None:
        """Add the next row, with its half from :meth:`Keys.digest`."""
        self.prompts += digest

    def digest(self, places: int, *more: str) -> str:
        """Return a 128-bit digest of the first keys, ``n`` and ``more``, the same on every machine."""
        if self.n > 1:
            more = (*more, f"n={self.n}")
        whole = hashlib.blake2b("".join(f"{each}\n" for each in more).encode(), digest_size=16)
        whole.update(self.settings)
        with memoryview(self.prompts) as prompts:  # a slice of the array would copy 16 MB per million rows
            whole.update(prompts[: places // self.n * HALF])
        return whole.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@frozen
class KeyedRow:
    """A row with its id and its key; the context of its request."""

    index: int  # zero-based position in the input
    id: str | int  # the row's own id, or its index
    fields: dict[str, Any]  # repeated in the output
    key: bytes  # see Keys; hexadecimal in outputs and the store
    skipped: str | None = None  # why the row has no request
    sample: int | None = None  # number of the answer, from 0, if each row has several
    # place of the answer, see RowKeys; by default, that of a row with one answer
    place: int = field(default=Factory(lambda self: self.index, takes_self=True))


def digest_of_id(id: str | int) -> bytes:
    """Return a 64-bit digest of an id; a number has the same digest as its text."""
    return hashlib.blake2b(str(id).encode("utf-8", "surrogatepass"), digest_size=8).digest()


class UniqueIds:
    """The ids of rows, as digests."""

    def __init__(self) -> None:
        self._digests = array("Q")

    def add(self, id: str | int) -> None:
        self._digests.frombytes(digest_of_id(id))

    @property
    def suspects(self) -> set[bytes]:
        """Digests shared by several ids, which are equal or, by chance, different."""
        parts = len(self._digests) // _MAX_IDS_PER_SET + 1
        found: set[int] = set()
        for part in range(parts):
            seen: set[int] = set()
            for digest in self._digests:
                if digest % parts == part:
                    (found if digest in seen else seen).add(digest)
        return {array("Q", [digest]).tobytes() for digest in found}
