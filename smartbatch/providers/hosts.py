"""The hosts that are known by name: address, key, price and abilities, as data.

A host is a service that implements the API of OpenAI, Anthropic or Gemini. The adapters read its record; no
code depends on the name of a host. Sources: the vendors' documentation and SDKs as of November 2026.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any, Literal, TypeAlias, get_args, get_origin, get_type_hints

from attrs import evolve, field, frozen

from smartbatch.errors import ConfigError, ErrorKind, did_you_mean
from smartbatch.providers.openai.dialect import (
    AZURE,
    DASHSCOPE,
    GROQ,
    MISTRAL,
    OPENAI,
    OPENAI_LIKE,
    OPENROUTER,
    TOGETHER,
    XAI,
    BatchDialect,
)
from smartbatch.providers.openai.reasoning import (
    DEEPSEEK_EFFORTS,
    GROQ_EFFORTS,
    MISTRAL_EFFORTS,
    OPENAI_EFFORTS,
    OPENROUTER_EFFORTS,
    EffortDialect,
)
from smartbatch.providers.value_types import fits, type_words

Api: TypeAlias = Literal["openai", "anthropic", "gemini", "bedrock", "vertex", "vertex-claude"]
"""An API and how its requests are authorized. ``bedrock`` and ``vertex-claude`` use Anthropic's Messages
API, ``vertex`` uses Gemini's.
"""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ONLY_IN_CODE = ("name", "apis", "credentials", "region_variables", "efforts")
_OTHER_PREFIXES = ("call", "sim")  # of providers that are not hosts


@frozen(kw_only=True)
class Host:
    """A service that answers the requests for ``name:model``.

    Attributes:
        name: the prefix in ``name:model``.
        api: the API that the service implements.
        apis: other APIs, by the beginning of their models' names.
        address: the base URL; ``None`` if each account has its own. ``{region}`` stands for the region.
        regions: other base URLs, by the value of the provider option ``region``.
        region_variables: environment variables with the region.
        servers: the host's server names; one that begins with a period stands for all names that end in it.
            By default, the servers in the addresses. A base URL on one of these servers has the host's
            abilities, whatever its prefix.
        path: added to a base URL without a path, because environment variables often contain only the server.
        key_variables: environment variables with the key; the first that is set applies. By default
            ``NAME_API_KEY``.
        address_variables: environment variables with the base URL. By default ``NAME_BASE_URL``.
        account_variables: environment variables with OpenAI's organization and project, in this order.
        key_header: the header with the key; in ``Authorization``, ``Bearer`` precedes it.
        needs_key: False for servers that users run themselves, and for hosts with ``credentials``.
        credentials: describes to users the credentials that an SDK finds itself; ``None`` if a key is used.
        price_id: the host's name in the price table; ``None`` if the table does not list its prices.
        families: parts of the names of the host's models, if ``price_id`` in the table has other models too.
        priced: False if calls cost nothing, so that a missing price is not an error.
        batch_share: price in a batch relative to real time, for models without batch rates in the table.
            ``None`` if it depends on the model.
        cached_batch_share: the same for cached input.
        writes_cache: whether long prompts are cached automatically, at the table's price of cache writes.
        weekend_price_hour: the hour of the day, UTC, whose price applies all Saturday and Sunday.
        max_tokens_field: the name of the output limit in a chat; the other one is sent if it is rejected.
        stream_usage: whether streamed chats accept ``stream_options``; ``None`` to send it until rejected.
        seed_field: the name of ``seed`` in a chat; ``None`` if the host does not support seeds.
        schema_mode: how schemas are sent at first.
        efforts: how ``reasoning_effort`` is sent in a chat, and the levels of known models.
        reasoning_turns: whether chats accept the reasoning of earlier turns.
        embeddings: whether the host computes embeddings.
        flex: whether the host has a cheaper, slower tier.
        prompt_cache: whether the host accepts OpenAI's fields for its prompt cache.
        max_calls: maximum concurrent calls, by the beginning of models' names.
        telemetry_name: the host's name in OpenTelemetry; ``None`` for its own.
        telemetry_operation: what OpenTelemetry calls a generation at the host.
        error_kinds: kinds by error code, for codes with a meaning different from OpenAI's.
        batches: the host's Batch API; ``None`` without one.
        uploads: whether prompts may refer to files uploaded with OpenAI's purpose ``user_data``.

    Raises:
        ConfigError: a name, a share or an hour cannot be used.
    """

    name: str
    api: Api = "openai"
    apis: Mapping[str, Api] = field(factory=dict)
    address: str | None = None
    regions: Mapping[str, str] = field(factory=dict)
    region_variables: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    path: str = ""
    key_variables: tuple[str, ...] = ()
    address_variables: tuple[str, ...] = ()
    account_variables: tuple[str, ...] = ()
    key_header: str = "Authorization"
    needs_key: bool = True
    credentials: str | None = None
    price_id: str | None = None
    families: tuple[str, ...] = ()
    priced: bool = True
    batch_share: float | None = None
    cached_batch_share: float = 1.0
    writes_cache: bool = False
    weekend_price_hour: int | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    stream_usage: bool | None = None
    seed_field: str | None = "seed"
    schema_mode: Literal["json_schema", "json_object", "prompt"] = "json_schema"
    efforts: EffortDialect = field(factory=EffortDialect)
    reasoning_turns: bool = True
    embeddings: bool = True
    flex: bool = False
    prompt_cache: bool = False
    max_calls: Mapping[str, int] = field(factory=dict)
    telemetry_name: str | None = None
    telemetry_operation: str = "chat"
    error_kinds: Mapping[str, ErrorKind] = field(factory=dict)
    batches: BatchDialect | None = None
    uploads: bool = False

    def __attrs_post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _OTHER_PREFIXES:
            raise ConfigError(
                f"host {self.name!r:.40}: the name must start with a lower-case letter, have up to 32 "
                f"letters, digits, - and _, and differ from {' and '.join(_OTHER_PREFIXES)}"
            )
        # the value is not shown, because it may be the key itself
        if not all(map(_VARIABLE.fullmatch, (*self.key_variables, *self.address_variables))):
            raise ConfigError(
                f"host {self.name}: key_variables and address_variables must be names of environment "
                "variables, with letters, digits and _"
            )
        for share in ("batch_share", "cached_batch_share"):
            if not 0 <= (getattr(self, share) or 0) <= 1:
                raise ConfigError(f"host {self.name}: {share} must be from 0 to 1: 0.5 is half the price")
        if any(calls < 1 for calls in self.max_calls.values()):
            raise ConfigError(f"host {self.name}: max_calls must be 1 or more")
        if self.weekend_price_hour not in (None, *range(24)):
            raise ConfigError(f"host {self.name}: weekend_price_hour must be from 0 to 23")
        prefix = self.name.upper().replace("-", "_")
        # the record is frozen
        if not self.key_variables:
            object.__setattr__(self, "key_variables", (f"{prefix}_API_KEY",))
        if not self.address_variables:
            object.__setattr__(self, "address_variables", (f"{prefix}_BASE_URL",))

    @property
    def usual_address(self) -> str:
        """The default base URL, or a description of the one to set."""
        return self.address or f"set {' or '.join(self.address_variables)}"

    def key_variable(self) -> str | None:
        """Return the environment variable that holds the key, if any is set."""
        return next((name for name in self.key_variables if os.environ.get(name, "").strip()), None)

    def api_of(self, model: str) -> Api:
        """Return the API of a model; its name has no prefix."""
        return next((api for start, api in self.apis.items() if model.startswith(start)), self.api)

    def address_in(self, region: str | None) -> str | None:
        """Return the base URL of a region, or the default one.

        Raises:
            ConfigError: the host has no such region, or its name is invalid.
        """
        if region is None:
            return self.address
        if region not in self.regions and "{region}" in (self.address or ""):
            if not _NAME.fullmatch(region):
                raise ConfigError(f"{region!r} is not the name of a region of {self.name}")
            return (self.address or "").format(region=region)
        if region not in self.regions:
            known = ", ".join(map(repr, self.regions)) or "none"
            near = did_you_mean(region, self.regions)
            raise ConfigError(f"{self.name} has no region {region!r}; known regions: {known}{near}")
        return self.regions[region]

    def serves(self, server: str) -> bool:
        """Whether ``server``, the server's name in a base URL, is one of the host's."""
        named = self.servers or tuple(map(_server_of, filter(None, (self.address, *self.regions.values()))))
        return any(server.endswith(each) if each.startswith(".") else server == each for each in named)


def _server_of(address: str) -> str:
    return address.partition("://")[2].partition("/")[0].partition(":")[0]


COMPATIBLE = Host(
    name="openai",
    needs_key=False,
    batches=OPENAI_LIKE,
)
"""A server about which only the address is known."""

_BUILT_IN = (
    Host(
        name="openai",
        address="https://api.openai.com/v1",
        account_variables=("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"),
        price_id="openai",
        batch_share=0.5,  # guide to the Batch API; for cached input it depends on the model
        writes_cache=True,
        max_tokens_field="max_completion_tokens",
        efforts=OPENAI_EFFORTS,
        reasoning_turns=False,
        flex=True,
        prompt_cache=True,
        batches=OPENAI,
        uploads=True,
    ),
    Host(
        name="anthropic",
        api="anthropic",
        address="https://api.anthropic.com",
        key_variables=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
        price_id="anthropic",
        batch_share=0.5,  # page on batch processing: half of all prices, including cache reads
        cached_batch_share=0.5,
        embeddings=False,
    ),
    Host(
        name="gemini",
        api="gemini",
        address="https://generativelanguage.googleapis.com",
        key_variables=("GOOGLE_API_KEY", "GEMINI_API_KEY"),
        address_variables=("GOOGLE_GEMINI_BASE_URL",),
        price_id="google",
        families=("gemini", "gemma"),  # Google Cloud also sells Anthropic's models
        batch_share=0.5,  # price list: half, including embeddings; cached tokens as in real time
        flex=True,
        telemetry_name="gcp.gemini",
        telemetry_operation="generate_content",
    ),
    Host(
        name="bedrock",
        api="bedrock",
        address="https://bedrock-runtime.{region}.amazonaws.com",
        region_variables=("AWS_REGION", "AWS_DEFAULT_REGION"),
        key_variables=("AWS_BEARER_TOKEN_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_PROFILE"),
        address_variables=("ANTHROPIC_BEDROCK_BASE_URL", "BEDROCK_BASE_URL"),
        needs_key=False,
        credentials="the credentials that boto3 finds",
        price_id="aws",
        families=("anthropic.",),
        embeddings=False,
        telemetry_name="aws.bedrock",
    ),
    Host(
        name="vertex",
        api="vertex",
        apis={"claude": "vertex-claude"},
        address="https://{region}-aiplatform.googleapis.com",
        regions={
            "global": "https://aiplatform.googleapis.com",
            "us": "https://aiplatform.us.rep.googleapis.com",
            "eu": "https://aiplatform.eu.rep.googleapis.com",
        },
        region_variables=("GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION"),
        key_variables=("GOOGLE_APPLICATION_CREDENTIALS",),
        address_variables=("GOOGLE_VERTEX_BASE_URL", "VERTEX_BASE_URL"),
        needs_key=False,
        credentials="Application Default Credentials",
        price_id="google",
        families=("gemini", "claude"),
        embeddings=False,
        telemetry_name="gcp.vertex_ai",
        telemetry_operation="generate_content",
    ),
    # the model is the name of a deployment; batches need one of the type GlobalBatch or DataZoneBatch
    Host(
        name="azure",
        servers=(".openai.azure.com", ".services.ai.azure.com", ".cognitiveservices.azure.com"),
        path="/openai/v1",
        key_variables=("AZURE_OPENAI_API_KEY",),
        address_variables=("AZURE_OPENAI_ENDPOINT", "AZURE_BASE_URL"),
        key_header="api-key",
        price_id="azure",
        batch_share=0.5,
        writes_cache=True,
        max_tokens_field="max_completion_tokens",
        reasoning_turns=False,
        telemetry_name="azure.ai.openai",
        batches=AZURE,
    ),
    Host(
        name="mistral",
        address="https://api.mistral.ai/v1",
        path="/v1",
        price_id="mistral",
        batch_share=0.5,
        stream_usage=False,  # every stream reports its usage, and unknown fields are rejected
        seed_field="random_seed",
        efforts=MISTRAL_EFFORTS,
        reasoning_turns=False,
        telemetry_name="mistral_ai",
        batches=MISTRAL,
    ),
    Host(
        name="groq",
        address="https://api.groq.com/openai/v1",
        path="/openai/v1",
        price_id="groq",
        batch_share=0.5,
        max_tokens_field="max_completion_tokens",
        efforts=GROQ_EFFORTS,
        reasoning_turns=False,
        embeddings=False,
        batches=GROQ,
    ),
    Host(
        name="openrouter",
        address="https://openrouter.ai/api/v1",
        path="/api/v1",
        price_id="openrouter",
        efforts=OPENROUTER_EFFORTS,
        batches=OPENROUTER,
    ),
    # the price table has peak hours on every day, but there are none at weekends
    Host(
        name="deepseek",
        address="https://api.deepseek.com/v1",
        path="/v1",
        price_id="deepseek",
        weekend_price_hour=12,
        max_calls={"deepseek-v4-pro": 500},  # others allow more than a client sends
        schema_mode="json_object",
        efforts=DEEPSEEK_EFFORTS,
        embeddings=False,
    ),
    Host(
        name="xai",
        address="https://api.x.ai/v1",
        path="/v1",
        price_id="x-ai",
        max_tokens_field="max_completion_tokens",
        embeddings=False,
        telemetry_name="x_ai",
        batches=XAI,
    ),
    Host(
        name="together",
        address="https://api.together.xyz/v1",
        servers=("api.together.xyz", "api.together.ai"),
        path="/v1",
        price_id="together",
        batches=TOGETHER,
    ),
    Host(
        name="fireworks",
        address="https://api.fireworks.ai/inference/v1",
        path="/inference/v1",
        price_id="fireworks",
    ),
    Host(
        name="cerebras",
        address="https://api.cerebras.ai/v1",
        path="/v1",
        price_id="cerebras",
        max_tokens_field="max_completion_tokens",
        embeddings=False,
    ),
    Host(
        name="dashscope",
        address="https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        regions={
            "intl": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
            "us": "https://dashscope-us.aliyuncs.com/compatible-mode/v1",
            "cn": "https://dashscope.aliyuncs.com/compatible-mode/v1",
        },
        path="/compatible-mode/v1",
        batch_share=0.5,
        error_kinds={"insufficient_quota": ErrorKind.RATE_LIMIT},  # of tokens per minute
        batches=DASHSCOPE,
    ),
    Host(
        name="moonshot",
        address="https://api.moonshot.ai/v1",
        regions={"intl": "https://api.moonshot.ai/v1", "cn": "https://api.moonshot.cn/v1"},
        path="/v1",
        price_id="moonshotai",
        embeddings=False,
    ),
    Host(name="ollama", address="http://127.0.0.1:11434/v1", path="/v1", needs_key=False, priced=False),
    Host(name="vllm", address="http://127.0.0.1:8000/v1", path="/v1", needs_key=False, priced=False),
    Host(name="lmstudio", address="http://127.0.0.1:1234/v1", path="/v1", needs_key=False, priced=False),
)

HOSTS: dict[str, Host] = {each.name: each for each in _BUILT_IN}
"""The known hosts by name."""


def host_at(server: str) -> Host:
    """Return the host with OpenAI's API whose servers include ``server``, or :data:`COMPATIBLE`."""
    # the address of a server that users run themselves does not show which program it is
    listed = (each for each in HOSTS.values() if each.api == "openai" and each.needs_key)
    return next((each for each in listed if each.serves(server)), COMPATIBLE)


def add_host(host: Host) -> None:
    """Make ``NAME:model`` known in this process; an earlier host with that name is replaced."""
    HOSTS[host.name] = host


def add_hosts(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Make the hosts in the setting ``hosts`` known in this process, or none of them after an error.

    Args:
        tables: fields of :class:`Host` by the host's name. ``batches`` is the name of a built-in host with
            the same Batch API. Fields of a built-in host replace its own.

    Raises:
        ConfigError: a name, a field or a value cannot be used.
    """
    for host in [_host_of(name, table) for name, table in tables.items()]:
        add_host(host)


def _host_of(name: str, table: Mapping[str, Any]) -> Host:
    built_in = {each.name: each for each in _BUILT_IN}
    base = built_in.get(name) or Host(name=name)
    types = {field: kind for field, kind in get_type_hints(Host).items() if field not in _ONLY_IN_CODE}
    values: dict[str, Any] = {}
    for key, value in table.items():
        # 1. Unknown fields. A settings file is no place for a key.
        if key == "api_key":
            variables = " or ".join(base.key_variables)
            raise ConfigError(f"host {name}: leave api_key out, and set {variables} in the environment")
        if key not in types:
            raise ConfigError(f"host {name}: unknown field {key}{did_you_mean(key, types)}")
        # 2. TOML has no null, tuples, enumerations or records.
        kind = types[key]
        if value == "none" and NoneType in get_args(kind):
            value = None
        elif get_origin(kind) is tuple:
            value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value
        elif key == "error_kinds" and isinstance(value, dict):
            kinds = {each.value: each for each in ErrorKind}
            for code, word in value.items():
                if word not in kinds:
                    near = did_you_mean(word, kinds) or f"; use one of {', '.join(kinds)}"
                    raise ConfigError(f"host {name}: the error {code} has an unknown kind{near}")
            value = {code: kinds[word] for code, word in value.items()}
        elif key == "batches":
            with_batches = [other for other, each in built_in.items() if each.batches is not None]
            if value not in with_batches:
                near = did_you_mean(value, with_batches)
                raise ConfigError(f"host {name}: batches must be one of {', '.join(with_batches)}{near}")
            value = (COMPATIBLE if value == COMPATIBLE.name else built_in[value]).batches
        # 3. Wrong types and words.
        words = get_args(kind) if get_origin(kind) is Literal else ()
        if not fits(value, kind) or (words and value not in words):
            near = did_you_mean(value, words)
            raise ConfigError(f"host {name}: {key} must be {type_words(kind, 'a table')}{near}")
        values[key] = value
    host = evolve(base, **values)
    if host.api != "openai":
        raise ConfigError(f"host {name}: only hosts with OpenAI's API can be added or changed")
    return host
