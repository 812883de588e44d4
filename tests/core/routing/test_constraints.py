"""Deadlines as text, seconds, durations and dates become seconds from now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.routing.options import seconds_until
from smartbatch.errors import ConfigError

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("90s", 90),
        ("90", 90),
        (" 30 min ", 1800),
        ("2h", 7200),
        ("2 H", 7200),
        ("1h 30min", 5400),
        ("1h30m", 5400),
        ("1.5h", 5400),
        (".5h", 1800),
        ("1d", 86_400),
        ("1 day 2 hours 3 minutes 4 seconds", 93_784),
        (45, 45),
        (0.5, 0.5),
        (timedelta(minutes=5), 300),
    ],
)
def test_a_deadline_may_be_written_in_many_ways(written, seconds):
    assert seconds_until(written, NOW) == pytest.approx(seconds)


def test_no_deadline_is_none():
    assert seconds_until(None, NOW) is None


def test_a_moment_counts_from_now_in_whatever_time_zone_it_is():
    moment = datetime.fromtimestamp(NOW + 600, UTC)
    assert seconds_until(moment, NOW) == pytest.approx(600)
    assert seconds_until(moment.astimezone(timezone(timedelta(hours=9))), NOW) == pytest.approx(600)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (datetime(2030, 1, 1), "time zone"),
        (datetime.fromtimestamp(NOW - 1, UTC), "has passed"),
        ("", "not a positive duration"),
        ("soon", "not a positive duration"),
        ("2 fortnights", "not a positive duration"),
        ("1h 30", "not a positive duration"),
        ("-5s", "not a positive duration"),
        ("1e3s", "not a positive duration"),
        (0, "not a positive duration"),
        (-1.0, "not a positive duration"),
        (float("inf"), "not a positive duration"),
        (float("nan"), "not a positive duration"),
        (True, "not a positive duration"),
        (timedelta(0), "not a positive duration"),
        ([], "not a positive duration"),
    ],
)
def test_what_is_no_time_from_now_is_refused_with_what_to_write(written, said):
    with pytest.raises(ConfigError, match=said):
        seconds_until(written, NOW)


@given(
    days=st.integers(0, 30), hours=st.integers(0, 23), minutes=st.integers(0, 59), seconds=st.integers(1, 59)
)
def test_parts_of_a_text_add_up(days, hours, minutes, seconds):
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
    assert seconds_until(f"{days}d {hours}h {minutes}min {seconds}s", NOW) == span.total_seconds()
    assert seconds_until(span, NOW) == span.total_seconds()


@given(text=st.text(max_size=12))
def test_any_text_is_a_time_or_refused_by_name(text):
    try:
        found = seconds_until(text, NOW)
    except ConfigError as error:
        assert "deadline" in str(error)
    else:
        assert found is not None
        assert found > 0
