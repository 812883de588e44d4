"""Durations have the same forms everywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from smartbatch import BatchingClient, BatchingConfig, ConfigError, InvalidRequest, StoredJobs
from smartbatch.cli.emulator_command import settings_of
from smartbatch.cli.main import build_parser, main
from smartbatch.errors import JobTimeout, SmartbatchError
from smartbatch.providers import MockProvider, OpenAIProvider, SimProvider
from smartbatch.testing import Emulator, emulator
from smartbatch.types import Request
from tests.levels import sampled

FORMS = ["5400", 5400, 5400.0, "90m", "90 min", "1h30min", "1.5h", "1h 30m", "5400s", timedelta(hours=1.5)]
BAD = ["5 parsecs", "soon", "", "1h30", "h", True, [5]]
MODEL = "sim:x?latency=0"


def of_a_file(value: object) -> float | None:
    Path("own.toml").write_text(f"call_timeout = {value!r}\n")
    return BatchingConfig.load("own.toml", environ={}).call_timeout


def of_a_request(value: Any) -> float | None:
    seen: list[Request] = []
    with BatchingClient(MODEL, preprocess=[seen.append]) as client:
        client.submit("x", timeout=value)
    return seen[0].timeout


def of_an_emulator(value: Any) -> float | None:
    with emulator(batch_turnaround=value, outage_between=(0.0, value)) as emu:
        assert emu.settings.outage_between == (0.0, emu.settings.batch_turnaround)
        emu.configure(latency=value)
        return emu.settings.latency


def of_a_mock(value: Any) -> float | None:
    waited: list[float] = []
    with BatchingClient(MockProvider(latency=value, sleep=waited.append)) as client:
        client.generate(["x"])
    return waited[0]


def of_a_deadline(value: Any) -> float | None:
    with BatchingClient(MODEL) as client:
        return client.plan(["x"], deadline=value).decision.constraints.deadline


def of_a_provider(value: Any) -> float | None:
    provider = OpenAIProvider("any-key", connect_timeout=value)
    return provider.network.realtime.connect_timeout


def of_the_embedded_provider(value: Any) -> float | None:
    waited: list[float] = []
    provider = SimProvider(sleep=waited.append, now=lambda: 0.0, latency=value)
    with BatchingClient("sim:x", provider=provider, call_timeout="2h") as client:
        client.generate(["x"])
    return waited[0]


PLACES: dict[str, Callable[[Any], float | None]] = {
    "setting": lambda value: BatchingConfig(call_timeout=value).call_timeout,
    "argument of a client": lambda value: BatchingClient(MODEL, call_timeout=value).config.call_timeout,
    "mapping": lambda value: BatchingConfig.load({"call_timeout": value}, environ={}).call_timeout,
    "request": of_a_request,
    "deadline": of_a_deadline,
    "emulator": of_an_emulator,
    "mock": of_a_mock,
    "option of a provider": of_a_provider,
    "embedded provider": of_the_embedded_provider,
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def each_in_each_place(forms: list[Any], name: Callable[[Any], str], keep: int) -> pytest.MarkDecorator:
    """The default run has each form and each place, because ``keep`` shares no factor with either number."""
    cases = [
        pytest.param(read, form, id=f"{place}-{name(form)}")
        for place, read in PLACES.items()
        for form in forms
    ]
    return pytest.mark.parametrize(("place", "form"), sampled(cases, keep=keep))


@each_in_each_place(FORMS, str, keep=23)
def test_every_form_is_taken_everywhere(place, form):
    assert place(form) == 5400


@each_in_each_place(BAD, repr, keep=17)
def test_what_is_no_duration_is_refused_with_its_field(place, form):
    with pytest.raises(
        (ConfigError, InvalidRequest), match=r"timeout|deadline|batch_turnaround|latency"
    ) as caught:
        place(form)
    if isinstance(form, str):
        assert "'2s', '90m', '6h30min'" in str(caught.value)


@pytest.mark.parametrize("form", [form for form in FORMS if isinstance(form, str)])
def test_texts_are_taken_from_variables_files_and_the_command_line(form):
    environ = {"SMARTBATCH_CALL_TIMEOUT": form, "SMARTBATCH_BATCH_RETENTION": form}
    config = BatchingConfig.load(environ=environ)
    assert (config.call_timeout, config.batch_retention) == (5400, 5400)
    assert of_a_file(form) == 5400
    args = build_parser().parse_args(["emulator", "--port", "0", "--latency", form, "--batch-window", form])
    with Emulator(**settings_of(args)) as emu:
        assert (emu.settings.latency, emu.settings.batch_window) == (5400, 5400)


def test_a_duration_out_of_range_is_told_its_range():
    with pytest.raises(ConfigError, match=r"batch_window = '10s' is out of range: 0.01 to 5 s"):
        BatchingConfig(batch_window="10s")
    with pytest.raises(InvalidRequest, match=r"timeout must be a number above 0"):
        of_a_request("-3")


@pytest.mark.parametrize("place", ["setting", "argument of a client", "mapping", "request", "deadline"])
@pytest.mark.parametrize("beyond", [10**400, -(10**400), "1e400"], ids=["above", "below", "text"])
def test_a_number_beyond_all_floats_is_out_of_range(place, beyond):
    with pytest.raises((ConfigError, InvalidRequest), match=r"timeout|deadline"):
        PLACES[place](beyond)


@pytest.mark.full
def test_the_command_line_takes_them_and_names_the_option(capfd):
    Path("in.txt").write_text("a\n")
    line = ["run", "in.txt", "--model", MODEL, "--quiet"]
    given = [
        "--call-timeout",
        "2min",
        "--batch-poll-interval",
        "500ms",
        "--deadline",
        "6h30min",
        "--batch-timeout",
        "1d",
    ]
    assert main([*line, *given]) == 0
    for option in ("--call-timeout", "--batch-poll-interval", "--deadline", "--batch-timeout"):
        assert main([*line, option, "soon"]) == 2
        printed = capfd.readouterr().err
        assert option.lstrip("-").replace("-", "_") in printed.replace("-", "_")
        assert "'2s', '90m', '6h30min'" in printed
    assert main(["jobs", "list", "--batch-poll-interval", "soon"]) == 2
    assert "batch_poll_interval = 'soon'" in capfd.readouterr().err


def test_waits_take_them():
    with BatchingClient("sim:x?latency=0&batch_seconds=1h", batch_poll_interval="100ms") as client:
        job = client.submit_batch(["a", "b"])
        began = time.monotonic()
        with pytest.raises(JobTimeout):
            job.wait("5ms")
        with pytest.raises(JobTimeout):
            list(job.results(timeout="5ms"))
        with pytest.raises(JobTimeout):
            client.submit_and_wait(["c"] * 12, timeout="5ms")
        assert time.monotonic() - began < 20
        for wait in (job.wait, client.stop, StoredJobs().close):
            with pytest.raises(SmartbatchError, match="timeout = 'soon' is not a duration of 0 or more"):
                wait("soon")
        before = len(client.jobs())
        with pytest.raises(ConfigError, match="timeout"):
            client.submit_and_wait(["d"] * 12, timeout="soon")
        assert len(client.jobs()) == before
        client.stop("1s")
