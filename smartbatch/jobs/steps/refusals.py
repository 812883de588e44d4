"""Handle batches that were refused before any of their requests was processed, which costs nothing.

- Some lines are wrong: these requests fail with the provider's reason, and the others are sent again.
- The batch is too large for the server: its requests are sent again in shards of half the size. The size
  that the server accepts is remembered for the account and model.
- Too many tokens are enqueued: providers limit the prompt tokens in unfinished batches of a model. The shard
  is sent again later. If it exceeds this quota on its own, it is divided; shards grow again with every batch
  that is accepted. A provider that names no limit has to refuse the shard several times before it is divided.

If ``shared`` is set, processes with other stores publish their enqueued tokens, and a create call waits until
the quota has room for it.
"""

from __future__ import annotations

import copy
import math

from attrs import asdict, evolve, frozen

from smartbatch.core.limits.cooldown import backoff
from smartbatch.core.limits.shared_limit import LeaseAsk, MemberLimits, QuotaKind, first
from smartbatch.errors import ErrorKind, ParameterRejected, ProviderError
from smartbatch.events import ParameterDropped
from smartbatch.jobs.payload import decode_request, encode_result, item_id
from smartbatch.jobs.records import NewResult
from smartbatch.jobs.shard_records import ShardRow, ShardState, parse_wire_id
from smartbatch.jobs.steps.step import Step
from smartbatch.providers.batch_api import enqueued_limit
from smartbatch.providers.error_table import BatchRefused, Measure
from smartbatch.providers.foreign_text import echoes, texts, without_echo
from smartbatch.types import Result, Route

OVER_LIMIT_NOTE = "exceeds a limit of the server; its requests are sent again in smaller batches"
MIN_PROMPT_CHARS = 8  # shorter prompts are not searched for, since any error may contain a single word
_OMITTED_TEXT = "(text omitted because it repeats a prompt)"


def handle_known_refusal(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow | None:
    """Handle a refusal that has a remedy; return ``None`` for any other refusal."""
    # 1. the server rejects a parameter, which is omitted from now on: all requests are sent again without it
    if isinstance(error, ParameterRejected):
        return _without_parameter(step, shard, error)
    exceeded: Measure | None = "bytes" if error.status == 413 else None
    lines: dict[int, ProviderError] = {}
    if isinstance(error, BatchRefused):
        exceeded = error.exceeds
        lines = _named_lines(shard, error)
    # 2. the batch exceeds a limit of the server and can be divided: its requests are sent again in halves
    if exceeded is not None and shard.size > 1:
        _halve(step, shard, exceeded)
        return step.discard(shard, OVER_LIMIT_NOTE)
    # 3. some lines are wrong: their requests fail, and the others are sent again. If all lines are wrong and
    # the job may use real time, the refusal applies to the whole batch
    if not lines or (step.falls_back and len(lines) == shard.size):
        return None
    dead = step.discard(
        shard,
        f"the provider refused {len(lines):,} of its {shard.size:,} requests; the others are sent again",
        ended=_failed(step, shard, lines),
    )
    step.runtime.publish_progress(step.job)
    return dead


def _without_parameter(step: Step, shard: ShardRow, error: ParameterRejected) -> ShardRow | None:
    # the next batch omits the parameter. If this batch omitted it already, the next one would be refused too
    if not may_have_sent(shard, error):
        return None
    for item in step.store.shards.items_at(shard.id, [0]).values():
        for name, reason in error.omitted:
            request_id = item_id(step.job.id, item.ix, item.user_id)
            step.runtime.publish_event(
                ParameterDropped(at=step.now, request_id=request_id, field=name, reason=reason)
            )
    names = ", ".join(name for name, _ in error.omitted)
    return step.discard(shard, f"the server rejects {names}; its requests are sent again without it")


def may_have_sent(shard: ShardRow, error: ParameterRejected) -> bool:
    """Whether the shard's lines may contain the rejected parameter.

    Each new batch omits one more parameter, so requests are sent again at most once per parameter.
    """
    return any(name not in shard.remote.omitted for name, _ in error.omitted)


def _named_lines(shard: ShardRow, error: BatchRefused) -> dict[int, ProviderError]:
    """Return errors by position in the shard; lines of other batches are ignored."""
    found: dict[int, ProviderError] = {}
    for place, reason in error.lines.items():
        if isinstance(place, str):
            nonce, position = parse_wire_id(place) or ("", -1)
            if nonce != shard.nonce:
                continue
        else:
            position = place
        if 0 <= position < shard.size:
            found.setdefault(position, reason)
    return found


def _failed(step: Step, shard: ShardRow, lines: dict[int, ProviderError]) -> list[NewResult]:
    shared = step.shared()
    results = []
    for position, item in step.store.shards.items_at(shard.id, lines).items():
        reason = without_echo(lines[position], decode_request(item.payload, shared, id=item.user_id))
        result = Result(
            "", error=reason, cost=0.0, attempts=item.tries + 1, route=Route.BATCH, model=step.job.model
        )
        results.append(
            NewResult(
                item.ix, "failed", encode_result(result), cost=0.0, realtime_cost=0.0, route=Route.BATCH
            )
        )
    return results


def max_tries_of(step: Step, shard: ShardRow) -> int:
    return max((item.tries for item in step.store.shards.unsettled(shard.id)), default=0)


# -- limits of a server that were discovered by refusals -----------------------------------------------------


@frozen(kw_only=True)
class ServerLimits:
    """Maximum sizes of a batch; infinity until a batch is refused."""

    requests: float = math.inf
    bytes: float = math.inf
    tokens: float = math.inf


def server_limits(step: Step) -> ServerLimits:
    known = step.store.facts.recall(_limits_key(step))
    return ServerLimits(**known) if isinstance(known, dict) else ServerLimits()


def _halve(step: Step, shard: ShardRow, exceeded: Measure) -> None:
    limits = server_limits(step)
    sizes = {"requests": shard.size, "bytes": shard.bytes, "tokens": shard.tokens}
    half = max(1, sizes[exceeded] // 2)
    limits = evolve(limits, **{exceeded: min(getattr(limits, exceeded), half)})
    finite = {name: limit for name, limit in asdict(limits).items() if math.isfinite(limit)}
    step.store.facts.remember(_limits_key(step), finite)


def exceeds_limits(step: Step, shard: ShardRow) -> bool:
    """Whether a shard exceeds a limit discovered since it was cut. A shard of one request never does."""
    limits = server_limits(step)
    over = shard.size > limits.requests or shard.bytes > limits.bytes or shard.tokens > limits.tokens
    return shard.size > 1 and over


def _limits_key(step: Step) -> str:
    return f"most:{step.job.scope}:{step.job.model}"


# -- the quota of enqueued tokens ----------------------------------------------------------------------------

# consecutive refusals, with no other batch enqueued, before shards become smaller; fewer could be caused
# by other users of the account
REFUSALS_ALONE = 3
QUOTA_CODES = frozenset({"token_limit_exceeded", "enqueued_token_limit_exceeded"})
"""Error codes of OpenAI and Azure for too many enqueued tokens. Gemini reports RESOURCE_EXHAUSTED in
response to the create call, which is an ordinary refusal.
"""
_STORE_NAME_FACT = "enqueued:store"
_ENQUEUED = (
    ShardState.SUBMITTING,
    ShardState.UNCERTAIN,
    ShardState.PROVISIONAL,
    ShardState.FENCED,
    ShardState.SUBMITTED,
)


@frozen
class _EnqueuedQuota:
    limit: float | None = None  # tokens; None if no refusal named a limit
    until: float = 0.0  # Unix seconds; shards of the model wait until then
    refusals: int = 0  # in a row
    most: int | None = None  # requests per shard; None if no single shard exceeded the quota


def enqueued_token_limit(step: Step, named: float = math.inf) -> float:
    """Return the maximum number of enqueued tokens of the job's model, infinity if unknown.

    ``named`` is the limit in the provider's latest refusal; it replaces earlier ones.
    """
    limit = named if math.isfinite(named) else _quota(step).limit
    return min(limit or math.inf, step.limits.enqueued_tokens or math.inf)


def max_shard_requests(step: Step, otherwise: int) -> int:
    """Return the maximum size of a shard; it is below ``otherwise`` if single shards exceeded the quota."""
    return _quota(step).most or otherwise


def quota_wait(step: Step, shard: ShardRow) -> float:
    """Return the seconds until the quota is checked again; 0 if the shard may be created now."""
    enqueued = sum(_other_enqueued(step, shard))
    if enqueued and enqueued + shard.tokens > enqueued_token_limit(step):
        return step.limits.poll_interval
    # if the system clock was set back, minutes must not turn into hours
    pause = min(max(0.0, _quota(step).until - step.wall), step.limits.longest_pause)
    return pause or (0.0 if _exchange(step, enqueued, shard.tokens) else step.limits.poll_interval)


def publish_enqueued(step: Step, shard: ShardRow, *, ended: bool) -> None:
    """Publish the enqueued tokens, without those of an ended batch, to processes with other stores."""
    if step.runtime.wiring.exchange_enqueued is not None:
        _exchange(step, sum(_other_enqueued(step, shard)) + (0 if ended else shard.tokens), 0)


def _exchange(step: Step, enqueued: int, more: int) -> bool:
    """Publish this store's enqueued tokens; return whether all stores together have room for ``more``.

    A limit that is known to one store applies to all.
    """
    if step.runtime.wiring.exchange_enqueued is None:
        return True
    limit = enqueued_token_limit(step)
    ask = LeaseAsk(
        member=_store_name(step),
        kind=QuotaKind.ENQUEUED,
        limits=MemberLimits(caps=first(limit if math.isfinite(limit) else 0.0)),
        kept=first(enqueued),
        least=first(more),
        wanted=first(more),
    )
    grant = step.runtime.wiring.exchange_enqueued(step.job.scope, step.job.model, ask)
    return grant is None or not grant.wait


def _store_name(step: Step) -> str:
    facts = step.store.facts
    if facts.recall(_STORE_NAME_FACT) is None:  # random: no other store on any machine has the same name
        facts.remember(_STORE_NAME_FACT, f"{step.runtime.rng.getrandbits(128):032x}")
    return str(facts.recall(_STORE_NAME_FACT))


def quota_refused(step: Step, shard: ShardRow, error: ProviderError | None, reason: str | None) -> bool:
    """Record a refusal: the limit it names, and a pause that grows while others use the quota.

    Returns:
        True if the shard would be refused again, so that its items must be cut into smaller shards.
    """
    known = _quota(step)
    refusals, most = known.refusals + 1, known.most
    named = enqueued_limit(reason)
    wait = backoff(
        refusals,
        step.runtime.rng,
        first=step.limits.poll_interval,
        longest=step.limits.longest_pause,
        asked=None if error is None else error.retry_after,
    )
    # 1. the shard exceeds the limit in the refusal, or the known one: it would be refused again
    too_large = shard.tokens > enqueued_token_limit(step, named)
    # 2. it was refused several times while this store had no other batch enqueued: it would be refused again,
    # so halve the size of the model's shards
    if not too_large and shard.size > 1 and refusals >= REFUSALS_ALONE and not _other_enqueued(step, shard):
        too_large, refusals, most = True, 0, max(1, shard.size // 2)
    # 3. otherwise others use the quota: the shard will be accepted later
    limit = named if math.isfinite(named) else known.limit
    _remember_quota(step, _EnqueuedQuota(limit, step.wall + wait, refusals, most))
    return too_large


def quota_admitted(step: Step) -> None:
    """Remove the pauses and let shards grow again, because a batch was accepted."""
    known = _quota(step)
    if not (known.refusals or known.most):
        return
    most = 2 * (known.most or 0)
    grown = None if most >= step.limits.max_requests else most or None
    _remember_quota(step, _EnqueuedQuota(known.limit, most=grown))


def _other_enqueued(step: Step, shard: ShardRow) -> list[int]:
    return [
        other.tokens
        for other in step.store.shards.in_scope(shard.scope, states=_ENQUEUED)
        if other.model == shard.model and other.id != shard.id
    ]


def _quota(step: Step) -> _EnqueuedQuota:
    known = step.store.facts.recall(_quota_key(step))
    return _EnqueuedQuota(**known) if isinstance(known, dict) else _EnqueuedQuota()


def _remember_quota(step: Step, known: _EnqueuedQuota) -> None:
    step.store.facts.remember(_quota_key(step), asdict(known))


def _quota_key(step: Step) -> str:
    return f"enqueued:{step.job.scope}:{step.job.model}"


# -- error messages that repeat prompts ----------------------------------------------------------------------


def redacted(step: Step, shard: ShardRow, failure: Exception) -> ProviderError:
    """Return the error of a failed call, without the provider's message if it repeats a prompt.

    Adapters check messages about single requests. A batch is sent as a file, so messages about it are checked
    against all its prompts.
    """
    error = step.api.classify(failure)
    unreached = error.kind in (ErrorKind.NETWORK_ERROR, ErrorKind.TIMEOUT)
    if unreached or not repeats_a_prompt(step, shard, error.message):
        return error
    quiet = copy.copy(error)
    before = error.message.partition(": ")[0]
    quiet.message = f"the call was refused {_OMITTED_TEXT}"
    if before != error.message and not repeats_a_prompt(step, shard, before):
        quiet.message = f"{before}: {_OMITTED_TEXT}"
    quiet.args = (quiet.message,)
    return quiet


def repeats_a_prompt(step: Step, shard: ShardRow, text: str) -> bool:
    """Whether a message of the provider contains a prompt of the shard or a substantial part of one."""
    prompts = (prompt for _, request in step.requests_of(shard) for prompt in texts((request,)))
    return echoes(text, (prompt for prompt in prompts if len(prompt) >= MIN_PROMPT_CHARS))
