"""Every statement the book of jobs sends, by name; for the spelling see :class:`.database.Database`."""

from __future__ import annotations

# -- jobs ----------------------------------------------------------------------------------------------------

_JOB = """SELECT j.id, j.user_key, j.scope, j.model, j.kind, p.body, j.metadata, j.policy, j.state,
    j.created_at, j.finished_at, j.total, j.succeeded, j.failed, j.cancelled, j.cost, j.realtime_cost,
    j.unpriced, j.input_tokens, j.output_tokens, j.cancel_requested, j.note, j.epoch, j.owner,
    j.digest, j.reserved, j.lease_until
    FROM job j JOIN job_params p ON p.no = j.no """
JOB_BY_ID = _JOB + "WHERE j.id = ?"
JOB_BY_KEY = _JOB + "WHERE j.user_key = ?"
JOBS = _JOB + "ORDER BY j.no DESC LIMIT ?"
JOBS_UNFINISHED = _JOB + "WHERE j.state <> 'done' ORDER BY j.no DESC LIMIT ?"
JOB_NUMBER = "SELECT no FROM job WHERE id = ?"
JOB_LOCKED = "SELECT no, state FROM job WHERE id = ?{for_update}"

NEW_INCOMPLETE = "INSERT INTO incomplete_job (owner) VALUES (?) RETURNING no"
DROP_INCOMPLETE = "DELETE FROM incomplete_job WHERE no = ?"
MARK_INCOMPLETE = "INSERT INTO incomplete_job (no, owner) VALUES (?, ?)"
ALL_INCOMPLETE = "SELECT no, owner FROM incomplete_job"

NEW_JOB = """INSERT INTO job (no, id, user_key, scope, model, kind, metadata, policy, digest, created_at,
    state, finished_at, total) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
NEW_PARAMS = "INSERT INTO job_params (no, body) VALUES (?, ?)"

MONEY = "SELECT policy, cost, reserved FROM job WHERE no = ?"
RESERVE = "UPDATE job SET reserved = reserved + ? WHERE no = ?"

CANCEL_REQUESTED = "UPDATE job SET cancel_requested = 1 WHERE no = ? AND state <> 'done'"
UNHOLD = "UPDATE job SET state = 'active', note = NULL WHERE no = ? AND state = 'held'"

DROP_JOB = ("DELETE FROM job WHERE no = ?", "DELETE FROM job_params WHERE no = ?")
DROP_SHARDS = ("DELETE FROM shard_items WHERE job = ?", "DELETE FROM shard WHERE job = ?")
DROP_INCIDENTS = "DELETE FROM incident WHERE job_id = ?"
FIRST_OF_RANGE = "SELECT min(no) FROM {table} WHERE no >= ? AND no < ?"
DROP_RANGE = "DELETE FROM {table} WHERE no >= ? AND no < ?"
ITEM_TABLES = ("result", "verdict", "payload", "item")

# -- ownership -----------------------------------------------------------------------------------------------

CLAIMABLE_OF = (
    _JOB
    + """WHERE (j.owner IS NULL OR j.owner <> ?) AND (j.state <> 'done' OR EXISTS (
    SELECT 1 FROM shard s WHERE s.job = j.no AND s.cleaned_up = 0
    AND (s.state NOT IN ('settled', 'dead') OR s.file_id IS NOT NULL OR s.batch_id IS NOT NULL)))
    ORDER BY CASE WHEN j.state = 'done' THEN 1 ELSE 0 END, j.no"""
)
CLAIM_LOOK = "SELECT no, epoch, owner, lease_until FROM job WHERE id = ?{skip_locked}"
CLAIM = "UPDATE job SET owner = ?, epoch = epoch + 1, lease_until = ? WHERE no = ? RETURNING epoch"
GRASP = "SELECT no FROM job WHERE id = ? AND epoch = ? AND owner = ?{for_update}"
RENEW = "UPDATE job SET lease_until = ? WHERE id = ? AND epoch = ? AND owner = ?"
RELEASE = "UPDATE job SET owner = NULL WHERE id = ? AND epoch = ? AND owner = ?"
RELEASE_ALL = "UPDATE job SET owner = NULL WHERE owner = ?"
FREE_IN_FLIGHT = """UPDATE item SET state = ?, tries = tries + 1
    WHERE state < 3 AND state = 2 AND no >= ? AND no < ? RETURNING no"""
OWNERS = "SELECT id FROM owner"
OWNERS_WITH_JOBS = "SELECT DISTINCT owner FROM job WHERE owner IS NOT NULL"
NEW_OWNER = """INSERT INTO owner (id, host, pid, since) VALUES (?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING"""
DROP_OWNER = "DELETE FROM owner WHERE id = ?"

# -- items and shards ----------------------------------------------------------------------------------------

WAITING = """SELECT no, size, tokens, tries FROM item
    WHERE state < 3 AND state = ? AND no >= ? AND no < ? ORDER BY no LIMIT ?"""
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
SHARDS_OF_JOB = _SHARD + "WHERE job = ? ORDER BY no"
SHARDS_OF_JOB_IN = _SHARD + "WHERE job = ? AND state IN {texts} ORDER BY no"
SHARDS_OF_SCOPE_IN = _SHARD + "WHERE scope = ? AND state IN {texts} ORDER BY job, no"
SHARD_POSITIONS = "SELECT job, positions FROM shard_items WHERE id = ?"
SHARD_STATE = "SELECT state, no FROM shard WHERE id = ? AND job = ?"

NEXT_SHARD = "SELECT coalesce(max(no), 0) + 1 FROM shard WHERE job = ?"
TAKE_ITEMS = "UPDATE item SET state = 3, shard = ? WHERE no IN {numbers} AND state = 0"
NEW_SHARD = f"""INSERT INTO shard
    (id, job, no, nonce, scope, model, state, size, bytes, tokens, due_at, reserved, remote)
    SELECT ?, j.no, ?, ?, j.scope, j.model, 'planned', ?, ?, ?, ?, ?, ? FROM job j WHERE j.no = ?
    RETURNING {SHARD_COLUMNS}"""
NEW_POSITIONS = "INSERT INTO shard_items (id, job, positions) VALUES (?, ?, ?)"
UNRESOLVED_IN_SCOPE = """SELECT count(*) FROM shard
    WHERE scope = ? AND id <> ? AND state IN ('submitting', 'uncertain', 'provisional')"""
ADVANCE = "UPDATE shard SET {assignments} WHERE id = ? AND job = ? AND state = ? RETURNING {columns}"
FREE_HELD = """UPDATE item SET state = ?, tries = tries + ?, shard = NULL
    WHERE no >= ? AND no <= ? AND shard = ? AND state = 3"""
FREE_THESE = """UPDATE item SET state = ?, tries = tries + 1, shard = NULL
    WHERE no IN {numbers} AND shard = ? AND state = 3"""
HELD = "SELECT no FROM item WHERE no >= ? AND no <= ? AND shard = ? AND state = 3"

# -- results -------------------------------------------------------------------------------------------------

COUNT = """UPDATE job SET seq = seq + ?,
    succeeded = succeeded + ?, failed = failed + ?, cancelled = cancelled + ?,
    cost = cost + ?, realtime_cost = realtime_cost + ?, unpriced = unpriced + ?,
    input_tokens = input_tokens + ?, output_tokens = output_tokens + ?
    WHERE no = ? RETURNING seq"""
FINISH = """UPDATE job SET state = 'done', finished_at = ?, note = NULL
    WHERE no = ? AND state <> 'done' AND succeeded + failed + cancelled >= total"""
END_ITEMS = "UPDATE item SET state = 4 WHERE no IN {numbers}"
DIGESTS = "SELECT no, digest FROM result WHERE no IN {numbers}"
VERDICTS = "SELECT no, outcome, digest, body FROM verdict WHERE no IN {numbers}"
VERDICT_DIGESTS = "SELECT no, digest FROM verdict WHERE no IN {numbers}"
DROP_VERDICTS = "DELETE FROM verdict WHERE no IN {numbers}"
END_ALIKE = """INSERT INTO result (no, seq, outcome, digest, cost, body)
    SELECT no, ? + row_number() OVER (ORDER BY no), ?, ?, CAST(? AS DOUBLE PRECISION), ?
    FROM item WHERE no IN {numbers}"""
CLAIM_REALTIME = """UPDATE item SET state = 2 WHERE no IN (
    SELECT no FROM item WHERE state < 3 AND state = 1 AND no >= ? AND no < ? ORDER BY no LIMIT ?)
    RETURNING no, tries"""
ASK_AGAIN = "UPDATE item SET state = 1, tries = tries + ? WHERE no IN {numbers} AND state = 2"
# pages are ranges of numbers: with an open end, a PostgreSQL that has not counted the rows yet reads them all
_RESULT = "FROM result r JOIN payload p ON p.no = r.no "
_BY_PLACE = _RESULT + "WHERE r.no >= ? AND r.no < ? ORDER BY r.no"
_BY_ARRIVAL = _RESULT + "WHERE r.seq >= ? AND r.seq < ? ORDER BY r.seq"
_WHOLE = "SELECT r.no, p.user_id, r.outcome, r.body, p.body, r.cost, r.seq "
RESULTS = _WHOLE + _BY_PLACE
RESULT_SIZES = "SELECT r.no, length(r.body) + length(p.body) " + _BY_PLACE
FRESH = _WHOLE + _BY_ARRIVAL
FRESH_SIZES = "SELECT r.seq, length(r.body) + length(p.body) " + _BY_ARRIVAL

# -- notes ---------------------------------------------------------------------------------------------------

NOTE = "UPDATE job SET note = ? WHERE no = ?"
HOLD = "UPDATE job SET note = ?, state = 'held' WHERE no = ? AND state <> 'done'"
NEW_INCIDENT = """INSERT INTO incident (digest, kind, job_id, shard_id, detail, money, at)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (digest) DO NOTHING"""
INCIDENTS = "SELECT kind, job_id, shard_id, detail, money, at FROM incident ORDER BY no"
INCIDENTS_OF = "SELECT kind, job_id, shard_id, detail, money, at FROM incident WHERE job_id = ? ORDER BY no"
BATCHES_OWN = """SELECT batch_id, CASE WHEN state = 'provisional' THEN candidate END FROM shard
    WHERE scope = ? AND (batch_id IN {texts} OR candidate IN {texts})"""
NEW_TURNAROUND = "INSERT INTO turnaround (model, size, seconds, at) VALUES (?, ?, ?, ?) RETURNING no"
TRIM_TURNAROUNDS = """DELETE FROM turnaround WHERE model = ? AND no <= (
    SELECT no FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT 1 OFFSET ?)"""
TURNAROUNDS = "SELECT size, seconds, at FROM turnaround WHERE model = ? ORDER BY no DESC LIMIT ?"
REMEMBER = """INSERT INTO fact (name, value) VALUES (?, ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value"""
RECALL = "SELECT value FROM fact WHERE name = ?"
