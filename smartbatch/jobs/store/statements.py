"""Every statement of the store, by name; for the words in braces see :mod:`.database`.

States stand in them by the values of their enums: jobs and shards keep a text, items the number of their
state, because there may be millions of them.
"""

from __future__ import annotations

import enum

from smartbatch.jobs.records import ItemState, JobState, ShardState


def _literal(*states: enum.Enum) -> str:
    """Return states as SQL: one literal, or several with commas between them."""
    return ", ".join(repr(state.value) for state in states)


_ACTIVE, _HELD, _DONE = (_literal(state) for state in JobState)
_OPEN, _REALTIME, _IN_FLIGHT, _SHARDED, _FINAL, _ = (_literal(state) for state in ItemState)
_WAITING = f"state < {_SHARDED}"
"""Items with something left to do, in the words of the index ``item_waiting``: only then is it used."""

# -- jobs ----------------------------------------------------------------------------------------------------

_JOB = """SELECT j.id, j.user_key, j.scope, j.model, j.kind, p.body, j.metadata, j.policy, j.created_at,
    j.digest, j.state, j.finished_at, j.total, j.succeeded, j.failed, j.cancelled, j.cost, j.realtime_cost,
    j.unpriced, j.input_tokens, j.output_tokens, j.cancel_requested, j.note, j.epoch, j.owner, j.reserved,
    j.lease_until
    FROM job j JOIN job_params p ON p.no = j.no """
JOB_BY_ID = _JOB + "WHERE j.id = ?"
JOB_BY_KEY = _JOB + "WHERE j.user_key = ?"
JOBS = _JOB + "ORDER BY j.no DESC LIMIT ?"
JOBS_UNFINISHED = _JOB + f"WHERE j.state <> {_DONE} ORDER BY j.no DESC LIMIT ?"
JOB_NUMBER = "SELECT no FROM job WHERE id = ?"
JOB_LOCKED = "SELECT no, state FROM job WHERE id = ?{for_update}"

NEW_INCOMPLETE = "INSERT INTO incomplete_job (owner) VALUES (?) RETURNING no"
DROP_INCOMPLETE = "DELETE FROM incomplete_job WHERE no = ?"
MARK_INCOMPLETE = "INSERT INTO incomplete_job (no, owner) VALUES (?, ?)"
INCOMPLETE = "SELECT no FROM incomplete_job WHERE no = ?"
ALL_INCOMPLETE = "SELECT no, owner FROM incomplete_job"

NEW_JOB = """INSERT INTO job (no, id, user_key, scope, model, kind, metadata, policy, digest, created_at,
    state, finished_at, total) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
NEW_PARAMS = "INSERT INTO job_params (no, body) VALUES (?, ?)"

MONEY = "SELECT policy, cost, reserved FROM job WHERE no = ?"
RESERVE = "UPDATE job SET reserved = reserved + ? WHERE no = ?"

CANCEL_REQUESTED = f"UPDATE job SET cancel_requested = 1 WHERE no = ? AND state <> {_DONE}"
UNHOLD = f"UPDATE job SET state = {_ACTIVE}, note = NULL WHERE no = ? AND state = {_HELD}"

DROP_JOB = ("DELETE FROM job WHERE no = ?", "DELETE FROM job_params WHERE no = ?")
DROP_SHARDS = ("DELETE FROM shard_items WHERE job = ?", "DELETE FROM shard WHERE job = ?")
DROP_INCIDENTS = "DELETE FROM incident WHERE job_id = ?"
FIRST_OF_RANGE = "SELECT min(no) FROM {table} WHERE no >= ? AND no < ?"
DROP_RANGE = "DELETE FROM {table} WHERE no >= ? AND no < ?"
ITEM_TABLES = ("result", "verdict", "follower", "payload", "item")

# -- ownership -----------------------------------------------------------------------------------------------

CLAIMABLE_OF = (
    _JOB
    + f"""WHERE (j.owner IS NULL OR j.owner <> ?) AND (j.state <> {_DONE} OR EXISTS (
    SELECT 1 FROM shard s WHERE s.job = j.no AND s.cleaned_up = 0
    AND (s.state NOT IN ({_literal(ShardState.SETTLED, ShardState.DEAD)})
        OR s.file_id IS NOT NULL OR s.batch_id IS NOT NULL)))
    ORDER BY CASE WHEN j.state = {_DONE} THEN 1 ELSE 0 END, j.no"""
)
OWNER_OF_JOB = "SELECT no, epoch, owner, lease_until FROM job WHERE id = ?{skip_locked}"
CLAIM = "UPDATE job SET owner = ?, epoch = epoch + 1, lease_until = ? WHERE no = ? RETURNING epoch"
JOB_OF_LEASE = "SELECT no FROM job WHERE id = ? AND epoch = ? AND owner = ?{for_update}"
RENEW = "UPDATE job SET lease_until = ? WHERE id = ? AND epoch = ? AND owner = ?"
RELEASE = "UPDATE job SET owner = NULL WHERE id = ? AND epoch = ? AND owner = ?"
RELEASE_ALL = "UPDATE job SET owner = NULL WHERE owner = ?"
FREE_IN_FLIGHT = f"""UPDATE item SET state = {_REALTIME}, tries = tries + 1
    WHERE {_WAITING} AND state = {_IN_FLIGHT} AND no >= ? AND no < ? RETURNING no"""
OWNERS = "SELECT id FROM owner"
OWNERS_WITH_JOBS = "SELECT DISTINCT owner FROM job WHERE owner IS NOT NULL"
NEW_OWNER = """INSERT INTO owner (id, host, pid, since) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING"""
DROP_OWNER = "DELETE FROM owner WHERE id = ?"

# -- items and shards ----------------------------------------------------------------------------------------

WAITING = f"""SELECT no, size, tokens, tries FROM item
    WHERE {_WAITING} AND state = ? AND no >= ? AND no < ? ORDER BY no LIMIT ?"""
ITEMS_IN = """SELECT no, size, tokens, tries FROM item
    WHERE state = ? AND no >= ? AND no < ? ORDER BY no LIMIT ?"""
ITEM_STATES = "SELECT no, state, shard, tries FROM item WHERE no IN {numbers}"
PAYLOAD_SIZES = "SELECT no, length(body) FROM payload WHERE no IN {numbers}"
PAYLOADS = "SELECT no, body FROM payload WHERE no IN {numbers}"
NAMED_PAYLOADS = "SELECT no, user_id, body FROM payload WHERE no IN {numbers}"
MEASURES = """SELECT i.no, length(p.body), i.tokens FROM item i JOIN payload p ON p.no = i.no
    WHERE i.no IN {numbers}"""
ITEMS_AT = """SELECT i.no, p.user_id, p.body, i.tokens FROM item i JOIN payload p ON p.no = i.no
    WHERE i.no IN {numbers}"""

SHARD_COLUMNS = """id, (SELECT j.id FROM job j WHERE j.no = shard.job), no, nonce, scope, model, state, size,
    bytes, tokens, due_at, tries, file_id, batch_id, watermark, server_time, submitted_at, uncertain_since,
    fenced_at, candidate, foreign_batches, remote, cancelled, ended_at, settled_at, died_at, cleaned_up,
    results_until, cost, note, reserved"""
_SHARD = f"SELECT {SHARD_COLUMNS} FROM shard "
SHARD_BY_ID = _SHARD + "WHERE id = ?"
SHARD_BY_NONCE = _SHARD + "WHERE nonce = ?"
SHARDS_OF_JOB = _SHARD + "WHERE job = ? AND state IN {texts} ORDER BY no"
SHARDS_OF_SCOPE = _SHARD + "WHERE scope = ? AND state IN {texts} ORDER BY job, no"
SHARD_POSITIONS = "SELECT job, positions FROM shard_items WHERE id = ?"
SHARD_STATE = "SELECT state, no FROM shard WHERE id = ? AND job = ?"

NEXT_SHARD = "SELECT coalesce(max(no), 0) + 1 FROM shard WHERE job = ?"
TAKE_ITEMS = f"""UPDATE item SET state = {_SHARDED}, shard = ?
    WHERE no IN {{numbers}} AND state = {_OPEN}"""
NEW_SHARD = f"""INSERT INTO shard
    (id, job, no, nonce, scope, model, state, size, bytes, tokens, due_at, reserved, remote)
    SELECT ?, j.no, ?, ?, j.scope, j.model, {_literal(ShardState.PLANNED)}, ?, ?, ?, ?, ?, ?
    FROM job j WHERE j.no = ?
    RETURNING {SHARD_COLUMNS}"""
NEW_POSITIONS = "INSERT INTO shard_items (id, job, positions) VALUES (?, ?, ?)"
UNRESOLVED_IN_SCOPE = f"""SELECT count(*) FROM shard WHERE scope = ? AND id <> ?
    AND state IN ({_literal(ShardState.SUBMITTING, ShardState.UNCERTAIN, ShardState.PROVISIONAL)})"""
ADVANCE = "UPDATE shard SET {assignments} WHERE id = ? AND job = ? AND state = ? RETURNING {columns}"
FREE_SHARDED = f"""UPDATE item SET state = ?, tries = tries + ?, shard = NULL
    WHERE no >= ? AND no <= ? AND shard = ? AND state = {_SHARDED}"""
FREE_THESE = f"""UPDATE item SET state = ?, tries = tries + 1, shard = NULL
    WHERE no IN {{numbers}} AND shard = ? AND state = {_SHARDED}"""
STILL_SHARDED = f"SELECT no FROM item WHERE no >= ? AND no <= ? AND shard = ? AND state = {_SHARDED}"


# -- results -------------------------------------------------------------------------------------------------

COUNT = """UPDATE job SET seq = seq + ?,
    succeeded = succeeded + ?, failed = failed + ?, cancelled = cancelled + ?,
    cost = cost + ?, realtime_cost = realtime_cost + ?, unpriced = unpriced + ?,
    input_tokens = input_tokens + ?, output_tokens = output_tokens + ?
    WHERE no = ? RETURNING seq, model"""
FINISH = f"""UPDATE job SET state = {_DONE}, finished_at = ?, note = NULL
    WHERE no = ? AND state <> {_DONE} AND succeeded + failed + cancelled >= total"""
END_ITEMS = f"UPDATE item SET state = {_FINAL} WHERE no IN {{numbers}}"
DIGESTS = "SELECT no, digest FROM result WHERE no IN {numbers}"
VERDICTS = "SELECT no, outcome, digest, body FROM verdict WHERE no IN {numbers}"
VERDICT_DIGESTS = "SELECT no, digest FROM verdict WHERE no IN {numbers}"
DROP_VERDICTS = "DELETE FROM verdict WHERE no IN {numbers}"
END_ALIKE = """INSERT INTO result (no, seq, outcome, digest, cost, body)
    SELECT no, ? + row_number() OVER (ORDER BY no), ?, ?, CAST(? AS DOUBLE PRECISION), ?
    FROM item WHERE no IN {numbers}"""
LEADERS = "SELECT DISTINCT leader FROM follower WHERE leader IN {numbers}"
FOLLOWERS = "SELECT no FROM follower WHERE leader = ? AND no > ? ORDER BY no LIMIT ?"
CLAIM_REALTIME = f"""UPDATE item SET state = {_IN_FLIGHT} WHERE no IN (
    SELECT no FROM item WHERE {_WAITING} AND state = {_REALTIME} AND no >= ? AND no < ? ORDER BY no LIMIT ?)
    RETURNING no, tries"""
SEND_AGAIN = f"""UPDATE item SET state = {_REALTIME}, tries = tries + ?
    WHERE no IN {{numbers}} AND state = {_IN_FLIGHT}"""
# pages are ranges of numbers: with an open end, a PostgreSQL that has not counted the rows yet reads them all
# a follower has no body of its own, but that of its leader
_RESULT = """FROM result r JOIN payload p ON p.no = r.no
    LEFT JOIN follower f ON f.no = r.no LEFT JOIN result l ON l.no = f.leader """
_BY_PLACE = _RESULT + "WHERE r.no >= ? AND r.no < ? ORDER BY r.no"
_BY_ARRIVAL = _RESULT + "WHERE r.seq >= ? AND r.seq < ? ORDER BY r.seq"
_WHOLE = """SELECT r.no, p.user_id, r.outcome, coalesce(l.body, r.body), p.body, r.cost, r.seq,
    f.no IS NOT NULL """
RESULTS = _WHOLE + _BY_PLACE
RESULT_SIZES = "SELECT r.no, length(coalesce(l.body, r.body)) + length(p.body) " + _BY_PLACE
FRESH = _WHOLE + _BY_ARRIVAL
FRESH_SIZES = "SELECT r.seq, length(coalesce(l.body, r.body)) + length(p.body) " + _BY_ARRIVAL

# -- incidents, facts and turnarounds ------------------------------------------------------------------------

NOTE = "UPDATE job SET note = ? WHERE no = ?"
HOLD = f"UPDATE job SET note = ?, state = {_HELD} WHERE no = ? AND state <> {_DONE}"
NEW_INCIDENT = """INSERT INTO incident (digest, kind, job_id, shard_id, detail, money, at)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING"""
INCIDENTS = "SELECT kind, job_id, shard_id, detail, money, at FROM incident ORDER BY no"
INCIDENTS_OF = "SELECT kind, job_id, shard_id, detail, money, at FROM incident WHERE job_id = ? ORDER BY no"
BATCHES_OWN = f"""SELECT batch_id, CASE WHEN state = {_literal(ShardState.PROVISIONAL)} THEN candidate END
    FROM shard WHERE scope = ? AND (batch_id IN {{texts}} OR candidate IN {{texts}})"""
NEW_TURNAROUND = "INSERT INTO turnaround (model, size, seconds, at) VALUES (?, ?, ?, ?) RETURNING no"
TRIM_TURNAROUNDS = """DELETE FROM turnaround WHERE model = ? AND no <= (
    SELECT no FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT 1 OFFSET ?)"""
TURNAROUNDS = "SELECT size, seconds, at FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT ?"
REMEMBER = """INSERT INTO fact (name, value) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
RECALL = "SELECT value FROM fact WHERE name = ?"
