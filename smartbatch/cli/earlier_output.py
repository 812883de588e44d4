"""Resumes the output of an earlier run: finds its answers, and decides which rows are sent again."""

from __future__ import annotations

import argparse
from array import array
from collections import Counter
from functools import cache
from typing import TypeAlias

from attrs import define

from smartbatch._words import escape
from smartbatch.cli.printing import say
from smartbatch.client import BatchingClient
from smartbatch.errors import InputError
from smartbatch.runs.edits import find_edit, keep_previous, kept_lines
from smartbatch.runs.output_file import OutputDiffers, OutputFile, Recovered
from smartbatch.runs.output_lines import place_of, resend_id
from smartbatch.runs.row_requests import InputRequests
from smartbatch.runs.run_identity import RowSelection, RunIdentity
from smartbatch.runs.table_output import TableOutput
from smartbatch.types import DEFECTS

Output: TypeAlias = OutputFile | TableOutput


@define(eq=False, repr=False)
class EarlierOutput:
    _out: Output
    _input: InputRequests  # checked
    _client: BatchingClient
    _args: argparse.Namespace

    def take_up(self) -> tuple[Recovered, RowSelection | None]:
        """Find the answers in the output; return the rows to send, or ``None`` for all that lack an answer.

        Raises:
            InputError: the output has answers to other prompts, and ``--changed`` does not say what to send;
                or ``--resend`` names rows that it does not have.
        """
        out, resend, keys = self._out, self._args.resend, self._input.keys
        if resend is not None:
            identity = RunIdentity(self._args.output, self._args.model, keys)
            out.start_resend(
                keys,
                next((name for name in DEFECTS if name == resend), None),
                lambda all_rows: identity.check_written(self._client, all_rows=all_rows),
            )
        try:
            found = out.recover(keys)
        except OutputDiffers:
            self._keep_unchanged()
            found = out.recover(keys)
        self._print(found, all_failed=self._args.sample is None and resend in (None, "failed"))
        return found, None if resend is None else self._selected(resend)

    @property
    def _lines(self) -> OutputFile:
        return self._out.line_file if isinstance(self._out, TableOutput) else self._out

    def _keep_unchanged(self) -> None:
        """Keep the answers to unchanged prompts. If the output has other answers, keep a copy of it."""
        out, args, keys = self._out, self._args, self._input.keys
        edit = find_edit(self._lines, keys, self._input.ids(), args.model, cache(self._input.settings_with))
        accepted = edit.only_rows and not (edit.removed and args.limit is not None)
        if args.changed is None and not accepted:
            raise InputError(edit.question(escape(out.path)))
        # a batch with the old prompts must not be paid for in addition to its replacement
        RunIdentity(args.output, args.model, keys).find(self._client, self._say, batches_only=False)
        previous = None
        if args.changed == "all" or edit.kept < edit.answers:
            previous = keep_previous(out.record, out.path)
        if args.changed == "all":
            edit.sources = array("q", [-1]) * len(keys)
        rows = self._input.keyed_rows(lambda place: edit.sources[place] < 0)
        out.rewrite(kept_lines(self._lines, rows, edit.sources), "matching")
        self._say("\n".join(edit.report(escape(out.path), previous)))

    def _selected(self, resend: str) -> RowSelection:
        """Select the rows to send again: those with a defect, those that failed, or those with one kind of
        error.

        Raises:
            InputError: the output has no rows, or none failed with this kind.
        """
        keys, path, kinds = self._input.keys, escape(self._out.path), dict[int, str]()
        if self._lines.is_empty:
            raise InputError(f"{path}: has no rows to send again; leave out --resend to send all rows")
        chosen = bytearray(len(keys))
        for _, content in self._lines.survey():
            place = place_of(content, keys)
            if place is None or self._out.is_answered(place):
                continue
            if content["error"] is not None:
                kinds[place] = str(content["error"]["kind"])
            chosen[place] = resend in DEFECTS and resend_id(content) is not None
        if resend not in DEFECTS:
            for place, kind in kinds.items():
                chosen[place] = resend in ("failed", kind)
        if not any(chosen):
            if resend not in ("failed", *DEFECTS):
                counts = Counter(kinds.values()).most_common()
                others = ", ".join(f"{escape(name)} ({number:,})" for name, number in counts) or "none"
                raise InputError(f"{path}: no row failed with {resend!r:.60}; its errors: {others}")
            none = "no row failed" if resend == "failed" else f"no answer is {resend}"
            self._say(f"{path}: {none}, so nothing is sent")
        return RowSelection(f"resend {resend}", chosen)

    def _print(self, found: Recovered, *, all_failed: bool) -> None:
        if not (found.answered or found.failed or found.resent or found.cut):
            return
        parts = [f"{found.answered:,} rows answered already"]
        if found.failed:
            parts.append(f"{found.failed:,} failed rows{' sent again' if all_failed else ''}")
        if found.resent:
            parts.append(f"{found.resent:,} answers to be replaced")
        if found.skipped:
            parts.append(f"{found.skipped:,} skipped before")
        if found.cut:
            parts.append(f"an incomplete last line of {found.cut:,} bytes removed")
        self._say(f"{escape(self._out.path)}: " + ", ".join(parts))

    def _say(self, text: str) -> None:
        if not self._args.quiet:
            say(text)
