"""How the API of a host differs from OpenAI's: data, and functions where data does not suffice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import evolve, field, frozen

from smartbatch.emulator.batches.batch_records import BatchSnapshot, IdFormat, OutputLine, StoredFile
from smartbatch.emulator.http.head import Head
from smartbatch.emulator.openai.batches import InputRules
from smartbatch.emulator.openai.model_calls import parse_call
from smartbatch.emulator.openai.parsing import api_error, check_rejected
from smartbatch.emulator.parsed_requests import ModelCall, ModelOutput
from smartbatch.emulator.provider_api import BatchContext, ServerReply
from smartbatch.emulator.settings import EmulatorSettings

_DATA = b"data: {"


@frozen
class CreateField:
    """A field of the call that creates a batch.

    Attributes:
        kind: its JSON type.
        required: whether it must be present.
        values: the accepted values; empty for any.
    """

    kind: type = str
    required: bool = False
    values: tuple[Any, ...] = ()


@frozen
class Variant:
    """Another interpretation of a fact that the documentation leaves open.

    Attributes:
        effect: how the API behaves.
        changes: attributes of the dialect, with their values in this interpretation.
    """

    effect: str
    changes: Mapping[str, Any] = field(factory=dict)


UNFENCED = Variant(
    "a late create call takes effect although its input file was deleted", {"needs_file": False}
)


@frozen
class BatchCall:
    """A request about files or batches."""

    dialect: HostDialect
    head: Head
    body: bytes = field(repr=False)
    context: BatchContext
    key: str = field(repr=False)

    @property
    def query(self) -> dict[str, str]:
        """The first value of each query parameter."""
        return {name: values[0] for name, values in self.head.parameters.items()}

    def unix(self, moment: float | None) -> int | None:
        """Return monotonic seconds as Unix seconds; ``None`` for a moment that is never reached."""
        if moment is None or math.isinf(moment):
            return None
        return int(self.context.backend.unix(moment))


# returns the status and the JSON value of an error, from the fields of OpenAI's error and the path
ErrorFormat: TypeAlias = "Callable[[HostDialect, int, Mapping[str, Any], str], tuple[int, Any]]"


@frozen(kw_only=True, eq=False)
class HostDialect:
    """The API of one host.

    Attributes:
        name: the host, as in ``name:model``.
        address_variable: the environment variable with the base URL.
        key_variable: the environment variable with the key.
        path: the path before ``/chat/completions``, as in the host's base URL.
        open_paths: starts of paths that need no key, because the path itself gives access.
        key_header: the header with the key, besides ``Authorization``.
        endpoints: the model calls that the host answers, as OpenAI's paths.
        aliases: other names of these paths in batches.
        body_fields: the fields accepted in the body of a chat; ``None`` accepts all.
        rejects: parameters of a chat that the host does not support.
        filters: whether a filter blocks prompts, rather than the model refusing them.
        retry_after_ms: whether a 429 also has the waiting time in milliseconds.
        flex_status: the HTTP status if the flex tier has no capacity.
        always_usage: whether every stream ends with the usage.
        errors: the format of errors.
        price: USD per token in ``usage.cost``; ``None`` if answers have no cost.
        batch_share: price in a batch relative to real time.
        ids: the format of IDs.
        jobs: the path of batches, below ``path``.
        cancel: the end of the path that cancels a batch; ``None`` if batches cannot be cancelled.
        rules: what the input of a batch may contain.
        purposes: accepted purposes of uploads; the first one is that of batch input. Without any, the host
            has no files.
        expires_field: the field of an upload with the seconds until the file expires.
        min_lifetime: minimum value of that field.
        max_files: maximum number of uploaded files that do not expire; ``None`` for no limit.
        max_expiring_files: maximum number of uploaded files that expire; ``None`` for no limit.
        create_fields: the fields of the call that creates a batch.
        windows: the shortest and the longest completion window, in hours.
        check_create: raises ``ApiError`` for fields that are invalid together.
        refuses_unknown: whether the create call may have no other fields.
        refuses_input: whether the create call fails for invalid input; otherwise the batch fails later.
        create_status: the HTTP status of the answer to the create call.
        cancel_ended: the HTTP status of a call that cancels a batch that has ended; ``None`` if the call has
            no effect.
        needs_file: whether a late create call has no effect if the input file was deleted first.
        expires: whether requests that have not run expire at the end of the window.
        not_run: whether the results include the requests that have not run.
        inline: the field of a finished batch with its results; ``None`` if they are in files or pages.
        inline_query: the query parameter that requests them; ``None`` if they are always included.
        variants: other interpretations of facts that the documentation leaves open, by name.
        chosen: the names of the variants that apply.
        batch: creates the JSON object of a batch.
        created: creates the answer of the create call; ``None`` for the object of the batch.
        line: creates the JSON object of a result; ``None`` for OpenAI's.
        file: creates the JSON object of a file with the given size.
        list_batches: returns the reply with a list of batches.
        routes: answers further requests, by method and pattern of the path below ``path``.
    """

    name: str
    address_variable: str = ""
    key_variable: str = ""
    path: str = "/v1"
    open_paths: tuple[str, ...] = ()
    key_header: str | None = None
    endpoints: tuple[str, ...] = ("/v1/chat/completions", "/v1/embeddings")
    aliases: Mapping[str, str] = field(factory=dict)
    body_fields: frozenset[str] | None = None
    rejects: frozenset[str] = frozenset()
    filters: bool = False
    retry_after_ms: bool = False
    flex_status: int = 429
    always_usage: bool = False
    errors: ErrorFormat
    price: float | None = None
    batch_share: float = 0.5
    ids: IdFormat = field(factory=IdFormat)
    jobs: str = "batches"
    cancel: str | None = "/cancel"
    rules: InputRules = field(factory=InputRules)
    purposes: tuple[str, ...] = ("batch",)
    expires_field: str = "expires_after[seconds]"
    min_lifetime: int = 3600
    max_files: int | None = None
    max_expiring_files: int | None = None
    create_fields: Mapping[str, CreateField]
    windows: tuple[int, int] = (24, 24)
    check_create: Callable[[HostDialect, Mapping[str, Any]], None] | None = None
    refuses_unknown: bool = False
    refuses_input: bool = False
    create_status: int = 200
    cancel_ended: int | None = 409
    needs_file: bool = True
    expires: bool = True
    not_run: bool = True
    inline: str | None = None
    inline_query: str | None = None
    variants: Mapping[str, Variant] = field(factory=dict)
    chosen: frozenset[str] = frozenset()
    batch: Callable[[BatchSnapshot, BatchCall], dict[str, Any]]
    created: Callable[[BatchSnapshot, BatchCall], dict[str, Any]] | None = None
    line: Callable[[OutputLine, BatchCall], dict[str, Any]] | None = None
    file: Callable[[StoredFile, int, BatchCall], dict[str, Any]]
    list_batches: Callable[[Sequence[BatchSnapshot], BatchCall], ServerReply]
    routes: Mapping[tuple[str, str], Callable[..., ServerReply]] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        # the record is frozen
        for name in ("address_variable", "key_variable"):
            if not getattr(self, name):
                end = "_BASE_URL" if name == "address_variable" else "_API_KEY"
                object.__setattr__(self, name, self.name.upper() + end)

    def check_fields(self, fields: Mapping[str, Any]) -> None:
        """Raise ``ApiError`` for a create call with missing, invalid or unknown fields."""
        for name, rule in self.create_fields.items():
            value = fields.get(name)
            if value is None and rule.required:
                raise api_error(400, f"'{name}' is required", code="missing_required_parameter", param=name)
            if value is not None and type(value) is not rule.kind:
                message = f"Invalid type for '{name}'."
                raise api_error(400, message, code="invalid_type", param=name)
            if value is not None and rule.values and value not in rule.values:
                accepted = ", ".join(map(str, rule.values))
                message = f"Invalid value for '{name}'. Supported values are: {accepted}."
                raise api_error(400, message, code="invalid_value", param=name)
        unknown = fields.keys() - self.create_fields.keys()
        if self.refuses_unknown and unknown:
            name = min(unknown)
            raise api_error(400, f"Unknown parameter: '{name}'.", code="unknown_parameter", param=name)
        if self.check_create is not None:
            self.check_create(self, fields)

    def parse_line(self, endpoint: str, body: Mapping[str, Any], settings: EmulatorSettings) -> ModelCall:
        """Parse the body of a request in a batch; see :meth:`parse`."""
        return self.parse(endpoint, body, settings, share=self.batch_share)

    def parse(
        self, endpoint: str, body: Mapping[str, Any], settings: EmulatorSettings, *, share: float = 1.0
    ) -> ModelCall:
        """Parse the body of a model call, in real time or in a batch.

        Raises:
            ApiError: the host does not accept it.
        """
        endpoint = self.aliases.get(endpoint, endpoint)
        if endpoint not in self.endpoints:
            raise api_error(404, f"Invalid URL ({endpoint})")
        if self.body_fields is not None and endpoint == "/v1/chat/completions":
            for name in body:
                if name not in self.body_fields:
                    message = f"Unknown parameter: '{name}'."
                    raise api_error(400, message, code="unknown_parameter", param=name)
        check_rejected(body, self.rejects)
        if self.always_usage and body.get("stream"):
            body = {**body, "stream_options": {"include_usage": True}}
        call = parse_call(endpoint, body, settings)
        if self.filters:
            call = _FilteredCall(call)
        return call if self.price is None else _PricedCall(call, self.price * share)

    def error(self, status: int, body: bytes, path: str) -> tuple[int, Any]:
        """Return an error of OpenAI's format in the format of the host."""
        try:
            fields = json.loads(body)["error"]
        except (ValueError, TypeError, KeyError):
            return status, json.loads(body)
        return self.errors(self, status, fields, path)


def uuid_of(digits: str) -> str:
    """Return a UUID made from 24 hexadecimal digits."""
    return f"{digits[:8]}-{digits[8:12]}-4{digits[12:15]}-8{digits[15:18]}-{digits[12:24]}"


class _WrappedCall(ModelCall):
    def __init__(self, call: ModelCall) -> None:
        self.model, self.prompt, self.charge, self.tier = call.model, call.prompt, call.charge, call.tier
        self._call = call

    @property
    def prompt_tokens(self) -> int:
        return self._call.prompt_tokens


class _FilteredCall(_WrappedCall):
    """A call whose prompt a filter may block."""

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        if refuse:
            message = "The prompt triggered the content management policy. Please modify it and retry."
            raise api_error(400, message, code="content_filter", param="prompt")
        return self._call.run(settings, identity, refuse=False)


class _PricedCall(_WrappedCall):
    """A call whose answer has ``usage.cost``, and each choice ``native_finish_reason``.

    Args:
        price: USD per token.
    """

    def __init__(self, call: ModelCall, price: float) -> None:
        super().__init__(call)
        self._price = price

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        output = self._call.run(settings, identity, refuse=refuse)
        cost = output.billed * self._price
        if isinstance(output.body, bytes):
            return evolve(output, body=json.dumps(_with_cost(json.loads(output.body), cost)).encode())
        events = [
            _DATA[:-1] + json.dumps(_with_cost(json.loads(event[len(_DATA) - 1 :]), cost)).encode() + b"\n\n"
            if event.startswith(_DATA)
            else event
            for event in output.body
        ]
        return evolve(output, body=events)


def _with_cost(value: dict[str, Any], cost: float) -> dict[str, Any]:
    if isinstance(value.get("usage"), dict):
        value["usage"] |= {"cost": cost, "is_byok": False}
    for choice in value.get("choices", ()):
        choice["native_finish_reason"] = choice["finish_reason"]
    return value
