"""Errors of OpenAI's APIs and compatible servers, and the parameters that such servers reject.

A rejection that names a parameter is not billed. The parameter is omitted from then on, and the
request is sent again immediately.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, get_args

from smartbatch.errors import ConfigError, ErrorKind, ParameterRejected, ProviderError
from smartbatch.providers.base import FlexTier
from smartbatch.providers.error_reader import ErrorReader, Refusal, error_in
from smartbatch.providers.error_table import is_unknown_model, kind_of_spending_limit, kind_of_status
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, short
from smartbatch.providers.hosts import COMPATIBLE, Host
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.limit_headers import parse_duration, parse_retry_after, read_limits
from smartbatch.providers.openai.schema_modes import form_of
from smartbatch.types import Generation, LimitReport, Request

EncodingFormat: TypeAlias = Literal["base64", "float", "omit"]
MaxTokensField: TypeAlias = Literal["max_tokens", "max_completion_tokens"]

# both names of the output limit
_MAX_TOKENS: Final = {"max_completion_tokens": "max_tokens", "max_tokens": "max_completion_tokens"}

_NAMES: Final = {
    "encoding_format": re.compile(r"encoding_?format", re.I),
    "stream_options": re.compile(r"stream_?options|include_?usage", re.I),
    "seed": re.compile(r"\bseed\b", re.I),
    "max_completion_tokens": re.compile(r"\bmax_?completion_?tokens\b", re.I),
    "max_tokens": re.compile(r"\bmax_?tokens\b", re.I),
}
_FORMS: Final = {
    "json_schema": re.compile(
        r"json_?schema|response[_ ]?formats?|text\.format|structured[_ ]outputs?", re.I
    ),
    "json_object": re.compile(r"json_?object|json[_ ]mode|response[_ ]?formats?|text\.format", re.I),
}
"""Output formats for a schema. A rejection may name the format, or only the field; the latter means the
format that was sent.
"""
# further words for an unknown format, which the server treats as an invalid value
_FORM_VALUE = re.compile(
    r"must be|should be|one of|not (?:a )?valid|invalid|expected|\bonly\b|variant|enabled", re.I
)
# words about the schema itself, which another format would not make valid
_FLAWED_SCHEMA = re.compile(
    r"invalid schema|in context|\bschema (?:is|has|must|contains)|missing required|additionalProperties|"
    r"\$ref|json_schema\.\w|word .?json",
    re.I,
)
# parameters whose value the caller never sets; any error about them is a rejection
_OWN_VALUES: Final = ("encoding_format", "stream_options")
# effect of omitting a parameter, and the option that sends it anyway
_OPTIONS: Final = {
    "encoding_format": "vectors arrive as numbers; "
    'provider_options={"encoding_format": "base64"} sends it anyway',
    "stream_options": "the usage of streamed answers is estimated unless the server reports it; "
    'provider_options={"stream_usage": True} sends it anyway',
    "seed": 'provider_options={"send_seed": True} sends it anyway',
    **{
        name: "the schema is in the prompt, and answers are validated as before; "
        f'schema_mode="{name}" sends it anyway'
        for name in ("json_schema", "json_object")
    },
    **{
        name: f'{other} is sent instead; provider_options={{"max_tokens_field": "{name}"}} sends it anyway'
        for name, other in _MAX_TOKENS.items()
    },
}

# words for an unknown parameter
_UNKNOWN = re.compile(
    r"unsupported|not (?:yet |currently )?support|n[o']t support|unknown|un-?recogni[sz]ed|unexpected|"
    r"not permitted|forbidden|unavailable|"
    r"not (?:yet |currently )?(?:available|implemented|enabled|accepted|allowed)|"
    r"(?:invalid|not a valid|no such|illegal|undefined) "
    r"(?:request )?(?:parameter|argument|field|option|key|name|property)|"
    r"extra (?:input|field)s?|additional propert|"
    r"(?:does not|doesn't|cannot|can't) (?:exist|accept|recogni[sz]e|know|handle)|"
    r"(?:is|are) not (?:a )?(?:recogni[sz]ed|known|valid)|extra_forbidden|unknown_parameter",
    re.I,
)
# words for an invalid value, which the caller has to correct
_VALUE = re.compile(
    r"too (?:large|small|high|low|big|long)|at (?:most|least)|greater|less than|exceed|between|maximum|"
    r"minimum|\brange\b|integer|negative|positive",
    re.I,
)
# end of a message that lists parameters the server knows
_ALTERNATIVES = re.compile(
    r"(?:(?:^|[.;,:] |please )(?:use|try)|did you mean|\bone of|(?<!not a )\b"
    r"(?:valid|supported|allowed|accepted|known) (?:parameter|field|option|key|argument|propert)\w*)\b.*",
    re.I | re.S,
)
_OF_THE_MODEL = re.compile(r"\bmodels?\b", re.I)


def refused_parameters(
    status: int, message: str, param: object = None, code: object = None
) -> tuple[str, ...]:
    """Return the parameters that an error rejects by name; rejecting only a value does not count.

    ``message`` is the server's unscrubbed reason, ``param`` is its ``param`` field, and ``code`` is its
    code or type.
    """
    if status not in (400, 422, 501):
        return ()
    named = f"{param}: " if isinstance(param, str) else ""
    text = named + _ALTERNATIVES.sub("", message)
    known = f"{message} {code}"
    unknown = _UNKNOWN.search(known) and not _VALUE.search(message)
    names = [name for name, form in _NAMES.items() if form.search(text) and (unknown or name in _OWN_VALUES)]
    if not _FLAWED_SCHEMA.search(message) and (unknown or _FORM_VALUE.search(message)):
        names += [name for name, form in _FORMS.items() if form.search(text)]
    return tuple(names)


class ServerParameters:
    """The parameters that one server accepts. Thread-safe.

    Args:
        host: what is known about the server before the first call.
        encoding_format: format of embeddings; ``omit`` never sends one; ``None`` sends ``base64`` until it is
            rejected.
        stream_usage: whether to request the usage of streamed chats; ``None``: until it is rejected.
        send_seed: whether to send a request's seed; ``None``: until it is rejected.
        max_tokens_field: the name of the output limit; ``None`` starts with the host's.

    Raises:
        ConfigError: an option has an unknown value.
    """

    def __init__(
        self,
        host: Host = COMPATIBLE,
        *,
        encoding_format: EncodingFormat | None = None,
        stream_usage: bool | None = None,
        send_seed: bool | None = None,
        max_tokens_field: MaxTokensField | None = None,
    ) -> None:
        _check("encoding_format", encoding_format, get_args(EncodingFormat))
        _check("max_tokens_field", max_tokens_field, get_args(MaxTokensField))
        _check("stream_usage", stream_usage, (True, False))
        _check("send_seed", send_seed, (True, False))
        self._encoding_format = encoding_format
        self._usual_field = max_tokens_field or host.max_tokens_field
        self.seed_field = host.seed_field or "seed"
        self._has_seeds = host.seed_field is not None
        self._first_form = host.schema_mode
        self.efforts = host.efforts
        forced = {
            "encoding_format": None if encoding_format is None else encoding_format != "omit",
            "stream_options": host.stream_usage if stream_usage is None else stream_usage,
            "seed": send_seed if self._has_seeds or send_seed is not None else False,
            **dict.fromkeys(_MAX_TOKENS, None if max_tokens_field is None else True),
        }
        self._forced = {name: sent for name, sent in forced.items() if sent is not None}
        self._refused: set[tuple[str, str | None]] = set()

    def sends(self, name: str, model: str | None) -> bool:
        forced = self._forced.get(name)
        return not self._is_refused(name, model) if forced is None else forced

    def max_tokens_field(self, model: str) -> str:
        usual = self._usual_field
        return usual if self.sends(usual, model) else _MAX_TOKENS[usual]

    def schema_mode(self, params: Generation, model: str) -> str:
        if params.schema_mode not in (None, "auto"):
            return str(params.schema_mode)
        forms = (*_FORMS, "prompt")
        tried = forms[forms.index(self._first_form) :]
        return next((form for form in tried if not self._is_refused(form, model)), "prompt")

    def encoding_format(self, model: str) -> str | None:
        """``None`` lets the server choose."""
        return (self._encoding_format or "base64") if self.sends("encoding_format", model) else None

    def omitted(self, model: str) -> tuple[str, ...]:
        return tuple(name for name in (*_NAMES, *_FORMS) if self._is_refused(name, model))

    def dropped(self, request: Request, body: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
        if request.params.seed is None or self.seed_field in body:
            return ()
        if not self._has_seeds:
            return (("seed", "the server does not support seeds"),)
        return (("seed", "send_seed is False" if "seed" in self._forced else _reason("seed")),)

    def learn(
        self,
        error: ProviderError,
        body: Mapping[str, Any] | None = None,
        requests: Sequence[Request] = (),
    ) -> ProviderError:
        """Remember the parameters that an error rejects, and convert the error for the request.

        Parameters that options or ``extra`` force are the user's choice, so their error is returned
        unchanged. The same applies if the server rejects both names of the output limit.

        Args:
            error: the error of a call.
            body: the body of the call; ``None`` for a batch line, whose body is no longer available.
            requests: the requests of the call; the first one's ``extra`` is in the body.

        Returns:
            a :class:`.ParameterRejected` if the next call omits the rejected parameter, otherwise ``error``.
        """
        if not error.refused_parameters:
            return error
        if body is None:
            # it is unknown which format was sent: the one named in the error, or else any
            forms = [form for form in _FORMS if form in error.message.lower()][:1]
            sent = {*_NAMES, *(forms or _FORMS)}
        else:
            params = requests[0].params
            sent = {*body, form_of(body) or ""}.difference(params.extra or ())
            if params.schema is None or params.schema_mode not in (None, "auto"):
                sent.difference_update(_FORMS)
        names = [name for name in error.refused_parameters if name in sent and name not in self._forced]
        model = None if body is None else body["model"]
        scope = model if _OF_THE_MODEL.search(error.message) else None
        self._refused.update((name, scope) for name in names)
        names = [name for name in names if not self._is_refused(_MAX_TOKENS.get(name, ""), model)]
        if not names:
            return error
        return ParameterRejected(
            error.message,
            kind=error.kind,
            status=error.status,
            code=error.code,
            provider_request_id=error.provider_request_id,
            limits=error.limits,
            maybe_billed=error.maybe_billed,
            omitted=tuple((name, _reason(name)) for name in names),
        )

    def _is_refused(self, name: str, model: str | None) -> bool:
        return (name, None) in self._refused or (name, model) in self._refused


def _check(name: str, value: object, known: Sequence[object]) -> None:
    if value is None or any(value is each or (isinstance(each, str) and value == each) for each in known):
        return
    *others, last = map(repr, known)
    raise ConfigError(f"{name}={value!r} is unknown; use {', '.join(others)} or {last}")


def _reason(name: str) -> str:
    return f"the server refuses it; {_OPTIONS[name]}"


_TRY_AGAIN = re.compile(
    r"(?:try again|retry) (?:in|after) ([0-9.hmsuµn]{1,24}?)(?: (s)econds?| (m)inutes?)?\.?(?:\s|$)", re.I
)
_ADVICE = {
    "DeploymentNotFound": "the model must be the name of a deployment of this resource",  # Azure
}


def understand(reply: Reply, data: Any, kinds: Mapping[str, ErrorKind] | None = None) -> Refusal:
    """Parse an error. ``kinds`` are the codes that have another meaning at the host."""
    error = error_in(data)
    message, type_, code = error.get("message", ""), error.get("type"), error.get("code")
    metadata = fields(error.get("metadata"))
    type_ = type_ or metadata.get("error_type")
    word = short(str(code) if isinstance(code, int) else code, PLAIN_WORD) or short(type_, PLAIN_WORD)
    kind = (kinds or {}).get(word or "") or kind_of_spending_limit(metadata)
    kind = kind or kind_of_status(reply.status, code, type_, message)
    wait = _wait(metadata, message, reply) if kind is ErrorKind.RATE_LIMIT else None
    if is_unknown_model(reply.status, message):
        word = "model_not_found"
    parameters = refused_parameters(reply.status, message, error.get("param"), code)
    advice = _ADVICE.get(word or "", "")
    return Refusal(kind, message, word, wait=wait, parameters=parameters, advice=advice)


def _wait(metadata: Mapping[str, Any], message: str, reply: Reply) -> float | None:
    if found := _TRY_AGAIN.search(message):
        return parse_duration(found[1] + (found[2] or found[3] or ""))
    # OpenRouter includes the upstream's headers in the body
    inside = {
        name.lower(): value
        for name, value in fields(metadata.get("headers")).items()
        if isinstance(value, str)
    }
    named = {**reply.headers, **inside}
    reset = named.get("retry-after", named.get("x-ratelimit-reset", ""))
    return parse_retry_after({"retry-after": reset, "date": reply.headers.get("date", "")}, time.time())


def _limits(headers: Mapping[str, str]) -> LimitReport | None:
    if any(name.startswith("x-ratelimit-") for name in headers):
        return read_limits(headers, time.time())
    return None


ERRORS = ErrorReader(understand, _limits, "x-request-id")


_NO_ROOM = re.compile(r"resource[_ ]unavailable|\bflex\b|capacity", re.I)


def _openai_full(error: ProviderError) -> bool:
    if error.status == 498:  # Groq
        return True
    # a 429 for the user's own limit has the code rate_limit_exceeded, or mentions money
    if error.status != 429 or error.kind is not ErrorKind.RATE_LIMIT:
        return False
    return error.code == "resource_unavailable" or (
        error.code != "rate_limit_exceeded" and _NO_ROOM.search(error.message) is not None
    )


FLEX_TIER = FlexTier("service_tier", (), _openai_full)
