"""Forms and handlers for the actions of the dashboard; the store records who did what.

Forms work without JavaScript and need no session. Only users with full access see them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

from smartbatch._words import money, plural
from smartbatch.dashboard.page import Query
from smartbatch.dashboard.source import Source
from smartbatch.errors import InvalidRequest, JobNotFound
from smartbatch.jobs.job import Job
from smartbatch.jobs.records import MAX_COUNTED_JOBS, ActionResult, JobRow, JobSelection, JobState
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.views.model import Field, Form, Note, Part

READ_ONLY = "You can view this dashboard but not change anything."
_KEEPS_RESULTS = "Requests that have a result keep it. Nothing more is sent."
_DELETE_WARNING = "This deletes requests and results and cannot be undone."
_BILLED = Field("billed", "also requests that were or may have been billed", "yes", kind="checkbox")
_REMOVE_VALUE = "none"  # removes a deadline or a budget


@frozen(kw_only=True)
class ActionRequest:
    form: Mapping[str, str]  # last value of each field; ``back`` is the page to return to
    by: str  # user name from the web server, or ``token``


ActionHandler: TypeAlias = Callable[[Source, ActionRequest], str]
"""Performs an action and returns a sentence about it. Raises SmartbatchError if the action is refused."""


# -- forms ---------------------------------------------------------------------------------------------------


def job_forms(line: JobRow, query: Query) -> tuple[Part, ...]:
    if query.granted != "all":
        return (Note(READ_ONLY),)
    job = _hidden("id", line.id)
    done = line.state is JobState.DONE
    forms: list[Part] = []
    if line.state is JobState.HELD:
        forms.append(_form(query, "resume", "Resume", job))
    if line.failed and (done or not line.cancel_requested):
        forms.append(_form(query, "retry", f"Retry {plural(line.failed, 'failed request')}", job, _BILLED))
    if not done:
        deadline = Field("deadline", "Deadline from now", hint="2h, or none")
        budget = Field("budget", "Budget in USD", hint="5, or none")
        forms.append(_form(query, "deadline", "Set deadline", job, deadline))
        forms.append(_form(query, "budget", "Set budget", job, budget))
    if not done and not line.cancel_requested:
        forms.append(_form(query, "cancel", "Cancel the job", job, warning=_KEEPS_RESULTS))
    if done:
        forms.append(_form(query, "forget", "Forget the job", job, warning=_DELETE_WARNING))
    return tuple(forms)


def job_list_forms(chosen: JobFilter, query: Query) -> tuple[Part, ...]:
    """Return the forms for a list of all jobs in a state, of one model or all; other lists have no forms."""
    state = chosen.state
    if query.granted != "all" or state is None or chosen.name is not None:
        return ()
    selected = [_hidden("state", state.value)]
    if chosen.model is not None:
        selected.append(_hidden("model", chosen.model))
    of_model = "" if chosen.model is None else f" of {chosen.model}"
    parts: list[Part] = [
        Note(f"All {state.value} jobs{of_model}, including those on other pages; 1,000 at a time."),
        _form(query, "retry", "Retry their failed requests", *selected, _BILLED),
    ]
    if state is JobState.HELD:
        parts.append(_form(query, "resume", "Resume them", *selected))
    if state is JobState.DONE:
        parts.append(_form(query, "forget", "Forget them", *selected, warning=_DELETE_WARNING))
    else:
        parts.append(_form(query, "cancel", "Cancel them", *selected, warning=_KEEPS_RESULTS))
    return tuple(parts)


def model_forms(query: Query) -> tuple[Part, ...]:
    if query.granted != "all":
        return (Note(READ_ONLY),)
    model_or_provider = Field("model", "Model", hint="provider[:model]")
    model = Field("model", "Model", hint="provider:model")
    reason = Field("reason", "Reason", hint="why it is paused", is_required=False)
    requests = Field("requests", "Requests per minute", hint="as configured", is_required=False)
    tokens = Field("tokens", "Tokens per minute", hint="as configured", is_required=False)
    return (
        _form(query, "pause", "Pause", model_or_provider, reason),
        _form(query, "limit", "Set limits", model, requests, tokens),
    )


def unpause_form(model: str, query: Query) -> Form | None:
    return _form(query, "unpause", "Resume", _hidden("model", model)) if query.granted == "all" else None


def _form(query: Query, action: str, button: str, *fields: Field, warning: str = "") -> Form:
    place = query.again().removeprefix(query.root) or "/"  # relative to the mount path
    return Form(query.link("action", action), button, (*fields, _hidden("back", place)), warning)


def _hidden(name: str, value: str) -> Field:
    return Field(name, value=value, kind="hidden")


# -- actions on jobs -----------------------------------------------------------------------------------------


def _cancel(source: Source, request: ActionRequest) -> str:
    done = source.jobs.cancel_jobs(_selection(source, request), by=request.by)
    return _counted(done, "being cancelled") + _if_not_running(source, request, done)


def _resume(source: Source, request: ActionRequest) -> str:
    done = source.jobs.resume_jobs(_selection(source, request), by=request.by)
    return _counted(done, "resumed") + _if_not_running(source, request, done)


def _forget(source: Source, request: ActionRequest) -> str:
    done = source.jobs.forget_jobs(_selection(source, request), by=request.by)
    return _counted(done, "forgotten, with requests and results")


def _retry(source: Source, request: ActionRequest) -> str:
    billed = request.form.get("billed") == "yes"
    done = source.jobs.retry_jobs(_selection(source, request), billed=billed, by=request.by)
    text = f"{plural(done.count, 'failed request is', 'failed requests are')} being retried."
    if not billed:
        text += " Requests that were or may have been billed are left out."
    return text + (f" {_left(done)}" if done.left_out else "") + _if_not_running(source, request, done)


def _set_deadline(source: Source, request: ActionRequest) -> str:
    given = _text(request, "deadline")
    job = _job(source, request)
    job.set_deadline(None if given == _REMOVE_VALUE else given, by=request.by)
    if given == _REMOVE_VALUE:
        return f"Job {job.id} no longer has a deadline."
    return f"The deadline of job {job.id} is in {given}."


def _set_budget(source: Source, request: ActionRequest) -> str:
    given = _text(request, "budget")
    job = _job(source, request)
    left = job.set_budget(None if given == _REMOVE_VALUE else given, by=request.by)
    if given == _REMOVE_VALUE:
        return f"Job {job.id} no longer has a budget."
    if left >= 0:
        return f"The budget of job {job.id} is {given}; {money(left)} of it is neither spent nor reserved."
    return (
        f"The budget of job {job.id} is {given}, {money(-left)} less than what is spent or reserved. "
        "Requests in progress complete. Nothing more is sent until enough reserved money is released."
    )


def _selection(source: Source, request: ActionRequest) -> JobSelection:
    """Return the job named in the field ``id``, or the jobs with a state and a model."""
    if request.form.get("id"):
        return JobSelection(ids=(_job(source, request).id,))
    _check_store(source)
    state: Any = request.form.get("state") or None
    return JobSelection(state=state, model=request.form.get("model") or None)


def _job(source: Source, request: ActionRequest) -> Job:
    _check_store(source)
    return source.jobs.job(_text(request, "id"))


def _check_store(source: Source) -> None:
    if source.store is None:  # actions on jobs do not create a store
        raise JobNotFound(f"There is no store at {source.place} yet, so there are no jobs.")


def _counted(done: ActionResult, what: str) -> str:
    if not done.count:
        return "No job changed: it may have finished, or someone else acted first."
    text = f"{plural(done.count, 'job is', 'jobs are')} {what}."
    return f"{text} {_left(done)}" if done.left_out else text


def _left(done: ActionResult) -> str:
    count = f"{done.left_out:,}{' or more' if done.left_out >= MAX_COUNTED_JOBS else ''}"
    return f"{count} more jobs are left: an action handles 1,000 at a time, so repeat it."


def _if_not_running(source: Source, request: ActionRequest, done: ActionResult) -> str:
    """Explain when the action takes effect if no process is running the job."""
    if not done.count or not request.form.get("id") or not _job(source, request).is_unowned():
        return ""
    return (
        " No process is running this job: the action takes effect when one does, "
        f"for example with smartbatch jobs resume {request.form['id']}."
    )


# -- actions on models ---------------------------------------------------------------------------------------


def _pause(source: Source, request: ActionRequest) -> str:
    pause = source.jobs.pause(*_model(request), reason=request.form.get("reason") or None, by=request.by)
    return f"{pause}. Processes that use the store follow within two seconds."


def _unpause(source: Source, request: ActionRequest) -> str:
    if source.store is not None and source.jobs.resume(*_model(request), by=request.by):
        return f"{_text(request, 'model')} resumes within two seconds."
    return f"{_text(request, 'model')} is not paused."


def _set_limits(source: Source, request: ActionRequest) -> str:
    provider, model = _model(request)
    if model is None:
        raise InvalidRequest("a limit applies to one model: write provider:model", field="model")
    requests, tokens = _number(request, "requests"), _number(request, "tokens")
    source.jobs.set_limit(
        provider, model, requests_per_minute=requests, tokens_per_minute=tokens, by=request.by
    )
    limits = [f"{each:,.6g} {what}" for each, what in ((requests, "requests"), (tokens, "tokens")) if each]
    if not limits:
        return f"{provider}:{model} has its configured limits again."
    return f"{provider}:{model} is limited to {' and '.join(limits)} per minute."


def _model(request: ActionRequest) -> tuple[str, str | None]:
    """Return provider and model; the model is ``None`` for all models of a provider (``provider:*``)."""
    provider, _, model = _text(request, "model").partition(":")
    return provider, None if model in ("", "*") else model


def _number(request: ActionRequest, name: str) -> float | None:
    text = request.form.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError:
        raise InvalidRequest(f"{name} = {text!r:.60} is not a number", field=name) from None


def _text(request: ActionRequest, name: str) -> str:
    text = request.form.get(name, "").strip()
    if not text:
        raise InvalidRequest(f"the form lacks the field {name}", field=name)
    return text


ACTIONS: Mapping[str, ActionHandler] = {
    "cancel": _cancel,
    "resume": _resume,
    "forget": _forget,
    "retry": _retry,
    "deadline": _set_deadline,
    "budget": _set_budget,
    "pause": _pause,
    "unpause": _unpause,
    "limit": _set_limits,
}
"""Actions by the name in the form's address, ``action/NAME``."""
