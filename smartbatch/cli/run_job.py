"""The jobs of a run on its way: interrupted in good order, with progress and messages on the terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from attrs import define, field

from smartbatch._clock import Clock
from smartbatch.cli.clients import config_of
from smartbatch.cli.interrupts import Interrupts
from smartbatch.cli.messages import note, say
from smartbatch.cli.provider_options import options_of
from smartbatch.cli.route_chooser import RouteChooser
from smartbatch.client import BatchingClient
from smartbatch.errors import ClientClosed
from smartbatch.observe.progress import Mode, Progress
from smartbatch.runs.followed_jobs import GRACE
from smartbatch.runs.row_requests import InputRequests, RunInterrupted
from smartbatch.runs.run_identity import RunIdentity
from smartbatch.runs.stored_rows import Rows, StoredRows

if TYPE_CHECKING:
    from smartbatch.cluster import Cluster

Write = Callable[[Rows, Progress], None]


@define(eq=False, repr=False)
class JobRun:
    """Has the rows of a run stored and answered, until all are or somebody interrupts it.

    Args:
        args: of the command.
        written: whether the output has the answer at a place.
        cluster: whose workers ask rows in real time, rather than this process.
        resend: the id under which answers of the output are replaced.

    Attributes:
        rows: stores them, and yields their results.
    """

    _client: BatchingClient
    _input: InputRequests
    _chooser: RouteChooser
    _args: argparse.Namespace
    _written: Callable[[int], bool]
    _clock: Clock
    _cluster: Cluster | None
    _resend: str | None
    rows: StoredRows = field(init=False)
    _interrupts: Interrupts = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._interrupts = Interrupts(self._end_early)
        self.rows = StoredRows(
            self._client,
            self._input,
            RunIdentity(self._args.output, self._args.model, self._input.keys, self._resend),
            self._written,
            self._clock,
            to_file=self._args.output is not None,
            stopped=self._stopped,
            say=lambda text: None if self._args.quiet else say(text),
        )

    def go(self, write: Write) -> int:
        """Submit the rows that are left, and have ``write`` take the result of every row.

        Returns:
            the number of the signal that ended it early, or 0.

        Raises:
            Exception: as :meth:`.StoredRows.take_up` and :meth:`.StoredRows.submit`.
        """
        with self._interrupts:
            try:
                self._follow(write)
            except (RunInterrupted, ClientClosed):
                if not self._stopped():
                    raise
            except Exception:
                self._client.stop(GRACE)
                raise
            self._client.stop(GRACE)
        return self._interrupts.caught

    def _follow(self, write: Write) -> None:
        rows, units = self.rows, None
        rows.take_up(batches_only=self._chooser.batches_only)
        if self._cluster is not None:
            from smartbatch.cluster import ClusterUnits

            config, options = config_of(self._args), options_of(self._args)
            units = partial(
                ClusterUnits.of, self._cluster, self._args.model, config, options, stopped=self._stopped
            )
        rows.submit(lambda needed: self._chooser.choose(needed, self._stopped), units)
        with self._progress() as progress:
            followed = rows.follow(progress.advance_to if rows.in_real_time else progress.show)
            followed.refresh()
            write(rows.results(progress.advance), progress)
            followed.refresh()
        for line in followed.held("; then run the same line again"):
            say(line)

    def _progress(self) -> Progress:
        rows = self.rows
        total = sum(one.job.total for one in rows.live)
        mode: Mode = "quiet" if self._args.quiet or not rows.live else "auto"
        if not rows.in_real_time:
            return Progress(total, mode, sys.stderr, self._clock.now)
        before = rows.identity.rows - total + sum(one.stored for one in rows.live)
        progress = Progress(rows.identity.rows, mode, sys.stderr, self._clock.now, initial=before)
        self._client.observe(progress)
        return progress

    def _stopped(self) -> bool:
        return bool(self._interrupts.caught)

    def _end_early(self) -> None:
        """Begin no further call, and print what becomes of the rest; on the thread of the signals."""
        self._client.stop_jobs()
        if self._args.quiet:
            return
        if self.rows.on_cluster:
            note("interrupted: what was not asked is cancelled; the same line again asks it")
            return
        if any(one.realtime for one in self.rows.live):
            note(f"interrupted: calls under way get {GRACE:.0f} s to end; once more ends at once")
        else:
            note("interrupted: nothing is lost; what is under way at the provider goes on")
        for one in list(self.rows.live):
            job = one.job.id
            if one.realtime:
                note(
                    f"job {job}: what was not asked stays in the store, and costs nothing until the same "
                    f"line, or smartbatch jobs resume {job}, goes on with it; smartbatch jobs cancel {job} "
                    "drops it"
                )
            else:
                note(
                    f"job {job}: the same line again, or smartbatch jobs resume {job}, goes on with it; "
                    f"smartbatch jobs cancel {job} cancels it"
                )
