"""Parts of answers besides text: tool calls, reasoning, log-probabilities and unmodelled fields."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from claude import message
from gemini_asking import says_gemini

from smartbatch import Audio, Image
from smartbatch.jobs.payload import decode_result, encode_result
from smartbatch.media_content import extension_of
from smartbatch.providers.answer_parts import identified, tool_call
from smartbatch.providers.anthropic.answers import MessageReader, read_message
from smartbatch.providers.anthropic.errors import ERRORS as ANTHROPIC_ERRORS
from smartbatch.providers.gemini.answers import ChunkReader, read_answer
from smartbatch.providers.gemini.errors import ERRORS as GEMINI_ERRORS
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import read_chat, read_response
from smartbatch.providers.openai.errors import ERRORS
from smartbatch.providers.openai.streams import ChatReader
from smartbatch.types import Answer, Message, Result, TokenLogprob, ToolCall, answer_fields

OK = Reply(200, {}, b"")
SAVE = ToolCall("c1", "save", {"label": "kettle-7"})
WEATHER = ToolCall("c2", "weather", {})
THINKING = {"type": "thinking", "thinking": "Two things to do.", "signature": "c2ln"}


def chat(**choice: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": "chat.completion", "model": "m", "choices": [choice]}


def openai_call(call: ToolCall, **changes: Any) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    return {"id": call.id, "type": "function", "function": function, **changes}


def claude_call(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}


def streamed(reader: Any, events: list[dict[str, Any]]) -> Answer:
    text = "".join(reader.take(event, event.get("type", ""), OK) for event in events)
    assert reader.ended
    return reader.finish(text, OK)


def stored(answer: Answer) -> Answer:
    result = decode_result(encode_result(Result("r", **answer_fields(answer))), request_id="r")
    return Answer(**answer_fields(result))


def test_an_openai_chat_has_calls_reasoning_and_what_is_not_modelled():
    data = {
        **chat(
            finish_reason="stop",  # sent by servers after a call that tool_choice forced
            message={
                "role": "assistant",
                "content": None,
                "reasoning_content": "Two things to do.",
                "annotations": [],
                "audio": {"id": "a1"},
                "tool_calls": [openai_call(SAVE), openai_call(WEATHER)],
            },
            stop_reason=7,
        ),
        "system_fingerprint": "fp_1",
        "usage": {
            "prompt_tokens": 5,
            "completion_tokens": 3,
            "prompt_tokens_details": {"cached_tokens": 2, "video_tokens": 1},
        },
    }
    answer = read_chat(data, OK)
    assert answer.tool_calls == (SAVE, WEATHER)
    assert (answer.text, answer.finish_reason, answer.reasoning) == ("", "tool_calls", "Two things to do.")
    assert answer.extra == {
        "system_fingerprint": "fp_1",
        "usage": {"prompt_tokens_details": {"video_tokens": 1}},
        "stop_reason": 7,
        "audio": {"id": "a1"},
    }
    assert answer_fields(stored(answer)) == answer_fields(answer)


def test_the_calls_of_an_openai_stream_are_put_together():

    def chunk(**delta: Any) -> dict[str, Any]:
        return chat(index=0, delta=delta, finish_reason=None)

    def call(index: int | None, arguments: str, **more: Any) -> dict[str, Any]:
        item = {"function": {"arguments": arguments, **({"name": more.pop("name")} if more else {})}, **more}
        return chunk(tool_calls=[item if index is None else {"index": index, **item}])

    end = chat(index=0, delta={}, finish_reason="tool_calls")
    numbered = [
        chunk(role="assistant", content="", reasoning="Two "),
        chunk(reasoning="things."),
        call(0, "", name="save", id="c1"),
        call(1, "{}", name="weather", id="c2"),
        call(0, '{"label": "ket'),
        call(0, 'tle-7"}'),
        end,
    ]
    same = [call(0, '{"label": "kettle-7"}', name="save", id="c1"), call(0, "{}", name="weather", id="c2")]
    bare = [
        call(None, '{"label": "ket', name="save", id="c1"),
        call(None, 'tle-7"}'),
        call(None, "", name="weather", id="c2"),
    ]
    answers = [streamed(ChatReader(ERRORS), events) for events in (numbered, [*same, end], [*bare, end])]
    assert [answer.tool_calls for answer in answers] == [(SAVE, WEATHER)] * 3
    assert answers[0].reasoning == "Two things."
    assert [answer.text for answer in answers] == [""] * 3


def test_a_response_has_calls_reasoning_and_blocks_that_go_back():
    thought = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "Hm."}],
        "encrypted_content": "c2ln",
    }
    text = {"type": "output_text", "text": "Lima", "annotations": [{"type": "url_citation", "url": "u"}]}
    said = {"type": "message", "role": "assistant", "content": [text]}
    function = {"type": "function_call", "id": "fc_1", "status": "completed", "call_id": "c1", "name": "save"}
    data = {
        "id": "resp_1",
        "status": "completed",
        "output": [thought, said, {**function, "arguments": '{"label": "kettle-7"}'}],
    }
    answer = read_response(data, OK)
    assert (answer.text, answer.reasoning, answer.finish_reason) == ("Lima", "Hm.", "tool_calls")
    assert answer.tool_calls == (SAVE,)
    assert answer.extra == {
        "annotations": text["annotations"],
        "output": [thought],
        "message_blocks": [thought, said],
    }


def test_a_claude_message_is_read_whole_and_streamed_alike():
    blocks = [THINKING, {"type": "text", "text": "One moment."}, claude_call(SAVE), claude_call(WEATHER)]
    whole = read_message(message(content=blocks, stop_reason="tool_use", container={"id": "x"}), OK)
    pieces = [
        {"type": "thinking_delta", "thinking": "Two things"},
        {"type": "thinking_delta", "thinking": " to do."},
        {"type": "signature_delta", "signature": "c2ln"},
    ]

    def begin(index: int, block: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_start", "index": index, "content_block": block}

    def go_on(index: int, *deltas: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]

    def json_piece(text: str) -> dict[str, Any]:
        return {"type": "input_json_delta", "partial_json": text}

    events = [
        {"type": "message_start", "message": {**message(None), "stop_reason": None}},
        begin(0, {"type": "thinking", "thinking": "", "signature": ""}),
        *go_on(0, *pieces),
        begin(1, {"type": "text", "text": ""}),
        *go_on(1, {"type": "text_delta", "text": "One "}, {"type": "text_delta", "text": "moment."}),
        begin(2, {**claude_call(SAVE), "input": {}}),
        begin(3, {**claude_call(WEATHER), "input": {}}),
        *go_on(2, json_piece('{"label": "ket'), json_piece('tle-7"}')),
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use", "container": {"id": "x"}},
            "usage": {"output_tokens": 14},
        },
        {"type": "message_stop"},
    ]
    assert streamed(MessageReader(ANTHROPIC_ERRORS, ()), events) == whole
    assert (whole.text, whole.reasoning) == ("One moment.", "Two things to do.")
    assert whole.tool_calls == (SAVE, WEATHER)
    assert whole.finish_reason == "tool_calls"
    assert whole.extra == {
        "container": {"id": "x"},
        "usage": {"service_tier": "standard"},
        "message_blocks": blocks[:2],
    }
    assert answer_fields(stored(whole)) == answer_fields(whole)
    result = Result("r", **answer_fields(whole))
    assert result.message() == Message(
        "assistant", tuple(blocks[:2]), tool_calls=(SAVE, WEATHER), reasoning="Two things to do."
    )


def test_a_gemini_answer_is_read_whole_and_streamed_alike():
    thought = {"text": "Two things to do.", "thought": True}
    save = {"functionCall": {"name": "save", "args": {"label": "kettle-7"}}, "thoughtSignature": "c2ln"}
    weather = {"functionCall": {"name": "weather"}}
    grounding = {"groundingMetadata": {"webSearchQueries": ["kettle"]}}
    chosen = {"chosenCandidates": [{"token": "One", "tokenId": 1, "logProbability": -0.5}]}
    beside = {"topCandidates": [{"candidates": [{"token": "A", "logProbability": -1.0}]}]}

    def body(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        found = says_gemini(finish=finish)
        found["candidates"][0] |= {"content": {"role": "model", "parts": list(parts)}, **more}
        return found

    rest = {**grounding, "logprobsResult": chosen | beside}
    whole = read_answer(body(thought, {"text": "One moment."}, save, weather, finish="STOP", **rest))
    pieces = [
        body(thought),
        body({"text": "One "}),
        body({"text": "moment."}, save, **grounding),
        body(weather, finish="STOP", logprobsResult=chosen | beside),
    ]
    assert streamed(ChunkReader(GEMINI_ERRORS), pieces) == whole
    assert whole.tool_calls == (
        ToolCall("r-1-0", "save", {"label": "kettle-7"}, extra={"thoughtSignature": "c2ln"}),
        ToolCall("r-1-1", "weather", {}),
    )
    assert (whole.text, whole.reasoning) == ("One moment.", "Two things to do.")
    assert whole.finish_reason == "tool_calls"
    assert whole.logprobs == (TokenLogprob("One", -0.5, (("A", -1.0),)),)
    assert whole.extra == grounding
    assert answer_fields(stored(whole)) == answer_fields(whole)


def test_log_probabilities_of_openai_are_read_whole_and_streamed():
    tokens = [
        {
            "token": "Li",
            "logprob": -0.1,
            "bytes": [76, 105],
            "top_logprobs": [{"token": "Li", "logprob": -0.1}],
        },
        {"token": "ma", "logprob": -9999.0, "top_logprobs": []},
    ]
    expected = (TokenLogprob("Li", -0.1, (("Li", -0.1),)), TokenLogprob("ma", -9999.0))
    content = {"role": "assistant", "content": "Lima"}
    whole = read_chat(chat(message=content, finish_reason="stop", logprobs={"content": tokens}), OK)
    events = [
        chat(delta={"content": "Li"}, logprobs={"content": tokens[:1]}),
        chat(delta={"content": "ma"}, logprobs={"content": tokens[1:]}, finish_reason="stop"),
    ]
    assert whole.logprobs == streamed(ChatReader(ERRORS), events).logprobs == expected
    assert stored(whole).logprobs == expected


@pytest.mark.parametrize(
    ("written", "arguments", "text"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ("", {}, None),
        (None, {}, None),
        ({"a": 1}, {"a": 1}, None),
        ('{"a": 1', None, '{"a": 1'),
        ('{"a": NaN}', None, '{"a": NaN}'),
        ('{"a": 1e999}', None, '{"a": 1e999}'),
        ("[1]", None, "[1]"),
        ([1], None, "[1]"),
    ],
)
def test_arguments_that_are_no_object_stay_as_they_were_written(written, arguments, text):
    assert tool_call("c", "save", written) == ToolCall("c", "save", arguments, text)


def test_calls_get_ids_where_they_have_none_or_share_one():
    calls = [tool_call(identity, "save", {}) for identity in (None, "c", "c", "x-2", None)]
    assert [call.id for call in identified(calls, "x")] == ["x-0", "c", "x-2-", "x-2", "x-4"]


# -- files ---------------------------------------------------------------------------------------------------

WAV = b"RIFF0000WAVEfmt "


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def test_audio_in_a_chat_is_a_file_and_its_transcript_the_text():
    audio = {"id": "audio_1", "expires_at": 9, "transcript": "Hello.", "data": encoded(WAV)}
    answer = read_chat(chat(finish_reason="stop", message={"content": None, "audio": audio}), OK)
    assert answer.text == "Hello."
    assert [(type(file), file.content()) for file in answer.files] == [(Audio, WAV)]
    assert answer.extra == {"audio": {**audio, "data": {"smartbatch.file": 0}}}


def test_streamed_audio_is_joined_from_pieces_that_are_encoded_separately():
    reader = ChatReader(ERRORS)
    pieces = [{"id": "audio_1", "data": encoded(piece)} for piece in (b"RIFF0", b"000WAVE", b"fmt ")]
    deltas = [{"audio": piece} for piece in [*pieces, {"transcript": "Hel"}, {"transcript": "lo."}]]
    answer = streamed(
        reader, [chat(delta=delta) for delta in deltas] + [chat(delta={}, finish_reason="stop")]
    )
    assert (answer.text, answer.files[0].content()) == ("Hello.", WAV)


def test_images_of_gateways_are_files_unless_they_are_only_addresses():
    address = {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}}
    given = {"type": "image_url", "image_url": {"url": f"data:image/webp;base64,{encoded(b'unknown')}"}}
    message = {"content": "Here.", "images": [address, given]}
    answer = read_chat(chat(finish_reason="stop", message=message), OK)
    assert [(file.media_type, file.content()) for file in answer.files] == [("image/webp", b"unknown")]
    assert answer.extra["images"] == [address, {**given, "image_url": {"url": {"smartbatch.file": 0}}}]


def test_images_of_tools_in_a_response_are_files():
    image = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "output_format": "svg"}
    failed = {**image, "id": "ig_2", "status": "failed", "result": None}
    plot = {"type": "image", "url": f"data:image/png;base64,{encoded(b'plot')}"}
    code = {"type": "code_interpreter_call", "id": "ci_1", "outputs": [{"type": "logs", "logs": "1"}, plot]}
    output = [{**image, "result": encoded(b"<svg/>")}, failed, code]
    answer = read_response({"status": "completed", "output": output}, OK)
    assert [(file.media_type, file.content()) for file in answer.files] == [
        ("image/svg+xml", b"<svg/>"),
        ("image/png", b"plot"),
    ]
    references = [answer.extra["output"][0]["result"], answer.extra["output"][2]["outputs"][1]["url"]]
    assert references == [{"smartbatch.file": 0}, {"smartbatch.file": 1}]


def test_files_of_gemini_have_the_stated_type_if_their_content_has_none():
    parts = [
        {"inlineData": {"mimeType": "image/png", "data": encoded(b"draft")}, "thought": True},
        {"inlineData": {"mimeType": "audio/L16;codec=pcm;rate=24000", "data": encoded(b"\0\1")}},
        {"inlineData": {"mimeType": "image/svg+xml", "data": encoded(b"<svg/>")}},
        {"inlineData": {"mimeType": "image/png", "data": "not base64"}},
    ]
    answer = read_answer({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    assert [(type(file), file.media_type, extension_of(file.media_type)) for file in answer.files] == [
        (Audio, "audio/L16;codec=pcm;rate=24000", ".pcm"),
        (Image, "image/svg+xml", ".svg"),
    ]
    assert answer.extra["message_blocks"][-1] == parts[-1]  # kept, because it was paid for
