"""Estimated and learned tokens of requests."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smartbatch.core.preparation.calibration import OUTPUT_TOKENS, Calibration
from smartbatch.core.preparation.tokens import (
    UNKNOWN_TOKENS,
    estimate,
    estimate_request,
    most_of_request,
    most_tokens,
)
from smartbatch.types import Generation, Message, Request, Usage
from tests.levels import sampled

ENGLISH = "All human beings are born free and equal in dignity and rights. " * 5
CHINESE = "人人生而自由，在尊严和权利上一律平等。" * 5
TEXTS = st.one_of(
    st.text(max_size=300),
    st.sampled_from(["the ", "0f3a-9c ", "if (x == 1) { }\n", "質問です", "😀", "aGVsbG8gd29", "   "]).map(
        lambda piece: piece * 40
    ),
)
"""Prose, hexadecimal numbers, code, Japanese, emoji and Base64 among any characters."""
RUSSIAN = "Все люди рождаются свободными и равными в своем достоинстве и правах. " * 5


def test_the_same_sentence_takes_a_similar_number_of_tokens_in_any_script():
    sizes = [estimate(text) for text in (ENGLISH, CHINESE, RUSSIAN)]
    assert max(sizes) < 2 * min(sizes)


def test_each_class_of_scripts_is_counted_by_its_own_weight():
    assert estimate("a" * 40 + "я" * 25 + "語" * 7 + "😀" * 3) == 10 + 10 + 7 + 6


def test_nothing_is_zero_and_anything_is_at_least_one():
    assert estimate("") == 0
    assert [estimate(text) for text in ("a", "é", "中", "😀", "\ud800")] == [1, 1, 1, 2, 1]


@given(st.text(), st.text())
def test_a_longer_text_never_takes_fewer_tokens(one, two):
    assert max(estimate(one), estimate(two)) <= estimate(one + two) <= estimate(one) + estimate(two) + 1


def test_messages_and_system_text_and_schema_count():
    plain = estimate_request(Request(ENGLISH))
    assert estimate_request(Request((Message("user", ENGLISH),))) == plain
    assert estimate_request(Request((Message("user", ENGLISH), Message("user", ENGLISH)))) > 1.9 * plain
    assert estimate_request(Request(ENGLISH, Generation(system=ENGLISH))) > 1.9 * plain
    assert estimate_request(Request(ENGLISH, Generation(schema={"a": ENGLISH}))) > 1.9 * plain


def test_a_budget_counts_each_digit_sign_and_byte_and_every_second_letter():
    assert most_tokens("the cat sat") == 2 + 2 + 2
    assert most_tokens("HTTP 2.0") == 4 + 3
    assert most_tokens("0f3a-9c") == 7
    assert most_tokens("語é😀") == 3 + 2 + 4
    assert most_tokens("  x\n\n") == 1 + 1 + 2
    assert most_tokens("\ud800") == 3


@given(
    TEXTS,
    st.none() | TEXTS,
    st.none() | st.dictionaries(st.sampled_from(["type", "enum"]), TEXTS, min_size=1),
)
def test_the_most_of_a_request_is_never_below_its_estimate(prompt, system, schema):
    request = Request(prompt, Generation(system=system, schema=schema))
    assert most_of_request(request) >= estimate_request(request)


@given(st.lists(st.tuples(TEXTS, st.integers(1, 20_000)), min_size=1, max_size=10), st.booleans())
def test_the_most_is_never_below_what_was_billed_for_an_equal_request(answers, stored):
    learned = Calibration()
    for text, billed in answers:
        learned.observe(estimate_request(Request(text)), Usage(billed, 1))
    if stored:
        state, learned = learned.state(), Calibration()
        assert learned.restore(state)
    for text, billed in answers:
        assert learned.most_input(Request(text)) >= billed


def test_cheap_short_prompts_do_not_lower_the_maximum_of_a_long_one():
    learned = Calibration()
    for _ in range(50):
        learned.observe(10, Usage(2, 4))
    long = Request("0f3a-9c " * 15)
    assert learned.input(estimate_request(long)) < 10
    assert learned.most_input(long) == most_of_request(long) > 100


def test_server_overhead_is_added_to_the_maximum_of_a_long_prompt():
    learned = Calibration()
    learned.observe(10, Usage(1010, 4))
    long = Request("A" * 4_000)
    assert learned.most_input(long) == most_of_request(long)  # 4,000 tokens already include the overhead
    words = Request("to be " * 4_000)
    assert learned.most_input(words) == max(most_of_request(words), estimate_request(words) + 1000)


def test_a_picture_counts_as_a_picture_whatever_the_length_of_its_data():
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 100_000}}
    words = {"type": "text", "text": ENGLISH}
    size = estimate_request(Request((Message("user", (words, picture)),)))
    assert size == estimate_request(Request(ENGLISH)) + UNKNOWN_TOKENS


def test_without_history_the_estimate_stands_and_the_cap_is_reserved():
    fresh = Calibration()
    assert fresh.input(123) == 123
    assert fresh.output(40) == 40
    assert fresh.output(4000) == 4000
    assert fresh.output(None) == OUTPUT_TOKENS


def test_the_ratio_of_a_models_tokenizer_is_learned():
    rng, learned = random.Random(7), Calibration()
    for _ in range(200):
        size = rng.randrange(50, 500)
        learned.observe(size, Usage(round(size * 1.3 * rng.uniform(0.9, 1.1)), 10))
    assert learned.input(1000) == pytest.approx(1300, rel=0.03)


def test_a_ratio_that_changes_is_learned_anew():
    learned = Calibration()
    for ratio in (1, 2):
        for _ in range(100):
            learned.observe(100, Usage(100 * ratio, 10))
    assert learned.ratio == pytest.approx(2, rel=0.02)


def test_short_answers_lower_the_reservation_below_the_cap():
    rng, learned = random.Random(7), Calibration()
    for _ in range(300):
        learned.observe(100, Usage(100, rng.randrange(1, 101)))
    assert learned.output(4000) == pytest.approx(95, abs=6)
    assert learned.output(20) == 20
    assert learned.answers("")[1] == pytest.approx(50, rel=0.4)


def test_a_budget_reserves_the_cap_or_twice_the_usual_answer():
    learned = Calibration()
    assert learned.most_output(40) == 40
    assert learned.most_output(None) == 2 * OUTPUT_TOKENS
    for _ in range(100):
        learned.observe(100, Usage(100, 30))
    assert learned.most_output(None) == 60
    assert learned.most_output(4000) == 4000  # short answers so far do not limit the next one


def test_answers_seen_long_ago_are_forgotten():
    learned = Calibration()
    for tokens in [900] * 300 + [30] * 300:
        learned.observe(100, Usage(100, tokens))
    assert learned.output(None) == 30


@pytest.mark.parametrize(("before", "now"), [(1500, 20), (20, 1500), (300, 120), (120, 300)])
@pytest.mark.parametrize("count", sampled([1, 5, 15, 300]))
def test_ten_answers_of_another_list_bring_the_mean_within_a_factor_of_2(before, now, count):
    learned = Calibration()
    for tokens in [before] * count + [now] * 10:
        learned.observe(100, Usage(100, tokens))
    assert now / 2 < learned.answers("")[1] < 2 * now


def test_chance_does_not_make_answers_forgotten():
    rng, learned = random.Random(7), Calibration()
    for _ in range(300):
        learned.observe(100, Usage(100, round(rng.expovariate(1 / 200))))
    assert learned.answers("")[0] > 100


class _Interrupted(int):
    meanwhile: Callable[[], None] | None = None

    def __lt__(self, other: int) -> bool:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return int(self) < other


@pytest.mark.full
def test_concurrent_observations_leave_consistent_figures():
    rng, learned = random.Random(7), Calibration()

    def others() -> None:
        for _ in range(3):
            learned.observe(100, Usage(100, rng.randrange(1000)))

    for _ in range(400):
        tokens = _Interrupted(rng.randrange(1000))
        tokens.meanwhile = others
        learned.observe(100, Usage(100, tokens))
        remembered = sorted(learned.state()["outputs"])
        if learned.observed >= Calibration.SETTLED:
            assert learned.output(None) == remembered[int(Calibration.QUANTILE * (len(remembered) - 1))]
    assert learned.observed >= 400
    assert len(remembered) == Calibration.REMEMBERED


def test_an_answer_without_counts_teaches_nothing():
    learned = Calibration()
    learned.observe(100, Usage())
    learned.observe(0, Usage(5, 5))
    learned.observe(100, Usage(500, 5, estimated=True))
    assert learned.observed == 0
    assert learned.ratio == 1.0


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, 10**5)), max_size=400))
def test_no_history_makes_the_figures_absurd(answers):
    learned = Calibration()
    for size, billed, output in answers:
        learned.observe(size, Usage(billed, output))
    assert 0.2 <= learned.ratio <= 8
    assert 0 <= learned.output(500) <= 500
    outputs = [output for _, billed, output in answers if billed][-Calibration.REMEMBERED :]
    assert learned.output(None) <= max([OUTPUT_TOKENS, *outputs])
