"""Lists with ``keep_going`` send every row, even if the provider refuses the account or the model."""

from __future__ import annotations

import pytest
from scenes import PATIENCE, Embedder, Scripted

from smartbatch.errors import AllRequestsFailed, ErrorKind, ProviderError, ProviderUnavailable
from tests.levels import sampled

ROWS = [f"row {number}" for number in range(60)]
REFUSALS = [
    (401, ErrorKind.AUTH_ERROR),
    (402, ErrorKind.NO_MONEY),
    (403, ErrorKind.AUTH_ERROR),
    (404, ErrorKind.CLIENT_ERROR),
]


def refusal(prompt, status=401, kind=ErrorKind.AUTH_ERROR):
    return ProviderError(f"the provider answered {status}: no {prompt}!", kind=kind, status=status)


def failed(client, prompts, **params):
    with pytest.raises(AllRequestsFailed) as caught:
        client.generate(prompts, keep_going=True, **params)
    return caught.value.results


def has_own_answers(results):
    return all(f"no {row}!" in str(result.error) for row, result in zip(ROWS, results, strict=True))


@pytest.mark.parametrize("lazy", [False, True], ids=["a list", "an iterator"])
@pytest.mark.parametrize(("status", "kind"), sampled(REFUSALS))
def test_each_row_has_the_providers_answer_to_it(clock, client_of, status, kind, lazy):
    provider = Scripted(clock, lambda prompt, _: refusal(prompt, status, kind))
    results = failed(client_of(provider, parallelism=8), iter(ROWS) if lazy else ROWS)
    assert sorted(provider.prompts) == sorted(ROWS)
    assert has_own_answers(results)
    assert {result.attempts for result in results} == {1}
    assert provider.max_in_flight == 8
    assert clock.now() < len(ROWS) / 8 + 5, "the breaker slows none of them"


def test_other_requests_of_the_client_are_held(clock, client_of):
    provider = Scripted(clock, lambda prompt, _: refusal(prompt))
    client = client_of(provider)
    failed(client, ROWS[:3])
    with pytest.raises(ProviderUnavailable):
        client.submit("another").result(PATIENCE)
    assert len(provider.starts) == 3


def test_a_row_that_is_answered_shows_the_others_that_the_account_works(clock, client_of):
    provider = Scripted(clock, lambda prompt, _: refusal(prompt) if prompt in ROWS[:20] else f"re: {prompt}")
    client = client_of(provider, parallelism=2)
    results = client.generate(ROWS, keep_going=True)
    assert [result.ok for result in results] == [False] * 20 + [True] * 40
    assert client.submit("another").result(PATIENCE).text == "re: another"


def test_limits_hold_them_and_do_not_fail_them(clock, client_of):
    provider = Scripted(clock, lambda prompt, _: refusal(prompt), latency=0.1)
    results = failed(client_of(provider, parallelism=4, max_rpm=30), ROWS)
    assert has_own_answers(results)
    assert clock.now() > 30


def test_failures_of_the_provider_among_them_are_retried_as_usual(clock, client_of):
    down = ProviderError("down", kind=ErrorKind.SERVER_ERROR, status=503)
    provider = Scripted(
        clock, lambda prompt, attempt: down if prompt == ROWS[9] else refusal(prompt), latency=0.1
    )
    results = failed(client_of(provider, parallelism=1, retries=2), ROWS)
    assert results[9].attempts == 3
    assert len(provider.starts) == len(ROWS) + 2


@pytest.mark.parametrize("kind", [Scripted, Embedder])
def test_a_fallback_model_takes_over_what_it_can(clock, client_of, kind):
    provider = kind(clock, lambda prompt, _: refusal(prompt))
    client = client_of(provider, fallback_model="sim:spare", on_breaker_open="fallback", parallelism=4)
    if kind is Scripted:
        results = client.generate(ROWS, keep_going=True)
        assert {(result.ok, result.model) for result in results} == {(True, "sim:spare")}
    else:
        with pytest.raises(AllRequestsFailed) as caught:
            client.embed(ROWS, keep_going=True)
        assert all("the provider answered 401" in str(result.error) for result in caught.value.results)
