"""Marks: the verdicts of people on answers, and the accuracy computed from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Final, Literal, TypeAlias, get_args

from attrs import field, frozen
from attrs.validators import in_, instance_of, optional

from smartbatch.quality.intervals import Proportion, wilson
from smartbatch.quality.recorded_row import RecordedRow

Verdict: TypeAlias = Literal["right", "wrong", "unsure"]
VERDICTS: Final[tuple[Verdict, ...]] = get_args(Verdict)

MarkedPlace: TypeAlias = "tuple[int, int, str | None]"
"""Index, sample and field of a mark. If several marks have the same place, the last one counts."""


@frozen(kw_only=True)
class Mark:
    """A verdict on the answer of a row.

    Attributes:
        index, id, sample: those of the row; see :class:`RecordedRow`.
        answer: digest of the answer that was marked; see :func:`answer_digest`.
        verdict: ``None`` if an earlier mark was removed.
        note: the reason, in the marker's words.
        field: the field of the parsed answer; ``None`` for the whole answer.
    """

    index: int = field(validator=instance_of(int))
    id: str | int = field(validator=instance_of((str, int)))
    sample: int | None = field(default=None, validator=optional(instance_of(int)))
    answer: str = field(validator=instance_of(str))
    verdict: Verdict | None = field(validator=in_((*VERDICTS, None)))
    note: str = field(default="", validator=instance_of(str))
    field: str | None = field(default=None, validator=optional(instance_of(str)))

    @property
    def place(self) -> MarkedPlace:
        return self.index, self.sample or 0, self.field

    def is_of(self, row: RecordedRow) -> bool:
        """Whether the row still has the answer that was marked."""
        return self.answer == answer_digest(row)


def answer_digest(row: RecordedRow) -> str:
    """Return a digest of a row's id, input and answer, which changes if the row is answered again."""
    content = [row.id, row.input, row.text, row.fields, row.error_kind]
    text = json.dumps(content, default=str)
    return hashlib.blake2s(text.encode(), digest_size=12).hexdigest()


@frozen
class MarkedAccuracy:
    """The share of right answers among those marked right or wrong.

    Attributes:
        answers: share of answers that are right as a whole.
        fields: share of right values, by field.
        unsure: number of answers and fields marked unsure, which count in no share.
    """

    answers: Proportion
    fields: Mapping[str, Proportion]
    unsure: int

    @classmethod
    def of(cls, marks: Iterable[Mark]) -> MarkedAccuracy:
        """Count marks, at most one per answer and field."""
        counts: dict[str | None, list[bool]] = {None: []}
        unsure = 0
        for mark in marks:
            if mark.verdict == "unsure":
                unsure += 1
            elif mark.verdict is not None:
                counts.setdefault(mark.field, []).append(mark.verdict == "right")
        shares = {name: wilson(sum(found), len(found)) for name, found in counts.items()}
        answers = shares.pop(None)
        return cls(answers, {str(name): share for name, share in sorted(shares.items(), key=str)}, unsure)
