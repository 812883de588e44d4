"""Errors in Sentry, as its own SDK sends them to a transport that keeps them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from run_script import run_script

PROMPT, KEY = "a very secret prompt", "sk-test-4711-secret"

SETUP = f"""
import json, logging, smartbatch, sentry_sdk
from sentry_sdk.transport import Transport
from smartbatch.integrations.sentry import SmartbatchIntegration
from smartbatch.testing import emulator
class Kept(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            if item.payload.json is not None:
                print(json.dumps([item.type, item.payload.json], default=str))
def begin(*integrations, **options):
    sentry_sdk.init("https://public@sentry.invalid/1", transport=Kept, integrations=integrations,
                    traces_sample_rate=1.0, attach_stacktrace=True, **options)
PROMPT, KEY = {PROMPT!r}, {KEY!r}
"""
FAILING = """
def view(question):
    with emulator(latency=0, faults={"500": 1}) as server:
        client = smartbatch.BatchingClient("openai:gpt-5-mini", retries=1, retry_initial=0.01,
            provider_options={"base_url": server.base_url, "api_key": KEY})
        with client, sentry_sdk.start_transaction(name="view"):
            logging.getLogger("smartbatch").warning("about to ask")
            return client.submit(question, id="r1").result()
"""


def sent(script: str, kind: str = "event") -> list[dict[str, Any]]:
    ended = run_script(SETUP + script, guard=100.0)
    assert ended.code == 0, ended.err
    return [body for name, body in map(json.loads, ended.lines) if name == kind]


@pytest.mark.full
def test_an_error_has_kind_route_and_attempt_as_tags_and_nothing_secret():
    (event,) = sent(
        SETUP_ALL
        + FAILING
        + """
try:
    view(PROMPT)
except smartbatch.SmartbatchError as error:
    sentry_sdk.capture_exception(error)
"""
    )
    assert event["tags"] == {
        "smartbatch.kind": "server_error",
        "smartbatch.route": "individual",
        "smartbatch.attempt": "2",
        "smartbatch.request_id": "r1",
    }
    assert "ProviderError" in {value["type"] for value in event["exception"]["values"]}
    assert "about to ask" in {crumb["message"] for crumb in event["breadcrumbs"]["values"]}
    assert PROMPT not in json.dumps(event)
    assert KEY not in json.dumps(event)


SETUP_ALL = "begin(SmartbatchIntegration(), auto_enabling_integrations=False)\n"


@pytest.mark.full
def test_spans_have_nothing_secret():
    (transaction,) = sent(
        "begin(SmartbatchIntegration())\n"
        + FAILING
        + """
try:
    view(PROMPT)
except smartbatch.SmartbatchError:
    pass
""",
        "transaction",
    )
    assert transaction["transaction"] == "view"
    assert PROMPT not in json.dumps(transaction)
    assert KEY not in json.dumps(transaction)


@pytest.mark.full
def test_an_error_that_was_raised_from_one_has_its_tags():
    (event,) = sent(
        SETUP_ALL
        + FAILING
        + """
try:
    try:
        view(PROMPT)
    except smartbatch.SmartbatchError as error:
        raise RuntimeError("the page cannot be shown") from error
except RuntimeError as error:
    sentry_sdk.capture_exception(error)
"""
    )
    assert event["tags"]["smartbatch.kind"] == "server_error"
    assert PROMPT not in json.dumps(event)


@pytest.mark.full
def test_an_error_in_a_callback_is_sent_without_local_variables():
    (event,) = sent(
        SETUP_ALL
        + """
def callback(future):
    raise KeyError("colour")
with smartbatch.BatchingClient("sim:demo?latency=0") as client:
    client.submit(PROMPT).add_done_callback(callback)
"""
    )
    assert event["exception"]["values"][-1]["type"] == "KeyError"
    assert PROMPT not in json.dumps(event)


@pytest.mark.full
def test_without_the_integration_prompts_are_sent():
    ask = """
try:
    view(PROMPT)
except smartbatch.SmartbatchError as error:
    sentry_sdk.capture_exception(error)
"""
    (event,) = sent("begin()\n" + FAILING + ask)
    assert PROMPT in json.dumps(event)
    (event,) = sent("begin(SmartbatchIntegration(include_prompts=True))\n" + FAILING + ask)
    assert PROMPT in json.dumps(event)
    assert event["tags"]["smartbatch.route"] == "individual"
