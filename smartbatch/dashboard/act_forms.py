"""Forms for actions, shown to those who may act. They work without JavaScript, and need no session."""

from __future__ import annotations

from smartbatch.dashboard.page import Query
from smartbatch.jobs.records import JobRow, JobState
from smartbatch.jobs.store.job_overview import JobFilter
from smartbatch.views.model import Field, Form, Note, Part

LOOK_ONLY = "You may look, but not act."
_KEEP = "Requests that have a result keep it; nothing more is sent."
_DELETE = "This deletes requests and results. It cannot be undone."
_BILLED = Field("billed", "also requests that were, or may have been, paid for", "yes", kind="checkbox")


def of_job(line: JobRow, query: Query) -> tuple[Part, ...]:
    """Return the forms for one job: those that can do anything with it now."""
    if query.granted != "all":
        return (Note(LOOK_ONLY),)
    job = _hidden("id", line.id)
    done = line.state is JobState.DONE
    forms: list[Part] = []
    if line.state is JobState.HELD:
        forms.append(_form(query, "resume", "Resume", job))
    if line.failed and (done or not line.cancel_requested):
        forms.append(_form(query, "retry", f"Retry {line.failed:,} failed requests", job, _BILLED))
    if not done:
        deadline = Field("deadline", "Deadline from now", hint="2h, or none")
        budget = Field("budget", "Budget in USD", hint="5, or none")
        forms.append(_form(query, "deadline", "Set deadline", job, deadline))
        forms.append(_form(query, "budget", "Set budget", job, budget))
    if not done and not line.cancel_requested:
        forms.append(_form(query, "cancel", "Cancel the job", job, warning=_KEEP))
    if done:
        forms.append(_form(query, "forget", "Forget the job", job, warning=_DELETE))
    return tuple(forms)


def of_jobs(chosen: JobFilter, query: Query) -> tuple[Part, ...]:
    """Return the forms for the jobs of a state, and a model, that a list shows; none for other lists."""
    state = chosen.state
    if query.granted != "all" or state is None or chosen.name is not None:
        return ()
    meant = [_hidden("state", state.value)]
    if chosen.model is not None:
        meant.append(_hidden("model", chosen.model))
    of_model = "" if chosen.model is None else f" of {chosen.model}"
    parts: list[Part] = [
        Note(f"All {state.value} jobs{of_model}, those on other pages too; 1,000 at a time.")
    ]
    parts.append(_form(query, "retry", "Retry their failed requests", *meant, _BILLED))
    if state is JobState.HELD:
        parts.append(_form(query, "resume", "Resume them", *meant))
    if state is not JobState.DONE:
        parts.append(_form(query, "cancel", "Cancel them", *meant, warning=_KEEP))
    else:
        parts.append(_form(query, "forget", "Forget them", *meant, warning=_DELETE))
    return tuple(parts)


def of_models(query: Query) -> tuple[Part, ...]:
    """Return the forms that pause a model and set its limits."""
    if query.granted != "all":
        return (Note(LOOK_ONLY),)
    some = Field("model", "Model", hint="provider:model, or provider")
    one = Field("model", "Model", hint="provider:model")
    reason = Field("reason", "Reason", hint="for those who wait", is_required=False)
    requests = Field("requests", "Requests per minute", hint="as configured", is_required=False)
    tokens = Field("tokens", "Tokens per minute", hint="as configured", is_required=False)
    return (
        _form(query, "pause", "Pause", some, reason),
        _form(query, "limit", "Set limits", one, requests, tokens),
    )


def unpause(model: str, query: Query) -> Form | None:
    """Return the form that ends a pause."""
    return _form(query, "unpause", "Resume", _hidden("model", model)) if query.granted == "all" else None


def _form(query: Query, act: str, name: str, *fields: Field, warning: str = "") -> Form:
    place = query.again().removeprefix(query.root) or "/"  # without where the application is mounted
    return Form(query.link("act", act), name, (*fields, _hidden("back", place)), warning)


def _hidden(name: str, value: str) -> Field:
    return Field(name, value=value, kind="hidden")
