"""What people set while work runs, and what they did: the tables ``pause``, ``model_limit`` and ``act``.

Each act is noted in the transaction that does it. Processes learn of it by the numbers of the acts: these are
given one after the other, so whoever has read up to a number has missed none before it.
"""

from __future__ import annotations

from attrs import evolve, frozen

from smartbatch.core.limits.model_controls import ModelControls, ModelLimit, Pause
from smartbatch.jobs.act_records import ACTS_KEPT, Act
from smartbatch.jobs.store.database import Database, Row, Transaction
from smartbatch.jobs.store.rows import decoded, encoded

TRIM_EVERY = 50
"""Acts after which older ones are deleted."""
_ACTS = "SELECT no, at, who, name, target, job_id, count, left_out, detail FROM act "


@frozen
class ControlTable:
    """Pauses and limits of models, and the acts that were done to a store."""

    db: Database

    # -- models ----------------------------------------------------------------------------------------------

    def pause(self, model: str, reason: str | None, by: str) -> Pause:
        """Pause a model, unless it is paused; return the pause that holds then."""
        new = """INSERT INTO pause (model, reason, who, since) VALUES (?, ?, ?, ?)
            ON CONFLICT (model) DO NOTHING"""

        def work(tx: Transaction) -> Pause:
            at = self.db.now()
            if tx.change(new, encoded(model), encoded(reason), encoded(by), at):
                note_act(tx, Act(at=at, by=by, name="pause_model", target=model, detail=reason))
            [row] = tx.rows("SELECT model, reason, who, since FROM pause WHERE model = ?", encoded(model))
            return _pause(row)

        return self.db.write(work)

    def resume(self, model: str, by: str) -> bool:
        """End the pause of a model; False where there is none."""

        def work(tx: Transaction) -> bool:
            if not tx.change("DELETE FROM pause WHERE model = ?", encoded(model)):
                return False
            note_act(tx, Act(at=self.db.now(), by=by, name="resume_model", target=model))
            return True

        return self.db.write(work)

    def set_limit(self, model: str, requests: float | None, tokens: float | None, by: str) -> bool:
        """Set limits a minute of a model, or none; False where they are set so already."""
        new = "INSERT INTO model_limit (model, requests, tokens, who, since) VALUES (?, ?, ?, ?, ?)"

        def work(tx: Transaction) -> bool:
            tx.lock("acts")
            known = tx.row("SELECT requests, tokens FROM model_limit WHERE model = ?", encoded(model))
            if (known or (None, None)) == (requests, tokens):
                return False
            at = self.db.now()
            tx.change("DELETE FROM model_limit WHERE model = ?", encoded(model))
            if requests is not None or tokens is not None:
                tx.change(new, encoded(model), requests, tokens, encoded(by), at)
            detail = _limits_in_words(requests, tokens)
            note_act(tx, Act(at=at, by=by, name="set_limit", target=model, detail=detail))
            return True

        return self.db.write(work)

    def controls(self) -> ModelControls:
        """Return all pauses and limits."""
        pauses = map(_pause, self.db.rows("SELECT model, reason, who, since FROM pause ORDER BY since"))
        limits = "SELECT model, requests, tokens, who, since FROM model_limit ORDER BY since"
        return ModelControls(
            {one.model: one for one in pauses},
            {one.model: one for one in map(_limit, self.db.rows(limits))},
        )

    # -- acts ------------------------------------------------------------------------------------------------

    def last(self) -> int:
        """Return the number of the latest act; 0 before there is one."""
        [(number,)] = self.db.rows("SELECT coalesce(max(no), 0) FROM act")
        return int(number)

    def after(self, number: int, *, limit: int) -> list[Act]:
        """Return acts after the one of a number, oldest first."""
        return [_act(row) for row in self.db.rows(f"{_ACTS}WHERE no > ? ORDER BY no LIMIT ?", number, limit)]

    def latest(self, *, before: int | None = None, job_id: str | None = None, limit: int) -> list[Act]:
        """Return acts, newest first: those before the one of a number, and those on a job alone."""
        asked = {"no < ?": before, "job_id = ?": job_id}
        those = [condition for condition, value in asked.items() if value is not None]
        where = f"WHERE {' AND '.join(those)} " if those else ""
        values = [value for value in asked.values() if value is not None]
        return [_act(row) for row in self.db.rows(f"{_ACTS}{where}ORDER BY no DESC LIMIT ?", *values, limit)]


def note_act(tx: Transaction, act: Act) -> Act:
    """Note an act in the transaction that does it, as its last statement; return it with its number."""
    tx.lock("acts")  # so that numbers are seen in their order
    [(number,)] = tx.rows(
        """INSERT INTO act (at, who, name, target, job_id, count, left_out, detail)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) RETURNING no""",
        act.at,
        encoded(act.by),
        act.name,
        encoded(act.target),
        act.job_id,
        act.count,
        act.left_out,
        encoded(act.detail),
    )
    if number % TRIM_EVERY == 0:
        tx.change("DELETE FROM act WHERE no <= ?", number - ACTS_KEPT)
    return evolve(act, number=int(number))


def _limits_in_words(requests: float | None, tokens: float | None) -> str:
    """Return limits a minute for people."""
    told = [f"{each:,.6g} {what}" for each, what in ((requests, "requests"), (tokens, "tokens")) if each]
    return " and ".join(told) + " a minute" if told else "as configured"


def _pause(row: Row) -> Pause:
    model, reason, by, since = row
    return Pause(str(decoded(model)), decoded(reason), str(decoded(by)), since)


def _limit(row: Row) -> ModelLimit:
    model, requests, tokens, by, since = row
    return ModelLimit(str(decoded(model)), requests, tokens, str(decoded(by)), since)


def _act(row: Row) -> Act:
    number, at, by, name, target, job_id, count, left_out, detail = row
    return Act(
        number=number,
        at=at,
        by=str(decoded(by)),
        name=name,
        target=str(decoded(target)),
        job_id=job_id,
        count=count,
        left_out=left_out,
        detail=decoded(detail),
    )
