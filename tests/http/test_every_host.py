"""Every host with OpenAI's API, reached through its variables: costs, plans, kills and errors.

A host takes one record, and one line in ``MODELS``. Those in ``NOT_LISTED`` show that nothing else is needed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from smartbatch import BatchingClient, Price
from smartbatch.errors import BudgetExceeded, ConfigError, ErrorKind, ProviderError
from smartbatch.providers import Host, add_host
from smartbatch.providers.hosts import HOSTS
from smartbatch.providers.price_book import PriceBook
from smartbatch.testing import Emulator, emulator
from smartbatch.types import Route
from tests.levels import sampled

PATIENCE = 30.0
KEY = "key-of-a-test"
PROMPTS = [f"question {number}" for number in range(12)]

NOT_LISTED = (Host(name="zai", address="https://api.z.ai/api/paas/v4", price_id="zai"),)

MODELS = {
    "openai": "gpt-5-mini",
    "azure": "gpt-4o-mini",
    "mistral": "mistral-small-latest",
    "groq": "llama-3.3-70b-versatile",
    "openrouter": "z-ai/glm-5.2",
    "deepseek": "deepseek-v4-pro",
    "xai": "grok-4.3",
    "together": "zai-org/GLM-5.2",
    "fireworks": "accounts/fireworks/models/deepseek-v4-pro",
    "cerebras": "gpt-oss-120b",
    "dashscope": "qwen-plus",
    "moonshot": "kimi-k3",
    "ollama": "llama3:8b",
    "vllm": "my/model",
    "lmstudio": "my-model",
    "zai": "GLM-5.3",
}
EVERY = sampled(MODELS, keep=3, first=3)
OWN_PRICE = Price(1, 2)


@pytest.fixture(autouse=True)
def reached(monkeypatch):
    """``reached(name, server)`` sets a host's variables; hosts that are not listed are forgotten later."""
    before = dict(HOSTS)
    for host in NOT_LISTED:
        add_host(host)
    for host in HOSTS.values():
        for variable in (*host.key_variables, *host.address_variables):
            monkeypatch.delenv(variable, raising=False)

    def reach(name: str, server: Emulator) -> Host:
        host = HOSTS[name]
        monkeypatch.setenv(host.address_variables[-1], server.base_url)
        monkeypatch.setenv(host.key_variables[0], KEY)
        return host

    yield reach
    HOSTS.clear()
    HOSTS.update(before)


def model_of(name: str) -> str:
    return f"{name}:{MODELS[name]}"


def prices_of(name: str) -> dict[str, Price]:
    """A price for hosts that the table does not list."""
    host = HOSTS[name]
    return {model_of(name): OWN_PRICE} if host.priced and host.price_id is None else {}


def failure(model: str, **settings) -> ProviderError:
    with BatchingClient(model, **settings) as client:
        error = client.submit("hello").exception()
    assert isinstance(error, ProviderError)
    return error


def test_every_host_is_in_this_table():
    assert {name for name, host in HOSTS.items() if host.api == "openai"} == MODELS.keys()


@pytest.mark.parametrize("name", sampled(("openrouter", "mistral", "xai"), keep=1))
def test_a_host_with_its_own_api_takes_the_effort_on_every_route(name, reached):
    with emulator(dialect=name) as server:
        reached(name, server)
        settings = {"batch_poll_interval": 0.02, "prices": prices_of(name)}
        with BatchingClient(model_of(name), reasoning_effort="high", **settings) as client:
            alone = client.submit("hello").result(PATIENCE)
            [batched] = client.generate(["hello"], strategy="batch")
    assert alone.usage.reasoning_tokens == batched.usage.reasoning_tokens > 0


@pytest.mark.parametrize("name", EVERY)
def test_a_list_within_a_budget_costs_its_tokens_at_the_price_of_the_host(name, reached):
    with emulator() as server:
        host = reached(name, server)
        prices = prices_of(name)
        with BatchingClient(model_of(name), budget=1, prices=prices, retries=0) as client:
            results = client.generate(PROMPTS, strategy="individual")
        card = PriceBook(prices).rates(name, MODELS[name], time.time())
        assert results.succeeded == server.ledger.received == len(PROMPTS)
        assert (card is not None) == host.priced
        if card is not None:
            assert results.cost == pytest.approx(sum(card.cost(result.usage) for result in results))
            assert results.cost
            with BatchingClient(model_of(name), budget=1e-9, prices=prices) as client:
                assert isinstance(client.submit("too expensive").exception(), BudgetExceeded)
        assert server.ledger.received == len(PROMPTS)


@pytest.mark.parametrize("name", [name for name in MODELS if name == "dashscope"])
def test_a_budget_without_a_price_is_rejected_with_the_setting_for_it(name, reached):
    with emulator() as server:
        reached(name, server)
        with pytest.raises(ConfigError, match=f"price of {model_of(name)} is unknown.* to prices"):
            BatchingClient(model_of(name), budget=1)


@pytest.mark.parametrize("name", EVERY)
def test_a_plan_offers_batches_only_where_the_host_has_them(name, reached):
    with emulator() as server:
        host = reached(name, server)
        with BatchingClient(model_of(name), prices=prices_of(name)) as client:
            plan = client.plan(PROMPTS, prefer="cost")
            offered = Route.BATCH in {option.route for option in plan.options}
            assert offered == (host.batches is not None)
            if host.batches is None:
                assert "no Batch API" in dict(plan.decision.closed)[Route.BATCH]
                for call in (client.generate, client.plan):
                    with pytest.raises(ConfigError, match=f"{name} has no Batch API"):
                        call(PROMPTS, strategy="batch")
                with pytest.raises(ConfigError, match=f"{name} has no Batch API"):
                    client.submit_batch(PROMPTS)
            if host.priced:
                assert plan.cost
        assert server.ledger.received == 0


@pytest.mark.parametrize("name", EVERY)
def test_a_request_over_the_limit_is_sent_again_once_the_limit_allows(name, reached):
    with emulator(fault_for=lambda index, _: "429" if index == 0 else None, fault_retry_after=0.01) as server:
        reached(name, server)
        with BatchingClient(model_of(name)) as client:
            result = client.submit("hello").result(PATIENCE)
        assert server.ledger.received == result.attempts == 2


@pytest.mark.parametrize("name", EVERY)
def test_a_wrong_key_is_reported_once_with_its_variable(name, reached):
    with emulator(keys=["key-that-is-right"]) as server:
        host = reached(name, server)
        error = failure(model_of(name))
        assert server.ledger.received == 1
    assert error.kind is ErrorKind.AUTH_ERROR
    assert host.key_variables[0] in str(error)
    assert KEY not in str(error)


@pytest.mark.parametrize("name", EVERY)
def test_an_unknown_model_is_reported_once_by_its_name(name, reached):
    with emulator(models=["another"]) as server:
        reached(name, server)
        error = failure(model_of(name))
        assert server.ledger.received == 1
    assert error.kind is ErrorKind.CLIENT_ERROR
    assert MODELS[name] in str(error)


@pytest.mark.parametrize("name", sampled(MODELS, first=3))
def test_a_killed_run_continues_and_sends_no_answered_row_again(name, reached, tmp_path):
    rows, half = 40, threading.Event()
    (tmp_path / "in.txt").write_text("".join(f"question {number}\n" for number in range(rows)))
    out = tmp_path / "out.jsonl"
    line = [sys.executable, "-m", "smartbatch", "run", "in.txt", "--model", model_of(name), "-o", out]
    line += ["--strategy", "individual", "--quiet", "--budget", "1", "--config", "own.toml"]
    settings = [
        f'[hosts.{name}]\naddress = "{host.address}"\nprice_id = "{host.price_id}"\n'
        for host in NOT_LISTED
        if host.name == name
    ]
    settings += [
        f'[prices."{model}"]\ninput = {price.input}\noutput = {price.output}\n'
        for model, price in prices_of(name).items()
    ]
    (tmp_path / "own.toml").write_text("".join(settings))

    def watch(index: int, _body: object) -> None:
        if index >= rows // 2:
            half.set()

    with emulator(latency=0.03, fault_for=watch) as server:
        reached(name, server)
        environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}
        process = subprocess.Popen(line, cwd=tmp_path, env=environ)
        assert half.wait(PATIENCE)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == -signal.SIGKILL
        complete = map(json.loads, out.read_bytes().rpartition(b"\n")[0].splitlines())
        written = {hashlib.sha256(f"question {row['index']}".encode()).hexdigest() for row in complete}
        before = server.ledger.received
        subprocess.run(line, cwd=tmp_path, env=environ, check=True, timeout=PATIENCE)
        sent_later = {call.prompt for call in server.ledger.calls[before:]}
    found = [json.loads(row) for row in out.read_bytes().splitlines()]
    assert [row["index"] for row in found] == list(range(rows))
    assert all(row["error"] is None for row in found)
    assert all((row["cost"] or 0) > 0 for row in found) == HOSTS[name].priced
    assert written
    assert not written & sent_later
