"""From the rows of an input to requests: the prompt, the id and the key of a row.

Every row is checked before the first request is sent; then the input is read again, a row at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, TypeGuard

from attrs import asdict, frozen

from smartbatch._kept import forget_bytes, keep_bytes, read_kept_bytes
from smartbatch._values import Value
from smartbatch._version import __version__
from smartbatch.cli.inputs import Row, RowSource
from smartbatch.cli.interrupts import RunInterrupted
from smartbatch.cli.row_formats import BadRow
from smartbatch.core.preparation import validation
from smartbatch.errors import InputError, InvalidRequest
from smartbatch.tables.template import BadField, TemplateError, field, fill, listed, parse_template
from smartbatch.types import Embedding, Generation, Request

_KEPT: Final = "checked-rows"
_MANY: Final = 20_000
"""Rows from which on it is worth while to keep that they were checked."""

_MAX_BAD_ROWS: Final = 10
"""Bad rows listed in one error: enough to see the pattern, few enough to read."""

HALF: Final = 16
"""Bytes of each half of a row's key."""


class PromptMaker:
    """Makes the prompt and the id of a row.

    Args:
        template: text with ``{field}`` placeholders.
        prompt_field: the field that is the prompt (a text or a list of chat messages). Without either, the
            field ``prompt``, else ``messages``, else the only text field.
        id_field: the field that is the row's id; else the field ``id`` where there is one, else the index.

    Attributes:
        options: the three.

    Raises:
        InputError: the template cannot be used; the text says where.
    """

    def __init__(
        self, *, template: str | None = None, prompt_field: str | None = None, id_field: str | None = None
    ) -> None:
        self.options = (template, prompt_field, id_field)
        self._id_field = id_field
        self._prompt_of: Callable[[Mapping[str, Any]], Any] = _default_prompt
        if template is not None:
            try:
                parts = parse_template(template)
            except TemplateError as error:
                raise InputError(f"--template: {error.message}") from error
            self._prompt_of = lambda fields: fill(parts, fields)
        elif prompt_field is not None:
            name = prompt_field
            self._prompt_of = lambda fields: field(fields, name)

    def prompt(self, row: Row) -> Any:
        """Return the prompt, not validated yet: a text, a list of messages, or something wrong.

        Raises:
            BadField: a field is missing or null.
        """
        return self._prompt_of(row.fields)

    def id(self, row: Row) -> str | int:
        """Return the row's id.

        Raises:
            BadField: the field named for it is missing or neither a text nor a whole number.
        """
        if self._id_field is None:
            value = row.fields.get("id")
            return value if _is_id(value) else row.index
        value = field(row.fields, self._id_field)
        if not _is_id(value):
            raise BadField(f"field {self._id_field!r}: an id must be a text or a whole number")
        return value


def _is_id(value: Any) -> TypeGuard[str | int]:
    return type(value) is str or (isinstance(value, int) and type(value) is not bool)


def _default_prompt(fields: Mapping[str, Any]) -> Any:
    for name in ("prompt", "messages"):
        if name in fields:
            return field(fields, name)
    texts = [name for name, value in fields.items() if isinstance(value, str) and name != "id"]
    if len(texts) == 1:
        return fields[texts[0]]
    raise BadField(
        f"cannot tell which field is the prompt; the row has {listed(fields)}; say --prompt-field or "
        "--template"
    )


@frozen(eq=False, repr=False)
class Keys(Value):
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
        data = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else _canonical(prompt)
        return hashlib.blake2b(data, digest_size=HALF).digest()


class RowKeys:
    """The keys of all rows of an input, in order: 16 bytes a row, as they share their settings.

    Attributes:
        settings: the half that they share.
        prompts: the other halves, one after the other.
    """

    def __init__(self, settings: bytes, prompts: bytearray | None = None) -> None:
        self.settings = settings
        self.prompts = bytearray() if prompts is None else prompts

    def __len__(self) -> int:
        return len(self.prompts) // HALF

    def __getitem__(self, index: int) -> bytes:
        place = index * HALF
        return self.settings + self.prompts[place : place + HALF]

    def append(self, digest: bytes) -> None:
        """Add the key of the next row, as :meth:`Keys.digest` returned its half."""
        self.prompts += digest

    def digest(self, rows: int, *more: str) -> str:
        """Return 128 bits over the first ``rows`` keys and ``more``, the same on every machine."""
        whole = hashlib.blake2b("".join(f"{each}\n" for each in more).encode(), digest_size=16)
        whole.update(self.settings)
        with memoryview(self.prompts) as prompts:  # a slice of the array itself is a copy of 16 MB a million
            whole.update(prompts[: rows * HALF])
        return whole.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


@frozen(eq=False, repr=False)
class KeyedRow(Value):
    """A row with its id and its key; travels as the context of its request.

    Attributes:
        index: zero-based position in the input.
        id: the row's own id, or its index.
        fields: the row's fields, repeated in the output.
        key: see :class:`Keys`; outputs and the store have it in hexadecimal digits.
    """

    index: int
    id: str | int
    fields: dict[str, Any]
    key: bytes


class InputRequests:
    """The requests of an input: checked first, then read one by one.

    Args:
        embedding: the kind of vector that each asks for; ``None`` for texts.

    Attributes:
        keys: the key of each row, in order, once :meth:`check` or :meth:`check_or_recall` has returned.
    """

    def __init__(
        self,
        source: RowSource,
        maker: PromptMaker,
        *,
        model: str,
        params: Generation,
        embedding: Embedding | None = None,
        limit: int | None = None,
    ) -> None:
        self._source = source
        self._maker = maker
        self.embedding = embedding
        self._keys_of = Keys.of(model, params, embedding)
        self._limit = limit
        self.keys = RowKeys(self._keys_of.settings)
        self._kept_for: str | None = None

    def check(self) -> RowKeys:
        """Read the input once, refuse it if any row is bad, and return the rows' keys.

        Raises:
            InputError: the input is empty or has bad rows; up to ten are named, each with line and field.
        """
        bad: list[str] = []
        count = 0
        for row in self._rows():
            try:
                if isinstance(row, BadRow):
                    raise BadField(row.message)
                self.keys.append(self._keys_of.digest(self._checked_prompt(row)))
            except (BadField, InvalidRequest) as error:
                count += 1
                if len(bad) < _MAX_BAD_ROWS:
                    bad.append(f"{self._source.unit} {row.line}: {_message(error)}")
        if bad:
            rest = f"\n  and {count - len(bad)} more" if count > len(bad) else ""
            rows = "1 row" if count == 1 else f"{count} rows"
            raise InputError(
                f"{self._source.name}: {rows} cannot be asked; nothing was sent\n  " + "\n  ".join(bad) + rest
            )
        if not self.keys:
            raise InputError(f"{self._source.name}: has no rows; nothing was sent")
        return self.keys

    def check_or_recall(self, wall: float) -> RowKeys:
        """Return the keys as :meth:`check` does; of rows that an earlier process checked, none is read.

        Those are the rows of the same file, unchanged since and read in the same way. Each row that is asked
        or written is compared with its key in any case.

        Args:
            wall: Unix seconds.
        """
        version = self._source.version(wall)
        if version is None:
            return self.check()
        read = [__version__, self.keys.settings.hex(), self._limit, *self._maker.options]
        self._kept_for = json.dumps([*read, *version])
        if (kept := read_kept_bytes(_KEPT, self._kept_for)) is not None:
            end = kept.index(b"\n")
            self._source.places = json.loads(kept[:end])
            del kept[: end + 1]
            self.keys = RowKeys(self.keys.settings, kept)
            return self.keys
        self.check()
        if len(self.keys) >= _MANY and self._source.version(wall) == version:
            places = json.dumps(self._source.places).encode() + b"\n"
            keep_bytes(_KEPT, self._kept_for, places, self.keys.prompts)
        return self.keys

    def forget_check(self) -> None:
        """Delete what :meth:`check_or_recall` keeps for later processes."""
        if self._kept_for is not None:
            forget_bytes(_KEPT, self._kept_for)

    def read(
        self,
        skip: Callable[[int], bool],
        stopped: Callable[[], bool],
        context: Callable[[KeyedRow], Any] = lambda row: row,
    ) -> Iterator[Request]:
        """Read the input again and yield its requests, which name no parameters: the client has them.

        Args:
            context: returns the context of a row's request.

        Raises:
            InputError: the input is no longer what was checked.
            RunInterrupted: ``stopped`` returned true.
        """
        for row, prompt in self._read_again(skip, stopped):
            yield Request(prompt, context=context(row), embedding=self.embedding)

    def prompts(self, skip: Callable[[int], bool], stopped: Callable[[], bool]) -> Iterator[Any]:
        """Read the input again and yield its prompts; raises as :meth:`read`."""
        return (prompt for _, prompt in self._read_again(skip, stopped))

    def _read_again(
        self, skip: Callable[[int], bool], stopped: Callable[[], bool]
    ) -> Iterator[tuple[KeyedRow, Any]]:
        """Yield rows with their prompts; raises as :meth:`read`.

        What has the key of a row that was checked needs no further check. Where all of the first rows are to
        be skipped, most of them are not read.
        """
        needed = (index for index in range(len(self.keys)) if not skip(index))
        count = self._source.start_before(next(needed, 0))
        for row in self._rows(count):
            if stopped():
                raise RunInterrupted
            if isinstance(row, BadRow) or row.index >= len(self.keys):
                raise self._changed()
            count += 1
            if skip(row.index):
                continue
            try:
                prompt = self._maker.prompt(row)
                keyed = KeyedRow(row.index, self._maker.id(row), row.fields, self._keys_of.key(prompt))
            except (BadField, TypeError, ValueError) as error:
                raise self._changed() from error
            if keyed.key != self.keys[row.index]:
                raise self._changed()
            yield keyed, prompt
        if count != len(self.keys):
            raise self._changed()

    def row_lookup(self, skip: Callable[[int], bool], *, ordered: bool) -> Callable[[int], KeyedRow]:
        """Return a function that returns the row at an index, once each; the input is read up to that row.

        Unless rows are looked up in their order, those that were passed over are kept in memory.
        """
        rows = self._read_again(skip, stopped=lambda: False)
        passed: dict[int, KeyedRow] = {}

        def find(index: int) -> KeyedRow:
            while index not in passed:
                if ordered:
                    passed.clear()
                found = next(rows, None)
                if found is None:
                    raise self._changed()
                passed[found[0].index] = found[0]
            return passed.pop(index)

        return find

    def _rows(self, start: int = 0) -> Iterator[Row | BadRow]:
        return islice(self._source.rows(start), None if self._limit is None else self._limit - start)

    def _changed(self) -> InputError:
        """Return the error of an input that is not what was checked; the next process checks it anew."""
        self.forget_check()
        return InputError(f"{self._source.name}: changed while it was being read; run the same line again")

    def _checked_prompt(self, row: Row) -> Any:
        """Return the prompt of a row whose prompt and id can be used."""
        prompt = self._maker.prompt(row)
        # The parameters are part of the settings digest, so what is checked here is the prompt alone.
        validation.check_prompt(prompt, self.embedding)
        self._maker.id(row)
        return prompt


def _message(error: BadField | InvalidRequest) -> str:
    field = getattr(error, "field", None)
    return f"{field}: {error.message}" if field and field not in error.message else error.message
