"""Answers, streams and errors of the three APIs as they come over the wire, from ``real_bodies.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PROMPT = "What is the capital of Peru, and why is it there?"
KEY = "sk-canary-1234567890abcdef"

_BODIES: dict[str, list[Any]] = json.loads(Path(__file__).with_suffix(".json").read_text())
CHATS = _BODIES["CHATS"]
CHAT_STREAMS = _BODIES["CHAT_STREAMS"]
RESPONSES = _BODIES["RESPONSES"]
RESPONSE_STREAMS = _BODIES["RESPONSE_STREAMS"]
EMBEDDINGS = _BODIES["EMBEDDINGS"]
ERRORS = _BODIES["ERRORS"]
GEMINIS = _BODIES["GEMINIS"]
GEMINI_STREAMS = _BODIES["GEMINI_STREAMS"]
GEMINI_EMBEDDINGS = _BODIES["GEMINI_EMBEDDINGS"]
GEMINI_ERRORS = _BODIES["GEMINI_ERRORS"]
MESSAGES = _BODIES["MESSAGES"]
MESSAGE_STREAMS = _BODIES["MESSAGE_STREAMS"]
ANTHROPIC_ERRORS = _BODIES["ANTHROPIC_ERRORS"]
[OPENAI_BATCH], [ANTHROPIC_BATCH] = _BODIES["OPENAI_BATCH"], _BODIES["ANTHROPIC_BATCH"]
[GEMINI_BATCH] = _BODIES["GEMINI_BATCH"]


def response(status: str = "completed", **changes: Any) -> dict[str, Any]:
    return {**RESPONSES[0], "status": status, **changes}
