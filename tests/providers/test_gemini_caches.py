"""A request to Gemini with an explicit cache, together with that cache, says what the whole request says."""

from __future__ import annotations

import pytest

from smartbatch import Audio, Message, Request
from smartbatch.providers.gemini.bodies import generate_body
from smartbatch.providers.gemini.caches import CACHED_FIELDS, GeminiCaches, body_of
from smartbatch.providers.gemini.errors import ERRORS
from smartbatch.providers.http.replies import Reply
from smartbatch.shared_prefixes import CacheMark, SharedPrefix
from smartbatch.types import Generation, Tool, evolve

TOOL = Tool("look_up", parameters={"type": "object", "properties": {}})
PARAMS = Generation(system="Be brief.", tools=(TOOL,), tool_choice="required", max_tokens=9)
AUDIO = Audio(b"RIFF1234WAVE")
TEXTS = [{"type": "text", "text": "one two "}, {"type": "text", "text": "three four"}]
CHAT = (
    Message("user", "first"),
    Message("assistant", "second"),
    Message("user", tuple(TEXTS)),
    Message("assistant", "third"),
    Message("user", "last"),
)


class Sdk:
    """Keeps the body of the call that creates a cache."""

    def ask(self, _method, _path, _timeout, body):
        self.body = body
        return Reply(200, {}, b'{"name": "cachedContents/c", "usageMetadata": {"totalTokenCount": 2000}}')


def place(message, part=0, chars=None):
    return SharedPrefix(message, part, chars, 2000, 5, "key")


def spoken(*bodies):
    """Return the role of each text, joining texts of one role that follow each other."""
    said = []
    for body in bodies:
        for content in body.get("contents", ()):
            text = "".join(part["text"] for part in content["parts"])
            if said and said[-1][0] == content["role"]:
                text = said.pop()[1] + text
            said.append((content["role"], text))
    return said


@pytest.mark.parametrize(
    ("prompt", "prefix"),
    [
        ("a long text and a question", place(0, chars=12)),
        ("a question", place(-1)),
        (CHAT, place(-1)),
        (CHAT, place(0)),
        (CHAT, place(2, 0)),
        (CHAT, place(2, 0, 4)),
        (CHAT, place(2, 1, 6)),
        (CHAT, place(2, 1)),
        (CHAT, place(3)),
    ],
)
def test_nothing_is_lost_or_repeated_where_a_request_is_cut(prompt, prefix):
    sdk, request = Sdk(), Request(prompt, PARAMS)
    caches = GeminiCaches("scope", ERRORS, lambda: sdk, "")
    assert caches.takes(request, prefix)
    cache = caches.create("name", request, "gemini-3.8-flash", prefix, 3600.0, 9.0)
    mark = CacheMark((prefix,), explicit="read", cache_id=cache.id)
    whole = generate_body(request, "gemini-3.8-flash")
    rest = body_of(evolve(request, cache=mark), "gemini-3.8-flash")
    assert spoken(sdk.body, rest) == spoken(whole)
    assert {name: sdk.body[name] for name in CACHED_FIELDS} == {name: whole[name] for name in CACHED_FIELDS}
    assert sdk.body["ttl"] == "3600s"
    assert rest.keys() == {"contents", "generationConfig", "cachedContent"}
    assert rest["generationConfig"] == whole["generationConfig"]


@pytest.mark.parametrize(
    ("prompt", "prefix"),
    [
        ("all of it", place(0)),
        ((Message("system", "rules"), Message("user", "question")), place(-1)),
        (
            (Message("user", (AUDIO, TEXTS[0])), Message("user", "q")),
            place(0, 1),
        ),
    ],
)
def test_some_requests_have_no_cache(prompt, prefix):
    assert not GeminiCaches("scope", ERRORS, Sdk, "").takes(Request(prompt, PARAMS), prefix)
