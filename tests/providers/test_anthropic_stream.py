"""Streamed answers of Anthropic: named events, every way they can end, and closing from elsewhere."""

from __future__ import annotations

import pytest
from asking import KEY, ask, begin, stream_error
from claude import BLOCK, END, HEAD, PING, START, STOP, delta, error, event, message, opened, streams
from hypothesis import given
from hypothesis import strategies as st
from raw_server import says

from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.http.event_stream import events
from smartbatch.types import Usage

WHOLE = (START, BLOCK, PING, delta("Li"), PING, delta("ma"), event("content_block_stop", index=0), END, STOP)
PROMPT = "my secret diary of the ninth of May says that nobody came to the party"


def broken(serve, script, timeout=20.0, pieces=None) -> ProviderError:
    """Read a stream to its error; ``pieces`` collects what came before."""
    with opened(serve(script)) as provider:
        return stream_error(begin(provider, PROMPT, timeout), pieces)


def test_pieces_come_one_by_one_and_the_answer_at_the_end(serve):
    """Pings are swallowed, the usage is put together from first and last event."""
    server = serve(streams(*WHOLE))
    with opened(server) as provider:
        stream = begin(provider, temperature=0.1)
        assert list(stream) == ["Li", "ma"]
        answer = stream.answer
    assert server.requests[0].json()["stream"] is True
    assert (answer.text, answer.finish_reason) == ("Lima", "stop")
    assert answer.usage == Usage(31, 14)
    assert answer.provider_request_id == "req_s"
    assert [name for name, _ in answer.dropped] == ["temperature"]


@pytest.mark.parametrize("cut", range(len(WHOLE)))
def test_an_orderly_end_without_message_stop_is_an_error(serve, cut):
    """The SDK just stops iterating: an answer cut after any event would pass for a whole one."""
    pieces: list[str] = []
    found = broken(serve, streams(*WHOLE[:cut]), pieces=pieces)
    assert (found.kind, found.code, found.maybe_billed) == (ErrorKind.NETWORK_ERROR, "truncated", True)
    assert "Lima".startswith("".join(pieces))
    assert found.provider_request_id == "req_s"


@pytest.mark.full
def test_pings_do_not_prolong_a_stall(serve):
    def pings(exchange) -> None:
        exchange.send(HEAD + b"\r\n" + START)
        while not exchange.server.done.wait(0.02):
            exchange.send(PING)

    assert broken(serve, pings, timeout=0.3).kind is ErrorKind.TIMEOUT


@pytest.mark.parametrize(
    ("type_", "code", "kind"),
    [
        ("overloaded_error", None, ErrorKind.SERVER_ERROR),
        ("api_error", None, ErrorKind.SERVER_ERROR),
        ("rate_limit_error", None, ErrorKind.RATE_LIMIT),
        ("rate_limit_error", "enforced_spend_limit_reached", ErrorKind.NO_MONEY),
        ("invalid_request_error", None, ErrorKind.CLIENT_ERROR),
        ("brand_new_error", None, ErrorKind.SERVER_ERROR),
    ],
)
def test_an_error_among_the_events_is_judged_by_its_type(serve, type_, code, kind):
    """Its status is 200, its text may repeat the prompt; the tokens until then are known."""
    wrong = error(type_, f"{KEY} {PROMPT}", code)
    found = broken(serve, streams(START, delta("Li"), event("error", **wrong), STOP))
    assert (found.kind, found.status, found.code) == (kind, 200, code or type_)
    assert found.maybe_billed
    assert found.usage == Usage(31, 1)
    assert KEY not in str(found)
    assert "diary" not in str(found)


def test_refusals_and_lengths_are_told(serve):
    """A refusal may come without any text; unknown events and blocks are passed over."""
    refusal = event("message_delta", delta={"stop_reason": "refusal"}, usage={"output_tokens": 3})
    thought = event("content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": "hm"})
    server = serve(streams(START, event("brand_new", a=1), thought, refusal, STOP))
    with opened(server) as provider:
        stream = begin(provider)
        assert list(stream) == []
        assert (stream.answer.text, stream.answer.finish_reason) == ("", "refusal")


def test_an_error_before_the_stream_is_an_error_of_the_call(serve):
    server = serve(says(error("overloaded_error"), "529 Overloaded"), says(message()))
    with opened(server) as provider:
        with pytest.raises(ProviderError) as caught:
            list(begin(provider))
        assert (caught.value.kind, caught.value.status) == (ErrorKind.SERVER_ERROR, 529)
        assert ask(provider).text == "Lima"
    assert server.connections == 1


_NAMES = st.sampled_from(["", "a", "ping", "message_stop"])
_DATA = st.text(max_size=20).map(lambda text: text.replace("\n", " ").replace("\r", " "))


@given(st.lists(st.tuples(_NAMES, st.lists(_DATA, min_size=1, max_size=3)), max_size=6), st.data())
def test_events_are_the_same_however_they_are_cut(sent, data):
    end = data.draw(st.sampled_from(["\n", "\r\n"]))
    lines = "".join(
        (f"event: {name}{end}" if name else "") + "".join(f"data: {text}{end}" for text in texts) + end
        for name, texts in sent
    ).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lines)), max_size=8)))
    pieces = [lines[a:b] for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True)]
    wanted = [(name, "\n".join(texts).encode()) for name, texts in sent]
    assert list(events(pieces)) == wanted
