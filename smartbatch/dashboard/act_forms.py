"""Forms for acts, shown to those who may act. They work without JavaScript, and need no session."""

from __future__ import annotations

from smartbatch._html import Child, Html, el, fragment
from smartbatch.dashboard.page import Query
from smartbatch.jobs.records import JobState
from smartbatch.jobs.store.job_overview import JobFilter, JobLine

LOOK_ONLY = "You may look, but not act."


def of_job(line: JobLine, query: Query) -> Html:
    """Return the forms for one job: those that can do anything with it now."""
    if query.granted != "all":
        return el("p", LOOK_ONLY, class_="soft")
    job = el("input", type="hidden", name="id", value=line.id)
    done = line.state is JobState.DONE
    forms: list[Child] = []
    if line.state is JobState.HELD:
        forms.append(_form(query, "resume", "Resume", job))
    if line.failed and (done or not line.cancel_requested):
        forms.append(_form(query, "retry", f"Ask {line.failed:,} failed requests again", job, _billed()))
    if not done:
        forms.append(
            _form(query, "deadline", "Set deadline", job, _text("deadline", "from now", "2h, or none"))
        )
        forms.append(_form(query, "budget", "Set budget", job, _text("budget", "USD in all", "5, or none")))
    if not done and not line.cancel_requested:
        forms.append(_twice("Cancel the job", _form(query, "cancel", "Cancel, and keep what is done", job)))
    if done:
        forms.append(_twice("Forget the job", _form(query, "forget", "Delete requests and results", job)))
    return fragment(*forms)


def of_jobs(chosen: JobFilter, query: Query) -> Html | None:
    """Return the forms for the jobs of a state, and a model, that a list shows; ``None`` for other lists."""
    state = chosen.state
    if query.granted != "all" or state is None or chosen.name is not None:
        return None
    meant: list[Child] = [el("input", type="hidden", name="state", value=state.value)]
    if chosen.model is not None:
        meant.append(el("input", type="hidden", name="model", value=chosen.model))
    of_model = "" if chosen.model is None else f" of {chosen.model}"
    forms: list[Child] = [_form(query, "retry", "Ask their failed requests again", *meant, _billed())]
    if state is JobState.HELD:
        forms.append(_form(query, "resume", "Resume them", *meant))
    if state is not JobState.DONE:
        forms.append(_twice("Cancel them", _form(query, "cancel", "Cancel, and keep what is done", *meant)))
    else:
        forms.append(_twice("Forget them", _form(query, "forget", "Delete requests and results", *meant)))
    told = f"All {state.value} jobs{of_model}, those of further pages included; 1,000 at a time:"
    return fragment(el("p", told), *forms)


def of_models(query: Query) -> Html:
    """Return the forms that pause a model and set its limits."""
    if query.granted != "all":
        return el("p", LOOK_ONLY, class_="soft")
    model = _text("model", "Model", "provider:model, or provider")
    return fragment(
        _form(query, "pause", "Pause", model, _text("reason", "Reason", "for those who wait", needed=False)),
        _form(
            query,
            "limit",
            "Set limits",
            _text("model", "Model", "provider:model"),
            _text("requests", "Requests a minute", "as configured", needed=False),
            _text("tokens", "Tokens a minute", "as configured", needed=False),
        ),
    )


def unpause(model: str, query: Query) -> Html | None:
    """Return the form that ends a pause."""
    if query.granted != "all":
        return None
    return _form(query, "unpause", "Resume", el("input", type="hidden", name="model", value=model))


def _form(query: Query, act: str, name: str, *fields: Child) -> Html:
    back = el("input", type="hidden", name="back", value=_place(query))
    button = el("button", name, type="submit")
    return el("form", *fields, back, button, method="post", action=query.link("act", act))


def _place(query: Query) -> str:
    """Return the page a form stands on, without where the application is mounted."""
    return query.again().removeprefix(query.root) or "/"


def _twice(name: str, form: Html) -> Html:
    """Return a form behind a word to open first: what it does cannot be undone."""
    return el("details", el("summary", name), form)


def _billed() -> Html:
    box = el("input", type="checkbox", name="billed", value="yes")
    return el("label", box, " also those that were, or may have been, paid for")


def _text(name: str, label: str, hint: str, *, needed: bool = True) -> Html:
    box = el("input", type="text", name=name, placeholder=hint, required=needed, maxlength=500)
    return el("label", label, box)
