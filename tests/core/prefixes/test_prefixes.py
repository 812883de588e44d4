"""Which prefixes prompts share, and where they may be marked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch import Document
from smartbatch.core.prefixes.rendering import rendering_of
from smartbatch.core.prefixes.tree import in_windows, with_shared_prefixes
from smartbatch.shared_prefixes import CachingRules
from smartbatch.types import Generation, Message, Request, Tool

RULES = CachingRules(by="marks", min_tokens=1000, read=0.1, write=1.25, long_write=2.0)
LONG = "One of our many rules. " * 300  # 1,725 tokens
RULED = Generation(system=LONG)


def marked(requests, rules=RULES, shares=False):
    return with_shared_prefixes(requests, lambda _: rules, lambda _: shares)


def places(request):
    mark = request.cache
    return [] if mark is None else [(each.message, each.part, each.chars) for each in mark.prefixes]


def asking(system, *questions):
    params = Generation(system=system)
    return [Request(question, params) for question in questions]


def test_a_long_system_text_is_shared_by_all_its_requests():
    requests = marked([Request(f"Question {n}?", RULED) for n in range(5)])
    assert {tuple(places(request)) for request in requests} == {((-1, 0, None),)}
    (prefix,) = requests[0].cache.prefixes
    assert prefix.uses == 5
    assert prefix.tokens == pytest.approx(1_725, rel=0.02)


def test_requests_that_share_too_little_are_the_objects_that_were_given():
    short = asking("Be brief.", "One?", "Two?")
    different = [*asking(LONG, "One?"), *asking("!" + LONG, "Two?")]
    for requests in (short, different):
        assert all(one is other for one, other in zip(marked(requests), requests, strict=True))


def test_other_tools_or_another_schema_before_the_same_text_share_nothing():
    tool = Tool("search", parameters={"type": "object"})
    other = Tool("find", parameters={"type": "object"})
    params = [Generation(system=LONG, tools=(each,)) for each in (tool, other)]
    schemas = [Generation(system=LONG, schema={"type": kind}) for kind in ("object", "array")]
    assert all(request.cache is None for request in marked([Request("?", each) for each in params + schemas]))


def test_the_order_of_properties_in_a_schema_matters_because_answers_follow_it():
    one = {"type": "object", "properties": {"a": {}, "b": {}}}
    other = {"type": "object", "properties": {"b": {}, "a": {}}}
    requests = [Request("?", Generation(system=LONG, schema=schema)) for schema in (one, other)]
    assert all(request.cache is None for request in marked(requests))


def test_parameters_that_are_not_input_do_not_matter():
    params = [Generation(system=LONG, max_tokens=most, temperature=most / 100) for most in (10, 20)]
    assert all(request.cache for request in marked([Request("?", each) for each in params]))


def test_a_document_in_a_template_is_cut_at_the_end_of_a_line():
    documents = [f"Document {n}: " + f"words of {n} " * 500 for n in range(3)]
    texts = [f"{each}\nQuestion {n}: why?" for each in documents for n in range(4)]
    requests = marked([Request(text) for text in texts])
    for request, document in zip(requests, [each for each in documents for _ in range(4)], strict=True):
        ((message, part, chars),) = places(request)
        assert (message, part) == (0, 0)
        assert request.prompt[:chars] == f"{document}\n"


def test_examples_are_shared_up_to_the_last_message_that_is_equal():
    examples = [Message("user" if n % 2 == 0 else "assistant", f"example {n} " * 40) for n in range(12)]
    requests = marked([Request((*examples, Message("user", f"text {n}"))) for n in range(4)])
    assert {tuple(places(request)) for request in requests} == {((11, 0, None),)}


def test_a_shared_file_counts_with_its_tokens(tmp_path):
    file = tmp_path / "report.txt"
    file.write_text(LONG)
    document = Document(file, sha256="0" * 64, size=len(LONG), pages=4)
    prompts = [(Message("user", (document, f"Question {n}?")),) for n in range(3)]
    assert [places(each) for each in marked([Request(prompt) for prompt in prompts])] == [[(0, 0, None)]] * 3


def test_documents_below_common_instructions_have_two_ends():
    texts = [f"Document {n}: " + f"words of {n} " * 500 for n in range(2)]
    requests = marked([Request(f"{text}\n{n}?", RULED) for text in texts for n in range(3)])
    assert [len(places(request)) for request in requests] == [2] * 6
    first, other = requests[0].cache.prefixes, requests[-1].cache.prefixes
    assert first[0] == other[0]
    assert (first[0].uses, first[1].uses) == (6, 3)
    assert first[1].key != other[1].key


def test_identical_requests_that_share_an_answer_count_once():
    requests = [Request(LONG) for _ in range(3)]
    assert all(request.cache is None for request in marked(requests, shares=True))
    assert [places(request) for request in marked(requests)] == [[(0, 0, None)]] * 3


@pytest.mark.parametrize(
    "request_",
    [
        Request("?", Generation(system=LONG, extra={"cache_control": {"type": "ephemeral"}})),
        Request("?", Generation(system=LONG, extra={"prompt_cache_key": "mine"})),
        Request(
            (Message("user", ({"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}, "?")),),
            RULED,
        ),
    ],
    ids=["extra", "key", "part"],
)
def test_a_request_with_marks_of_its_own_is_left_alone(request_):
    assert all(each.cache is None for each in marked([request_] * 3))


def test_a_stream_is_marked_in_windows_and_read_no_further():
    read = []

    def stream():
        for n in range(12_000):
            read.append(n)
            yield Request(f"Question {n}?", RULED)

    requests = in_windows(stream(), lambda _: RULES, lambda _: False)
    first = next(requests)
    assert len(read) == 5_000 == first.cache.prefixes[0].uses


@given(st.lists(st.text("ab ", max_size=8), min_size=2, max_size=30), st.booleans())
def test_every_request_begins_with_what_its_mark_names(ends, splits):
    """With the same key, requests have the same text up to the place."""
    rules = CachingRules(by="marks", min_tokens=300, read=0.1, write=1.25)
    requests = [
        Request(LONG + "x" * 300 * (splits and n % 2) + end + "tail " * 60) for n, end in enumerate(ends)
    ]
    seen = {}
    for request in marked(requests, rules):
        for prefix in () if request.cache is None else request.cache.prefixes:
            assert (
                seen.setdefault(prefix.key, request.prompt[: prefix.chars]) == request.prompt[: prefix.chars]
            )
            assert sum(other.prompt.startswith(request.prompt[: prefix.chars]) for other in requests) >= 2


def test_a_conversation_names_each_place_at_which_its_beginning_could_end():
    turns = (Message("user", "a " * 900), Message("assistant", "b " * 900), Message("user", "c"))
    rendering = rendering_of(Request(turns, RULED))
    ends = list(rendering.ends())
    assert [(each.message, each.chars) for each in ends] == [(-1, None), (0, None), (1, None), (2, None)]
    found = marked([Request((*turns[:2], Message("user", end)), RULED) for end in ("c", "d")])
    assert found[0].cache.prefixes[-1].key == ends[2].key
