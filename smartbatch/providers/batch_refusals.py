"""The refusal of a whole batch: the lines it is about, or the limit that the batch exceeds.

The three APIs and compatible servers put this into fields and texts of many forms: the number of a line of
the input (from 1), a path such as ``requests.3.params`` (from 0), or the id that the request was sent with.
Only unambiguous forms are read, because a request that is blamed by mistake is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.error_reader import error_in
from smartbatch.providers.error_table import kind_of_code
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, plain, safe_text, short, whole

Measure: TypeAlias = Literal["requests", "bytes", "tokens"]  # limited per batch

_MAX_TEXT, _MAX_PARTS = 64 * 1024, 20  # characters of a problem's text, and steps of its path
_REFUSED = (None, 400, 413, 422)
"""Statuses of refusals that may be about lines or limits; a batch that fails validation has none."""
_NOT_OF_A_LINE = frozenset(
    {ErrorKind.RATE_LIMIT, ErrorKind.NO_MONEY, ErrorKind.AUTH_ERROR, ErrorKind.SERVER_ERROR}
)
_ALL_LINES = frozenset({"model_not_found", "invalid_model", "model_mismatch", "url_mismatch", "invalid_url"})
_OF_THE_BATCH = re.compile(r"(?:body\.)?(?:model|url|method|endpoint)")
_PATH = re.compile(r"\brequests(?:\[|\.|/)(\d{1,7})\b")
_LINES = re.compile(
    r"\b(?:lines?|rows?)\s*(?:(?:numbers?|nos?\.?|#|:|=)\s*)*(\d{1,7}(?:\s*(?:,|and|&|\bto\b)\s*#?\d{1,7})*)\b"
    r"(?!\s*[,:]?\s*(?:col|char|pos))",
    re.I,
)
_WIRE_ID = re.compile(r"\b[0-9A-Za-z]{22}-[0-9A-Za-z]{1,6}\b")
_OVER = re.compile(
    r"too[ _](?:many|large|big|long)|exceed|larger|more (?:\w+ )?than|greater than|at most|maximum|\bmax\b|"
    r"limit",
    re.I,
)
_MEASURES: tuple[tuple[Measure, re.Pattern[str]], ...] = (
    ("tokens", re.compile(r"\btokens\b", re.I)),
    ("bytes", re.compile(r"bytes?\b|\b\d*\s?[kmg]i?b\b|size\b|large|too[ _]big|payload|body", re.I)),
    ("requests", re.compile(r"\b(?:requests|tasks|lines|rows|items|records|entries|prompts|inputs)\b", re.I)),
)
_OTHER_LIMIT = re.compile(
    r"output[ _]tokens|max_(?:completion_)?tokens|context|rate limit|quota|enqueued|per (?:minute|day)", re.I
)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`")
"""Parts of a text that may repeat a prompt, whose words are not about lines and limits."""
_LIMIT_CODES: Mapping[str, Measure] = {
    "too_many_tasks": "requests",
    "too_many_requests_in_batch": "requests",
    "file_too_large": "bytes",
    "request_too_large": "bytes",
    "invalid_file_size": "bytes",
}


class BatchRefused(ProviderError):
    """A batch was refused, with the lines that are wrong, or the limit that it exceeds."""

    # reasons by positions in the input (from 0) or by the ids of requests; not checked against the batch
    lines: Mapping[int | str, ProviderError] = {}
    exceeds: Measure | None = None  # the limit exceeded by the batch


def explained(error: ProviderError, refusal: Any, secrets: Sequence[str | None] = ()) -> ProviderError:
    """Return ``error`` as a :class:`BatchRefused` if it names lines or a limit, otherwise unchanged.

    Args:
        error: the refusal of an upload or a create, or the failure of a batch that was never run.
        refusal: the decoded body of the refusal, or the errors of the batch; if it is neither an object nor a
            list, the text of ``error`` is read.
        secrets: must not appear in an error.
    """
    if error.status not in _REFUSED or error.kind in _NOT_OF_A_LINE:
        return error
    problems = list(_problems(refusal if isinstance(refusal, (dict, list)) else [error.message]))
    lines: dict[int | str, ProviderError] = {}
    for problem in problems:
        reason = _reason(problem, error, secrets)
        for place in _places(problem):
            lines.setdefault(place, reason)
        if reason.kind in _NOT_OF_A_LINE:  # a problem of the account, not of the first line that was read
            return error
    exceeds = None if lines else _exceeded(error, problems)
    if not lines and exceeds is None:
        return error
    details = {name: value for name, value in vars(error).items() if name != "message"}
    return BatchRefused(error.message, **{**details, "lines": lines, "exceeds": exceeds})


def _problems(refusal: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the problems that a refusal lists, each with ``message``; or else the refusal itself."""
    if isinstance(refusal, list):
        found = refusal
    else:
        body = fields(refusal)
        error = error_in(body) or body
        found = _listed(error) or _listed(body)
        if not found:
            yield _problem(error)
    for each in found:
        yield _problem(each)


def _listed(error: Mapping[str, Any]) -> list[Any]:
    """Return the problems in the lists that OpenAI, FastAPI and Google put into an error."""
    errors = error.get("errors")
    listed = fields(errors).get("data") if isinstance(errors, dict) else errors
    if not isinstance(listed, list):
        listed = error.get("data") or error.get("detail")
    found = list(listed) if isinstance(listed, list) else []
    details = error.get("details")
    for detail in details if isinstance(details, list) else []:
        violations = fields(detail).get("fieldViolations")
        found += violations if isinstance(violations, list) else []
    return found


def _problem(found: Any) -> Mapping[str, Any]:
    problem = {"message": found} if isinstance(found, str) else fields(found)
    message = problem.get("message") or problem.get("msg") or problem.get("description")
    path = problem.get("param") or problem.get("field") or problem.get("loc")
    if isinstance(path, list):
        path = ".".join(map(plain, path[:_MAX_PARTS]))
    return {
        **problem,
        "message": message[:_MAX_TEXT] if isinstance(message, str) else "",
        "param": path[:_MAX_TEXT] if isinstance(path, str) else "",
    }


def _reason(problem: Mapping[str, Any], error: ProviderError, secrets: Sequence[str | None]) -> ProviderError:
    code, text = short(problem.get("code"), PLAIN_WORD), safe_text(problem["message"], (), *secrets)
    kind = kind_of_code(code, None, problem["message"]) or ErrorKind.CLIENT_ERROR
    said = f" ({code})" if code else ""
    return ProviderError(
        f"the provider rejected this request when it checked the batch{said}{f': {text}' if text else ''}",
        kind=kind,
        status=error.status,
        code=code,
    )


def _places(problem: Mapping[str, Any]) -> Iterator[int | str]:
    """Yield the positions of lines and the ids of requests that a problem is about."""
    # 1. It is about a property of all lines, such as the model: none.
    if short(problem.get("code"), PLAIN_WORD) in _ALL_LINES or _OF_THE_BATCH.fullmatch(problem["param"]):
        return
    # 2. It has the number of a line, or the id of a request.
    if (line := whole(problem.get("line", problem.get("line_number")))) is not None:
        yield line - 1
        return
    named = problem.get("custom_id") or problem.get("key")
    if isinstance(named, str) and _WIRE_ID.fullmatch(named):
        yield named
        return
    # 3. Its path, or else its text, contains one of these.
    for text in (problem["param"], _QUOTED.sub("", problem["message"])):
        numbers = [int(number) - 1 for found in _LINES.findall(text) for number in re.findall(r"\d+", found)]
        places = [*_WIRE_ID.findall(text), *(int(found) for found in _PATH.findall(text)), *numbers]
        if places:
            yield from places
            return


def _exceeded(error: ProviderError, problems: Sequence[Mapping[str, Any]]) -> Measure | None:
    for problem in problems:
        if (named := _LIMIT_CODES.get(str(problem.get("code") or problem.get("type")))) is not None:
            return named
        text = _QUOTED.sub("", problem["message"])
        if error.kind is ErrorKind.CONTEXT_TOO_LONG or _OTHER_LIMIT.search(text) or not _OVER.search(text):
            continue
        for measure, words in _MEASURES:
            if words.search(text):
                return measure
    return "bytes" if error.status == 413 else None
