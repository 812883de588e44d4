"""Laws of packing, structured answers, vectors and forecasts, for any input."""

from __future__ import annotations

import base64
import json
import math
import random
from array import array
from functools import partial

import pytest
from core.batching.pack_models import DAMAGE, written
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.batching.packing import BatchCompiler, Packed, random_word, split, split_usage
from smartbatch.core.forecast import Forecaster, Observation, Prior
from smartbatch.core.preparation.json_recovery import JsonNotFound, recover_json
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.providers.answer_parts import vector
from smartbatch.providers.http.replies import Reply
from smartbatch.providers.openai.answers import read_embeddings
from smartbatch.types import Embedding, Request, Usage

texts = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=60)
counts = st.integers(0, 10**7)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(st.characters(exclude_categories=("Cs",)))
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)
objects = st.dictionaries(st.text(st.characters(exclude_categories=("Cs",)), max_size=5), values, min_size=1)


def packed_of(prompts: list[str], seed: int) -> Packed:
    words = partial(random_word, random.Random(seed))
    return BatchCompiler(words, native_schema=False).compile([Request(prompt) for prompt in prompts])


def replies(packed: Packed, answers: list[str]) -> list[dict[str, str]]:
    return [
        {"id": id_, "answer": f"{check} {answer} {check}"}
        for id_, check, answer in zip(packed.ids, packed.checks, answers, strict=True)
    ]


@pytest.mark.full
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=12), st.integers(), st.randoms())
def test_any_prompts_and_answers_in_any_order(pairs, seed, rng):
    packed = packed_of([prompt for prompt, _ in pairs], seed)
    items = replies(packed, [answer for _, answer in pairs])
    rng.shuffle(items)
    assert split(packed, written(items)) == [answer.strip() or None for _, answer in pairs]


@given(st.lists(texts, min_size=2, max_size=12), st.integers(), st.sampled_from(sorted(DAMAGE)), st.randoms())
def test_no_damage_puts_an_answer_on_another_prompt(prompts, seed, damage, rng):
    packed = packed_of(prompts, seed)
    letters = [chr(0x4E00 + i) for i in range(len(prompts))]
    items = replies(packed, [letter * 5 for letter in letters])
    for letter, answer in zip(letters, split(packed, DAMAGE[damage](items, rng)), strict=True):
        assert answer is None or not set(answer) & (set(letters) - {letter})


@given(counts, counts, counts, counts, st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_shares_add_up_and_are_sound(fresh, cached, spoken, thought, weights):
    usage = Usage(fresh + cached, spoken + thought, cached, thought)
    parts = split_usage(usage, weights, weights)
    assert sum(parts, Usage()) == usage
    whole = sum(weights) or len(weights)
    for part, weight in zip(parts, weights if any(weights) else [1] * len(weights), strict=True):
        assert 0 <= part.cached_tokens <= part.input_tokens
        assert 0 <= part.reasoning_tokens <= part.output_tokens
        assert abs(part.input_tokens - usage.input_tokens * weight / whole) < 2


@pytest.mark.full
@given(
    objects, st.sampled_from(["{}", "```json\n{}\n```", "Sure!\n```\n{}\n```\nBye.", "So: {} – that is it."])
)
def test_an_object_is_found_in_its_wrapping(value, wrapping):
    text = json.dumps(value, ensure_ascii=False)
    if "```" in text:
        wrapping = "{}"
    assert recover_json(wrapping.replace("{}", text, 1)) == value


@pytest.mark.full
@given(objects, st.data())
def test_a_cut_object_is_never_completed(value, data):
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        found = recover_json(cut)
    except JsonNotFound:
        return
    raise AssertionError(f"{cut!r} was taken for {found!r}")


floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
REPLY = Reply(200, {}, b"")


def wire(numbers: array[float], as_base64: bool) -> str | list[float]:
    return base64.b64encode(numbers.tobytes()).decode() if as_base64 else list(numbers)


@pytest.mark.full
@given(st.data())
def test_each_vector_finds_its_text_in_any_order(data):
    vectors = data.draw(st.lists(st.lists(floats, min_size=3, max_size=3), min_size=1, max_size=20))
    wanted = [array("f", each) for each in vectors]
    items = [
        {"index": index, "embedding": wire(each, data.draw(st.booleans()))}
        for index, each in enumerate(wanted)
    ]
    shuffled = data.draw(st.permutations(items))
    requests = [Request(f"text {index}", embedding=Embedding(dimensions=3)) for index in range(len(wanted))]
    answers = read_embeddings({"data": shuffled}, REPLY, requests)
    assert [answer.embedding for answer in answers] == wanted


@pytest.mark.full
@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "index": st.one_of(st.integers(-2, 4), st.none(), st.booleans(), st.text(max_size=3)),
                "embedding": st.one_of(
                    st.text(max_size=12),
                    st.lists(st.one_of(st.floats(), st.integers(), st.text(max_size=2)), max_size=4),
                    st.none(),
                ),
            },
        ),
        max_size=4,
    )
)
def test_any_broken_answer_is_an_error_or_right(items):
    requests = [Request(f"text {index}") for index in range(3)]
    try:
        answers = read_embeddings({"data": items}, REPLY, requests)
    except ProviderError as error:
        assert error.kind is ErrorKind.INVALID_RESPONSE
        return
    by_index = {item["index"]: item["embedding"] for item in items}
    for index, answer in enumerate(answers):
        assert answer.embedding == vector(by_index[index], None)
        assert all(math.isfinite(number) for number in answer.embedding)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(bad):
    for as_base64 in (True, False):
        with pytest.raises(ProviderError, match="not finite"):
            vector(wire(array("f", [1.0, bad]), as_base64), 2)


NOW = 1.8e9
LEVELS = (0.001, 0.01, 0.2, 0.5, 0.8, 0.95, 0.99, 0.9999)

sights = st.lists(
    st.builds(
        Observation,
        size=st.integers(0, 100_000),
        seconds=st.floats(0, 1e7),
        at=st.floats(NOW - 1e6, NOW + 1e6),
        ended=st.booleans(),
    ),
    max_size=60,
)
priors = st.builds(
    lambda median, factor, growth: Prior.of(median, median * factor, growth=growth),
    st.floats(0.01, 1e5),
    st.floats(1.01, 100),
    st.floats(0, 1),
)


@pytest.mark.full
@given(priors, sights, st.integers(1, 50_000))
def test_forecasts_are_a_distribution_whatever_was_seen(prior, seen, size):
    forecaster = Forecaster(prior, remember=40)
    for one in seen:
        moved = forecaster.observe(one)
        assert moved is None or (moved.before > 0 and moved.after > 0 and moved.seen > 0)
    times = [forecaster.at(NOW).quantile(q, size) for q in LEVELS]
    assert times == sorted(times)
    assert all(0 < seconds < math.inf for seconds in times)
    assert 0 < forecaster.at(NOW).expected(size) < math.inf
    for q, seconds in zip(LEVELS, times, strict=True):
        chance = forecaster.at(NOW).chance(seconds, size)
        assert chance >= q - 1e-6
        if 0 < chance < 1:
            assert forecaster.at(NOW).quantile(chance, size) == pytest.approx(seconds, rel=1e-3)
    assert forecaster.observations == min(40, len(seen))


@pytest.mark.full
@given(priors, sights)
def test_what_it_kept_makes_the_same_forecaster(prior, seen):
    first = Forecaster(prior)
    for one in seen:
        first.observe(one)
    second = Forecaster(prior)
    for one in first.seen:
        second.observe(one)
    assert [second.at(NOW).quantile(q, 7) for q in LEVELS] == [first.at(NOW).quantile(q, 7) for q in LEVELS]
