"""A streamed message as server-sent events."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from smartbatch.emulator.composed_answers import words_of


def message_events(message: Mapping[str, Any]) -> list[bytes]:
    """Return the events of a message, a ping among them."""
    usage = message["usage"]
    start = {
        **message,
        "content": [],
        "stop_reason": None,
        "usage": {**usage, "output_tokens": min(1, usage["output_tokens"])},
    }
    steps: list[tuple[str, dict[str, Any]]] = [("message_start", {"message": start}), ("ping", {})]
    for index, block in enumerate(message["content"]):
        empty, deltas = _in_pieces(block)
        steps.append(("content_block_start", {"index": index, "content_block": empty}))
        steps += [("content_block_delta", {"index": index, "delta": delta}) for delta in deltas]
        steps.append(("content_block_stop", {"index": index}))
    end = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details")}
    steps += [
        ("message_delta", {"delta": end, "usage": {"output_tokens": usage["output_tokens"]}}),
        ("message_stop", {}),
    ]
    # The service does not escape characters; U+2028 does not end a line of an event.
    return [
        f"event: {name}\ndata: {json.dumps({'type': name, **fields}, ensure_ascii=False)}\n\n".encode(
            errors="replace"
        )
        for name, fields in steps
    ]


def _in_pieces(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the empty block that starts a block of content, and its deltas."""
    match block["type"]:
        case "tool_use":
            text = json.dumps(block["input"])
            halves = ("", text[: len(text) // 2], text[len(text) // 2 :])
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": half} for half in halves
            ]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in words_of(block["thinking"])]
            signature = {"type": "signature_delta", "signature": block["signature"]}
            return {**block, "thinking": "", "signature": ""}, [*deltas, signature]
    return {"type": "text", "text": ""}, [
        {"type": "text_delta", "text": piece} for piece in words_of(block["text"])
    ]
