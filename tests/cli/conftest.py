"""What the tests of runs share: a state folder of each test's own, and calls that are written down."""

from __future__ import annotations

import os
import sys

import pytest
from cli.runs import CALLS


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    return tmp_path


@pytest.fixture
def calls(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "own_calls.py").write_text(CALLS)
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "own_calls", raising=False)
    import own_calls  # type: ignore[import-not-found]

    monkeypatch.chdir(tmp_path)
    return own_calls
