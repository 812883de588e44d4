"""Anthropic's models at Amazon Bedrock, through the ``AnthropicBedrock`` client, which signs with boto3's
credentials.

Sources: the API reference of ``InvokeModel`` and ``InvokeModelWithResponseStream``, AWS's guide to the API
errors of Bedrock, and the ``anthropic`` SDK 2.14 (November 2026).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from attrs import evolve

from smartbatch._fork import one_at_a_time
from smartbatch.errors import ConfigError, ErrorKind, ProviderError
from smartbatch.providers.anthropic.bodies import API_VERSION
from smartbatch.providers.anthropic.errors import kind_of
from smartbatch.providers.anthropic.parts import CLOUD_BLOCKS
from smartbatch.providers.anthropic.provider import DEFAULT_MAX_TOKENS, MessagesProvider, custom_headers
from smartbatch.providers.base import NOT_YET
from smartbatch.providers.error_reader import ErrorReader, Refusal, error_in
from smartbatch.providers.foreign_text import PLAIN_WORD, fields, plain, short
from smartbatch.providers.hosts import HOSTS, Host
from smartbatch.providers.http.content import decode_answer, encode_json
from smartbatch.providers.http.endpoint import (
    HttpNetwork,
    checked_url,
    own_headers,
    scope_of,
    secrets_of,
    setting,
)
from smartbatch.providers.http.replies import MAX_BODY, Reply
from smartbatch.providers.http.transport import Transport
from smartbatch.types import Duration

if TYPE_CHECKING:
    from smartbatch.providers.anthropic.sdk import BedrockSdk

# the version that the AWS guide documents; models with an ARN reject later ones
BEDROCK_VERSION = "bedrock-2023-05-31"

_SIGN_IN = "set AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_BEARER_TOKEN_BEDROCK"
_SIGNING_SECONDS = 60.0


class BedrockProvider(MessagesProvider):
    """Anthropic's models at Amazon Bedrock, in real time.

    Credentials are those of the AWS SDK: environment variables, a profile, single sign-on, or the role of the
    machine. They never appear in a string, a ``repr`` or a pickle; a provider cannot be pickled.

    Args:
        region: ``AWS_REGION`` or ``AWS_DEFAULT_REGION`` by default, or else the region of the profile.
        profile: a profile in AWS's configuration files, by default ``AWS_PROFILE``.
        api_key: a Bedrock API key instead of AWS credentials, by default ``AWS_BEARER_TOKEN_BEDROCK``.
        base_url: ``ANTHROPIC_BEDROCK_BASE_URL`` or ``BEDROCK_BASE_URL`` by default, or else the region's.
        host: the host's record.
        api_version: ``bedrock-2023-05-31``, which sends sampling parameters, or ``2026-10-21``.
        default_max_tokens: sent for requests without ``max_tokens``, which the API requires.
        headers: further headers, treated as secrets.
        connect_timeout: maximum time until an address accepts the connection.
        max_body: maximum bytes of a decoded answer.
        allow_http: whether requests may be sent over plain ``http`` to another machine.

    Raises:
        ConfigError: no region is known, boto3 is missing, or a setting is invalid.
    """

    models = re.compile(r"\w[\w.:/-]{0,255}", re.ASCII)  # ids, inference profiles and ARNs
    versions = (BEDROCK_VERSION, API_VERSION)
    parts = CLOUD_BLOCKS
    without_batches = NOT_YET
    accept = "application/json"  # the content type of the answer inside the frames

    def __init__(
        self,
        region: str | None = None,
        *,
        profile: str | None = None,
        api_key: str | None = None,
        base_url: str | None = None,
        host: Host = HOSTS["bedrock"],
        api_version: str = BEDROCK_VERSION,
        default_max_tokens: int = DEFAULT_MAX_TOKENS,
        headers: Mapping[str, str] | None = None,
        connect_timeout: Duration = 10.0,
        max_body: int = MAX_BODY,
        allow_http: bool = False,
    ) -> None:
        key = setting(api_key, "AWS_BEARER_TOKEN_BEDROCK")
        if key is not None and profile is not None:
            raise ConfigError(
                "use a profile or a Bedrock API key (api_key, AWS_BEARER_TOKEN_BEDROCK), not both"
            )
        region = setting(region, *host.region_variables) or _region_of(profile)
        if region is None:
            raise ConfigError(
                f"no region: set {' or '.join(host.region_variables)}, or the provider option region"
            )
        own = own_headers(headers)
        usual = host.address_in(region)
        url = checked_url(base_url, host.address_variables, usual, carries_secret=True, allow_http=allow_http)
        account: dict[str, Any] = {"aws_region": region, "aws_profile": profile, "api_key": key}
        identity = [setting(None, name) for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")]
        secret = [setting(None, name) for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")]

        def sdk_over(transport: Transport) -> BedrockSdk:
            if find_spec("boto3") is None:
                raise ConfigError("bedrock needs boto3: pip install 'smartbatch-llm[bedrock]'")
            with one_at_a_time():
                from smartbatch.providers.anthropic.sdk import BedrockSdk

                sdk = BedrockSdk(transport, url.url, own, **account)
                _check_credentials(sdk)
            return sdk

        super().__init__(
            name=host.name,
            scope=scope_of(host.name, url, *account.values(), *identity),
            errors=evolve(_ERRORS, secrets=secrets_of(key, *secret, own.values(), custom_headers().values())),
            network=HttpNetwork(url, connect_timeout=connect_timeout, max_body=max_body),
            sdk=sdk_over,
            api_version=api_version,
            default_max_tokens=default_max_tokens,
        )

    def call(self, body: dict[str, Any], *, stream: bool) -> tuple[str, dict[str, Any]]:
        """The model is in the path, and the version is in the body."""
        model = quote(body["model"], safe=":")
        sent = {name: value for name, value in body.items() if name != "model"}
        operation = "invoke-with-response-stream" if stream else "invoke"
        return f"/model/{model}/{operation}", {"anthropic_version": self._version, **sent}

    def split(self, pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
        """Split frames of AWS's event stream."""
        from botocore.eventstream import EventStreamBuffer, ParserError

        frames = EventStreamBuffer()
        try:
            for piece in pieces:
                frames.add_data(piece)
                for frame in frames:
                    yield _event_in(frame.headers, frame.payload)
        except (ParserError, ValueError, KeyError, TypeError, RecursionError):
            head = Reply(200, {}, b"")
            raise self._errors.broken(head, "garbled", "a frame of the stream is damaged") from None


def _event_in(headers: Mapping[str, Any], payload: bytes) -> tuple[str, bytes]:
    data = fields(decode_answer(payload)) if payload else {}
    if headers.get(":message-type") == "event":
        return "", base64.b64decode(data["bytes"])
    # exceptions of the API have a JSON object; errors of the protocol are in the headers
    code = headers.get(":exception-type") or headers.get(":error-code")
    message = data.get("message") or headers.get(":error-message")
    return "error", encode_json({"type": "error", "error": {"type": plain(code), "message": plain(message)}})


def _region_of(profile: str | None) -> str | None:
    try:
        import boto3
        from botocore.exceptions import ProfileNotFound
    except ImportError:
        return None
    try:
        region: str | None = boto3.Session(profile_name=profile).region_name
    except ProfileNotFound:
        raise ConfigError("the AWS profile is not in AWS's configuration files") from None
    return region


def _check_credentials(sdk: BedrockSdk) -> None:
    """Sign a request that is not sent. Afterwards, threads share the credentials that boto3 found.

    This takes a second on a machine without credentials.
    """
    try:
        sdk.head_of("/", _SIGNING_SECONDS, b"")
    except ProviderError as error:
        if error.kind is ErrorKind.AUTH_ERROR:
            raise ConfigError(f"{error.message}, or {_SIGN_IN}") from None


_KINDS = {
    "ThrottlingException": ErrorKind.RATE_LIMIT,
    "ServiceQuotaExceededException": ErrorKind.RATE_LIMIT,
    "ModelNotReadyException": ErrorKind.SERVER_ERROR,  # also with status 429
    "ModelTimeoutException": ErrorKind.SERVER_ERROR,
    "ModelErrorException": ErrorKind.SERVER_ERROR,
    "ModelStreamErrorException": ErrorKind.SERVER_ERROR,
    "InternalServerException": ErrorKind.SERVER_ERROR,
    "ServiceUnavailableException": ErrorKind.SERVER_ERROR,
    "AccessDeniedException": ErrorKind.AUTH_ERROR,
    "ExpiredTokenException": ErrorKind.AUTH_ERROR,
    "UnrecognizedClientException": ErrorKind.AUTH_ERROR,
    "InvalidSignatureException": ErrorKind.AUTH_ERROR,
    "IncompleteSignatureException": ErrorKind.AUTH_ERROR,
    "MissingAuthenticationTokenException": ErrorKind.AUTH_ERROR,
    "ValidationException": ErrorKind.CLIENT_ERROR,
    "ResourceNotFoundException": ErrorKind.CLIENT_ERROR,
}
_ADVICE = {
    "AccessDeniedException": "allow bedrock:InvokeModel, and request access to the model in this region",
    "ExpiredTokenException": "sign in to AWS again, for example with aws sso login",
}
_A_DAY = re.compile(r"tokens per day", re.I)
_TOO_LONG = re.compile(r"input is too long", re.I)
_NO_MODEL = re.compile(r"model identifier|on-demand throughput|could not resolve the foundation model", re.I)
_NO_VERSION = re.compile(r"api version|anthropic_version", re.I)


def _understand(reply: Reply, data: Any) -> Refusal:
    """The type of an error is in a header; in a stream, it is in the event."""
    error = error_in(data)
    message = plain(error.get("message") or fields(data).get("message") or fields(data).get("Message"))
    named = error.get("type") or reply.headers.get("x-amzn-errortype") or fields(data).get("__type")
    code = short(plain(named).partition(":")[0].rpartition("#")[2], PLAIN_WORD)
    word = code and code[0].upper() + code[1:]  # in streams, the same names begin with a lower-case letter
    if word == "ThrottlingException" and _A_DAY.search(message):
        text = "the account's daily token quota is used up; use another model or region"
        return Refusal(ErrorKind.NO_MONEY, text, "daily_quota")
    # the text about a wrong signature contains all signed headers, including the session token
    message = message.partition("The Canonical String")[0]
    kind = _KINDS.get(word or "") or kind_of(reply.status, None, None, message)
    advice = _ADVICE.get(word or "", _SIGN_IN if kind is ErrorKind.AUTH_ERROR else "")
    if kind is ErrorKind.CLIENT_ERROR and not reply.ok:
        kind = kind_of(reply.status, None, None, message)
        if _TOO_LONG.search(message):
            kind = ErrorKind.CONTEXT_TOO_LONG
        elif _NO_MODEL.search(message) or word == "ResourceNotFoundException":
            word, advice = "model_not_found", "check the model's id or inference profile in this region"
        elif _NO_VERSION.search(message):
            advice = "set the provider option api_version"
    return Refusal(kind, message, word, advice=advice)


_ERRORS = ErrorReader(_understand, lambda headers: None, "x-amzn-requestid")  # noqa: ARG005 - no limits
