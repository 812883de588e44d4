"""The fault catalogue: what can go wrong, and where it is tested.

The tests of this folder drive whole clients over HTTP (see :mod:`tests.faults.world`); their names begin with
the row they hold, as in ``test_c9_…``. :data:`ELSEWHERE` lists tests of other folders for the remaining rows.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

CATALOGUE = {
    "B4": "a create whose response is lost is sent once",
    "B9": "truncated bodies, with and without a length",
    "B11": "gzip bombs and endless bodies",
    "B12": "413, limits of gateways, and refusals while the body is being sent",
    "B13": "a web page instead of the provider",
    "B15": "redirects to other hosts",
    "B16": "hours without a network",
    "C1": "every form of Retry-After",
    "C2": "429 that means the credit is used up",
    "C3": "one request that always fails",
    "C4": "200 without a usable answer",
    "C5": "answers of other requests: at least 95 of 100 are detected",
    "C6": "embeddings out of order, missing, misshapen",
    "C7": "packed calls with missing, doubled or renumbered answers (batches are never packed)",
    "C8": "results out of order",
    "C9": "missing ids",
    "C10": "unknown ids, ids of another job",
    "C11": "one id twice",
    "C12": "broken lines",
    "C13": "error files, inconsistent counts, status 0",
    "C14": "expired with a part processed",
    "C15": "expired with nothing processed",
    "C16": "pending, or being cancelled, far beyond the promised time",
    "C17": "races of end and cancel, and cancels by others",
    "C18": "refused at once or minutes later, because of some lines, a parameter, or as a whole",
    "C19": "not visible just after the create or the upload",
    "C20": "results that cannot be downloaded",
    "C21": "results deleted after their retention",
    "C22": "creates that take effect late",
    "C23": "new words, new fields, other names",
    "C24": "no credit during a batch",
    "C25": "another key, a rejected key",
    "C26": "errors that repeat key or prompt",
    "C27": "hostile ids",
    "C28": "impossible usage",
    "E3": "a full disk",
    "H10": "a hanging store that delays the end of a process",
    "I1": "a wall clock that is set",
}
SIMULATION = "faults/simulation/test_seeds.py"
ELSEWHERE = {
    "B9": "providers/test_conformance_network.py::test_a_cut_body_is_never_an_answer",
    "C7": "realtime/test_packed_calls.py::test_a_thousand_prompts_a_hundred_hostile_under_all_damages",
    "C8": f"{SIMULATION}::test_jobs_in_each_case_go_as_they_went",
    "C14": f"{SIMULATION}::test_jobs_in_each_case_go_as_they_went",
    "C20": f"{SIMULATION}::test_jobs_at_an_odd_provider_go_as_they_went",
    "E3": "jobs/test_realtime_runner.py::test_nothing_more_is_asked_while_answers_cannot_be_stored",
    "H10": "jobs/test_hanging_stores.py::test_a_store_that_hangs_holds_up_no_end",
}


def test_every_row_is_tested():
    rows = {_row_of(name) for name in _tests_of_this_folder()}
    assert rows | ELSEWHERE.keys() == CATALOGUE.keys()


@pytest.mark.parametrize("row", ELSEWHERE)
def test_tests_in_other_folders_exist(row):
    file, _, name = ELSEWHERE[row].partition("::")
    assert name in _tests_in(TESTS / file)


def _row_of(name: str) -> str | None:
    found = re.match(r"test_([a-z]\d+)_", name)
    return None if found is None else found[1].upper()


def _tests_of_this_folder() -> set[str]:
    return {name for file in TESTS.glob("faults/test_faults_*.py") for name in _tests_in(file)}


@cache
def _tests_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_bytes())
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))
