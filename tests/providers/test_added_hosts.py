"""Hosts that users add, in code or in a settings file."""

from __future__ import annotations

import json

import pytest

from smartbatch import BatchingClient, BatchingConfig, StoredJobs
from smartbatch.cli.main import main
from smartbatch.errors import ConfigError, ErrorKind
from smartbatch.providers import Host
from smartbatch.providers.hosts import HOSTS, add_hosts
from smartbatch.testing import answer_for, emulator

PATIENCE = 60.0


pytestmark = pytest.mark.usefixtures("known_hosts")


@pytest.fixture(autouse=True)
def acme_key(monkeypatch):
    monkeypatch.setenv("ACME_API_KEY", "key-of-a-test")


@pytest.mark.parametrize("ending", ["toml", "yaml"])
def test_a_host_in_a_settings_file_answers_and_runs_batches(ending, tmp_path, store):
    file = tmp_path / f"settings.{ending}"
    with emulator(batch_turnaround=0) as server:
        fields = {"address": server.base_url, "price_id": "openai", "batches": "openai"}
        if ending == "toml":
            text = "[hosts.acme]\n" + "".join(f'{name} = "{value}"\n' for name, value in fields.items())
        else:
            text = "hosts:\n  acme:\n" + "".join(f"    {name}: {value}\n" for name, value in fields.items())
        file.write_text(text)
        config = BatchingConfig.load(file, store=store, budget=1, batch_poll_interval=0.05)
        with BatchingClient("acme:gpt-5-mini", config) as client:
            results = list(client.map(["one", "two"], strategy="individual"))
            client.submit_batch(["three"], key="later")
        assert [result.text for result in results] == [
            answer_for(prompt, "gpt-5-mini") for prompt in ("one", "two")
        ]
        assert all(result.cost for result in results)
        del HOSTS["acme"]  # as in another process
        jobs = StoredJobs(config)
        assert [result.text for result in jobs.job("later").results(timeout=PATIENCE)] == [
            answer_for("three", "gpt-5-mini")
        ]
        jobs.close()


def test_commands_know_the_hosts_of_their_settings(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    with emulator() as server:
        (tmp_path / "own.toml").write_text(
            f'[hosts.acme]\naddress = "{server.base_url}"\n[prices."acme:large"]\ninput = 2\noutput = 8\n'
        )
        line = ["in.txt", "--model", "acme:large", "--config", "own.toml"]
        assert main(["plan", *line, "--json"]) == 0
        assert json.loads(capfd.readouterr().out)["closed"]["batch"].startswith("no Batch API")
        assert main(["run", *line, "--quiet", "--budget", "1"]) == 0
        found = [json.loads(row) for row in capfd.readouterr().out.splitlines()]
    assert [row["model"] for row in found] == ["acme:large"] * 2
    assert all(row["cost"] for row in found)
    for command in ("dashboard", "jobs", "top", "pause"):
        (tmp_path / "own.toml").write_text("[hosts.acme]\nadress = 5\n")
        assert main([command, "--config", "own.toml"]) == 2
        assert "host acme: unknown field adress; did you mean address?" in capfd.readouterr().err


def test_fields_in_the_settings_replace_those_of_a_built_in_host():
    groq = HOSTS["groq"]
    add_hosts({"groq": {"address": "https://gateway.example/v1", "batches": "none"}})
    assert HOSTS["groq"].address == "https://gateway.example/v1"
    assert HOSTS["groq"].batches is None
    assert HOSTS["groq"].key_variables == groq.key_variables
    add_hosts(
        {"groq": {"key_variables": "TEAM_KEY", "batch_share": 1, "error_kinds": {"full": "rate_limit"}}}
    )
    assert HOSTS["groq"].error_kinds == {"full": ErrorKind.RATE_LIMIT}
    assert HOSTS["groq"].batches == groq.batches
    assert HOSTS["groq"].key_variables == ("TEAM_KEY",)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("acme", {"adress": "https://a.example"}, r"host acme: unknown field adress; did you mean address\?"),
        ("acme", {"name": "other"}, "host acme: unknown field name"),
        ("acme", {"address": 5}, "host acme: address must be a string"),
        ("acme", {"key_variables": [5]}, "host acme: key_variables must be a list whose values are each a"),
        ("acme", {"regions": ["eu"]}, "host acme: regions must be a table whose values are each a string"),
        ("acme", {"needs_key": "no"}, "host acme: needs_key must be true or false"),
        ("acme", {"batch_share": True}, "host acme: batch_share must be a number"),
        ("acme", {"batch_share": 50}, "host acme: batch_share must be from 0 to 1"),
        ("acme", {"weekend_price_hour": 24}, "host acme: weekend_price_hour must be from 0 to 23"),
        ("acme", {"schema_mode": "json"}, "host acme: schema_mode must be 'json_schema' or .* or 'prompt'"),
        (
            "acme",
            {"batches": "opnai"},
            "host acme: batches must be one of .*; did you mean openai",
        ),
        ("acme", {"error_kinds": {"full": "rate"}}, "host acme: the error full has an unknown kind"),
        ("acme", {"batches": "ollama"}, "host acme: batches must be one of openai, "),
        ("acme", {"api": "gemini"}, "host acme: only hosts with OpenAI's API can be added or changed"),
        ("anthropic", {"address": "https://a.example"}, "host anthropic: only hosts with OpenAI's API"),
        ("Acme Ltd", {}, "host 'Acme Ltd': the name must start with a lower-case letter"),
        ("sim", {}, "host 'sim': the name must .* differ from call and sim"),
    ],
)
def test_a_host_that_cannot_be_used_is_rejected(name, fields, message):
    before = dict(HOSTS)
    with pytest.raises(ConfigError, match=message):
        BatchingClient("sim:demo", hosts={"fine": {"address": "https://a.example"}, name: fields})
    assert before == HOSTS


@pytest.mark.parametrize("fields", [{"api_key": "planted-5ecret"}, {"key_variables": ["planted-5ecret"]}])
def test_a_key_among_the_fields_is_rejected_and_not_shown(fields):
    with pytest.raises(ConfigError, match=r"variable|ACME_API_KEY") as caught:
        StoredJobs(BatchingConfig(hosts={"acme": fields}))
    assert "5ecret" not in str(caught.value)


@pytest.mark.parametrize("value", [3, ["acme"], {"acme": "https://a.example"}])
def test_hosts_are_a_table_of_tables(value):
    with pytest.raises(ConfigError, match=r"^hosts = .* is out of range: a table of hosts by name$"):
        BatchingConfig(hosts=value)


def test_hosts_do_not_fit_into_a_variable():
    with pytest.raises(ConfigError, match=r"SMARTBATCH_HOSTS: hosts are a table.* pass hosts=\{…\}"):
        BatchingConfig.load(environ={"SMARTBATCH_HOSTS": "acme"})


def test_a_host_in_code_is_checked_as_well():
    with pytest.raises(ConfigError, match="key_variables and address_variables must be names of environment"):
        Host(name="acme", address_variables=("https://a.example",))
