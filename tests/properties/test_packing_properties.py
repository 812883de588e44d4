"""Laws of packing and of structured answers, for any input: nothing foreign, nothing lost, no escape."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import Any

import pytest
from core.batching.pack_models import DAMAGE, written
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.batching.packing import BatchCompiler, Packed, random_word, split, split_usage
from smartbatch.core.preparation.json_recovery import JsonNotFound, recover_json
from smartbatch.types import Request, Usage

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
def test_any_prompts_and_answers_in_any_order(
    pairs: list[tuple[str, str]], seed: int, rng: random.Random
) -> None:
    packed = packed_of([prompt for prompt, _ in pairs], seed)
    items = replies(packed, [answer for _, answer in pairs])
    rng.shuffle(items)
    assert split(packed, written(items)) == [answer.strip() or None for _, answer in pairs]


@given(st.lists(texts, min_size=2, max_size=12), st.integers(), st.sampled_from(sorted(DAMAGE)), st.randoms())
def test_no_damage_puts_an_answer_on_another_prompt(
    prompts: list[str], seed: int, damage: str, rng: random.Random
) -> None:
    packed = packed_of(prompts, seed)
    letters = [chr(0x4E00 + i) for i in range(len(prompts))]
    items = replies(packed, [letter * 5 for letter in letters])
    for letter, answer in zip(letters, split(packed, DAMAGE[damage](items, rng)), strict=True):
        assert answer is None or not set(answer) & (set(letters) - {letter})


@given(counts, counts, counts, counts, st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_shares_add_up_and_are_sound(
    fresh: int, cached: int, spoken: int, thought: int, weights: list[int]
) -> None:
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
def test_an_object_is_found_in_its_wrapping(value: Any, wrapping: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    if "```" in text:
        wrapping = "{}"
    assert recover_json(wrapping.replace("{}", text, 1)) == value


@pytest.mark.full
@given(objects, st.data())
def test_a_cut_object_is_never_completed(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    try:
        found = recover_json(cut)
    except JsonNotFound:
        return
    raise AssertionError(f"{cut!r} was taken for {found!r}")
