"""Tools offered to the emulated models: which of them an answer calls, and which turns are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from smartbatch.emulator.composed_answers import Completion, ModelToolCall, count_tokens
from smartbatch.emulator.schema_instances import instance

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
"""What the name of a tool looks like."""


@frozen
class OfferedTools:
    """The tools of a request.

    Attributes:
        parameters: JSON schemas of the arguments, by the names of the tools.
        choice: ``auto``, ``none``, ``required`` or the name of a tool.
        answered: whether the conversation ends with results of tools, which the model answers with a text.
    """

    parameters: Mapping[str, Mapping[str, Any]]
    choice: str = "auto"
    answered: bool = False


@frozen
class ToolTurn:
    """The calls and results of one message.

    Attributes:
        results: ids of calls whose results it has.
        calls: ids of the calls that it makes.
        results_follow: whether the results of earlier calls may continue in the next message.
    """

    results: Sequence[str] = ()
    calls: Sequence[str] = ()
    results_follow: bool = False


@frozen
class ToolTurnFlaw:
    """Why turns are refused.

    Attributes:
        place: the message, from 0: that of the calls, or that of a result without a call.
        ids: the calls without results; empty for a result without a call.
        unexpected: the id of a result without a call.
    """

    place: int
    ids: tuple[str, ...] = ()
    unexpected: str = ""


def flaw_of(turns: Sequence[ToolTurn]) -> ToolTurnFlaw | None:
    """Return what is wrong with the turns of a conversation, or ``None``."""
    waiting: dict[str, int] = {}
    for place, turn in enumerate(turns):
        for identity in turn.results:
            if waiting.pop(identity, None) is None:
                return ToolTurnFlaw(place, unexpected=identity)
        if waiting and not turn.results_follow:
            break
        waiting |= dict.fromkeys(turn.calls, place)
    return ToolTurnFlaw(min(waiting.values()), tuple(waiting)) if waiting else None


def with_calls(answer: Completion, tools: OfferedTools | None, prompt: str) -> Completion:
    """Return an answer that calls tools instead of saying its text, where they are called."""
    if tools is None:
        return answer
    names = called_tools(list(tools.parameters), tools.choice, prompt, answered=tools.answered)
    if not names:
        return answer
    calls = tuple(ModelToolCall(name, instance(tools.parameters[name], answer.text)) for name in names)
    tokens = sum(count_tokens(json.dumps(call.arguments)) for call in calls)
    return evolve(answer, text="", finish_reason="tool_calls", tokens=tokens, calls=calls)


def called_tools(names: Sequence[str], choice: str, prompt: str, *, answered: bool) -> list[str]:
    """Return the tools that a simulated model calls. In order:

    1. One has to be called: the named one, or the first.
    2. The prompt names some of them, and their results are not there yet: these.

    Args:
        names: of the tools that are offered.
        choice: ``auto``, ``none``, ``required`` or the name of a tool.
        prompt: the text of the last user message.
        answered: whether the conversation ends with results of tools.
    """
    if choice == "none" or not names:
        return []
    if choice == "auto":
        return [] if answered else [name for name in names if _mentions(prompt, name)]
    return [names[0] if choice == "required" else choice]


def _mentions(prompt: str, name: str) -> bool:
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", prompt) is not None


def logprobs_of(pieces: Sequence[str], alternatives: int) -> list[dict[str, Any]]:
    """Return log-probabilities of the pieces of an answer, in OpenAI's form."""
    return [
        {
            **_logprob(piece, -0.125 * (place % 8)),
            "top_logprobs": [
                _logprob(piece if rank == 0 else f"{piece}{rank}", -0.125 * (place % 8) - rank)
                for rank in range(alternatives)
            ],
        }
        for place, piece in enumerate(pieces)
    ]


def _logprob(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
