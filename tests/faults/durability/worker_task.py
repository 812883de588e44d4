"""What a worker process is told to do, and how its times are scaled down from hours to seconds."""

from __future__ import annotations

import hashlib
import json
from typing import Literal, TypeAlias

from attrs import asdict, frozen

from smartbatch.emulator import answer_for

MODELS = {"openai": "gpt-5-mini", "anthropic": "claude-haiku-5-5", "gemini": "gemini-3.8-flash"}
"""The model a worker uses, by provider."""
HOST_MODELS = {
    "mistral": "mistral-small-latest",
    "xai": "grok-4.3",
    "together": "deepseek-ai/DeepSeek-V4",
    "openrouter": "openai/gpt-5-mini",
}
"""The same for hosts with a dialect of OpenAI's Batch API."""
VARIED = "~"  # marks the keys of jobs whose prompts differ in length, so that exchanged answers can be told
AGAIN = 75  # exit code of a worker that could not go on, and may when it is started again


Reading: TypeAlias = Literal[
    "ordered", "stored", "futures", "none", "carry", "command", "list", "singles", "rows"
]


@frozen(kw_only=True)
class WorkerTask:
    provider: str  # openai, anthropic, gemini or the name of a host
    url: str  # the emulator's address
    store: str  # the store's path or DSN
    out: str  # the file that gets a line for every answer the user has taken note of
    key: str  # the job's key; its prompts follow from it
    size: int  # its requests
    max_requests: int  # most requests of a batch
    # settle, visibility: see :class:`smartbatch.jobs.wiring.StepLimits`
    settle: float
    visibility: float
    poll: float = 0.03  # between two polls of a batch
    # how the answers are taken: by results() in order or as stored, by futures(), or not at all; carry
    # submits jobs and carries on whatever is in the store; command has smartbatch run write them into an
    # output. The others ask in real time: list a list with the key, singles durable requests, and rows has
    # smartbatch run ask them
    reading: Reading = "ordered"
    output: str = ""  # with command and rows, that output
    parallelism: int = 4  # of what is asked in real time
    capped: bool = False  # no more rows than that may be uncertain at a time
    clock: str | None = None  # a file with the seconds that the wall clock is ahead, eight bytes
    may_fail: bool = False  # an error of the store or of the output ends the worker with :data:`AGAIN`
    jobs: int = 1  # with carry, how many jobs are submitted; their keys are key, a dot and a number
    until: int = 1  # with carry, how many jobs the store must have, all ended, for the worker to end
    # of a job, where it is not the supervisor's own 15; renewals and polls follow in proportion
    lease: float | None = None
    mutant: str | None = None  # a safety rule to break, see :mod:`tests.faults.durability.broken_rules`
    seed: int = 0  # the emulator's, on which its answers depend

    def line(self) -> str:
        return json.dumps(asdict(self))


def model_of(provider: str) -> str:
    return MODELS.get(provider) or HOST_MODELS[provider]


def prompt_of(key: str, number: int) -> str:
    """Return the prompt of a row of the job with ``key``; no two jobs have one in common."""
    prompt = f"{key}: what is the answer to question {number}?"
    return prompt + " And why?" * round(4 * 1.33**number) if VARIED in key else prompt


def answer_to(task: WorkerTask, number: int) -> str:
    return answer_for(prompt_of(task.key, number), model_of(task.provider), task.seed)


def digest_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()
