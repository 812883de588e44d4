"""The checks before a change lands: a command of theirs that fails makes all of them fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = ("pip", "pytest", "ruff", "mypy", "mkdocs")
STUB = """#!/bin/sh
echo "${0##*/} $*" >> "$PWD/called"
case "${0##*/} $*" in "$FAILS"*) exit 3;; esac
"""
MAKES_STUBS = f"""#!/bin/sh
mkdir -p "$3/bin"
for name in {" ".join(COMMANDS)}; do cp stub "$3/bin/$name"; done
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the script, where no command does anything but fail when it is told to."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for path, text in ((tmp_path / "stub", STUB), (tmp_path / "bin" / "python3", MAKES_STUBS)):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    return tmp_path


def code_of(project: Path, fails: str) -> int:
    environ = {"PATH": f"{project / 'bin'}:/usr/bin:/bin", "FAILS": fails}
    return subprocess.run(["bash", ".ci/run"], cwd=project, env=environ, timeout=60, check=False).returncode


def test_all_commands_run_where_none_fails(project: Path) -> None:
    assert code_of(project, "nothing") == 0
    called = (project / "called").read_text()
    assert {line.split()[0] for line in called.splitlines()} == set(COMMANDS)


FAILING = (
    "pip install -q -e .[test]",
    "pytest",
    "pytest -m",
    "ruff check",
    "ruff format",
    "mypy",
    "pip install -q -e .[docs]",
    "mkdocs",
)


@pytest.mark.parametrize("command", FAILING)
def test_the_script_fails_where_one_command_does(command: str, project: Path) -> None:
    """The installation and the tests stand in one chain with ``&&``, which ``set -e`` passes over."""
    assert code_of(project, command) != 0
