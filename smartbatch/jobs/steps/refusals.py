"""Batches that were refused before anything of them was run, because of some of their lines or of their size.

Neither costs anything. A request whose line was refused ends with the provider's reason, and the others go
again without it. Of a batch that is too large for the server, the requests go again in shards of half the
size, again and again until the server takes one; the limit is remembered for its account and model, and later
jobs are cut that small from the beginning.
"""

from __future__ import annotations

import copy
import math

from attrs import asdict, evolve, frozen

from smartbatch.errors import ErrorKind, ParameterRejected, ProviderError
from smartbatch.events import ParameterDropped
from smartbatch.jobs.payload import decode_params, decode_request, encode_result, item_id
from smartbatch.jobs.records import NewResult
from smartbatch.jobs.shard_records import ShardRow, parse_wire_id
from smartbatch.jobs.steps.context import Step
from smartbatch.providers.batch_refusals import BatchRefused, Measure
from smartbatch.providers.foreign_text import echoes, texts, without_echo
from smartbatch.types import Result, Route

ABOVE = "above what the server takes in a batch; its requests go again in smaller parts"
LEAST = 8
"""Least characters of a prompt that is searched for in texts: single words occur in every error."""
_LEFT_OUT = "(its text is left out, it repeats a prompt)"


def sort_out(step: Step, shard: ShardRow, error: ProviderError) -> ShardRow | None:
    """End a shard whose refusal explains itself; ``None`` where it does not."""
    # 1. the server rejects a parameter, which is omitted from now on: all requests go again without it
    if isinstance(error, ParameterRejected):
        return _without_parameter(step, shard, error)
    exceeded: Measure | None = "bytes" if error.status == 413 else None
    lines: dict[int, ProviderError] = {}
    if isinstance(error, BatchRefused):
        exceeded = error.exceeds
        lines = _named_lines(shard, error)
    # 2. the batch is above a limit of the server's, and can be divided: its requests go again in halves
    if exceeded is not None and shard.size > 1:
        _halve(step, shard, exceeded)
        return step.discard(shard, ABOVE)
    # 3. lines of it are wrong: their requests fail, and the others go again. Where all lines are, and the job
    # may go on in real time, the refusal is of the batch as a whole
    if not lines or (step.falls_back and len(lines) == shard.size):
        return None
    dead = step.discard(
        shard,
        f"the provider refused {len(lines):,} of its {shard.size:,} requests; the others go again",
        ended=_failed(step, shard, lines),
    )
    step.runtime.tell_progress(step.job)
    return dead


def _without_parameter(step: Step, shard: ShardRow, error: ParameterRejected) -> ShardRow | None:
    """Have the requests of a shard sent again, which their next batch encodes without what was rejected; that
    is no try of theirs. ``None`` if its lines lacked it already, so that the next batch would fare alike.
    """
    if not is_new(shard, error):
        return None
    for item in step.store.shards.items_at(shard.id, [0]).values():
        for name, reason in error.omitted:
            request_id = item_id(step.job.id, item.ix, item.user_id)
            step.runtime.tell(ParameterDropped(at=step.now, request_id=request_id, field=name, reason=reason))
    names = ", ".join(name for name, _ in error.omitted)
    return step.discard(shard, f"the server rejects {names}; the requests go again without it")


def is_new(shard: ShardRow, error: ParameterRejected) -> bool:
    """Whether the lines of a shard may have had a parameter that was rejected: then the next batch lacks one
    more, and requests go again at most once for each."""
    return any(name not in shard.remote.omitted for name, _ in error.omitted)


def _named_lines(shard: ShardRow, error: BatchRefused) -> dict[int, ProviderError]:
    """Return the errors of lines by their positions in the shard, without those of lines it does not have."""
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
    shared = decode_params(step.job.params)
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


# -- limits that a server turned out to have -----------------------------------------------------------------


@frozen(kw_only=True)
class ServerLimits:
    """The most that a batch may have, by what was refused; infinity where nothing was."""

    requests: float = math.inf
    bytes: float = math.inf
    tokens: float = math.inf


def limits_met(step: Step) -> ServerLimits:
    """Return what is known of the job's account and model."""
    learned = step.store.facts.recall(_key(step))
    return ServerLimits(**learned) if isinstance(learned, dict) else ServerLimits()


def _halve(step: Step, shard: ShardRow, exceeded: Measure) -> None:
    """Remember that a shard was above a limit: half of it is what is tried next."""
    limits = limits_met(step)
    sizes = {"requests": shard.size, "bytes": shard.bytes, "tokens": shard.tokens}
    half = max(1, sizes[exceeded] // 2)
    limits = evolve(limits, **{exceeded: min(getattr(limits, exceeded), half)})
    kept = {name: limit for name, limit in asdict(limits).items() if math.isfinite(limit)}
    step.store.facts.remember(_key(step), kept)


def is_above_limits(step: Step, shard: ShardRow) -> bool:
    """Whether a shard that was cut earlier is above a limit that was learned since; one request never is."""
    limits = limits_met(step)
    over = shard.size > limits.requests or shard.bytes > limits.bytes or shard.tokens > limits.tokens
    return shard.size > 1 and over


def _key(step: Step) -> str:
    return f"most:{step.job.scope}:{step.job.model}"


# -- texts of the provider -----------------------------------------------------------------------------------


def redacted(step: Step, shard: ShardRow, failure: Exception) -> ProviderError:
    """Return the error of a failed call about a shard, without the provider's text where it repeats a prompt.

    An adapter that sends one request searches its error for the prompt. A batch is sent as a file, so the
    texts about it are searched here for all its prompts.
    """
    error = step.api.classify(failure)
    ours = error.kind in (ErrorKind.NETWORK_ERROR, ErrorKind.TIMEOUT)
    if ours or not repeats_a_prompt(step, shard, error.message):
        return error
    quiet = copy.copy(error)
    before = error.message.partition(": ")[0]
    quiet.message = f"the call was refused {_LEFT_OUT}"
    if before != error.message and not repeats_a_prompt(step, shard, before):
        quiet.message = f"{before}: {_LEFT_OUT}"
    quiet.args = (quiet.message,)
    return quiet


def repeats_a_prompt(step: Step, shard: ShardRow, text: str) -> bool:
    """Whether a text of the provider's repeats a prompt of a shard, or a good piece of one."""
    prompts = (prompt for _, request in step.requests_of(shard) for prompt in texts((request,)))
    return echoes(text, (prompt for prompt in prompts if len(prompt) >= LEAST))


def tries_of(step: Step, shard: ShardRow) -> int:
    """Return how often the items of a shard were sent before, at most."""
    return max((item.tries for item in step.store.shards.unsettled(shard.id)), default=0)
