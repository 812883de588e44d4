"""Settings that cannot be used are refused before the first request, in one line, also with ``--quiet``."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli.runs import prompts

import smartbatch
from smartbatch import BatchingClient, ConfigError, StoreError
from smartbatch.cli.main import main

WRONG = {
    "Redis without its package": ({"SMARTBATCH_SHARED": "redis://localhost"}, ["redis"], "package redis"),
    "PostgreSQL without its package": (
        {"SMARTBATCH_SHARED": "postgresql://localhost/x"},
        ["psycopg", "smartbatch.sharing.postgres_back_end"],
        "package psycopg",
    ),
    "a store without its package": (
        {"SMARTBATCH_STORE": "postgresql://localhost/x"},
        ["psycopg"],
        "package psycopg",
    ),
    "no address": ({"SMARTBATCH_SHARED": "ftp://x"}, [], "shared: the address is invalid"),
    "no cache": ({"SMARTBATCH_CACHE": "/proc/none/cache.db"}, [], "cache: the file"),
    "no store": ({"SMARTBATCH_STORE": "/proc/none.db"}, [], "the store /proc/none.db cannot be used"),
    "a contradiction": ({"SMARTBATCH_BATCH_WINDOW": "5", "SMARTBATCH_MAX_WAIT": "1"}, [], "is above"),
    "prices in a variable": ({"SMARTBATCH_PRICES": "p.toml"}, [], "set them in a settings file"),
    "a misspelt variable": ({"SMARTBATCH_BUDGT": "5"}, [], "did you mean SMARTBATCH_BUDGET?"),
}


@pytest.mark.parametrize("quiet", [[], pytest.param(["--quiet"], marks=pytest.mark.full)], ids=["", "quiet"])
@pytest.mark.parametrize(("environ", "missing", "told"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_setting_is_told_once(calls, environ, missing, told, quiet, monkeypatch, capfd):
    prompts(3)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    for module in missing:
        monkeypatch.delitem(sys.modules, module, raising=False)
        if "." not in module:
            monkeypatch.setitem(sys.modules, module, None)
    if "redis" in missing:
        monkeypatch.delitem(sys.modules, "smartbatch.sharing.redis_back_end", raising=False)
    assert main(["run", "in.txt", "--model", "sim:demo?latency=0", "-o", "out.jsonl", *quiet]) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert told in printed.err
    assert not Path("out.jsonl").exists()


def test_a_yaml_file_without_its_package_is_told_once(calls, monkeypatch, capfd):
    prompts(1)
    Path("x.yaml").write_text("retries: 1\n")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert main(["run", "in.txt", "--model", "sim:echo", "--config", "x.yaml", "--quiet"]) == 2
    assert capfd.readouterr().err.count("x.yaml") == 1


@pytest.mark.parametrize("key", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY"])
def test_a_missing_key_is_told(calls, key, monkeypatch, capfd):
    prompts(1)
    for name in (key, "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    model = "openai:gpt-5-mini" if key.startswith("OPENAI") else "anthropic:claude-sonnet-4-5"
    assert main(["run", "in.txt", "--model", model, "--quiet"]) == 2
    assert capfd.readouterr().err.startswith(f"smartbatch: no API key: set {key}")


def test_a_name_with_a_nul_is_refused():
    for store in (
        lambda: smartbatch.list_jobs(store="a\0b"),
        lambda: BatchingClient("sim:echo", store="a\0b"),
    ):
        with pytest.raises(StoreError, match="NUL character"):
            store()
    for place in ({"cache": "a\0b"}, {"shared": "sqlite:///a\0b"}):
        with pytest.raises(ConfigError, match="null byte"):
            smartbatch.generate(["a"], model="sim:echo", **place)


@pytest.mark.parametrize(
    "store",
    [
        "host=db.example password=S3CRET dbname=jobs",
        "host = db.example password = 'S3CRET it\\'s S3CRET'",
        "dbname=jobs",
        "application_name=x password=S3CRET",
    ],
)
def test_a_server_in_the_form_of_libpq_is_no_file(calls, store, tmp_path, capfd):
    prompts(1)
    before = sorted(Path().iterdir())
    with pytest.raises(ConfigError, match="as a URL, such as postgresql://user:") as refused:
        BatchingClient("sim:demo?latency=0", store=store)
    with pytest.raises(ConfigError, match="as a URL"):
        smartbatch.job("job-1", store=store)
    for command in (["run", "in.txt", "--model", "sim:demo?latency=0"], ["jobs"], ["dashboard"]):
        assert main([*command, "--store", store]) == 2
    told = capfd.readouterr()
    assert told.err.count("postgresql://user:password@host:5432/database") == 3
    assert "S3CRET" not in refused.value.message + told.out + told.err
    assert sorted(Path().iterdir()) == before
