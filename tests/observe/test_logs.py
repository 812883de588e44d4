"""Events as log lines."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
import structlog
from sample_events import called, ended, retry, started, submitted
from structlog.testing import CapturingLogger

from smartbatch import BatchingClient
from smartbatch._clock import VirtualClock
from smartbatch.errors import ConfigError
from smartbatch.events import BreakerChanged, ClientStarted, ClientStopped, CooldownStarted, Event
from smartbatch.observe import logs
from smartbatch.observe.logs import LogObserver, level_of
from smartbatch.types import Usage

KEY = "sk-canary-0123456789abcdef"

EVENTS: list[Event] = [
    ClientStarted(at=0.0, workers=4),
    submitted(),
    started(),
    called(error="server_error", usage=Usage(3, 2)),
    retry(),
    ended(),
    CooldownStarted(at=1.0, scope="key", model="sim:small", seconds=12.0, consecutive=1),
    BreakerChanged(
        at=1.0, model="sim:small", before="closed", after="open", reason=f"401 for Bearer {KEY}", pause=2.0
    ),
    ClientStopped(at=2.0, failed=0),
]


@pytest.fixture(autouse=True)
def silent_again():
    yield
    logs.disable()
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def observe_all(observer: LogObserver) -> None:
    for event in EVENTS:
        observer(event)


def test_by_default_nothing_is_printed_or_logged(capfd, caplog):
    caplog.set_level(logging.DEBUG)
    observe_all(LogObserver())
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_enable_writes_one_json_object_an_event(capsys):
    observer, stream = LogObserver(), io.StringIO()
    logs.enable("debug", stream)
    observe_all(observer)
    written = lines(stream)
    assert [line["event"] for line in written] == [event.name for event in EVENTS]
    assert written[3]["usage"]["input_tokens"] == 3
    assert {"level", "timestamp", "logger"} <= set(written[0])
    assert capsys.readouterr() == ("", "")


def test_enable_goes_to_standard_error_and_disable_ends_it(capsys):
    logs.enable("warning")
    observer = LogObserver()
    observe_all(observer)
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line)["event"] for line in err.splitlines()] == ["call_finished"]
    logs.disable()
    observe_all(observer)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (called(error="timeout"), "warning"),
        (called(), "debug"),
        (ended(ok=False, error="timeout"), "warning"),
        (ended(ok=False, cancelled=True), "debug"),
        (ended(), "debug"),
        (CooldownStarted(at=0.0, scope="key", model="m", seconds=1.0, consecutive=1), "info"),
        (BreakerChanged(at=0.0, model="m", before="open", after="closed", reason="probe"), "info"),
        (ClientStopped(at=0.0, failed=0), "debug"),
        (ClientStopped(at=0.0, failed=2), "warning"),
        (retry(), "debug"),
    ],
)
def test_failures_are_warnings_limits_are_infos_the_rest_is_debug(event, level):
    assert level_of(event) == level


def test_an_unknown_level_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'loud'.*debug, info, warning, error"):
        logs.enable("loud")


def test_a_handed_over_logger_gets_everything_and_filters_itself():
    captured = CapturingLogger()
    logger = structlog.wrap_logger(
        captured, processors=[], wrapper_class=structlog.make_filtering_bound_logger(logging.INFO)
    )
    observe_all(LogObserver(logger))
    assert [call.kwargs["event"] for call in captured.calls] == [
        "call_finished",
        "cooldown_started",
        "breaker_changed",
    ]


def test_a_standard_library_logger_gets_json_messages(caplog):
    caplog.set_level(logging.INFO)
    observe_all(LogObserver(logging.getLogger("app")))
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO", "INFO"]
    assert json.loads(caplog.messages[1])["seconds"] == 12.0


def test_an_application_with_structlog_configured_keeps_its_pipeline():
    captured = CapturingLogger()

    def mark(_: Any, __: str, entry: dict[str, Any]) -> dict[str, Any]:
        return entry | {"service": "shop"}

    structlog.configure(processors=[mark], logger_factory=lambda *_: captured)
    before = structlog.get_config()["processors"]
    logs.enable("info")
    observe_all(LogObserver())
    assert [call.kwargs["event"] for call in captured.calls] == [
        "call_finished",
        "cooldown_started",
        "breaker_changed",
    ]
    assert all(call.kwargs["service"] == "shop" for call in captured.calls)
    assert structlog.get_config()["processors"] is before


def test_keys_never_appear_with_everything_shown():
    stream = io.StringIO()
    logs.enable("debug", stream)
    observe_all(LogObserver())
    assert KEY not in stream.getvalue()
    assert "canary" not in stream.getvalue()


def test_prompts_and_answers_never_appear_with_everything_shown():
    stream = io.StringIO()
    logs.enable("debug", stream)
    client = BatchingClient(
        "sim:small", clock=VirtualClock(), observers=[LogObserver()], system="canary system"
    )
    with client:
        results = list(client.map([f"canary prompt {i}" for i in range(20)]))
    assert len(lines(stream)) > 60
    assert "canary" not in stream.getvalue()
    assert all(result.text and result.text not in stream.getvalue() for result in results)


def test_an_observer_that_raises_is_logged_and_ends_nothing():
    stream = io.StringIO()
    logs.enable("warning", stream)

    def broken(event: Event) -> None:
        raise ValueError("canary")

    with BatchingClient("sim:small", clock=VirtualClock(), observers=[broken]) as client:
        assert client.submit("hello").result().ok
    entries = [entry for entry in lines(stream) if entry["event"] == "observer_raised"]
    assert {"request_submitted", "call_finished"} <= {entry["observed"] for entry in entries}
    assert {entry["error"] for entry in entries} == {"ValueError"}


def test_a_log_that_cannot_be_written_ends_nothing(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr(logging.getLogger("smartbatch"), "propagate", False)
    logs.enable("debug")
    stream.close()
    with BatchingClient("sim:small", clock=VirtualClock()) as client:
        assert client.submit("hello").result().ok


def test_an_error_of_the_log_goes_to_the_standard_logger(caplog):
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(28, "No space left on device")

    logs.enable("warning", Full())
    logs.warn("something")
    [record] = caplog.records
    assert record.getMessage().startswith("exception in the log")
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], OSError)


def test_an_endless_pause_is_still_json():
    stream = io.StringIO()
    logs.enable("debug", stream)
    LogObserver()(
        BreakerChanged(at=1.0, model="m", before="closed", after="open", reason="stopped", pause=float("inf"))
    )
    assert json.loads(stream.getvalue(), parse_constant=pytest.fail)["pause"] == "inf"


def test_a_line_end_in_an_id_cannot_forge_a_line():
    captured = CapturingLogger()
    logger = structlog.wrap_logger(captured, processors=[])
    LogObserver(logger)(submitted('r1\n{"event": "forged"}\x1b[2J\u2028'))
    assert captured.calls[0].kwargs["request_id"].isprintable()
