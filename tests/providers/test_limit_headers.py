"""Waiting times and limits in headers."""

from __future__ import annotations

import pytest

from smartbatch.providers.limit_headers import (
    parse_duration,
    parse_retry_after,
    read_anthropic_limits,
    read_limits,
)
from smartbatch.types import LimitReport

NOON = 1_795_003_200.0  # Wed, 18 Nov 2026 12:00:00 GMT

FORMS = [
    ({}, None),
    ({"retry-after": ""}, None),
    ({"retry-after": "0"}, 0.0),
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": " 7 "}, 7.0),
    ({"retry-after": "0.25"}, 0.25),
    ({"retry-after": ".5"}, 0.5),
    ({"retry-after": "+3"}, 3.0),
    ({"retry-after": "-1"}, 0.0),
    ({"retry-after": "1e1"}, 10.0),
    ({"retry-after": "1e9"}, 600.0),
    ({"retry-after": "1e999"}, 600.0),
    ({"retry-after": "inf"}, 600.0),
    ({"retry-after": "-Infinity"}, 0.0),
    ({"retry-after": "NaN"}, None),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "1_000"}, None),
    ({"retry-after": "٣"}, None),
    ({"retry-after": "9" * 5000}, None),
    ({"retry-after": "Wed, 18 Nov 2026 12:00:30 GMT"}, 30.0),
    ({"retry-after": "Wednesday, 18-Nov-26 12:00:30 GMT"}, 30.0),
    ({"retry-after": "Wed, 18 Nov 2026 12:00:30 -0000"}, 30.0),
    ({"retry-after": "Wed, 18 Nov 2026 13:00:30 +0100"}, 30.0),
    ({"retry-after": "Wed, 18 Nov 2026 11:59:00 GMT"}, 0.0),
    ({"retry-after": "Sat, 18 Nov 9999 12:00:00 GMT"}, 600.0),
    ({"retry-after": "Wed, 99 Nov 2026 12:00:30 GMT"}, None),
    ({"retry-after": "Wed, 18 Nov 2026 11:59:30 GMT", "date": "Wed, 18 Nov 2026 11:59:00 GMT"}, 30.0),
    ({"retry-after": "Wed, 18 Nov 2026 12:01:30 GMT", "date": "Wed, 18 Nov 2026 12:01:00 GMT"}, 30.0),
    ({"retry-after": "Wed, 18 Nov 2026 12:00:30 GMT", "date": "yesterday"}, 30.0),
    ({"retry-after": "1795003230"}, 30.0),
    ({"retry-after": "1795003230000"}, 30.0),
    ({"retry-after": "1795003230", "date": "Wed, 18 Nov 2026 12:00:10 GMT"}, 20.0),
    ({"retry-after": "30s"}, 30.0),
    ({"retry-after": "1m30.5s"}, 90.5),
    ({"retry-after": "-5s"}, None),
    ({"retry-after": "9999h"}, 600.0),
    ({"retry-after-ms": "250"}, 0.25),
    ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after-ms": "?", "retry-after": "9"}, 9.0),
    ({"retry-after-ms": "1e12"}, 600.0),
]


@pytest.mark.parametrize(("headers", "seconds"), FORMS)
def test_every_form_of_retry_after_is_read_or_refused(headers, seconds):
    assert parse_retry_after(headers, NOON) == (None if seconds is None else pytest.approx(seconds, abs=1e-9))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1h2m3.5s", 3723.5),
        ("250ms", 0.25),
        ("12ms", 0.012),
        ("1.5m", 90.0),
        ("5us", 5e-6),
        ("5µs", 5e-6),  # U+00B5
        ("5μs", 5e-6),  # U+03BC
        ("7ns", 7e-9),
        ("0s", 0.0),
        ("30", 30.0),
        ("", None),
        (None, None),
        ("-1s", None),
        ("-1", None),
        ("1s!", None),
        ("s", None),
        ("1d", None),
        ("1s 2s", None),
        ("inf", None),
        ("9s" * 100, None),
    ],
)
def test_durations_are_read_as_go_writes_them(text, seconds):
    assert parse_duration(text) == (None if seconds is None else pytest.approx(seconds))


def test_limits_are_read_and_what_is_missing_stays_unknown():
    report = read_limits(
        {
            "x-ratelimit-limit-requests": "5000",
            "x-ratelimit-remaining-requests": "4999",
            "x-ratelimit-reset-requests": "12ms",
            "x-ratelimit-limit-tokens": "many",
            "x-ratelimit-reset-tokens": "6m0s",
        },
        NOON,
    )
    assert report == LimitReport(
        requests_limit=5000, requests_remaining=4999, requests_reset=0.012, tokens_reset=360.0
    )
    assert read_limits({"content-type": "application/json", "x-ratelimit-limit-tokens": "-5"}, NOON) is None


@pytest.mark.parametrize(
    ("named", "seconds"),
    [
        ("1795003230", 30.0),
        ("1795003230.5", 30.5),
        ("1795003230000", 30.0),
        ("1795003230000000", 30.0),
        ("1795003230000000000", 30.0),
        ("1795003100", 0.0),
        ("1400000000", 1.4e9),
    ],
)
def test_a_reset_that_is_a_moment_is_no_duration(named, seconds):
    headers = {"x-ratelimit-reset-requests": named}
    for wall, date in [(NOON, {}), (NOON + 500.0, {"date": "Wed, 18 Nov 2026 12:00:00 GMT"})]:
        report = read_limits(headers | date, wall)
        assert report is not None
        assert report.requests_reset == seconds


PROJECT = {
    "x-ratelimit-limit-project-tokens": "1000",
    "x-ratelimit-remaining-project-tokens": "400",
    "x-ratelimit-reset-project-tokens": "36s",
}


@pytest.mark.parametrize(
    ("organisation", "tokens"),
    [
        ({}, (1000, 400, 36.0)),
        ({"limit": "5000", "remaining": "4000", "reset": "12s"}, (1000, 400, 36.0)),
        ({"limit": "5000", "remaining": "300", "reset": "56s"}, (1000, 300, None)),
        ({"limit": "800", "remaining": "100", "reset": "52s"}, (800, 100, 52.0)),
    ],
)
def test_of_a_projects_and_an_organisations_limit_the_tighter_holds(organisation, tokens):
    own = {f"x-ratelimit-{name}-tokens": value for name, value in organisation.items()}
    report = read_limits(PROJECT | own, NOON)
    assert report is not None
    assert (report.tokens_limit, report.tokens_remaining, report.tokens_reset) == tokens


def test_limits_passed_on_by_a_gateway_are_read():
    passed = {"llm_provider-x-ratelimit-limit-requests": "60", "llm_provider-x-ratelimit-limit-tokens": "9"}
    assert read_limits(passed, NOON) == LimitReport(requests_limit=60, tokens_limit=9)
    own = read_limits(passed | {"x-ratelimit-limit-requests": "30"}, NOON)
    assert own == LimitReport(requests_limit=30, tokens_limit=9)


@pytest.mark.parametrize("requests", ["req-minute", "requests-minute"])
def test_limits_that_name_their_minute_are_read(requests):
    headers = {
        f"x-ratelimit-limit-{requests}": "720",
        f"x-ratelimit-remaining-{requests}": "717",
        "x-ratelimit-limit-tokens-minute": "5000000",
        "x-ratelimit-remaining-tokens-minute": "4999911",
        "x-ratelimit-reset-tokens-minute": "12.5",
        "x-ratelimit-tokens-query-cost": "52",
        "x-ratelimit-limit-requests-day": "14400",
        "x-ratelimit-remaining-requests-day": "2",
        "x-ratelimit-limit-tokens-month": "9",
    }
    assert read_limits(headers, NOON) == LimitReport(
        requests_limit=720,
        requests_remaining=717,
        tokens_limit=5_000_000,
        tokens_remaining=4_999_911,
        tokens_reset=12.5,
    )


def test_limits_of_prompt_and_generated_tokens_are_read():
    headers = {
        "x-ratelimit-limit-tokens-prompt": "3600000",
        "x-ratelimit-limit-tokens-cache-adjusted-prompt": "900000",
        "x-ratelimit-limit-tokens-generated": "36000",
        "x-ratelimit-remaining-tokens-generated": "35000",
        "x-ratelimit-over-limit": "no",
    }
    assert read_limits(headers, NOON) == LimitReport(
        input_limit=3_600_000, output_limit=36_000, output_remaining=35_000
    )


def test_limits_that_change_with_use_are_not_read():
    headers = {"x-ratelimit-limit": "10", "x-ratelimit-limit-dynamic": "3", "x-tokenlimit-limit": "9000"}
    assert read_limits(headers, NOON) is None


def anthropics(**named: str) -> dict[str, str]:
    return {f"anthropic-ratelimit-{name.replace('_', '-')}": value for name, value in named.items()}


def test_anthropics_limits_are_read_with_moments_as_seconds_from_now():
    report = read_anthropic_limits(
        anthropics(
            requests_limit="50",
            requests_remaining="49",
            requests_reset="2026-11-18T12:00:12Z",
            tokens_limit="60000",
            tokens_remaining="59000",
            tokens_reset="2026-11-18T12:01:00+00:00",
            input_tokens_limit="50000",
            input_tokens_reset="2026-11-18T14:00:00.5+02:00",
            output_tokens_limit="10000",
            output_tokens_remaining="0",
            output_tokens_reset="2026-11-18T11:59:00Z",
        ),
        NOON,
    )
    assert report == LimitReport(
        requests_limit=50,
        requests_remaining=49,
        requests_reset=12.0,
        tokens_limit=60_000,
        tokens_remaining=59_000,
        tokens_reset=60.0,
        input_limit=50_000,
        input_reset=0.5,
        output_limit=10_000,
        output_remaining=0,
        output_reset=0.0,
        resets_rounded_to=1.0,
    )
    assert read_anthropic_limits({"x-ratelimit-limit-requests": "5", "retry-after": "1"}, NOON) is None


def test_a_limit_that_is_only_repeated_does_not_count_twice():
    same = anthropics(input_tokens_limit="50000", tokens_limit="50000", tokens_remaining="7")
    assert read_anthropic_limits(same, NOON) == LimitReport(input_limit=50_000)
    alone = anthropics(tokens_limit="50000", tokens_remaining="7")
    assert read_anthropic_limits(alone, NOON) == LimitReport(tokens_limit=50_000, tokens_remaining=7)


def test_a_clock_that_is_wrong_is_corrected_by_the_servers_date():
    reset = anthropics(requests_reset="2026-11-18T12:00:12Z")
    noon = {"date": "Wed, 18 Nov 2026 12:00:00 GMT"}
    for wall, seconds in ((NOON - 3600, 12.0), (NOON + 3600, 12.0), (NOON + 1.5, 10.5), (NOON - 0.5, 12.5)):
        report = read_anthropic_limits(reset | noon, wall)
        assert report is not None
        assert report.requests_reset == pytest.approx(seconds)
    report = read_anthropic_limits(reset | {"date": "yesterday"}, NOON)
    assert report is not None
    assert report.requests_reset == 12.0
