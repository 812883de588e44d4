"""Structured answers from servers without ``json_schema``, in real time and by batch."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from smartbatch import BatchingClient, InvalidRequest
from smartbatch.testing import emulator

PROMPTS = [f"Classify review {number}." for number in range(6)]
ANSWERS = {prompt: f'{{"label": "good {number}"}}' for number, prompt in enumerate(PROMPTS)}


class Verdict(BaseModel):
    label: str


@pytest.mark.parametrize(
    "rejects", [["json_schema"], ["json_schema", "json_object"], ["response_format"]], ids=str
)
def test_every_request_is_answered_although_the_first_form_is_refused(rejects):
    with emulator(rejects=rejects, answers=ANSWERS) as emu:
        options = {"api_key": "k", "base_url": emu.base_url}
        with BatchingClient(
            "openai:m", provider_options=options, shared="off", schema=Verdict, parallelism=2
        ) as client:
            results = client.generate(PROMPTS)
            assert [result.parsed for result in results] == [
                Verdict(label=f"good {number}") for number in range(len(PROMPTS))
            ]
            assert client.submit(PROMPTS[0]).result(30).parsed == Verdict(label="good 0")
        assert sum(call.status == 400 for call in emu.ledger.calls) <= 4


def test_an_answer_that_does_not_fit_fails_in_json_mode_as_well():
    with emulator(rejects=["json_schema"], answers={"Classify.": '{"lable": "good"}'}) as emu:
        options = {"api_key": "k", "base_url": emu.base_url}
        with BatchingClient(
            "openai:m", provider_options=options, shared="off", schema=Verdict, validation_retries=0
        ) as client:
            error = client.submit("Classify.").exception(30)
        assert "the answer violates the schema" in str(error)
        assert [call.status for call in emu.ledger.calls] == [400, 200]


def test_an_unsupported_mode_is_refused_before_anything_is_sent():
    options = {"api_key": "k" * 40}
    for model in ("anthropic:claude-haiku-5-5", "gemini:gemini-3.8-flash", "sim:demo"):
        own = {} if model == "sim:demo" else {"provider_options": options}
        refused = pytest.raises(InvalidRequest, match="does not support schema_mode='prompt', only auto")
        with BatchingClient(model, **own) as client, refused:
            client.submit("x", schema=Verdict, schema_mode="prompt")
    with BatchingClient("sim:demo") as client:
        with pytest.raises(InvalidRequest, match="schema_mode must be one of auto, json_schema"):
            client.submit("x", schema=Verdict, schema_mode="xml")
        assert client.submit("x", schema=Verdict, schema_mode="auto").result(30).ok
