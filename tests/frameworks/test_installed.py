"""The package as users have it: built, installed in an environment of its own, with the source removed."""

from __future__ import annotations

import configparser
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from attrs import field, frozen

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "site")
MOST_BYTES = 120_000_000


def data_files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in (folder / "smartbatch").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }


def test_every_file_of_the_package_that_is_no_code_is_named_for_the_wheel():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    named = [f"smartbatch/{one}" for one in settings["options.package_data"]["smartbatch"].split()]
    assert [path for path in data_files(ROOT) if not any(fnmatch.fnmatch(path, one) for one in named)] == []


@frozen
class Installed:
    """An environment with the package, and a folder to work in.

    Attributes:
        data: files of the package that are no code, as the source had them.
    """

    environment: Path
    sdist: Path
    wheel: Path
    data: set[str]
    folder: Path = field()

    def run(self, *command: str, **environ: str) -> str:
        kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
        bin = self.environment / "bin"
        done = subprocess.run(
            [bin / command[0], *command[1:]],
            cwd=self.folder,
            env={**kept, "PATH": f"{bin}:/usr/bin:/bin", "XDG_STATE_HOME": str(self.folder), **environ},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def python(self, code: str, **environ: str) -> list[str]:
        return self.run("python", "-c", code, **environ).splitlines()


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("installed")
    source, dist, environment = folder / "source", folder / "dist", folder / "environment"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    data = data_files(source)
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    build = [sys.executable, "-m", "build", "--outdir", dist, source]
    subprocess.run(build, env=alone, check=True, capture_output=True)
    shutil.rmtree(source)
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    pip = [environment / "bin" / "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, wheel], env=alone, check=True)
    (folder / "work").mkdir()
    return Installed(environment, sdist, wheel, data, folder / "work")


@pytest.mark.full
def test_wheel_and_sdist_have_all_files(installed):
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = set(wheel.namelist())
    assert installed.data <= names
    assert "smartbatch/py.typed" in names
    assert {name.split("/")[0] for name in names} == {"smartbatch", f"{installed.wheel.name[:20]}.dist-info"}
    with tarfile.open(installed.sdist) as sdist:
        inside = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"LICENSE", "README.md", "setup.cfg", "pyproject.toml", *installed.data} <= inside


@pytest.mark.full
def test_a_list_a_job_and_a_provider_of_another_process_are_answered(installed):
    found = installed.python(
        """
import smartbatch
from smartbatch.testing import emulator
print(smartbatch.__file__)
print(smartbatch.generate(["one", "two"], model="sim:demo?latency=0").succeeded)
settings = {"store": "jobs.db", "batch_poll_interval": 0.05}
with smartbatch.BatchingClient("sim:demo?batch_seconds=0", **settings) as client:
    print(client.submit_batch(["one", "two"], key="mine").wait().state)
with emulator(latency=0) as server:
    address = server.base_url
    for provider, url in (("openai", address), ("anthropic", address.removesuffix("/v1"))):
        options = {"base_url": url, "api_key": "sk-test-0000"}
        print(smartbatch.generate(["one"], model=f"{provider}:m", provider_options=options)[0].ok)
"""
    )
    assert found[0].startswith(str(installed.environment))
    assert found[1:] == ["2", "done", "True", "True"]


@pytest.mark.full
def test_the_command_runs_and_its_doctor_finds_nothing_wrong(installed):
    (installed.folder / "in.txt").write_text("one\ntwo\n")
    installed.run(
        "smartbatch", "run", "in.txt", "--model", "sim:demo?latency=0", "-o", "out.jsonl", "--quiet"
    )
    assert len((installed.folder / "out.jsonl").read_text().splitlines()) == 2
    findings = map(json.loads, installed.run("smartbatch", "doctor", "--json").splitlines())
    assert [one for one in findings if one["wrong"]] == []


@pytest.mark.full
def test_an_extra_that_is_not_installed_is_named(installed):
    found = installed.python(
        """
import smartbatch
results = smartbatch.generate(["one"], model="sim:demo?latency=0")
from smartbatch.observe.prometheus import PrometheusReporter
for use in (
    results.to_pandas,
    lambda: PrometheusReporter(smartbatch.BatchingClient("sim:demo").metrics),
    lambda: smartbatch.participants("redis://localhost"),
    lambda: smartbatch.list_jobs(store="postgresql://localhost/x"),
):
    try:
        use()
    except smartbatch.ConfigError as error:
        print(error)
"""
    )
    extras = ("pandas", "prometheus", "redis", "postgres")
    assert [re.findall(r"smartbatch-llm\[(\w+)\]", line) for line in found] == [[extra] for extra in extras]


@pytest.mark.full
def test_the_types_are_those_of_the_source(installed):
    program = installed.folder / "program.py"
    program.write_text(
        "import smartbatch\n"
        'reveal_type(smartbatch.generate(["x"], model="sim:demo")[0].text)\n'
        'smartbatch.generate(["x"], model="sim:demo", max_tokns=3)\n'
    )
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable"]
    done = subprocess.run(
        [*mypy, str(installed.environment / "bin" / "python"), "--cache-dir", os.devnull, str(program)],
        cwd=installed.folder,
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'Revealed type is "str | None"' in done.stdout, done.stdout
    assert 'Unexpected keyword argument "max_tokns"' in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Found 1 error")


@pytest.mark.full
def test_the_core_takes_no_more_room_than_a_hundred_and_twenty_megabytes(installed):
    (packages,) = (installed.environment / "lib").glob("python*/site-packages")
    sizes = {
        path.relative_to(packages): path.stat().st_size
        for path in packages.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    of_the_environment = ("pip", "setuptools")
    assert (
        sum(n for path, n in sizes.items() if not path.parts[0].startswith(of_the_environment)) <= MOST_BYTES
    )
