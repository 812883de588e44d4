"""Checks of the invariants: the store must agree with the provider's ledger.

The invariants of the protocol, by their names:

I1 every accepted item has a result, or waits for something, or is in exactly one shard that is alive
I2 whatever was paid for and is not the result of its item is named by an incident, and incidents are true
I3 each result is the answer to its item's own prompt, with its file, or an incident says that answers may be
   exchanged
I4 a result is delivered only after it is committed, and only once
I7 no item is sent more often than the policy says; no shard is created twice
I10 a second recovery changes nothing
I11 nothing is deleted at the provider that is still needed, or that is none of the job's
I13 a file in prompts is uploaded once and deleted in the end, and batches refer only to files that are there
I12 once nothing fails any more, everything ends in time
"""

from __future__ import annotations

import math
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from attrs import define, field

from smartbatch.emulator.batches.batch import BatchLine
from smartbatch.emulator.ledger import Call, Ledger
from smartbatch.jobs.payload import decode_result
from smartbatch.jobs.records import IncidentRow, JobRow, JobState
from smartbatch.jobs.steps.poll import STUCK_CANCEL_SECONDS
from smartbatch.jobs.store import SqlStore
from smartbatch.types import Result, Route
from tests.faults.simulation.crash_points import Violation
from tests.faults.simulation.process import LIMITS
from tests.faults.simulation.simulated_remote import digest_of

_SHARDED, _FINAL = 3, 4
_MASK = (1 << 32) - 1
_ENDED = ("settled", "dead")
_WITHOUT_INPUT = ("uncertain", "fenced", "provisional", "submitted", "ended", "ingesting", *_ENDED)
"""States in which no further create call names the input. A former owner may still delete it as a fence."""
_COSTLY = frozenset({"maybe_billed", "missing_items", "token_mismatch", "double_submission"})
"""Incidents that say: of what this shard was paid for, not everything is of use."""


class Deliveries:
    def __init__(self) -> None:
        self.seen: dict[int, bytes] = {}
        self._after = 0

    def read(self, store: SqlStore, job_id: str) -> None:
        while rows := store.items.fresh(job_id, after=self._after, limit=100):
            for row in rows:
                if row.ix in self.seen:
                    raise Violation(f"I4 item {row.ix} was delivered twice")
                if row.seq <= self._after:
                    raise Violation(f"I4 result {row.seq} came after {self._after}")
                self.seen[row.ix], self._after = row.body, row.seq


@define
class InvariantChecker:
    disk: sqlite3.Connection
    ledger: Ledger
    prompts: Sequence[str]
    identity: Callable[..., str]
    state: JobState = JobState.ACTIVE
    unnamed: int = 0
    delivered: Deliveries = field(factory=Deliveries)
    deleted: list[str] = field(factory=list)  # what was deleted although it was needed or not the job's
    _changes: int = -1

    # -- after every step ------------------------------------------------------------------------------------

    def check_step(self) -> bool:
        """Check what is on disk, if it has changed: I1; return whether it has."""
        if self.deleted:
            raise Violation(f"I11 something was deleted: {self.deleted[0]}")
        if self.disk.total_changes == self._changes:
            return False
        self._changes = self.disk.total_changes
        items = self.disk.execute("SELECT no, state, shard FROM item").fetchall()
        results = {no for (no,) in self.disk.execute("SELECT no FROM result")}
        alive = dict(self.disk.execute("SELECT no, state FROM shard"))
        states = self.disk.execute("SELECT state FROM job").fetchall()
        if not states:
            return True
        self.state = JobState(states[0][0])
        if len(items) != len(self.prompts):
            raise Violation(f"I1 {len(items)} items are left of {len(self.prompts)}")
        for no, state, shard in items:
            if (state == _FINAL) != (no in results):
                raise Violation(f"I1 item {no & _MASK} is {state} and {'has' * (no in results)} a result")
            if state == _SHARDED and alive.get(shard, "dead") in _ENDED:
                raise Violation(f"I1 item {no & _MASK} is in shard {shard}, which is over")
        return True

    def check_deletion(self, identity: str) -> None:
        """I11: check a file or batch that is about to be deleted, by its id.

        A problem is raised after the step, because the step takes exceptions for failed calls.
        """
        shards = (
            "SELECT state, file_id, cleaned_up FROM shard WHERE file_id = ? OR batch_id = ? OR remote LIKE ?"
        )
        found = self.disk.execute(shards, (identity, identity, f'%{identity}"%')).fetchall()
        [(job,)] = self.disk.execute("SELECT state FROM job")
        if not found:
            self.deleted.append(f"{identity}, which belongs to no shard")
        for state, file_id, cleaned_up in found:
            if file_id == identity:
                needed = state not in _WITHOUT_INPUT
            else:
                needed = job != JobState.DONE.value or state not in _ENDED or not cleaned_up
            if needed:
                self.deleted.append(f"{identity}, whose shard is {state} and whose job is {job}")

    def check_upload_deletion(self, identity: str) -> None:
        """I11: an uploaded file is deleted only after its job is done."""
        [(job,)] = self.disk.execute("SELECT state FROM job")
        if job != JobState.DONE.value:
            self.deleted.append(f"the upload {identity}, whose job is {job}")

    # -- at the end ------------------------------------------------------------------------------------------

    def check_end(
        self, store: SqlStore, job: JobRow, creates: Counter[str], *, repeats: bool
    ) -> Counter[str]:
        """Check a job that has ended against the ledger: I2, I3, I4, I7; return its incidents by kind."""
        self.check_step()
        self.delivered.read(store, job.id)
        rows = store.items.results(job.id)
        if [row.ix for row in rows] != list(range(len(self.prompts))):
            raise Violation(f"I1 of {len(self.prompts)} items {len(rows)} have results")
        if {row.ix: row.body for row in rows} != self.delivered.seen:
            raise Violation("I4 the results are not those that were delivered")
        if (doubled := [mark for mark, times in creates.items() if times > 1]) and not repeats:
            raise Violation(f"I7 {len(doubled)} shards were created twice")
        texts: dict[int, str | None] = {}
        incidents = store.facts.incidents(job.id)
        told = any(incident.kind == "token_mismatch" for incident in incidents)
        for row in rows:
            result = decode_result(row.body, request_id="", files=store.files.folder(job.id))
            texts[row.ix] = result.text
            if result.ok and [file.content() for file in result.files] != _files_with(result):
                raise Violation(f"I3 item {row.ix} lacks the file of its answer")
            exchanged = (
                result.text is not None and result.text.split()[0] != digest_of(self.prompts[row.ix])[:16]
            )
            if exchanged and not told:
                raise Violation(f"I3 item {row.ix} has the answer to another prompt")
        self._check_runs(incidents, repeats=repeats)
        self._check_paid(texts, incidents, repeats=repeats)
        self._check_incidents(incidents)
        return Counter(incident.kind for incident in incidents)

    def _check_runs(self, incidents: Sequence[IncidentRow], *, repeats: bool) -> None:
        """I2: no shard is run twice where the assumptions hold.

        They are that nothing repeats creates, and that a batch ends within ``STUCK_CANCEL_SECONDS`` of its
        cancel. One that does not is left behind, and its requests go in real time: this is told when it
        happens, and again with what was paid twice.
        """
        shards = self._shards()
        outlasting = {
            shards[batch.id]
            for batch in self.ledger.batches
            if batch.cancelled_at is not None
            and (batch.ended_at or math.inf) - batch.cancelled_at >= STUCK_CANCEL_SECONDS
        }
        told = {incident.shard_id for incident in incidents if incident.kind == "maybe_billed"}
        twice = {incident.shard_id for incident in incidents if incident.kind == "double_submission"}
        if not repeats and twice - (outlasting & told):
            raise Violation("I2 a shard was run twice, although all the assumptions held")

    def _check_paid(
        self, texts: dict[int, str | None], incidents: Sequence[IncidentRow], *, repeats: bool
    ) -> None:
        """I2 and I7: everything that was paid for is a result, or an incident says why it is not."""
        blamed: dict[str | None, set[str]] = defaultdict(set)
        for incident in incidents:
            blamed[incident.shard_id].add(incident.kind)
        exchanged = any("token_mismatch" in kinds for kinds in blamed.values())
        retaken = sum(incident.kind == "maybe_billed" for incident in incidents)
        # tries that could not be counted: of batches that were not known, or could not be read
        uncounted = sum(
            incident.kind in ("double_submission", "maybe_billed") and incident.shard_id is not None
            for incident in incidents
        )
        billed = self.ledger.billed_by_prompt
        shards = self._shards()
        for ix, prompt in enumerate(self.prompts):
            paid = billed.get(digest_of(prompt), [])
            taken = (texts[ix] or " ").split()[-1] if texts[ix] else ""
            used = 0
            for each in paid:
                if isinstance(each, BatchLine):
                    shard = shards[each.batch]
                    named = bool(blamed[shard] & _COSTLY)
                    mine = taken == self.identity("line", each.batch, each.position)
                else:
                    named = bool(retaken)
                    mine = taken == f"call-{each.index}"
                used += mine
                if mine or named:
                    continue
                self.unnamed += 1
                if not repeats:
                    raise Violation(f"I2 item {ix} was paid for ({_what(each)}) and nobody says so")
            if texts[ix] is not None and used != 1 and not exchanged:
                raise Violation(f"I2 the answer of item {ix} was never paid for")
            runs = sum(isinstance(each, BatchLine) for each in paid)
            asked = len(paid) - runs
            if (runs > LIMITS.max_tries + uncounted and not repeats) or asked > LIMITS.max_tries + retaken:
                raise Violation(f"I7 item {ix} was run {runs} times and asked {asked} times")

    def _check_incidents(self, incidents: Sequence[IncidentRow]) -> None:
        shards = self._shards()
        for incident in incidents:
            records = [batch for batch in self.ledger.batches if shards[batch.id] == incident.shard_id]
            if incident.kind == "missing_items" and not any(
                line.lost for record in records for line in record.lines.values()
            ):
                raise Violation("I2 results are said to be missing that were all there")
            if (
                incident.kind == "double_submission"
                and not any(line.billed for record in records for line in record.lines.values())
                and len(records) < 2
            ):
                raise Violation("I2 a shard is said to be run twice that was not")
            if incident.kind == "batch_vanished":
                raise Violation("I2 a batch is said to have vanished that is there")

    def _shards(self) -> dict[str, str]:
        return {batch.id: f"shard-{batch.label.get('sb')}" for batch in self.ledger.batches}


def _what(each: Call | BatchLine) -> str:
    return f"line {each.position} of {each.batch}" if isinstance(each, BatchLine) else f"call {each.index}"


def _files_with(result: Result) -> list[bytes]:
    """Return the contents of the files in an answer: lines of batches have one, which contains the text."""
    return [(result.text or "").encode()] if result.route is Route.BATCH else []
