"""Streams over HTTP, from each of the three services (C5)."""

from __future__ import annotations

import threading

import pytest

from smartbatch import BatchingClient, ErrorKind, ProviderError, RequestCancelled
from smartbatch.emulator import answer_for
from smartbatch.testing import emulator
from tests.frameworks.run_script import run_script
from tests.levels import sampled
from tests.threads_together import run_together

SERVICES = {
    "chat": ("openai:gpt-5-mini", {}),
    "responses": ("openai:gpt-5-mini", {"api": "responses"}),
    "anthropic": ("anthropic:claude-haiku-5-5", {}),
    "gemini": ("gemini:gemini-3.8-flash", {}),
}
LONG = " ".join(f"word{number}" for number in range(200))
"""Its chunks take a second at :data:`PER_TOKEN`."""
PER_TOKEN = 0.003


@pytest.fixture
def emu():
    with emulator(hang_seconds=600, answers={"long": LONG, "short": "one two three"}) as running:
        yield running


@pytest.fixture(params=sampled(SERVICES, keep=2))
def client_of(request, emu):
    made = []
    model, options = SERVICES[request.param]
    url = emu.base_url if model.startswith("openai") else emu.url

    def make(**settings):
        settings = {"retry_initial": 0.01, "retry_max_delay": 0.02, "breaker_pause": 0.01, **settings}
        address = {"base_url": url, "api_key": "sk-test-of-streams", **options}
        made.append(BatchingClient(model, provider_options=address, **settings))
        return made[-1]

    yield make
    for client in made:
        client.stop(timeout=0)


def until(condition):
    pause = threading.Event()
    for _ in range(30_000):
        if condition():
            return
        pause.wait(0.001)
    raise AssertionError("it never happened")


def read_error(stream):
    text = ""
    with pytest.raises(ProviderError) as caught:  # noqa: PT012
        for chunk in stream:
            text += chunk
    return text, caught.value


def test_the_chunks_are_the_answer_and_its_usage_is_told(emu, client_of):
    emu.configure(per_token=0.01, latency=0.05)
    stream = client_of().stream("short")
    chunks = list(stream)
    assert "".join(chunks) == stream.result.text == "one two three"
    assert len(chunks) > 1
    assert not stream.result.usage.estimated
    assert stream.result.usage.output_tokens > 0
    assert stream.result.time_to_first_chunk is not None
    assert 0.05 <= stream.result.time_to_first_chunk <= stream.result.latency
    assert [call.delivered for call in emu.ledger.calls] == [True]


@pytest.mark.parametrize("fault", sampled(["500", "503", "429_no_header", "reset", "reset_before"]))
def test_a_stream_is_tried_again_before_its_first_chunk(emu, client_of, fault):
    emu.configure(fault_for=lambda index, body: fault if index == 1 else None)
    client = client_of()
    list(client.stream("short"))
    stream = client.stream("short")
    assert "".join(stream) == "one two three"
    assert stream.result.attempts == 2
    assert len(emu.ledger.calls) == 3


@pytest.mark.parametrize(
    ("fault", "kinds"),
    sampled(
        [
            ("stream_end", {ErrorKind.NETWORK_ERROR}),
            ("truncated", {ErrorKind.NETWORK_ERROR}),
            ("stream_error", {ErrorKind.SERVER_ERROR}),
            ("stall", {ErrorKind.TIMEOUT}),
        ]
    ),
)
def test_a_stream_is_never_tried_again_after_its_first_chunk(emu, client_of, fault, kinds):
    emu.configure(faults={fault: 1.0})
    client = client_of(call_timeout=0.4 if fault == "stall" else 20.0)
    stream = client.stream("long")
    text, error = read_error(stream)
    assert text
    assert LONG.startswith(text)
    assert error.kind in kinds
    assert error.maybe_billed
    assert stream.result.usage.output_tokens >= len(text) // 8
    assert len(emu.ledger.calls) == 1
    assert client.counts.balanced()


def test_closing_in_the_middle_cuts_the_connection(emu, client_of):
    emu.configure(per_token=PER_TOKEN)
    client = client_of(parallelism=1)
    stream = client.stream("long")
    assert LONG.startswith(next(stream))
    stream.close()
    assert isinstance(stream.result.error, RequestCancelled)
    assert "".join(client.stream("short")) == "one two three"
    long, short = emu.ledger.calls
    assert (long.delivered, short.delivered) == (False, True)
    assert long.billed


@pytest.mark.full
def test_a_hundred_streams_from_twenty_threads(emu, client_of):
    emu.configure(faults={"503": 0.01, "reset": 0.01}, latency=0.005)
    client = client_of(parallelism=8)
    texts = {}

    def reads(thread):
        for number in range(5):
            prompt = f"question {thread} {number}"
            texts[prompt] = "".join(client.stream(prompt))

    run_together(reads, range(20))
    model = client.model
    assert texts == {prompt: answer_for(prompt, model, 0) for prompt in texts}
    assert len(texts) == 100
    assert (client.counts.succeeded, client.counts.balanced()) == (100, True)


def test_closing_ends_the_wait_for_the_first_chunk(emu, client_of):
    emu.configure(fault_for=lambda index, body: "hang" if index == 0 else None)
    client = client_of(parallelism=1, breaker_threshold=1)
    stream = client.stream("long")
    until(lambda: len(emu.ledger.calls) == 1)
    stream.close()
    assert isinstance(stream.result.error, RequestCancelled)
    assert "".join(client.stream("short")) == "one two three"


@pytest.mark.full
def test_an_unread_stream_does_not_hold_up_the_interpreters_end(emu):
    emu.configure(per_token=PER_TOKEN)
    address = {"base_url": emu.base_url, "api_key": "sk-test-of-streams"}
    ended = run_script(
        f"""
        from smartbatch import BatchingClient
        client = BatchingClient("openai:gpt-5-mini", provider_options={address!r}, exit_grace=0.05)
        unread, left = client.stream("long"), client.stream("long")
        print(next(left))
        """
    )
    assert (ended.code, ended.err, ended.lines) == (0, "", ["word0"])


@pytest.mark.full
@pytest.mark.parametrize("service", sampled(list(SERVICES)))
def test_a_forked_child_leaves_the_parents_stream_alone(emu, service):
    emu.configure(per_token=PER_TOKEN)
    model, options = SERVICES[service]
    url = emu.base_url if model.startswith("openai") else emu.url
    address = {"base_url": url, "api_key": "sk-test-of-streams", **options}
    ended = run_script(
        f"""
        from smartbatch import BatchingClient, WrongProcess
        from tests.inside import held
        client = BatchingClient({model!r}, provider_options={address!r})
        stream = client.stream("long")
        text = ""
        child = None
        for chunk in stream:
            text += chunk
            if child is None:
                with held(stream):  # as a worker may hold its lock at that moment
                    child = os.fork()
                    if child == 0:
                        stream.close()
                if child == 0:
                    for act in (lambda: next(stream), lambda: stream.result):
                        try:
                            act()
                        except WrongProcess:
                            print("not mine", flush=True)
                    print("".join(client.stream("short")), flush=True)
                    break
        if child == 0:
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text == {LONG!r}, stream.result.ok)
        """
    )
    assert ended.err == ""
    assert ended.lines == ["not mine", "not mine", "one two three", "0 True True"]
    assert ended.code == 0
