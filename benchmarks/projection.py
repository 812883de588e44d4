"""Measures how often the projected range of a cost contains the true cost of all rows.

    python -m benchmarks.projection [--draws DRAWS] [--seed SEED]

For each data set and size of the sample, random samples are drawn and the cost of all rows is projected from
each. *Inside* is the share of samples whose 90 % range contains the true cost, *below* and *above* are the
shares whose range lies above or below it, and *width* is the mean width of the range, divided by the cost.

The data sets have real prompts and answers or their real token counts. Texts are billed by a count of words
and signs that differs from the library's estimate, as a real tokenizer does. Prices are those of gpt-5-mini,
whose output tokens cost eight times as much as input.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import frozen

from smartbatch.core.preparation.tokens import estimate
from smartbatch.quality.projection import project
from smartbatch.quality.recorded_row import RecordedRow
from smartbatch.quality.sample import draw

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
INPUT_USD, OUTPUT_USD = 0.25e-6, 2e-6
SAMPLE_SIZES = (20, 50, 100)
_TOKEN = re.compile(r"\s?[A-Za-z]{1,7}|\s?\d{1,3}|[^\sA-Za-z\d]|\s+")


@frozen
class DataSet:
    """The rows of a table with their answers.

    Attributes:
        sizes: estimated input tokens.
        answered: every row with its billed tokens and cost.
    """

    sizes: list[int]
    answered: list[RecordedRow]

    @property
    def cost(self) -> float:
        return sum(row.cost or 0.0 for row in self.answered)

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int]]) -> DataSet:
        """Make a data set of estimated input tokens, billed input tokens and output tokens."""
        listed = list(rows)
        answered = [
            RecordedRow(
                index=index,
                id=index,
                cost=given * INPUT_USD + made * OUTPUT_USD,
                attempts=1,
                input_tokens=given,
                output_tokens=made,
            )
            for index, (_, given, made) in enumerate(listed)
        ]
        return cls([size for size, _, _ in listed], answered)

    @classmethod
    def of_texts(cls, pairs: Iterable[tuple[str, str]]) -> DataSet:
        return cls.of((estimate(prompt), billed(prompt), billed(answer)) for prompt, answer in pairs)


def billed(text: str) -> int:
    return len(_TOKEN.findall(text))


def trace(path: Path) -> DataSet:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(file)]
    return DataSet.of((given, given, made) for given, made in rows)


def json_lines(prompt: str, answer: str) -> Callable[[Path], DataSet]:
    def read(path: Path) -> DataSet:
        rows = map(json.loads, path.read_text("utf-8").splitlines())
        return DataSet.of_texts((row[prompt], row[answer]) for row in rows)

    return read


def articles(path: Path) -> DataSet:
    def pairs(data: list[Any]) -> Iterator[tuple[str, str]]:
        for article in data:
            for paragraph in article["paragraphs"]:
                for one in paragraph["qas"]:
                    yield paragraph["context"] + "\n" + one["question"], one["answers"][0]["text"]

    return DataSet.of_texts(pairs(json.loads(path.read_text("utf-8"))["data"]))


DATA_SETS: dict[str, Callable[[Path], DataSet]] = {
    "traces/azure_llm_2023_conv.csv": trace,
    "traces/azure_llm_2023_code.csv": trace,
    "prompts/gsm8k_test.jsonl": json_lines("question", "answer"),
    "prompts/humaneval.jsonl": json_lines("prompt", "canonical_solution"),
    "texts/xquad.en.json": articles,
    "texts/xquad.zh.json": articles,
}
"""Readers by the path of the file."""


@frozen
class Coverage:
    """Shares of the samples by the place of the true cost, and the mean width of the range."""

    inside: float
    below: float
    above: float
    width: float


def measure(data: DataSet, size: int, draws: int, rng: random.Random) -> Coverage:
    cost, inside, below, width = data.cost, 0, 0, 0.0
    for _ in range(draws):
        sample = [data.answered[index] for index in draw(len(data.sizes), size, rng)]
        total = project(sample, data.sizes).total
        assert total is not None
        assert total.low is not None
        assert total.high is not None
        inside += total.low <= cost <= total.high
        below += cost < total.low
        width += (total.high - total.low) / cost
    above = draws - inside - below
    return Coverage(inside / draws, below / draws, above / draws, width / draws)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how often a projected range contains the cost.")
    parser.add_argument("--draws", type=int, default=1000, help="samples per data set and size")
    parser.add_argument("--seed", type=int, default=7, help="seed of the samples")
    given = parser.parse_args()
    print(f"{'data set':<32}{'rows':>7}{'sample':>8}{'inside':>9}{'below':>8}{'above':>8}{'width':>8}")
    for name, read in DATA_SETS.items():
        data, rng = read(DATA / name), random.Random(given.seed)
        for size in SAMPLE_SIZES:
            found = measure(data, size, given.draws, rng)
            print(
                f"{name:<32}{len(data.sizes):>7}{size:>8}{found.inside:>9.1%}{found.below:>8.1%}"
                f"{found.above:>8.1%}{found.width:>8.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
