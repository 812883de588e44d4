"""Redaction: a provider's text about a batch must not bring prompts into events, notes and errors.

An adapter that sends one request searches its error for the prompt. A batch is sent as a file, so the texts
about it are searched here for all its prompts.
"""

from __future__ import annotations

import copy

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.jobs.payload import decode_params, decode_request
from smartbatch.jobs.records import ShardRow
from smartbatch.jobs.steps.context import StepContext
from smartbatch.providers.foreign_text import echoes, texts

__all__ = ["redacted", "repeats"]

LEAST = 8
"""Least characters of a prompt that is searched for: single words occur in every error."""
_OURS = frozenset({ErrorKind.NETWORK_ERROR, ErrorKind.TIMEOUT})
_LEFT_OUT = "(its text is left out, it repeats a prompt)"


def redacted(step: StepContext, shard: ShardRow, error: ProviderError) -> ProviderError:
    """Return an error of a call about a shard, without the provider's text where it repeats a prompt."""
    if error.kind in _OURS or not repeats(step, shard, error.message):
        return error
    quiet = copy.copy(error)
    before = error.message.partition(": ")[0]
    quiet.message = f"the call was refused {_LEFT_OUT}"
    if before != error.message and not repeats(step, shard, before):
        quiet.message = f"{before}: {_LEFT_OUT}"
    quiet.args = (quiet.message,)
    return quiet


def repeats(step: StepContext, shard: ShardRow, text: str) -> bool:
    """Whether a text of the provider's repeats a prompt of a shard, or a good piece of one."""
    shared = decode_params(step.job.params)
    position = -1
    while page := step.store.payloads(shard.id, after=position, limit=1000):
        requests = [decode_request(item.payload, shared, id=None) for item in page]
        if echoes(text, (prompt for prompt in texts(requests) if len(prompt) >= LEAST)):
            return True
        position = page[-1].position
    return False
