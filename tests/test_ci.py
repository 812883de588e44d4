"""The CI script fails if any of its commands fails."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.levels import sampled

ROOT = Path(__file__).parents[1]
COMMANDS = ("pip", "pytest", "ruff", "mypy", "mkdocs")
STUB = """#!/bin/sh
echo "${0##*/} $*" >> "$PWD/called"
case "${0##*/} $*" in "$FAILS"*) exit 3;; esac
"""
INSTALLS_PROGRAMS = "apt-get install"
TOOLS = ("bash", "sh", "cp", "dirname", "mkdir", "mktemp", "rm")
"""Other programs that the script or its stubs may use."""
MAKES_STUBS = f"""#!/bin/sh
mkdir -p "$3/bin"
for name in {" ".join(COMMANDS)}; do cp stub "$3/bin/$name"; done
"""


@pytest.fixture
def project(tmp_path):
    """A folder with the script, in which commands only fail if told to."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for path, text in (
        (tmp_path / "stub", STUB),
        (tmp_path / "bin" / "python3", MAKES_STUBS),
        (tmp_path / "bin" / "apt-get", STUB),
        (tmp_path / "bin" / "id", "#!/bin/sh\necho $USER_ID\n"),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name in TOOLS:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    return tmp_path


def code_of(project: Path, fails: str, user_id: int = 0) -> int:
    environ = {"PATH": str(project / "bin"), "FAILS": fails, "USER_ID": str(user_id)}
    return subprocess.run(["bash", ".ci/run"], cwd=project, env=environ, timeout=60, check=False).returncode


def called(project: Path) -> list[str]:
    return (project / "called").read_text().splitlines()


def test_all_commands_run_where_none_fails(project):
    assert code_of(project, "nothing") == 0
    assert {line.split()[0] for line in called(project)} == {*COMMANDS, "apt-get"}


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


@pytest.mark.parametrize("command", sampled(FAILING, keep=3))
def test_the_script_fails_where_one_command_does(command, project):
    assert code_of(project, command) != 0


def test_the_workflow_checks_every_python_the_package_names():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text())
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    named = re.findall(r"Python :: (3\.\d+)", settings["metadata"]["classifiers"])
    checks, free = workflow["jobs"]["checks"], workflow["jobs"]["free-threaded"]
    assert checks["strategy"]["matrix"]["python"] == named
    assert named[-1] + "t" in [step.get("with", {}).get("python-version") for step in free["steps"]]
    commands = [step["run"] for step in checks["steps"] if "run" in step]
    assert commands[-1] == ".ci/run"
    assert {"chromium", "chromium-driver", "fish", "zsh"} <= set(commands[0].split())
    tests = re.findall(r"tests/\S+", " ".join(step.get("run", "") for step in free["steps"]))
    assert "tests/typing" in tests
    assert all((ROOT / each).exists() for each in tests)
