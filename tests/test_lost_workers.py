"""A test process that dies ends the run and makes it fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = Path(__file__).parent.parent / "pyproject.toml"
DIES = """
import os

def test_that_is_fine(): pass
def test_that_dies(): os._exit(3)
def test_behind_it(): pass
"""
FINE = "import pytest\n@pytest.mark.parametrize('n', range(40))\ndef test_that_is_fine(n): pass\n"
PATIENCE = 120.0
"""Maximum seconds for a run that takes a second or two."""


@pytest.mark.full
def test_the_run_goes_on_without_it_names_the_test_and_fails(tmp_path):
    """With the project's own settings. A worker in its place would be given no tests, and wait for some."""
    (tmp_path / "test_dying.py").write_text(DIES)
    for n in range(4):
        (tmp_path / f"test_fine_{n}.py").write_text(FINE)
    line = [sys.executable, "-m", "pytest", "-c", SETTINGS, "--rootdir", tmp_path, "-p", "no:cacheprovider"]
    run = subprocess.run([*map(str, line), str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 1, run.stdout + run.stderr
    assert "crashed while running" in run.stdout
    assert "test_dying.py::test_that_dies" in run.stdout
    assert "1 failed, 161 passed" in run.stdout
