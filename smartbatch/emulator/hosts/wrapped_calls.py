"""Model calls that differ from OpenAI's: their prompts are filtered, or their answers contain the cost."""

from __future__ import annotations

import json
from typing import Any

from attrs import evolve

from smartbatch.emulator.openai.parsing import api_error
from smartbatch.emulator.parsed_requests import ModelCall, ModelOutput
from smartbatch.emulator.settings import EmulatorSettings

_DATA = b"data: {"


class _WrappedCall(ModelCall):
    def __init__(self, call: ModelCall) -> None:
        self.model, self.prompt, self.charge, self.tier = call.model, call.prompt, call.charge, call.tier
        self._call = call

    @property
    def prompt_tokens(self) -> int:
        return self._call.prompt_tokens


class FilteredCall(_WrappedCall):
    """A call whose prompt a filter may block."""

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        if refuse:
            message = "The prompt triggered the content management policy. Please modify it and retry."
            raise api_error(400, message, code="content_filter", param="prompt")
        return self._call.run(settings, identity, refuse=False)


class PricedCall(_WrappedCall):
    """A call whose answer has ``usage.cost``, and each choice ``native_finish_reason``.

    Args:
        price: USD per token.
    """

    def __init__(self, call: ModelCall, price: float) -> None:
        super().__init__(call)
        self._price = price

    def run(self, settings: EmulatorSettings, identity: str, *, refuse: bool) -> ModelOutput:
        output = self._call.run(settings, identity, refuse=refuse)
        cost = output.billed * self._price
        if isinstance(output.body, bytes):
            return evolve(output, body=json.dumps(_with_cost(json.loads(output.body), cost)).encode())
        events = [
            _DATA[:-1] + json.dumps(_with_cost(json.loads(event[len(_DATA) - 1 :]), cost)).encode() + b"\n\n"
            if event.startswith(_DATA)
            else event
            for event in output.body
        ]
        return evolve(output, body=events)


def _with_cost(value: dict[str, Any], cost: float) -> dict[str, Any]:
    if isinstance(value.get("usage"), dict):
        value["usage"] |= {"cost": cost, "is_byok": False}
    for choice in value.get("choices", ()):
        choice["native_finish_reason"] = choice["finish_reason"]
    return value
