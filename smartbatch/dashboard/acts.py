"""What a form of the dashboard does: each act is a public verb, and noted in the store with who did it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from smartbatch._words import money
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import InvalidRequest, JobNotFound
from smartbatch.jobs.job import Job
from smartbatch.jobs.records import MAX_COUNTED_JOBS, Acted, JobSelection

NONE = "none"
"""Takes a deadline or a budget away."""


@frozen(kw_only=True)
class Asked:
    """An act that somebody may do, sent by a page of the dashboard.

    Attributes:
        form: the fields, the last of each name; ``back`` is the page to go back to.
        by: the user the server names, or ``token``.
        query: of the request.
    """

    form: Mapping[str, str]
    by: str
    query: Query


Act: TypeAlias = Callable[[Source, Asked], str]
"""Does it, and returns in words what was done. Raises SmartbatchError where it is refused."""


# -- jobs ----------------------------------------------------------------------------------------------------


def _cancel(source: Source, asked: Asked) -> str:
    done = source.jobs.cancel_jobs(_selection(source, asked), by=asked.by)
    return _counted(done, "being cancelled") + _whoever(source, asked, done, "cancels")


def _resume(source: Source, asked: Asked) -> str:
    done = source.jobs.resume_jobs(_selection(source, asked), by=asked.by)
    return _counted(done, "resumed") + _whoever(source, asked, done, "goes on with")


def _forget(source: Source, asked: Asked) -> str:
    done = source.jobs.forget_jobs(_selection(source, asked), by=asked.by)
    return _counted(done, "forgotten, with requests and results")


def _retry(source: Source, asked: Asked) -> str:
    billed = asked.form.get("billed") == "yes"
    chosen = _selection(source, asked)
    done = source.jobs.retry_jobs(chosen, billed=billed, by=asked.by)
    more = f" {_left(done)}" if done.left_out else ""
    what = "Failed requests that are asked again"
    left_out = "" if billed else " Those that were, or may have been, paid for are left out."
    return f"{what}: {done.count:,}.{left_out}{more}" + _whoever(source, asked, done, "asks")


def _deadline(source: Source, asked: Asked) -> str:
    given = _text(asked, "deadline")
    job = _job(source, asked)
    job.set_deadline(None if given == NONE else given, by=asked.by)
    return f"The deadline of job {job.id} is {given if given == NONE else f'in {given}'}."


def _budget(source: Source, asked: Asked) -> str:
    given = _text(asked, "budget")
    job = _job(source, asked)
    left = job.set_budget(None if given == NONE else given, by=asked.by)
    if given == NONE:
        return f"Job {job.id} has no budget any more."
    if left >= 0:
        return f"The budget of job {job.id} is {given}; {money(left)} of it are neither spent nor reserved."
    return (
        f"The budget of job {job.id} is {given}; {money(-left)} more are spent or reserved already. What is "
        "under way ends, and nothing more is sent until something costs less than was reserved for it."
    )


def _selection(source: Source, asked: Asked) -> JobSelection:
    """Return which jobs a form means: the one of its ``id``, or those of a state and a model.

    Raises:
        JobNotFound: there is no store, or no job of that id or key.
        InvalidRequest: none is named.
    """
    if asked.form.get("id"):
        return JobSelection(ids=(_job(source, asked).id,))
    _check_store(source)
    state: Any = asked.form.get("state") or None
    return JobSelection(state=state, model=asked.form.get("model") or None)


def _job(source: Source, asked: Asked) -> Job:
    """Return the job that a form is about.

    Raises:
        JobNotFound: there is none.
    """
    _check_store(source)
    return source.jobs.job(_text(asked, "id"))


def _check_store(source: Source) -> None:
    if source.store is None:  # an act on a job makes no file
        raise JobNotFound(f"There is no store yet at {source.place}, so it has no job.")


def _counted(done: Acted, what: str) -> str:
    if not done.count:
        return "No job was concerned: it may have ended, or somebody was quicker."
    jobs = "1 job is" if done.count == 1 else f"{done.count:,} jobs are"
    return f"{jobs} {what}." + (f" {_left(done)}" if done.left_out else "")


def _left(done: Acted) -> str:
    many = f"{done.left_out:,}{' or more' if done.left_out >= MAX_COUNTED_JOBS else ''}"
    return f"{many} more jobs are left: an act takes 1,000 at a time, so do it again."


def _whoever(source: Source, asked: Asked, done: Acted, does: str) -> str:
    """Return who carries out an act on one job, where that is nobody at the moment."""
    if not done.count or not asked.form.get("id") or not _job(source, asked).is_unowned():
        return ""
    return (
        f" No living process carries the job on: one that starts on the store {does} it, "
        f"such as smartbatch jobs resume {asked.form['id']}."
    )


# -- models --------------------------------------------------------------------------------------------------


def _pause(source: Source, asked: Asked) -> str:
    pause = source.jobs.pause(*_model(asked), reason=asked.form.get("reason") or None, by=asked.by)
    return f"{pause}. Processes that use the store hear of it within two seconds."


def _unpause(source: Source, asked: Asked) -> str:
    if source.store is not None and source.jobs.resume(*_model(asked), by=asked.by):
        return f"{_text(asked, 'model')} goes on within two seconds."
    return f"{_text(asked, 'model')} is not paused."


def _limit(source: Source, asked: Asked) -> str:
    provider, model = _model(asked)
    if model is None:
        raise InvalidRequest("a limit is of one model: write provider:model", field="model")
    requests, tokens = _number(asked, "requests"), _number(asked, "tokens")
    source.jobs.set_limit(
        provider, model, requests_per_minute=requests, tokens_per_minute=tokens, by=asked.by
    )
    told = [f"{each:,.6g} {what}" for each, what in ((requests, "requests"), (tokens, "tokens")) if each]
    limits = f"{' and '.join(told)} a minute" if told else "those of the settings again"
    return f"The limits of {provider}:{model} are {limits}."


def _model(asked: Asked) -> tuple[str, str | None]:
    """Return provider and model; ``provider:*``, as pauses are named, is all of them."""
    provider, _, model = _text(asked, "model").partition(":")
    return provider, None if model in ("", "*") else model


def _number(asked: Asked, name: str) -> float | None:
    text = asked.form.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidRequest(f"{name} = {text!r:.60} is no number", field=name) from None


def _text(asked: Asked, name: str) -> str:
    text = asked.form.get(name, "").strip()
    if not text:
        raise InvalidRequest(f"the form has no {name}", field=name)
    return text


ACTS: Mapping[str, Act] = {
    "cancel": _cancel,
    "resume": _resume,
    "forget": _forget,
    "retry": _retry,
    "deadline": _deadline,
    "budget": _budget,
    "pause": _pause,
    "unpause": _unpause,
    "limit": _limit,
}
"""By the name in the address of the form, ``act/NAME``."""
