"""Settings of a client: one frozen object, validated on creation, from code, environment, file and
defaults."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from attrs import Attribute, evolve, fields_dict, frozen

from smartbatch.errors import ConfigError, did_you_mean
from smartbatch.keywords import GenerationParams
from smartbatch.prices import Price
from smartbatch.setting import Setting, choice, revealed, seconds, setting, spec_of
from smartbatch.types import Duration, OnError, Prefer, StrategyName, T
from smartbatch.webhook_signatures import flaw_of_address

__all__ = ["BatchingConfig", "ClientParams", "Settings", "changed", "check_names", "checked", "checked_table"]

VARIABLE_PREFIX = "SMARTBATCH_"
RESERVED_PREFIXES = ("SMARTBATCH_TEST_", "SMARTBATCH_SIM_")
"""Prefixes of variables for tests and the simulated provider; settings with such names are still read."""

APPLICATION_VARIABLES = ("SMARTBATCH_MODEL", "SMARTBATCH_WEB_TIMEOUT", "SMARTBATCH_WEBHOOK_SECRET")
"""Variables read only by applications of web frameworks and receivers of webhooks."""

_TABLES = ("prices", "hosts")
"""Settings that have no variable."""

_NONE_IS_A_VALUE = ("batch_retention",)
"""Settings for which ``None`` is a value other than the default: as a keyword, too, it is not "not given"."""

LARGE_QUEUE = 10_000
DAY_SECONDS = 86_400


@frozen(kw_only=True, init=False)
class BatchingConfig:
    """All settings of a client. Durations are seconds, may be fractions, and may also be given as strings:
    ``"2s"``, ``"90m"``, ``"6h30min"``.

    ``BatchingConfig().describe()`` lists each setting with its range and meaning.

    Raises:
        ConfigError: a value is out of range, settings contradict each other (both are named), or a
            setting is unknown (the nearest name is suggested).
    """

    batch_window: float = seconds(0.1, "How long a request waits for others to share its call.", 0.01, 5)
    max_batch_size: int = setting(10, "int", "Maximum prompts in a shared call.", 1, 50)
    min_batch_size: int | None = setting(
        None,
        "int",
        "Number of prompts sent without waiting for more; by default it depends on the calls in flight.",
        1,
        50,
    )
    max_wait: float = seconds(5.0, "Maximum time in the window, regardless of priority.", 0.5, 30)

    queue_capacity: int = setting(
        1000,
        "int",
        "Maximum number of requests in the queue.",
        100,
        10_000_000,
        note=f"above {LARGE_QUEUE} with large_queue",
    )
    large_queue: bool = setting(False, "bool", f"Allows a queue_capacity above {LARGE_QUEUE}.")
    queue_full: Literal["block", "raise"] = choice(
        "block", "Whether a submission waits or raises an error while the queue is full.", "block", "raise"
    )
    queue_timeout: float | None = seconds(
        None, "Maximum time to wait for room before QueueFull is raised.", 0, DAY_SECONDS
    )
    urgent_reserve: float = setting(
        0.1,
        "float",
        "Additional room for urgent and high-priority requests, as a share of the capacity.",
        0,
        1,
    )

    parallelism: int = setting(
        4, "int", "Maximum number of concurrent calls, and of worker threads.", 1, 1024
    )
    call_timeout: float = seconds(600.0, "Maximum time of one call.", 0.1, DAY_SECONDS)
    request_timeout: float | None = seconds(
        None, "Time from submission until an unanswered request fails.", 0.1, 30 * DAY_SECONDS
    )

    retries: int = setting(3, "int", "Maximum retries of a failed request.", 0, 20)
    retry_initial: float = seconds(1.0, "Delay before the first retry.", 0.01, 300)
    retry_multiplier: float = setting(2.0, "float", "Factor by which the delay grows with each retry.", 1, 10)
    retry_max_delay: float = seconds(10.0, "Maximum delay before a retry.", 0.01, 3600)

    validation_retries: int = setting(
        3, "int", "Maximum repairs of an answer that does not fit its schema; each is billed.", 0, 10
    )

    breaker_threshold: int = setting(
        5, "int", "Consecutive failures that open the breaker; more are needed if calls often fail.", 1, 1000
    )
    breaker_pause: float = seconds(1.0, "Maximum time from opening a breaker to its first probe.", 0.01, 3600)
    breaker_max_pause: float = seconds(
        5.0, "Maximum time between probes of an open breaker.", 0.01, DAY_SECONDS
    )
    breaker_probes: int = setting(4, "int", "Maximum number of concurrent probes of an open breaker.", 1, 100)
    on_breaker_open: Literal["wait", "fail", "fallback"] = choice(
        "wait",
        "Whether requests wait, fail or use the fallback model while the breaker is open.",
        "wait",
        "fail",
        "fallback",
    )
    fallback_model: str | None = setting(
        None, "text", "The model, as provider:model, to use while the breaker is open."
    )
    outage_patience: float = seconds(
        10_800.0, "How long each request waits for a provider that is down.", 0, 7 * DAY_SECONDS
    )

    max_rpm: int | None = setting(None, "int", "Requests per minute.", 1, 10**9)
    max_tpm: int | None = setting(None, "int", "Tokens per minute, input and output.", 1, 10**12)
    shared: str = setting(
        "auto",
        "text",
        "Where processes share limits: sqlite:///FILE, redis://…, unix://…, postgresql://…; auto is a file "
        "of this user on this machine, off shares nothing with other processes. Clients of one process "
        "always share the limits and cooldowns of a key and model.",
    )
    shared_lost: Literal["share", "stop", "local"] = choice(
        "share",
        "What to do if the place set with shared is unreachable: keep this process's share, stop, or use the "
        "whole limit.",
        "share",
        "stop",
        "local",
    )
    budget: float | None = setting(
        None, "usd", "Maximum amount to spend; also a string such as '5 USD'.", 0, 10**9, unit="USD"
    )
    budget_scope: str = setting(
        "client",
        "text",
        "Scope of the budget: client, or shared:NAME for one shared by all processes that name it.",
    )
    prices: Mapping[str, Price | str] = setting(
        {},
        "prices",
        "Your own prices by provider:model or model: USD per million tokens, or a model with the same price.",
    )
    hosts: Mapping[str, Mapping[str, Any]] = setting(
        {}, "hosts", "Further hosts by name, each a table with the fields of Host."
    )
    allow_unknown_price: bool = setting(
        False, "bool", "Allows models without a known price even if there is a budget."
    )

    packing: bool = setting(
        False, "bool", "Packs several prompts into one call; see the risks in the documentation."
    )
    deduplicate: bool | None = setting(
        None,
        "bool",
        "Lets identical requests in flight, or of one job, share one answer; by default all except those "
        "with an explicit temperature above 0 and those of n.",
    )
    cache: str | None = setting(
        None, "text", "File of the response cache, so that identical requests are not paid for again."
    )
    cache_ttl: float = seconds(7 * DAY_SECONDS, "How long a cached answer is used.", 1, 3650 * DAY_SECONDS)
    cache_max_bytes: int = setting(
        2**30,
        "int",
        "Maximum size of the cache; the oldest answers are removed first.",
        2**16,
        2**44,
        unit="bytes",
    )
    prompt_caching: Literal["auto", "off"] = choice(
        "auto",
        "Whether prompts that share a long prefix use the provider's cache, if that saves money.",
        "auto",
        "off",
    )
    store: str | None = setting(
        None,
        "text",
        "Where jobs are stored: a file, or a PostgreSQL address such as postgresql://…; by default in the "
        "user's state folder.",
    )
    batch_enabled: bool = setting(
        True, "bool", "Allows provider batches; if off, jobs are sent in real time."
    )
    batch_threshold: int = setting(
        10, "int", "Minimum number of requests for which a batch is considered.", 1, 1_000_000
    )
    batch_poll_interval: float = seconds(30.0, "Time between polls of a batch.", 0.01, 3600)
    batch_timeout: float = seconds(
        3600.0,
        "Default timeout of submit_and_wait, and time after which a job may fall back to real time.",
        0.1,
        30 * DAY_SECONDS,
    )
    batch_max_requests: int = setting(5000, "int", "Maximum requests per batch.", 1, 100_000)
    batch_settle: float = seconds(
        1800.0,
        "How long to search for a batch whose creation is uncertain before its requests are sent again.",
        0.1,
        30 * DAY_SECONDS,
    )
    batch_on_unknown: Literal["settle", "hold"] = choice(
        "settle",
        "What to do if a batch whose creation is uncertain is not found: send its requests again, or hold "
        "them for 26 hours.",
        "settle",
        "hold",
    )
    batch_fallback: Literal["batch", "individual"] = choice(
        "batch",
        "How to send requests that an expired, failed or late batch did not process: new batch or real time.",
        "batch",
        "individual",
    )
    batch_retention: float | None = seconds(
        7 * DAY_SECONDS,
        "Time after the end of a job until its batches and files at the provider are deleted; none, or None "
        "in Python, keeps them.",
        0,
        365 * DAY_SECONDS,
        optional=True,
    )
    webhook_url: str | None = setting(
        None,
        "text",
        "Address to which Gemini and OpenRouter send an event when a batch ends: https://…?token=…, where "
        "smartbatch.webhooks.app() receives it.",
    )
    batch_enqueued_tokens: int | None = setting(
        None, "int", "Maximum tokens per model in unfinished batches.", 1, 10**12
    )
    exclusive_workspace: bool = setting(
        False, "bool", "States that nothing else creates batches in this Anthropic workspace."
    )
    deferrable: Literal["realtime", "batch"] = choice(
        "realtime",
        "How to send submitted requests with the priority deferrable: in real time, or together in batches.",
        "realtime",
        "batch",
    )

    strategy: Literal["auto", "individual", "batch", "hybrid", "threshold"] = choice(
        "auto",
        "How to choose the route: auto compares forecasts, threshold counts requests, others force a route.",
        "auto",
        "individual",
        "batch",
        "hybrid",
        "threshold",
    )
    prefer: Literal["balanced", "speed", "cost"] = choice(
        "balanced",
        "What auto optimizes if there is no deadline: money and time, or one of them.",
        "balanced",
        "speed",
        "cost",
    )
    time_value: float = setting(
        5.0,
        "float",
        "Value of one hour of waiting, used by auto; also part of the cost of a missed deadline.",
        0,
        10**6,
        unit="USD",
    )
    keep_going: bool = setting(
        False,
        "bool",
        "Sends all rows of a list, even if the first 20 fail with the same error and none is answered.",
    )
    prefer_individual_for: frozenset[str] = setting(
        frozenset(), "texts", "Purposes of requests that never wait for other requests or for a batch."
    )
    max_parallel_individual: int | None = setting(
        None,
        "int",
        "Maximum calls in flight for each list that is sent in real time, within parallelism; by default 5 "
        "with the threshold strategy, otherwise parallelism.",
        1,
        1024,
    )
    flex: bool = setting(True, "bool", "Lets auto use the provider's cheaper, slower tier, if there is one.")
    on_error: Literal["result", "raise"] = choice(
        "result", "Whether list calls return a failed request as a result, or raise.", "result", "raise"
    )
    exit_grace: float = seconds(2.0, "Time for calls in flight when the interpreter ends.", 0, 3600)
    telemetry: Literal["auto", "outer", "full", "off"] = choice(
        "auto",
        "What OpenTelemetry records about calls, if it is set up: tokens except for your own callables and "
        "providers, no tokens, all tokens, or nothing.",
        "auto",
        "outer",
        "full",
        "off",
    )
    telemetry_content: bool = setting(False, "bool", "Records prompts and answers in call spans.")

    def __init__(self, **settings: Unpack[Settings]) -> None:
        check_names(settings, Settings.__optional_keys__)
        given: dict[str, Any] = dict(settings)  # each field converts its value
        self.__attrs_init__(**given)

    def __attrs_post_init__(self) -> None:
        for problem in _contradictions(self):
            raise ConfigError(problem)

    @classmethod
    def load(
        cls,
        file: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        environ: Mapping[str, str] = os.environ,
        **overrides: Unpack[Settings],
    ) -> BatchingConfig:
        """Return the settings. ``overrides`` take precedence over ``SMARTBATCH_<KEY>`` variables, and these
        over ``file``.

        Args:
            file: TOML, or YAML if PyYAML is installed, with the keys at its top level, or a
                ``pyproject.toml`` with ``[tool.smartbatch]``; or a mapping of the keys.
            environ: the environment variables; ``none`` stands for no value, and an empty string means "not
                set".
            overrides: keys as in the constructor; ``None`` means "not given", except for
                ``batch_retention``, where it keeps everything, like ``"none"``.

        Raises:
            ConfigError: see the constructor; also for unknown keys, for variables with almost the name of a
                setting (the nearest name is suggested), and for a file that cannot be read. Any other unknown
                variable is logged as a warning.
        """
        values: dict[str, Any] = {}
        if isinstance(file, Mapping):
            values.update(checked_table(file, "given as a mapping"))
        elif file is not None:
            values.update(checked_table(_table(Path(file)), f"in {file}"))
        values.update(_from_environment(environ))
        for key, value in overrides.items():
            if value is not None or key in _NONE_IS_A_VALUE:
                values[key] = _spec(key, key).check(key, value)
        return cls(**values)

    def describe(self) -> tuple[Setting, ...]:
        """Return all settings with value, default, range, meaning and variable, in the order of the class."""
        return tuple(
            Setting(
                name=name,
                value=getattr(self, name),
                default=attribute.default,
                range=spec_of(attribute).range,
                help=spec_of(attribute).help,
                environment=variable_of(name) or "",
            )
            for name, attribute in _keys().items()
        )


class Settings(TypedDict, total=False):
    """The settings of :class:`BatchingConfig` as keywords, with the types they accept."""

    batch_window: Duration
    max_batch_size: int
    min_batch_size: int | None
    max_wait: Duration
    queue_capacity: int
    large_queue: bool
    queue_full: Literal["block", "raise"]
    queue_timeout: Duration | None
    urgent_reserve: float
    parallelism: int
    call_timeout: Duration
    request_timeout: Duration | None
    retries: int
    retry_initial: Duration
    retry_multiplier: float
    retry_max_delay: Duration
    validation_retries: int
    breaker_threshold: int
    breaker_pause: Duration
    breaker_max_pause: Duration
    breaker_probes: int
    on_breaker_open: Literal["wait", "fail", "fallback"]
    fallback_model: str | None
    outage_patience: Duration
    max_rpm: int | None
    max_tpm: int | None
    shared: str
    shared_lost: Literal["share", "stop", "local"]
    budget: float | str | None
    budget_scope: str
    prices: Mapping[str, Price | Mapping[str, Any] | str]
    hosts: Mapping[str, Mapping[str, Any]]
    allow_unknown_price: bool
    packing: bool
    deduplicate: bool | None
    cache: str | None
    cache_ttl: Duration
    cache_max_bytes: int
    prompt_caching: Literal["auto", "off"]
    store: str | None
    batch_enabled: bool
    batch_threshold: int
    batch_poll_interval: Duration
    batch_timeout: Duration
    batch_max_requests: int
    batch_settle: Duration
    batch_on_unknown: Literal["settle", "hold"]
    batch_fallback: Literal["batch", "individual"]
    batch_retention: Duration | None
    webhook_url: str | None
    batch_enqueued_tokens: int | None
    exclusive_workspace: bool
    deferrable: Literal["realtime", "batch"]
    strategy: StrategyName
    prefer: Prefer
    time_value: float
    keep_going: bool
    prefer_individual_for: str | Collection[str]
    max_parallel_individual: int | None
    flex: bool
    on_error: OnError
    exit_grace: Duration
    telemetry: Literal["auto", "outer", "full", "off"]
    telemetry_content: bool


class ClientParams(GenerationParams[T], Settings, total=False):
    """The keywords of a client: settings, and parameters of all generations."""


def _keys() -> dict[str, Attribute[Any]]:
    return fields_dict(BatchingConfig)


def variable_of(key: str) -> str | None:
    return VARIABLE_PREFIX + key.upper() if key in _keys() and key not in _TABLES else None


def _contradictions(c: BatchingConfig) -> Iterator[str]:
    """Yield a message for each contradiction, with both settings and the change to make."""
    for low, high in (
        ("min_batch_size", "max_batch_size"),
        ("batch_window", "max_wait"),
        ("retry_initial", "retry_max_delay"),
        ("breaker_pause", "breaker_max_pause"),
    ):
        if (getattr(c, low) or 0) > getattr(c, high):
            values = f"{low} = {getattr(c, low)} is above {high} = {getattr(c, high)}"
            yield f"{values}: lower the first or raise the second"
    if c.queue_capacity > LARGE_QUEUE and not c.large_queue:
        yield (
            f"queue_capacity = {c.queue_capacity} is above {LARGE_QUEUE} and large_queue is false: "
            "set large_queue to true to keep that many requests in memory"
        )
    if c.budget_scope != "client" and not c.budget_scope.startswith("shared:"):
        yield f"budget_scope = {c.budget_scope!r} is neither 'client' nor 'shared:NAME'"
    elif c.budget_scope != "client" and c.budget is None:
        yield f"budget_scope = {c.budget_scope!r} shares a budget and budget is none: set budget"
    elif c.budget_scope != "client" and c.shared == "off":
        yield f"budget_scope = {c.budget_scope!r} needs a place to share and shared = 'off': set shared"
    if c.packing and c.strategy == "individual":
        yield (
            "packing = True puts prompts together and strategy = 'individual' keeps them apart: "
            "leave one of them out"
        )
    if c.deferrable == "batch" and not c.batch_enabled:
        yield (
            "deferrable = 'batch' waits for the Batch API and batch_enabled is false: set batch_enabled to "
            "true or leave deferrable out"
        )
    if c.queue_full == "raise" and c.queue_timeout is not None:
        yield (
            f"queue_full = 'raise' never waits, so queue_timeout = {c.queue_timeout} has no meaning: "
            "set queue_full to 'block' or leave queue_timeout out"
        )
    if c.webhook_url is not None and (flaw := flaw_of_address(revealed(c.webhook_url))) is not None:
        yield f"webhook_url {flaw}"
    if c.telemetry_content and c.telemetry == "off":
        yield (
            "telemetry_content = True records prompts and telemetry = 'off' records nothing: "
            "leave one of them out"
        )
    if c.on_breaker_open == "fallback" and c.fallback_model is None:
        yield "on_breaker_open = 'fallback' needs fallback_model: name it as provider:model"
    if c.fallback_model is not None and c.on_breaker_open != "fallback":
        yield (
            f"fallback_model is set but on_breaker_open = {c.on_breaker_open!r} never uses it: "
            "set on_breaker_open to 'fallback' or leave fallback_model out"
        )


def _spec(key: str, label: str) -> Any:
    try:
        return spec_of(_keys()[key])
    except KeyError:
        near = did_you_mean(key, _keys()) or f"; use one of {', '.join(_keys())}"
        raise ConfigError(f"unknown setting {label}{near}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    variables = {variable: key for key in _keys() if (variable := variable_of(key)) is not None}
    for variable in sorted(name for name in environ if name.startswith(VARIABLE_PREFIX)):
        text = environ[variable]
        if key := variables.get(variable):
            if text.strip():
                values[key] = _spec(key, key).parse(f"{key} ({variable})", text)
        elif (table := variable.removeprefix(VARIABLE_PREFIX).lower()) in _TABLES:
            raise ConfigError(
                f"{variable}: {table} are a table, which a variable cannot hold; set them in a "
                f"settings file (--config FILE), or pass {table}={{…}} to the client"
            )
        elif variable not in APPLICATION_VARIABLES and not variable.startswith(RESERVED_PREFIXES):
            if near := did_you_mean(variable, variables, VARIABLE_PREFIX):
                raise ConfigError(f"unknown variable {variable}{near}")
            _warn_of(variable)
    return values


@cache
def _warn_of(variable: str) -> None:
    """Warn once per process about a variable that is not a setting."""
    logging.getLogger("smartbatch").warning(
        "the environment variable %s is not a setting and is ignored; unset it to stop this warning", variable
    )


_MAX_FILE_BYTES = 256 * 1024
_MAX_ALIASES = 20
"""Aliases in a YAML settings file."""
_MAX_DEPTH = 50
"""Nesting levels in a YAML settings file."""


def _table(path: Path) -> Mapping[str, Any]:
    import tomllib  # imported late: most programs have no such file

    form = "YAML" if path.suffix in (".yaml", ".yml") else "TOML"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"the settings file {path} is larger than {_MAX_FILE_BYTES >> 10} KiB")
        text = data.decode("utf-8-sig")
        content = _yaml(path, text) if form == "YAML" else tomllib.loads(text)
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror or error}") from error
    except RecursionError:
        raise ConfigError(f"the settings file {path} is nested too deeply") from None
    except ValueError as error:  # invalid syntax or UTF-8; both messages give the position
        raise ConfigError(f"the settings file {path} is not {form}: {error}") from error
    if path.name != "pyproject.toml":
        return content
    try:
        table: dict[str, Any] = content["tool"]["smartbatch"]
    except KeyError:
        raise ConfigError(f"{path} has no [tool.smartbatch] table") from None
    return table


def _yaml(path: Path, text: str) -> Mapping[str, Any]:
    """Return the mapping in a YAML file, which may be empty. Tags are rejected.

    Raises:
        ConfigError: PyYAML is not installed.
        ValueError: the content is not YAML, or not a mapping.
    """
    try:
        import yaml
    except ImportError:
        raise ConfigError(
            f"the settings file {path} is YAML, which needs PyYAML: pip install 'smartbatch-llm[yaml]'"
        ) from None
    try:
        aliases = depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            aliases += isinstance(event, yaml.AliasEvent)
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:  # the scanner's time grows with the square of the depth
                raise RecursionError
        if aliases > _MAX_ALIASES:  # aliases of aliases grow exponentially
            raise ValueError(f"it has {aliases:,} aliases, more than {_MAX_ALIASES}")
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        # the error's own message quotes the line, which may contain secrets
        mark = getattr(error, "problem_mark", None)
        place = "" if mark is None else f" (at line {mark.line + 1}, column {mark.column + 1})"
        raise ValueError(f"{getattr(error, 'problem', None) or 'it cannot be read'}{place}") from None
    if content is None:
        return {}
    if not isinstance(content, Mapping):
        raise ValueError(f"its top level is a {type(content).__name__}, not a mapping of keys")
    return content


ADAPTER_ARGUMENTS = frozenset({"api_key", "base_url", "headers", "organization", "project"})
"""Arguments of adapters that other libraries accept along with settings."""
NEAR_SETTINGS = {
    **dict.fromkeys(("concurrency", "max_concurrency", "max_workers", "workers", "threads"), "parallelism"),
    "batch_size": "max_batch_size",
    "max_cost": "budget",
}
"""Names used by other libraries, with the corresponding names in this library."""
_REQUEST_FIELDS = frozenset({"priority", "purpose", "context", "isolation_key"})
"""Fields of a request that clients and shortcuts do not accept."""


def check_names(names: Iterable[str], known: Collection[str]) -> None:
    """Check the keywords of a call that accepts settings.

    Raises:
        ConfigError: a keyword is not ``known``; the message suggests the nearest one, or where to put it.
    """
    for name in names:
        if name in known:
            continue
        if name in ADAPTER_ARGUMENTS and "provider_options" in known:
            raise ConfigError(f"{name} is an option of the provider: provider_options={{{name!r}: …}}")
        if name in _REQUEST_FIELDS:
            raise ConfigError(
                f"unknown setting or parameter {name}: set it on a request, Request(…, {name}=…)"
            )
        other = NEAR_SETTINGS.get(name)
        near = f"; did you mean {other}?" if other in known else did_you_mean(name, known)
        raise ConfigError(f"unknown setting or parameter {name}{near}")


def given_or_loaded(config: object, **own: Any) -> BatchingConfig:
    """Return ``config``, or the environment's settings if it is ``None``, overridden by ``own``.

    Raises:
        ConfigError: ``config`` has the wrong type, or a setting is invalid.
    """
    if config is None:
        return BatchingConfig.load(**own)
    if not isinstance(config, BatchingConfig):
        kind = type(config).__name__
        raise ConfigError(f"config must be a BatchingConfig, not {kind}: use BatchingConfig.load(…)")
    return evolve(config, **own)


def checked(setting: str, value: Any) -> Any:
    """Convert an argument that overrides a setting.

    Raises:
        ConfigError: the value is out of the setting's range.
    """
    return _spec(setting, setting).check(setting, value)


def changed(config: BatchingConfig, **settings: Any) -> BatchingConfig:
    """Return a copy with some settings changed.

    Raises:
        ConfigError: see :class:`BatchingConfig`.
    """
    return evolve(config, **settings)


def checked_table(table: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Convert the settings of a table, without checking for contradictions.

    Args:
        place: the source of the table, named in errors.

    Raises:
        ConfigError: a setting is unknown or out of range.
    """
    values: dict[str, Any] = {}
    for key, value in table.items():
        label = f"{key} ({place})"
        spec = _spec(str(key), label)
        values[key] = spec.check(label, None if value == "none" and spec.optional else value)
    return values
