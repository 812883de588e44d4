"""Keys and ids that identify the rows of a run."""

from __future__ import annotations

import hashlib
import json
from array import array
from typing import Any, Final

from attrs import Factory, asdict, field, frozen

from smartbatch.media import Media, media_identity
from smartbatch.tables.row_prompts import SkippedRow
from smartbatch.types import Embedding, Generation, Request

HALF_BYTES: Final = 16  # bytes of each half of a row's key
# prompt half of the key of a skipped row
SKIPPED_DIGEST: Final = hashlib.blake2b(b"a row that is skipped", digest_size=HALF_BYTES).digest()
_MAX_IDS_PER_SET: Final = 100_000


@frozen
class Keys:
    """Computes row keys, which link a line of the output to its request.

    One half of a key is a digest of the model and parameters, the other a digest of the prompt. An error can
    thus name the half that differs.
    """

    settings: bytes  # digest of model, system and parameters; for vectors, also of task type and dimensions

    @classmethod
    def of(cls, model: str, params: Generation, embedding: Embedding | None = None) -> Keys:
        sent = {name: value for name, value in asdict(params).items() if value is not None}
        settings = {"model": model, "params": sent}
        if embedding is not None:
            settings["embedding"] = asdict(embedding)
        return cls(hashlib.blake2b(_canonical(settings), digest_size=HALF_BYTES).digest())

    def key(self, prompt: Any) -> bytes:
        return self.settings + self.digest(prompt)

    def digest(self, prompt: Any) -> bytes:
        if isinstance(prompt, SkippedRow):
            return SKIPPED_DIGEST
        if isinstance(prompt, Request):
            prompt = {"prompt": prompt.prompt, "model": prompt.model}
        data = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else _canonical(prompt)
        return hashlib.blake2b(data, digest_size=HALF_BYTES).digest()


class RowKeys:
    """The keys of all answers that an input needs, in order. Each row takes 16 bytes, because all keys share
    the settings half.

    An answer is identified by its *place*. With ``n`` answers per row, the place of answer ``sample`` to row
    ``index`` is ``index * n + sample``.
    """

    def __init__(self, settings: bytes, n: int = 1) -> None:
        self.settings = settings  # settings half, shared by all keys
        self.prompts = bytearray()  # prompt halves, one per row
        self.n = n  # answers per row

    def __len__(self) -> int:
        return self.rows * self.n

    def __getitem__(self, place: int) -> bytes:
        return self.settings + self._prompt(place)

    def _prompt(self, place: int) -> bytearray:
        begin = place // self.n * HALF_BYTES
        return self.prompts[begin : begin + HALF_BYTES]

    @property
    def rows(self) -> int:
        return len(self.prompts) // HALF_BYTES

    def place(self, index: int, sample: int) -> int | None:
        """Return the place of an answer; ``None`` if the answer is not needed."""
        return index * self.n + sample if index < self.rows and sample < self.n else None

    def is_skipped(self, place: int) -> bool:
        return self._prompt(place) == SKIPPED_DIGEST

    def has_skipped(self, place: int) -> bool:
        """Whether the line of a skipped row belongs at a place. A skipped row has one line for any ``n``."""
        return place % self.n == 0 and self.is_skipped(place)

    @property
    def skipped(self) -> int:
        return sum(map(self.has_skipped, range(len(self))))

    def append(self, digest: bytes) -> None:
        """Add the next row with its digest from :meth:`Keys.digest`."""
        self.prompts += digest

    def digest(self, places: int, *more: str) -> str:
        """Return a 128-bit digest of the first keys, ``n`` and ``more``. It is the same on every machine."""
        if self.n > 1:
            more = (*more, f"n={self.n}")
        whole = hashlib.blake2b("".join(f"{each}\n" for each in more).encode(), digest_size=16)
        whole.update(self.settings)
        with memoryview(self.prompts) as prompts:  # slicing the bytearray would copy 16 MB per million rows
            whole.update(prompts[: places // self.n * HALF_BYTES])
        return whole.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_file_form).encode()


def _file_form(value: Any) -> Any:
    """Files are identified by their hashes, so a moved table keeps its answers."""
    if isinstance(value, Media):
        return media_identity(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


@frozen
class KeyedRow:
    """A row with its id and key. It is the context of the row's request."""

    index: int  # zero-based position in the input
    id: str | int  # from the row, or its index
    fields: dict[str, Any]  # copied to the output
    key: bytes  # see Keys; hexadecimal in outputs and the store
    skipped: str | None = None  # why the row has no request
    sample: int | None = None  # zero-based number of the answer, if each row has several
    # place of the answer, see RowKeys; the default is for one answer per row
    place: int = field(default=Factory(lambda self: self.index, takes_self=True))


def digest_of_id(id: str | int) -> bytes:
    """Return a 64-bit digest of an id. A number has the same digest as its decimal text."""
    return hashlib.blake2b(str(id).encode("utf-8", "surrogatepass"), digest_size=8).digest()


class UniqueIds:
    def __init__(self) -> None:
        self._digests = array("Q")

    def add_id(self, id: str | int) -> None:
        self._digests.frombytes(digest_of_id(id))

    @property
    def suspects(self) -> set[bytes]:
        """Digests that occurred more than once, because ids are equal or collide by chance."""
        parts = len(self._digests) // _MAX_IDS_PER_SET + 1
        found: set[int] = set()
        for part in range(parts):
            seen: set[int] = set()
            for digest in self._digests:
                if digest % parts == part:
                    (found if digest in seen else seen).add(digest)
        return {array("Q", [digest]).tobytes() for digest in found}
