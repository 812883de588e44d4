"""Whether an answer belongs to its question, by the tokens both are said to have."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from levels import sampled
from shared_data import shared

from smartbatch.core.batching.sharding import Crosscheck
from smartbatch.core.preparation.tokens import estimate_request
from smartbatch.types import Request

Pair = tuple[int, int]


def observed(pairs: Iterable[Pair]) -> Crosscheck:
    check = Crosscheck()
    for estimate, billed in pairs:
        check.observe(estimate, billed)
    return check


def rate(pairs: Iterable[Pair]) -> float:
    """The share of lines that are suspicious, measured by each other."""
    lines = list(pairs)
    check = observed(lines)
    return sum(check.suspicious(*line) for line in lines) / len(lines)


def lengths(count: int, seed: int = 1) -> list[int]:
    """Estimates as prompts have them: from a line to a page."""
    rng = random.Random(seed)
    return [int(math.exp(rng.uniform(math.log(25), math.log(600)))) for _ in range(count)]


def billed(
    estimates: list[int], spread: float, *, ratio: float = 1.13, constant: int = 0, seed: int = 2
) -> list[Pair]:
    """Each estimate with what a tokenizer would count that differs from it like this."""
    rng = random.Random(seed)
    return [(e, round(constant + ratio * e * math.exp(rng.gauss(0, spread)))) for e in estimates]


def exchanged(pairs: list[Pair], share: float, rng: random.Random) -> tuple[list[Pair], set[int]]:
    """Exchange the answers of some pairs of lines whose lengths differ by more than 5 %; return which."""
    lines, moved = list(pairs), set[int]()
    while len(moved) < share * len(lines):
        one, other = rng.sample(range(len(lines)), 2)
        (a, count), (b, other_count) = lines[one], lines[other]
        if (
            {one, other} & moved
            or abs(count / other_count - 1) <= 0.05
            or abs(other_count / count - 1) <= 0.05
        ):
            continue
        lines[one], lines[other] = (a, other_count), (b, count)
        moved |= {one, other}
    return lines, moved


def flagged(pairs: list[Pair], share: float, seed: int) -> tuple[set[int], set[int]]:
    """Exchange a share of the answers; return the positions of suspicious and of exchanged lines."""
    lines, moved = exchanged(pairs, share, random.Random(seed))
    check = observed(lines)
    return {at for at, line in enumerate(lines) if check.suspicious(*line)}, moved


@pytest.fixture(scope="module")
def texts():
    with shared("prompts/gsm8k_test.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line)["question"] for line in file]


@pytest.fixture(scope="module")
def prompts(texts):
    """Our estimates of the real prompts."""
    return [estimate_request(Request(text)) for text in texts]


class TestCountsOfOthers:
    TOKENIZERS = (r" ?[A-Za-z]{1,7}|\d{1,3}|\s|[^\sA-Za-z\d]", r" ?[A-Za-z]{1,5}|\d|\s|[^\sA-Za-z\d]")

    @pytest.fixture(params=TOKENIZERS)
    def pairs(self, request, texts, prompts):
        return [(e, 8 + len(re.findall(request.param, text))) for e, text in zip(prompts, texts, strict=True)]

    def test_no_line_in_its_place_is_suspicious(self, pairs):
        assert rate(pairs) == 0
        assert not observed(pairs).unrelated

    def test_of_answers_that_are_exchanged_a_third_is_seen_and_no_other(self, pairs):
        found = [flagged(pairs, 0.01, seed) for seed in range(5)]
        assert all(seen <= moved for seen, moved in found)
        assert sum(len(seen) for seen, _ in found) > 0.33 * sum(len(moved) for _, moved in found)


class TestExchangedAnswers:
    @pytest.mark.parametrize("constant", sampled([0, 7, 400], first=1))
    @pytest.mark.parametrize("share", [0.01, 0.2])
    def test_at_least_95_in_100_are_seen_where_estimates_fit(self, prompts, share, constant):
        """Also behind a system text of 400 tokens that our estimate did not know."""
        seeds = range(5)
        found = [flagged(billed(prompts, 0.003, constant=constant, seed=seed), share, seed) for seed in seeds]
        assert all(len(seen - moved) <= 0.001 * len(prompts) for seen, moved in found)
        exchanges = sum(len(moved) for _, moved in found)
        assert exchanges >= 65
        assert sum(len(seen & moved) for seen, moved in found) >= 0.95 * exchanges

    @pytest.mark.parametrize("spread", [0.003, 0.08, 0.15])
    def test_when_all_are_exchanged_the_counts_are_unrelated(self, prompts, spread):
        pairs = billed(prompts, spread)
        assert not observed(pairs).unrelated
        counts = [count for _, count in pairs]
        random.Random(7).shuffle(counts)
        assert observed(zip(prompts, counts, strict=True)).unrelated


class TestFalseAlarms:
    @pytest.mark.parametrize("spread", sampled([0.0, 0.01, 0.08, 0.15, 0.3], keep=2))
    def test_rough_estimates_flag_at_most_one_real_prompt_in_a_thousand(self, prompts, spread):
        flagged = sum(
            len(prompts) * rate(billed(prompts, spread, constant=9, seed=seed)) for seed in range(8)
        )
        assert flagged <= 0.001 * 8 * len(prompts)

    @pytest.mark.parametrize("count", sampled([20, 50, 200], keep=1))
    def test_small_shards_give_no_more_of_them(self, count):
        flagged = unrelated = 0.0
        for seed in range(400):
            lines = billed(lengths(count, seed), 0.08, seed=seed)
            flagged += rate(lines) * count
            unrelated += observed(lines).unrelated
        assert flagged <= 0.001 * 400 * count
        assert unrelated == 0

    def test_a_token_more_or_less_is_no_reason_however_exact_the_others_are(self):
        check = observed([(estimate, estimate) for estimate in range(200, 600)])
        assert not any(check.suspicious(8, count) for count in (7, 8, 9))
        assert check.suspicious(8, 12)


class TestLittleEvidence:
    @pytest.mark.parametrize(("estimate", "count"), [(0, 50), (50, 0), (50, -3), (-1, 50)])
    def test_a_line_without_counts_teaches_nothing_and_is_not_flagged(self, estimate, count):
        check = observed(billed(lengths(19), 0.01))
        check.observe(estimate, count)
        assert not check.suspicious(100, 9000)  # 19 lines show nothing
        check.observe(100, 113)
        assert check.suspicious(100, 9000)
        assert not check.suspicious(estimate, count)


counts = st.tuples(st.integers(-5, 10**6), st.integers(-5, 10**6))


@given(st.lists(counts, max_size=60), counts)
def test_no_counts_break_it(pairs, asked):
    check = observed(pairs)
    assert check.suspicious(*asked) in (True, False)
    assert check.unrelated in (True, False)


class TestOtherScripts:
    ODD = ("这个产品非常好，我会再买一次。" * 3, "😀🎉" * 20, "это очень хороший товар " * 4)

    def lines(self) -> list[tuple[int, int, int]]:
        """Each with the tokens of a tokenizer that counts bytes, and with its own."""
        texts = [f"Is this review positive? {'It is very good. ' * n}" for n in range(1, 31)]
        requests = [Request(text) for text in (*texts, *self.ODD)]
        return [
            (estimate_request(each), len(str(each.prompt).encode()) // 4 + 4, len(str(each.prompt).encode()))
            for each in requests
        ]

    def test_their_own_counts_are_no_reason(self):
        check = Crosscheck()
        for line in self.lines():
            check.observe(*line)
        assert [line for line in self.lines() if check.suspicious(*line)] == []
        without = observed(line[:2] for line in self.lines())
        assert sum(without.suspicious(*line[:2]) for line in self.lines()) == len(self.ODD), (
            "the bytes make no difference: the texts are too much like the others"
        )

    def test_exchanged_answers_of_the_others_are_seen_all_the_same(self):
        lines = self.lines()
        (a, x, size), (b, y, other_size) = lines[2], lines[20]
        lines[2], lines[20] = (a, y, size), (b, x, other_size)
        check = Crosscheck()
        for line in lines:
            check.observe(*line)
        assert [at for at, line in enumerate(lines) if check.suspicious(*line)] == [2, 20]
