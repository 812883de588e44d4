"""What a command line is expected to have: models, a doctor, completion, short errors, amounts in words."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import smartbatch
from smartbatch.cli.main import build_parser, main
from smartbatch.errors import ConfigError
from smartbatch.providers import registry
from smartbatch.providers.hosts import HOSTS
from smartbatch.testing import emulator
from tests.levels import sampled
from tests.programs import installed

KEYS = [
    (host.name, key)
    for host in HOSTS.values()
    if host.needs_key and host.address
    for key in host.key_variables
]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for host in HOSTS.values():
        for name in (*host.key_variables, *host.address_variables):
            monkeypatch.delenv(name, raising=False)
    return tmp_path


def rows(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> list[dict[str, Any]]:
    capfd.readouterr()
    assert main([*words, "--json"]) == code
    return [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def found(capfd: pytest.CaptureFixture[str], about: str, code: int = 0, *words: str) -> str:
    return "\n".join(row["text"] for row in rows(capfd, "doctor", *words, code=code) if row["about"] == about)


def test_models_lists_every_prefix_with_what_it_can_do(capfd):
    listed = {row.pop("prefix"): row for row in rows(capfd, "models")}
    assert list(listed) == [f"{prefix}:" for prefix in registry.prefixes()]
    assert (listed["openai:"]["batch"], listed["openai:"]["flex"]) == (True, True)
    assert (listed["anthropic:"]["batch"], listed["anthropic:"]["flex"]) == (True, False)
    assert (listed["call:"]["batch"], listed["call:"]["prices_known"]) == (False, None)
    assert [name for name, row in listed.items() if row["prices_known"] == 0] == ["dashscope:"]


def test_models_and_doctor_show_which_keys_are_set_for_hosts_of_the_settings_too(capfd, monkeypatch):
    Path("own.toml").write_text(
        '[hosts.acme]\naddress = "https://a.example/v1"\nbatches = "openai"\n'
        '[prices."acme:large"]\ninput = 2\noutput = 8\n'
    )
    monkeypatch.setenv("ACME_API_KEY", "key-of-a-test")
    try:
        listed = {row.pop("prefix"): row for row in rows(capfd, "models", "--config", "own.toml")}
        (acme,) = [row for row in rows(capfd, "doctor", "--config", "own.toml") if row["about"] == "acme"]
        (priced,) = rows(capfd, "models", "acme", "--config", "own.toml")
    finally:
        del HOSTS["acme"]
    assert listed["acme:"].items() >= {"key": True, "batch": True, "prices_known": 1}.items()
    assert acme["text"] == "ACME_API_KEY is set; https://a.example/v1; batches; prices known"
    assert (acme["key"], acme["batch"], acme["prices_known"]) == (True, True, True)
    assert priced["model"] == "acme:large"
    assert (listed["groq:"]["key"], listed["ollama:"]["key"]) == (False, None)


def test_models_tells_the_prices_of_one_model_and_those_of_the_user(capfd):
    Path("own.toml").write_text('[prices."openai:mine"]\ninput = 2\noutput = 8\n')
    (row,) = rows(capfd, "models", "openai:mine", "--config", "own.toml")
    assert row == {
        "model": "openai:mine",
        "input": 2,
        "output": 8,
        "batch_input": 1,
        "batch_output": 4,
        "flex_input": None,
        "flex_output": None,
        "priority_input": 2,
        "priority_output": 8,
    }
    (row,) = rows(capfd, "models", "openai:gpt-5-mini")
    assert row["batch_input"] == row["input"] / 2


def test_models_needs_no_key_wherever_the_servers_are(capfd, monkeypatch):
    for host in HOSTS.values():
        monkeypatch.setenv(host.address_variables[0], "http://10.0.0.5:8000/v1")
    assert [row["prefix"] for row in rows(capfd, "models")] == [f"{each}:" for each in registry.prefixes()]


def test_models_names_the_prefixes_it_knows(capfd):
    assert main(["models", "opnai"]) == 2
    refused = capfd.readouterr().err
    assert "'opnai:'" in refused
    assert "did you mean openai?" in refused


def test_models_says_of_which_no_price_is_known(capfd):
    assert main(["models", "openai:gpt-5-mini", "openai:nope"]) == 0
    assert "No known price for openai:nope; set one under prices" in capfd.readouterr().out
    assert main(["models", "openai:gpt-5-mini"]) == 0
    assert "no price" not in capfd.readouterr().out


def test_the_doctor_prints_no_secret(capfd, monkeypatch):
    for prefix, key in KEYS:
        monkeypatch.setenv(key, f"planted-{prefix}-{key}-5ecret")
    monkeypatch.setenv("OPENAI_BASE_URL", "https://me:planted-5ecret@gateway.example/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "https://gateway.example/planted?key=planted-5ecret")
    monkeypatch.setenv("SMARTBATCH_SHARED", "redis://:planted-5ecret@127.0.0.1:1/0")
    for store in (
        "postgresql://me:planted-5ecret@127.0.0.1:1/jobs",
        "postgresql://127.0.0.1:1/j?password=5ecret",
    ):
        for form in ([], ["--json"]):
            assert main(["doctor", "--store", store, *form]) == 1
            printed = capfd.readouterr()
            assert "5ecret" not in printed.out + printed.err
            assert "OPENAI_API_KEY is set" in printed.out


@pytest.mark.parametrize(("prefix", "key"), sampled(KEYS, keep=2))
def test_the_doctor_knows_the_variables_that_providers_read(prefix, key, capfd, monkeypatch):
    from smartbatch._clock import RealClock

    with pytest.raises(ConfigError, match=key):
        registry.create(f"{prefix}:any", clock=RealClock())
    host = HOSTS[prefix]
    variable = host.address_variables[0]
    monkeypatch.setenv(key, "some-key-of-a-test")
    registry.create(f"{prefix}:any", clock=RealClock())
    assert found(capfd, prefix).startswith(f"{key} is set; {host.usual_address}; ")
    monkeypatch.setenv(variable, "https://gateway.example/v1")
    assert found(capfd, prefix).startswith(f"{key} is set; https://gateway.example/v1 ({variable}); ")
    monkeypatch.setenv(variable, "ftp://gateway.example")
    assert variable in found(capfd, prefix, 1)


def test_the_doctor_accepts_a_private_server_without_a_key(capfd, monkeypatch):
    monkeypatch.setenv("OPENAI_BASE_URL", "http://10.0.0.5:8000/v1")
    told = "http://10.0.0.5:8000/v1 (OPENAI_BASE_URL)"
    assert found(capfd, "openai").startswith(f"no key: OPENAI_API_KEY is not set; {told}; ")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://10.0.0.5:8000")
    assert "10.0.0.5:8000 (ANTHROPIC_BASE_URL)" in found(capfd, "anthropic")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: search")
    assert "unencrypted" in found(capfd, "anthropic", 1)
    monkeypatch.setenv("OPENAI_API_KEY", "some-key-of-a-test")
    assert "unencrypted" in found(capfd, "openai", 1)


def test_hosts_without_a_key_share_a_line(capfd, monkeypatch):
    monkeypatch.setenv("GROQ_API_KEY", "key-of-a-test")
    monkeypatch.setenv("OLLAMA_BASE_URL", "http://127.0.0.1:11434")
    assert main(["doctor"]) == 0
    lines = [line.strip() for line in capfd.readouterr().out.splitlines()]
    assert "groq       GROQ_API_KEY is set; https://api.groq.com/openai/v1; batches; prices known" in lines
    local = "ollama     needs no key; http://127.0.0.1:11434 (OLLAMA_BASE_URL); no batches; free"
    assert local in lines
    assert "hosts      no key needed: vllm, lmstudio" in lines
    (without,) = [line for line in lines if line.startswith("hosts      no key set: ")]
    keyless = [host.name for host in HOSTS.values() if host.needs_key and host.name != "groq"]
    assert without.removeprefix("hosts      no key set: ") == ", ".join(keyless)


def test_the_doctor_reaches_hosts_whose_key_is_set(capfd, monkeypatch):
    with emulator(keys=["key-accepted-5ecret"]) as server:
        for host, key in {"OPENAI": "accepted", "GROQ": "planted", "MISTRAL": "accepted"}.items():
            monkeypatch.setenv(f"{host}_API_KEY", f"key-{key}-5ecret")
            monkeypatch.setenv(f"{host}_BASE_URL", server.base_url)
        monkeypatch.setenv("OLLAMA_BASE_URL", server.base_url)  # has no key
        monkeypatch.setenv("MISTRAL_BASE_URL", "http://127.0.0.1:1/v1")
        assert main(["doctor"]) == 0
        assert server.ledger.received == 0
        assert main(["doctor", "--online"]) == 1
        printed = capfd.readouterr().out.rpartition("  python ")[2]
    ends = {line[2:12].strip(): line.rpartition("; ")[2] for line in printed.splitlines()}
    assert (ends["openai"], ends["ollama"]) == ("reachable", "free")
    assert "; key refused: the provider answered 401 " in printed
    assert "; check GROQ_API_KEY" in printed
    assert "; unreachable: 127.0.0.1:1 refused the connection" in printed
    assert "5ecret" not in printed


@pytest.mark.full
@pytest.mark.parametrize("key", ["accepted", "planted"])
def test_the_doctor_reaches_hosts_through_their_sdks(key, capfd, monkeypatch):
    with emulator(keys=["key-accepted-5ecret"]) as server:
        for name, address in {"ANTHROPIC": "ANTHROPIC_BASE_URL", "GOOGLE": "GOOGLE_GEMINI_BASE_URL"}.items():
            monkeypatch.setenv(f"{name}_API_KEY", f"key-{key}-5ecret")
            monkeypatch.setenv(address, server.url)
        refused = key == "planted"
        for name in ("anthropic", "gemini"):
            told = found(capfd, name, int(refused), "--online")
            assert "key refused: " in told if refused else told.endswith("; reachable")


def test_the_name_of_a_profile_is_no_secret(capfd, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "shared")
    assert found(capfd, "settings") == "changed: shared"


def test_the_doctor_shows_whose_credentials_are_used(capfd, monkeypatch):
    address = HOSTS["bedrock"].usual_address
    end = f"{address}; no batches; prices known"
    assert found(capfd, "bedrock") == f"uses the credentials that boto3 finds; {end}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA-of-a-test")
    assert found(capfd, "bedrock", 0, "--online") == f"AWS_ACCESS_KEY_ID is set; {end}"


@pytest.mark.full
def test_the_doctor_makes_no_store_and_counts_the_jobs_of_one(capfd, folder):
    assert found(capfd, "store", 0, "--store", "jobs.db").endswith("jobs.db, created by the first job")
    assert not (folder / "jobs.db").exists()
    (folder / "in.txt").write_text("one\ntwo\n")
    line = ["in.txt", "--model", "sim:demo?latency=0&batch_seconds=0", "--strategy", "batch", "--quiet"]
    assert main(["run", *line, "--batch-poll-interval", "0.05", "--store", "jobs.db"]) == 0
    assert found(capfd, "store", 0, "--store", "jobs.db").endswith("jobs.db: 1 job, 0 of them unfinished")
    (folder / "bad.db").write_text("no database\n" * 1000)
    assert "bad.db" in found(capfd, "store", 1, "--store", "bad.db")


def test_the_doctor_notices_a_file_that_stands_before_the_library(capfd, folder):
    assert found(capfd, "import") == ""
    (folder / "smartbatch.py").touch()
    assert f"import {folder / 'smartbatch.py'} instead of the library" in found(capfd, "import", 1)


def test_the_doctor_notices_the_other_project(capfd, folder, monkeypatch):
    info = folder / "smartbatch-3.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: smartbatch\nVersion: 3.1\n")
    monkeypatch.syspath_prepend(folder)
    assert "another project, smartbatch 3.1, is installed" in found(capfd, "import", 1)
    other = ModuleType("smartbatch")
    other.__path__ = smartbatch.__path__
    monkeypatch.setitem(sys.modules, "smartbatch", other)
    assert "finds another project's module" in found(capfd, "import", 1)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_code_for_each_shell(shell, capfd):
    assert main(["completion", shell]) == 0
    assert "smartbatch" in capfd.readouterr().out


@pytest.mark.full
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_actions_options_and_choices(shell, folder):
    program, given = installed(shell, packages=shell), folder / "given"
    script = folder / "smartbatch"
    root = Path(__file__).parents[2]
    script.write_text(
        '#!/bin/sh\nif [ -z "$_ARGCOMPLETE" ] && [ "$1" != completion ]; then '
        f'echo "$*" >> {given}; exit; fi\n'
        f'PYTHONPATH={root} exec {sys.executable} -m smartbatch "$@"\n'
    )
    script.chmod(0o755)
    name, command, ready = SHELLS[shell]
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(ready)
    home = {"HOME": str(folder), "ZDOTDIR": str(folder), "XDG_CONFIG_HOME": str(folder)}
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "TERM": "dumb", **home}
    for words in ("jobs wat", "run x --paral", "plan x --prefer sp"):
        press([program, *command], f"smartbatch {words}\t\nexit\n", environ)
    assert given.read_text().splitlines() == ["jobs watch", "run x --parallelism", "plan x --prefer speed"]


SHELLS = {
    "bash": ("rc", ["--rcfile", "rc", "-i"], "source <(smartbatch completion bash)\nPS1='READY> '\n"),
    "zsh": (
        ".zshrc",
        ["-i"],
        "autoload -U compinit; compinit -u\nsource <(smartbatch completion zsh)\nPS1='READY> '\n",
    ),
    "fish": (
        "fish/config.fish",
        ["-i"],
        "smartbatch completion fish | source\nfunction fish_prompt; echo -n 'READY> '; end\n",
    ),
}


WITH_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


def press(command: list[str], keys: str, environ: dict[str, str]) -> None:
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", WITH_TERMINAL, *command]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True
    ):
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # the other end of the terminal is closed
            while b"READY> " not in shown:
                shown += os.read(ours, 1024)
            os.write(ours, keys.encode())
            while os.read(ours, 1024):
                pass
    os.close(ours)


COMMANDS = build_parser().commands


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_is_one_screen_with_examples(command, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main([command, "--help"]) == 0
    printed = capfd.readouterr().out
    assert len(printed.splitlines()) <= 40
    assert max(map(len, printed.splitlines())) <= 80
    assert f"\nexamples:\n  smartbatch {command}" in printed


@pytest.mark.parametrize("command", ["run", "plan", "jobs", "emulator"])
def test_options_that_do_not_fit_one_screen_are_shown_by_another(command, capfd):
    main([command, "--help"])
    short = capfd.readouterr().out
    assert main([command, "--help-all"]) == 0
    whole = capfd.readouterr().out
    options = {name for action in COMMANDS[command]._actions for name in action.option_strings}
    assert {name for name in options if name not in whole} == set()
    assert "--help-all" in short
    assert len(short.splitlines()) < len(whole.splitlines())


@pytest.mark.parametrize(
    ("text", "count"),
    [("1500", 1500), ("1,500", 1500), ("200k", 200_000), ("1.5M", 1_500_000), ("1_000", 1000)],
)
def test_counts_are_written_as_people_do(text, count):
    read = build_parser().parse_args
    assert read(["run", "x", "--model", "sim:demo", "--max-tpm", text]).max_tpm == count
    assert read(["emulator", "--tpm", text]).tpm == count


@pytest.mark.parametrize("text", ["1,50", "1.5", "2m", "0.0001k", "-3", "5 MB", ""])
def test_what_is_no_count_is_refused_with_examples(text, capfd):
    assert main(["run", "x", "--model", "sim:demo", f"--max-tpm={text}"]) == 2
    assert capfd.readouterr().err.endswith(f"{text!r} is not a whole number such as 200000, 200k or 1.5M\n")


@pytest.mark.parametrize(("text", "size"), [("200MB", 200_000_000), ("64 MiB", 64 * 2**20), ("1000", 1000)])
def test_sizes_are_written_as_people_do(text, size):
    assert build_parser().parse_args(["emulator", "--batch-max-bytes", text]).batch_max_bytes == size


def test_nothing_is_coloured(capfd, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["run", "--help"], ["run", "--nope"], ["models", "anthropic"], ["doctor"]):
        main(words)
    printed = capfd.readouterr()
    assert "\x1b" not in printed.out + printed.err
