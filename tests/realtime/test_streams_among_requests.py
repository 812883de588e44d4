"""Streams next to other requests."""

from __future__ import annotations

import random

import pytest
from inside import inside
from levels import sampled
from scenes import InTime, broken, eventually, failure, unavailable
from scripted_streams import Speaker, balanced, read

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.events import CallFinished, CallStarted, RequestFinished, RequestSubmitted


def test_streams_are_never_shared(clock, client_of):
    speaker = Speaker(clock, lambda prompt, _: [prompt], max_shared=10)
    client = client_of(speaker, parallelism=10)
    streams = [client.stream("same") for _ in range(5)]
    assert [read(stream) for stream in streams] == [["same"]] * 5
    assert clock.now() == 0.0
    assert speaker.prompts == ["same"] * 5
    assert not any(stream.result.deduplicated for stream in streams)


def test_a_shared_streams_retries_stay_alone(clock, client_of):
    def script(prompt, attempt):
        if prompt == "long":
            return [100.0, "x"]
        return [broken()] if attempt < 1 else ["x"]

    speaker = Speaker(clock, script, max_shared=10)
    client = client_of(speaker, parallelism=1)
    with clock.held():
        streams = [client.stream(f"p{number}") for number in range(4)]
        last = client.stream("long")  # while it runs, the retries of the other streams become due
    assert [read(stream) for stream in [*streams, last]] == [["x"]] * 5
    assert speaker.shared_calls == 0


def test_events_of_a_stream_are_those_of_any_call(clock, client_of):
    events = []
    client = client_of(Speaker(clock), observers=[events.append])
    read(client.stream("why?"))
    client.stop()
    kinds = [type(event) for event in events]
    assert [kind for kind in kinds if kind.__name__.startswith(("Request", "Call"))] == [
        RequestSubmitted,
        CallStarted,
        CallFinished,
        RequestFinished,
    ]
    assert client.metrics.snapshot().succeeded == 1


@pytest.mark.parametrize("seed", sampled(range(5), keep=2))
def test_streams_closed_at_random_lose_nothing(clock, client_of, seed):
    rng = random.Random(seed)
    fates = {f"p{number}": rng.choice(["read", "leave", "closed", "never"]) for number in range(60)}

    def script(prompt, attempt):
        local = random.Random(f"{seed} {prompt} {attempt}")
        if prompt in fates and local.random() < 0.2:
            yield unavailable()
        for word in range(10):
            yield local.random()
            if prompt in fates and local.random() < 0.02:
                yield failure(ErrorKind.NETWORK_ERROR)
            yield f"{prompt}/{word} "

    client = client_of(Speaker(clock, script), parallelism=8, seed_of_rng=seed)

    def live(prompt):
        chooser = random.Random(prompt)
        clock.sleep(chooser.random() * 5)
        stream = client.stream(prompt)
        try:
            match fates[prompt]:
                case "read":
                    assert "".join(stream) == "".join(f"{prompt}/{word} " for word in range(10))
                case "leave":
                    for position, _ in enumerate(stream):
                        if position == chooser.randrange(8):
                            break
                case "closed":
                    clock.sleep(chooser.random() * 10)
                    stream.close()
                    list(stream)
        except ProviderError:
            pass

    for reader in [InTime(clock, lambda prompt=prompt: live(prompt)) for prompt in fates]:
        reader.result()
    eventually(lambda: balanced(client))
    assert client.counts.submitted == 60
    assert len(read(client.stream("last"))) == 10
    client.stop()
    assert inside(client).realtime.engine is None
