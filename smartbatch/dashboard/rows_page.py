"""Rows of an output as a view: prompt or input, answer, parsed fields, error, figures and marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import evolve, frozen

from smartbatch._words import duration, money, plural
from smartbatch.dashboard.page import Query, number_of
from smartbatch.dashboard.row_files import RowFiles
from smartbatch.errors import ErrorKind
from smartbatch.quality.intervals import Proportion
from smartbatch.quality.labels import LabelScores
from smartbatch.quality.marks import VERDICTS, Mark, MarkedAccuracy, answer_digest
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.row_filter import RowFilter
from smartbatch.runs.row_index import FoundRows
from smartbatch.tables.cells import BadField, text_of
from smartbatch.tables.file_cells import FileColumns
from smartbatch.tables.row_prompts import RowPrompts
from smartbatch.types import DEFECTS
from smartbatch.views.model import (
    Bullets,
    Facts,
    Field,
    Folded,
    Form,
    Link,
    Links,
    LongText,
    Note,
    Part,
    Section,
    State,
    Tile,
    Tone,
    Value,
    View,
)

_FOLDED_CHARACTERS: Final = 2_000  # texts of this length or longer are folded
_MAX_CHARACTERS: Final = 100_000  # of a text
_SUMMARY_CHARACTERS: Final = 160
_SHORT_CHARACTERS: Final = 80  # longest value that is shown in a table
_MAX_FIELD_TILES: Final = 8
_TONES: Final[Mapping[str, Tone]] = {"right": "good", "wrong": "bad", "unsure": "warn"}
_OUTCOMES: Final = (
    ("", "all"),
    ("answered", "answered"),
    ("failed", "failed"),
    *((name, name) for name in DEFECTS),
    *((kind.value, f"failed: {kind.value}") for kind in ErrorKind),
)
_MARKS: Final = (("", "any or none"), ("none", "none"), *((name, name) for name in VERDICTS))

_SCORED: Final = (("", "any or none"), ("right", "right"), ("wrong", "wrong"))


# -- one row -------------------------------------------------------------------------------------------------


@frozen
class Shown:
    """What is shown besides the input and the answer of each row.

    Attributes:
        prompts: makes the prompt that is shown instead of the input.
        scores: the labels with which answers are compared.
        columns: the columns of the input with files.
    """

    prompts: RowPrompts | None = None
    scores: LabelScores | None = None
    columns: FileColumns | None = None


def row_section(
    row: RecordedRow,
    position: int,
    marks: Sequence[Mark],
    shown: Shown,
    files: Part | None = None,
    form: Part | None = None,
) -> Section:
    number = f"Row {row.index}" + ("" if row.sample is None else f", answer {row.sample}")
    title = number if row.id == row.index else f"{number} · {row.id}"
    judged = [] if shown.scores is None else _judged(row, shown.scores)
    parts = (
        *_input(row, shown.prompts),
        *_answer(row),
        _file_names(row) if files is None else files,
        Note(_figures(row)),
        *judged,
        *_verdicts(row, marks),
        form,
    )
    return Section(f"row-{position}", title, parts, is_live=False)


def _input(row: RecordedRow, prompts: RowPrompts | None) -> Iterator[Part]:
    if prompts is None:
        yield from _values("Input", row.input)
        return
    try:
        yield _text("Prompt", text_of(prompts.prompt(row.input)))
    except BadField as error:
        yield Note(f"The template does not fit this row: {error.message}", "warn")


def _answer(row: RecordedRow) -> Iterator[Part]:
    if row.defects:
        yield Note(", ".join(row.defects), "warn")
    if row.error_kind is not None:
        yield Note(f"{row.error_kind}: {row.error}", "bad")
    yield from _values("Parsed", row.fields)
    if row.text is not None:
        yield _text("Answer", row.text, is_folded=bool(row.fields))


def _values(label: str, values: Mapping[str, Any]) -> Iterator[Part]:
    """Show short values in a table, and each long value separately."""
    texts = {name: text_of(value) for name, value in values.items()}
    short = {
        name: text for name, text in texts.items() if len(text) <= _SHORT_CHARACTERS and "\n" not in text
    }
    if short:
        yield Facts(tuple(short.items()), label)
    yield from (_text(f"{label} · {name}", text) for name, text in texts.items() if name not in short)


def _text(label: str, text: str, *, is_folded: bool = False) -> Part:
    left = len(text) - _MAX_CHARACTERS
    rest = f"\n… {plural(left, 'more character')} in the output" if left > 0 else ""
    whole = LongText(label, text[:_MAX_CHARACTERS] + rest)
    if len(text) < _FOLDED_CHARACTERS and not is_folded:
        return whole
    start = " ".join(text[: 2 * _SUMMARY_CHARACTERS].split())[:_SUMMARY_CHARACTERS]
    cut = "" if start == text else "…"
    return Folded(f"{label}, {plural(len(text), 'character')}: {start}{cut}", (whole,))


def _judged(row: RecordedRow, scores: LabelScores) -> Iterator[Part]:
    is_right, label = scores.judged(row), scores.label_of(row)
    if is_right is not None:
        state = State("right", "good") if is_right else State("wrong", "bad")
        known = "an answer marked wrong" if label is None else f"the label {label!r}"
        yield Bullets(((state, f" according to {known}"),))


def _verdicts(row: RecordedRow, marks: Sequence[Mark]) -> Iterator[Part]:
    rows: list[tuple[Value, ...]] = []
    for mark in marks:
        words = [
            "" if mark.field is None else f" {mark.field}",
            f" {mark.note}" if mark.note else "",
            "" if mark.is_of(row) else " (an older answer was marked)",
        ]
        rows.append((State(str(mark.verdict), _TONES[str(mark.verdict)]), *filter(None, words)))
    if rows:
        yield Bullets(tuple(rows))


def _file_names(row: RecordedRow) -> Facts | None:
    return Facts((("answer", row.files),), "Files") if row.files else None


def _figures(row: RecordedRow) -> str:
    tokens = None
    if row.input_tokens is not None or row.output_tokens is not None:
        tokens = f"{row.input_tokens or 0:,} + {row.output_tokens or 0:,} tokens"
    figures = (
        row.model,
        tokens,
        None if row.cost is None else money(row.cost),
        None if row.latency is None else duration(row.latency),
        plural(row.attempts, "attempt"),
        row.finish_reason,
    )
    return " · ".join(figure for figure in figures if figure)


# -- the page ------------------------------------------------------------------------------------------------


def rows_view(
    name: str,
    total: int,
    found: FoundRows,
    marks: Mapping[int, Sequence[Mark]],
    accuracy: MarkedAccuracy,
    shown: Shown,
    files: RowFiles,
    query: Query,
    notice: tuple[Part | None, ...] = (),
) -> View:
    """Return a page of rows.

    Args:
        name: the output's name.
        total: number of rows in the output.
        marks: by position.
        notice: shown first.
    """
    sections = [
        Section("filter", "Filter", (*notice, _filter_form(query, shown)), is_live=False),
        *(
            row_section(
                row,
                at,
                marks.get(at, ()),
                shown,
                files.part(row, at, query),
                _mark_form(row, at, marks.get(at, ()), query),
            )
            for at, row in found.rows
        ),
        Section("pages", "Pages", (Note(_searched(found, total)), _pages(found, query)), is_live=False),
    ]
    return View(name, tuple(sections), tiles=row_tiles(total, accuracy), subtitle=_KEYS)


_KEYS: Final = "Keys: j and k move, 1 marks a row right, 2 wrong, 3 unsure."


def row_tiles(total: int, accuracy: MarkedAccuracy) -> tuple[Tile, ...]:
    shares = tuple(accuracy.fields.items())[:_MAX_FIELD_TILES]
    return (
        Tile("Rows", f"{total:,}"),
        _share_tile("Right answers", accuracy.answers, accuracy.unsure),
        *(_share_tile(f"Right: {name}", share) for name, share in shares),
    )


def _share_tile(label: str, share: Proportion, unsure: int = 0) -> Tile:
    if share.value is None:
        return Tile(label, "–", "no rows are marked right or wrong")
    more = f", {unsure:,} unsure" if unsure else ""
    interval = f"95 %: {100 * share.low:.1f} to {100 * share.high:.1f} %"
    return Tile(
        label, f"{100 * share.value:.1f} %", f"{share.successes:,} of {share.total:,}{more}; {interval}"
    )


def _searched(found: FoundRows, total: int) -> str:
    if found.is_last:
        return "These are the last rows found." if found.rows else "No more rows match."
    return f"Searched {found.searched + 1:,} of {total:,} rows."


def _pages(found: FoundRows, query: Query) -> Links | None:
    links = []
    if "after" in query.values:
        links.append(Link("First rows", query.again(after=None)))
    if not found.is_last:
        links.append(
            Link("Next rows" if found.rows else "Continue searching", query.again(after=found.searched))
        )
    return Links("Pages of rows", tuple(links)) if links else None


def _filter_form(query: Query, shown: Shown) -> Form:
    values = query.values
    outcome = values.get("outcome", "")
    outcomes = _OUTCOMES if outcome in dict(_OUTCOMES) else (*_OUTCOMES, (outcome, f"failed: {outcome}"))
    scored = Field("scored", "By label", values.get("scored", ""), kind="select", options=_SCORED)
    fields = (
        Field("outcome", "Outcome", outcome, kind="select", options=outcomes),
        Field("mark", "Mark", values.get("mark", ""), kind="select", options=_MARKS),
        *((scored,) if shown.scores else ()),
        _optional("search", "Search", "text in any field", query),
        _optional("where", "Field", "sentiment=positive", query),
        _optional("min", "Minimum length", "characters", query),
        _optional("max", "Maximum length", "characters", query),
    )
    return Form(query.link(query.path), "Show", fields, is_search=True)


def _optional(name: str, label: str, hint: str, query: Query) -> Field:
    return Field(name, label, query.values.get(name, ""), hint, kind="search", is_required=False)


def filter_in(query: Query, scores: LabelScores | None) -> RowFilter:
    """Return the filter in an address; an unknown outcome is a kind of error."""
    values = query.values
    wanted = RowFilter(
        search=values.get("search", ""),
        where=tuple(field_condition(text) for text in [values.get("where", "")] if "=" in text),
        min_length=number_of(values.get("min")),
        max_length=number_of(values.get("max")),
        scores=scores,
        scored_right={"right": True, "wrong": False}.get(values.get("scored", "")),
        verdict=values["mark"] if values.get("mark") in dict(_MARKS[1:]) else None,
    )
    outcome = values.get("outcome", "")
    if outcome in ("answered", "failed"):
        return evolve(wanted, failed=outcome == "failed")
    if outcome in DEFECTS:
        return evolve(wanted, defect=outcome)
    return evolve(wanted, error_kind=outcome or None)


def field_condition(text: str) -> tuple[str, str]:
    """Return the name and the value in ``FIELD=VALUE``."""
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _mark_form(row: RecordedRow, position: int, marks: Sequence[Mark], query: Query) -> Form | None:
    if query.granted != "all":
        return None
    note = next((mark.note for mark in marks if mark.field is None), "")
    fields = [
        Field("note", "Note", note, is_required=False),
        Field("position", value=str(position), kind="hidden"),
        Field("answer", value=answer_digest(row), kind="hidden"),
        Field("back", value=query.again().removeprefix(query.root) + f"#row-{position}", kind="hidden"),
    ]
    if row.fields:
        names = ("", "whole answer"), *((name, name) for name in row.fields)
        fields.insert(1, Field("field", "Marked", kind="select", options=names))
    removal = (("none", "Remove mark"),) if marks else ()
    choices = tuple((name, name.capitalize()) for name in VERDICTS) + removal
    return Form(query.link("action", "mark"), "Save note", tuple(fields), choices=choices)
