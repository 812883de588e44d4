"""Azure, Groq and DashScope: OpenAI's Batch API with other limits, windows, lists and errors.

Sources: Azure's REST reference and batch guide, the types of the ``groq`` SDK 1.7 and Groq's errors, and
DashScope's guide to the interface compatible with OpenAI's, November 2026.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smartbatch.emulator.batches.batch_records import BatchSnapshot, IdFormat, StoredFile
from smartbatch.emulator.hosts.host_dialect import (
    UNFENCED,
    BatchCall,
    CreateField,
    HostDialect,
    Variant,
    uuid_of,
)
from smartbatch.emulator.openai.batches import InputRules, batch_object
from smartbatch.emulator.openai.files import file_object, listing, page
from smartbatch.emulator.provider_api import ServerReply, json_reply

_CHAT, _EMBEDDINGS, _RESPONSES = "/v1/chat/completions", "/v1/embeddings", "/v1/responses"
_MB = 1_000_000
_AZURE_CODES = {
    401: ("401", "Access denied due to invalid subscription key or wrong API endpoint."),
    404: ("DeploymentNotFound", "The API deployment for this resource does not exist."),
    429: ("429", "Requests have exceeded call rate limit of your current pricing tier. Please retry later."),
}


def _create_fields(*endpoints: str) -> dict[str, CreateField]:
    return {
        "input_file_id": CreateField(required=True),
        "endpoint": CreateField(required=True, values=endpoints),
        "completion_window": CreateField(required=True),
        "metadata": CreateField(dict),
    }


def _file(file: StoredFile, size: int, call: BatchCall) -> dict[str, Any]:
    return file_object(file, call.context, size)


def _azure_file(file: StoredFile, size: int, call: BatchCall) -> dict[str, Any]:
    shown = _file(file, size, call)
    checked = file.created_at + call.context.settings.batch_validating
    if "pending_files" in call.dialect.chosen and file.batch is None and call.context.now < checked:
        shown["status"] = "pending"
    return shown


def _batch(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    hours = round(24 * batch.windows)
    window = "24h" if hours == 24 else f"{hours // 24}d" if hours % 24 == 0 else f"{hours}h"
    return {**batch_object(batch, call.context), "completion_window": window}


def _azure_batch(batch: BatchSnapshot, call: BatchCall) -> dict[str, Any]:
    """Return a batch with an expiry, at which nothing happens."""
    expires_at = call.unix(batch.created_at + call.context.settings.batch_window)
    return {**batch_object(batch, call.context), "expires_at": expires_at}


def _list(batches: Sequence[BatchSnapshot], call: BatchCall) -> ServerReply:
    shown, more = page(batches, call.head.parameters, most=100, default=20)
    return json_reply(listing([call.dialect.batch(batch, call) for batch in shown], more))


def _whole_list(batches: Sequence[BatchSnapshot], call: BatchCall) -> ServerReply:
    return json_reply({"object": "list", "data": [_batch(batch, call) for batch in batches]})


def _azure_error(_dialect: HostDialect, status: int, error: Mapping[str, Any], _path: str) -> tuple[int, Any]:
    if error["code"] == "content_filter":
        filters = {"hate": {"filtered": True, "severity": "high"}}
        inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": filters}
        return status, {"error": {**error, "type": None, "status": status, "innererror": inner}}
    if status in (401, 429) or error["code"] == "model_not_found":
        code, message = _AZURE_CODES[status]
        return status, {"error": {"code": code, "message": message}}
    return status, {"error": error}


def _groq_error(_dialect: HostDialect, status: int, error: Mapping[str, Any], _path: str) -> tuple[int, Any]:
    """Return an error with only those fields that have a value."""
    shown = {name: value for name, value in error.items() if value is not None}
    if error["code"] in ("unknown_parameter", "unsupported_parameter"):
        shown["message"] = f"property '{error['param']}' is unsupported"
        del shown["code"]
    return status, {"error": shown}


def _dashscope_error(
    _dialect: HostDialect, status: int, error: Mapping[str, Any], _path: str
) -> tuple[int, Any]:
    if error["code"] == "insufficient_quota":
        message = "Access denied, please make sure your account is in good standing."
        return 400, {"error": {**error, "code": "Arrearage", "type": "Arrearage", "message": message}}
    if status == 429:
        error = {**error, "code": "limit_requests", "type": "limit_requests"}
    return status, {"error": error, "request_id": "emulator"}


AZURE = HostDialect(
    name="azure",
    address_variable="AZURE_OPENAI_ENDPOINT",
    key_variable="AZURE_OPENAI_API_KEY",
    path="/openai/v1",
    key_header="api-key",
    endpoints=(_CHAT, _EMBEDDINGS, _RESPONSES),
    aliases={path.removeprefix("/v1"): path for path in (_CHAT, _EMBEDDINGS, _RESPONSES)},
    filters=True,
    retry_after_ms=True,
    errors=_azure_error,
    ids=IdFormat(batch=lambda digits: f"batch_{uuid_of(digits)}", always_both=True),
    rules=InputRules(max_lines=50_000, max_bytes=200 * _MB),
    min_lifetime=14 * 86_400,
    max_files=500,
    max_expiring_files=10_000,
    create_fields={
        **_create_fields(_CHAT, _EMBEDDINGS, _RESPONSES, "/chat/completions", "/embeddings", "/responses"),
        "output_expires_after": CreateField(dict),
    },
    cancel_ended=400,
    expires=False,
    variants={
        "unfenced": UNFENCED,
        "lines_100000": Variant(
            "a batch may have up to 100,000 requests",
            {"rules": InputRules(max_lines=100_000, max_bytes=200 * _MB)},
        ),
        "pending_files": Variant(
            "a file is pending while it is checked, for the time set by batch_validating"
        ),
        "no_empty_files": Variant(
            "a result file without lines does not exist",
            {"ids": IdFormat(batch=lambda digits: f"batch_{uuid_of(digits)}")},
        ),
    },
    batch=_azure_batch,
    file=_azure_file,
    list_batches=_list,
)

GROQ = HostDialect(
    name="groq",
    path="/openai/v1",
    endpoints=(_CHAT, _RESPONSES),
    # accepted by OpenAI, but answered with 400 here
    rejects=frozenset({"logit_bias", "logprobs", "top_logprobs"}),
    flex_status=498,
    errors=_groq_error,
    ids=IdFormat(batch="batch_01".__add__, file="file_01".__add__),
    rules=InputRules(max_lines=50_000, max_bytes=100 * _MB, one_model=False),
    create_fields=_create_fields(_CHAT),
    windows=(24, 7 * 24),
    variants={
        "unfenced": UNFENCED,
        "bytes_200": Variant(
            "a file may have up to 200 MB",
            {"rules": InputRules(max_lines=50_000, max_bytes=200 * _MB, one_model=False)},
        ),
        "refuses_unknown": Variant("a create call with unknown fields is refused", {"refuses_unknown": True}),
        "cursor": Variant("lists have pages that continue after a batch", {"list_batches": _list}),
    },
    batch=_batch,
    file=_file,
    list_batches=_whole_list,
)

DASHSCOPE = HostDialect(
    name="dashscope",
    path="/compatible-mode/v1",
    endpoints=(_CHAT, _EMBEDDINGS),
    aliases={"/v1/chat/ds-test": _CHAT},
    errors=_dashscope_error,
    ids=IdFormat(batch=lambda digits: f"batch_{uuid_of(digits)}", file=lambda digits: f"file-batch-{digits}"),
    rules=InputRules(max_lines=50_000, max_bytes=100 * _MB),
    create_fields=_create_fields(_CHAT, _EMBEDDINGS, "/v1/chat/ds-test"),
    windows=(24, 14 * 24),
    variants={
        "unfenced": UNFENCED,
        "only_24h": Variant("the completion window is always 24h", {"windows": (24, 24)}),
        "bytes_500": Variant(
            "a file may have up to 500 MB", {"rules": InputRules(max_lines=50_000, max_bytes=500 * _MB)}
        ),
    },
    batch=_batch,
    file=_file,
    list_batches=_list,
)
