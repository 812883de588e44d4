"""A row with its answer, read from an output file or taken from a list of results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from smartbatch._words import escape, short
from smartbatch.errors import kind_name
from smartbatch.tables.answer_columns import plain
from smartbatch.types import Defect, Result


@frozen(kw_only=True)
class RecordedRow:
    """One row and its answer.

    Attributes:
        index: zero-based position of the row in its input.
        id: the row's id, or its index.
        sample: zero-based number of the answer, if each row has several.
        input: the fields of the row.
        model: the model that answered, or was requested, as ``provider:model``.
        text: the answer's text; ``None`` if there is none.
        fields: the fields of a parsed answer, as plain values; an answer that is not an object is the field
            ``parsed``.
        defects: see :attr:`Result.defects`.
        error_kind, error: the kind of the error and its message; ``None`` for an answer.
        cost: USD; ``None`` if unknown.
        latency: seconds of the call that answered.
        input_tokens, output_tokens: ``None`` if unknown.
        files: paths of the files in the answer, relative to the output or, for a job, absolute.
    """

    index: int
    id: str | int
    sample: int | None = None
    input: Mapping[str, Any] = field(factory=dict, repr=short)
    model: str | None = None
    text: str | None = field(default=None, repr=short)
    fields: Mapping[str, Any] = field(factory=dict, repr=short)
    finish_reason: str | None = None
    defects: tuple[Defect, ...] = ()
    error_kind: str | None = None
    error: str | None = field(default=None, repr=short)
    cost: float | None = None
    latency: float | None = None
    attempts: int = 0
    input_tokens: int | None = None
    output_tokens: int | None = None
    files: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the row was answered."""
        return self.error_kind is None

    @classmethod
    def of_result(
        cls, index: int, result: Result[Any], input: Mapping[str, Any] | None = None
    ) -> RecordedRow:
        """Return the row of a result; ``index`` is the position of its prompt."""
        usage, error = result.usage, result.error
        known = not usage.unknown or usage.total_tokens > 0
        return cls(
            index=index,
            id=index,
            sample=result.sample,
            input=input or {},
            model=result.model,
            text=result.text,
            fields=fields_of_answer(plain(result.parsed)),
            finish_reason=result.finish_reason,
            defects=result.defects,
            error_kind=None if error is None else kind_name(error),
            error=None if error is None else error.message,
            cost=result.cost,
            latency=result.latency,
            attempts=result.attempts,
            input_tokens=usage.input_tokens if known else None,
            output_tokens=usage.output_tokens if known else None,
            files=tuple(file.source for file in result.files if isinstance(file.source, str)),
        )


def row_name(index: int, id: str | int, sample: int | None) -> str:
    """Return a row's number, counted from 0, and its id, such as ``row 3 (id k-7)``."""
    own = "" if sample is None else f", sample {sample}"
    own += f" (id {escape(str(id))[:60]})" if id != index else ""
    return f"row {index}{own}"


def fields_of_answer(parsed: Any) -> dict[str, Any]:
    """Return the fields of a parsed answer, given as plain values."""
    if parsed is None:
        return {}
    return (
        {str(name): value for name, value in parsed.items()}
        if isinstance(parsed, dict)
        else {"parsed": parsed}
    )
