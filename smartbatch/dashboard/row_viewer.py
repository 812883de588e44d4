"""``smartbatch view``: serves a page on which the rows of an output are searched and marked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, ClassVar, Final, final

from attrs import frozen

from smartbatch._clock import Clock, RealClock
from smartbatch._words import plural
from smartbatch.dashboard.access import LOOPBACK, Access
from smartbatch.dashboard.page import Query, number_of
from smartbatch.dashboard.row_files import RowFiles
from smartbatch.dashboard.rows_page import Shown, filter_in, rows_view
from smartbatch.dashboard.web_application import Refused, Response, WebApplication, local
from smartbatch.errors import InputError, SmartbatchError
from smartbatch.quality.marks import VERDICTS, Mark, MarkedAccuracy, Verdict, answer_digest
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.runs.marks_file import MarksFile, marks_path
from smartbatch.runs.row_index import RowIndex
from smartbatch.views.model import Form, Note, Part

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

ROWS_PER_PAGE: Final = 25
_MAX_SEARCH_SECONDS: Final = 1.0  # per page
_MAX_NOTE_CHARACTERS: Final = 1_024
_CHANGED: Final = "The output has changed since it was opened."


@frozen
class PlacedMarks:
    """The marks of an output by the positions of its rows.

    Attributes:
        lost: number of marks whose rows are no longer in the output.
    """

    by_position: Mapping[int, Sequence[Mark]]
    accuracy: MarkedAccuracy
    lost: int

    @property
    def lost_note(self) -> Note | None:
        if not self.lost:
            return None
        lost = plural(self.lost, "mark")
        return Note(f"{lost} of rows that are no longer in the output: not counted.", "warn")

    @property
    def verdicts(self) -> Mapping[int, Set[str]]:
        return {at: {str(mark.verdict) for mark in of_row} for at, of_row in self.by_position.items()}


class MarkedRows:
    """The rows of an output with their marks. Thread-safe.

    Raises:
        InputError: the output or its marks cannot be read.
    """

    def __init__(self, path: str) -> None:
        self.index = RowIndex(path)
        self.file = MarksFile(marks_path(path))
        self.file.read()
        self._known: dict[int, tuple[str | int, str]] = {}  # cached ids and digests of marked rows

    def marks(self) -> PlacedMarks:
        """Return the marks. The accuracy leaves out those of answers that have changed since."""
        found: dict[int, list[Mark]] = {}
        counted, marks = [], self.file.read()
        for mark in marks:
            at = self.index.position_of(mark.index, mark.sample or 0)
            if at is None:
                continue
            if at not in self._known:
                row = self.index.row(at)
                self._known[at] = row.id, answer_digest(row)
            id, digest = self._known[at]
            if id == mark.id:
                found.setdefault(at, []).append(mark)
                counted += [mark] if mark.answer == digest else []
        return PlacedMarks(found, MarkedAccuracy.of(counted), len(marks) - sum(map(len, found.values())))

    def right_rows(self) -> Iterator[RecordedRow]:
        """Yield the rows whose answer, as it is now, is marked right, in order."""
        for at, of_row in sorted(self.marks().by_position.items()):
            row = self.index.row(at)
            marked = [mark for mark in of_row if mark.field is None and mark.is_of(row)]
            if row.text is not None and any(mark.verdict == "right" for mark in marked):
                yield row


@final
class RowViewer(WebApplication):
    """The application. Its pages contain prompts and answers, and only visitors with access see them."""

    command = "smartbatch view"
    navigation: ClassVar = {"": "Rows"}

    def __init__(
        self, path: str, access: Access, shown: Shown | None = None, clock: Clock | None = None
    ) -> None:
        super().__init__(access, LOOPBACK)
        self._path = path
        self._shown = shown or Shown()
        self._clock = clock or RealClock()
        self._rows = MarkedRows(path)
        self._files = RowFiles(path, self._shown.columns)

    def _page(self, _: WSGIEnvironment, query: Query, /) -> Response:
        if query.path == "file" and not query.argument:
            return self._file(query)
        if query.path:
            raise Refused("404 Not Found", "There is no such page.")
        rows, until = self._rows, self._clock.now() + _MAX_SEARCH_SECONDS
        try:
            marks = rows.marks()
            after = number_of(query.values.get("after"))
            found = rows.index.find(
                filter_in(query, self._shown.scores),
                verdicts=marks.verdicts,
                after=-1 if after is None else min(after, len(rows.index) - 1),
                limit=ROWS_PER_PAGE,
                is_over=lambda: self._clock.now() >= until,
            )
        except SmartbatchError as error:
            title = "This page is unavailable"
            return Response(status="503 Service Unavailable", body=self._message(title, error.message, query))
        notice: tuple[Part | None, ...] = (marks.lost_note,)
        if rows.index.has_changed:
            notice += (Note(_CHANGED, "warn"), Form(query.link("action", "reopen"), "Read it again"))
        name, total = os.path.basename(self._path), len(rows.index)
        view = rows_view(
            name, total, found, marks.by_position, marks.accuracy, self._shown, self._files, query, notice
        )
        return Response(body=self._rendered("rows.html", query, view=view))

    def _file(self, query: Query) -> Response:
        index, position = self._rows.index, number_of(query.values.get("row"))
        if position is None or position >= len(index):
            raise Refused("404 Not Found", "There is no such row.")
        try:
            row = index.row(position)
        except InputError as error:
            raise Refused("503 Service Unavailable", error.message) from None
        return self._files.response(row, query)

    def _do_action(self, form: Mapping[str, str], _: str, query: Query, /) -> Response:
        if query.path != "action" or query.argument not in ("mark", "reopen"):
            raise Refused("404 Not Found", "There is no such action.")
        back = form.get("back", "")
        try:
            if query.argument == "mark":
                self._mark(form)
            else:
                self._rows = MarkedRows(self._path)
        except SmartbatchError as error:
            body = self._message("Not done", error.message, query, back=back)
            return Response(status="409 Conflict", body=body)
        headers = (("Location", local(back, query)), ("Cache-Control", "no-store"))
        return Response(status="303 See Other", headers=headers)

    def _mark(self, form: Mapping[str, str]) -> None:
        rows, choice, field = self._rows, form.get("choice", ""), form.get("field") or None
        position = number_of(form.get("position"))
        if position is None or position >= len(rows.index) or choice not in ("", "none", *VERDICTS):
            raise Refused("400 Bad Request", "This is not a valid mark.")
        row = rows.index.row(position)
        if form.get("answer") != answer_digest(row) or not (field is None or field in row.fields):
            raise InputError(f"row {row.index} has another answer now; go back, and reload the page")
        before = [mark.verdict for mark in rows.marks().by_position.get(position, ()) if mark.field == field]
        verdicts: dict[str, Verdict | None] = {name: name for name in VERDICTS}
        verdicts |= {"none": None, "": before[0] if before else "unsure"}  # "" if only the note was changed
        rows.file.add(
            Mark(
                index=row.index,
                id=row.id,
                sample=row.sample,
                answer=answer_digest(row),
                verdict=verdicts[choice],
                note=form.get("note", "")[:_MAX_NOTE_CHARACTERS],
                field=field,
            )
        )
