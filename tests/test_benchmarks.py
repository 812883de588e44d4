"""A benchmark whose figure misses its target says so, and ends with 1."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.targets import Targets

FILES = sorted((Path(__file__).parents[1] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize(("figure", "told"), [(3.0, ""), (3.1, ", MISSED")])
def test_a_figure_above_its_target_is_marked_and_ends_with_1(figure: float, told: str) -> None:
    targets = Targets()
    assert targets.at_most(figure, 3, " ms") == f"target: at most 3 ms{told}"
    assert targets.at_least(-figure, -3) == f"target: at least -3{told}"
    assert targets.at_most(1.0, 2.0) == "target: at most 2"
    with pytest.raises(SystemExit) as ended:
        targets.exit()
    assert ended.value.code == bool(told)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_benchmark_prints_a_target_that_it_does_not_end_with(file: Path) -> None:
    source = file.read_text()
    assert ("Targets()" in source) == ("targets.exit()" in source)
    if file.name != "targets.py":
        assert re.findall(r"\(?target: ", source) == []
