"""Every example of the documentation runs and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from inside import own_registry
from pages import INSTALLS, LANGUAGES, ROOT, Block, Page, pages, shell_script

from smartbatch import BatchingConfig
from smartbatch.testing import Emulator, emulator

PAGES = pages()
MEASUREMENTS = next(page for page in PAGES if page.name == "docs/reference/measurements.md")
READ_FIRST = ("README.md",)
"""Pages whose examples are part of the default run."""
EXAMPLES = [
    page if page.name in READ_FIRST else pytest.param(page, marks=pytest.mark.full)
    for page in PAGES
    if page.blocks()
]
NOT_RUN = 1
"""Blocks marked as not run; each has its reason on the page."""

_FOREIGN = ("SMARTBATCH_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_")
"""Prefixes of variables that would change what an example does."""

_NAMED_FILE = re.compile(r"# ([\w.]+\.py)\n")
_TIME = re.compile(r"\d+(?:\\\.\d+)?(?=(?:\\ s\b|\\ ms\b|×|/s\b))")


def at_home(emu: Emulator) -> dict[str, str]:
    return {
        "OPENAI_BASE_URL": emu.base_url,
        "OPENAI_API_KEY": "emulator",
        "ANTHROPIC_BASE_URL": emu.url,
        "ANTHROPIC_API_KEY": "emulator",
        "GOOGLE_GEMINI_BASE_URL": emu.url,
        "GEMINI_API_KEY": "emulator",
    }


def page(name: str) -> Page:
    return next(page for page in PAGES if page.name == name)


def pattern(line: str) -> re.Pattern[str]:
    """``…`` matches anything, and durations may differ."""
    escaped = _TIME.sub(r"[\\d.]+", re.escape(line.rstrip()))
    return re.compile(escaped.replace("…", ".*"))


def check_shown(shown: list[str], printed: str, where: str) -> None:
    lines = iter([line.rstrip() for line in re.split(r"[\r\n]", printed)])
    for line in shown:
        assert any(pattern(line).fullmatch(real) for real in lines), (
            f"{where}: {line!r} is not in:\n{printed}"
        )


class Reader:
    """Works through one page from the top, in a folder with the examples."""

    def __init__(self, page: Page, folder: Path, emu: Emulator) -> None:
        self._page = page
        self._folder = folder
        self._namespace: dict[str, object] = {"__name__": "__page__"}
        self._printed = ""
        self._exports: list[str] = []
        self._servers = contextlib.ExitStack()
        self._ports: dict[str, str] = {}
        self._env = {
            "PATH": f"{folder / '.venv/bin'}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT),
            "SMARTBATCH_SIM_DIR": str(folder / "sim"),
            **at_home(emu),
        }

    def read(self) -> None:
        with self._servers:
            for block in self._page.blocks():
                if block.not_run is None:
                    getattr(self, f"_{block.language}")(block)
                elif block.language == "python":
                    compile(block.text, self._page.name, "exec")

    def _python(self, block: Block) -> None:
        if named := _NAMED_FILE.match(block.text):
            (self._folder / named.group(1)).write_text(block.text)
        source = "\n" * (block.line - 1) + block.text
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(source, str(self._page.path), "exec", dont_inherit=True), self._namespace)
        self._printed = out.getvalue()

    def _output(self, block: Block) -> None:
        check_shown(block.text.splitlines(), self._printed, f"{self._page.name}:{block.line}")

    def _bash(self, block: Block) -> None:
        script, shown = shell_script(block)
        where = f"{self._page.name}:{block.line}"
        if not script:
            return
        if script.startswith("smartbatch emulator"):
            self._serve(script)
            return
        for port, free in self._ports.items():
            script = script.replace(port, free)
        self._exports += [line for line in script.splitlines() if line.startswith("export ")]
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join([*self._exports, script])],
            cwd=self._folder,
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, f"{where} ends with {ended.returncode}:\n{ended.stdout}"
        self._printed = ended.stdout
        check_shown(shown, ended.stdout, where)

    _console = _bash

    def _serve(self, command: str) -> None:
        """Run an emulator until the page ends, on a free port."""
        named = re.search(r"--port (\d+)", command)
        command = re.sub(r" --port \d+", "", command) + " --port 0"
        server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=self._folder,
            env=self._env,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._servers.callback(server.wait)
        self._servers.callback(server.terminate)
        assert server.stdout is not None
        self._servers.callback(server.stdout.close)
        address = re.search(r"http://127.0.0.1:(\d+)/v1", server.stdout.readline())
        assert address is not None
        self._ports[named.group(1) if named else "8100"] = address.group(1)

    def _toml(self, block: Block) -> None:
        name = "pyproject.toml" if "[tool.smartbatch]" in block.text else "settings.toml"
        file = self._folder / name
        file.write_text(block.text)
        BatchingConfig.load(file, environ={})

    def _yaml(self, block: Block) -> None:
        file = self._folder / "settings.yaml"
        file.write_text(block.text)
        BatchingConfig.load(file, environ={})

    def _json(self, block: Block) -> None:
        for line in block.text.splitlines():
            json.loads(line)

    def _text(self, block: Block) -> None:
        """Text is for reading."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the examples and the command, but no settings, jobs or batches of this machine."""
    for variable in [name for name in os.environ if name.startswith(_FOREIGN)]:
        monkeypatch.delenv(variable)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SMARTBATCH_SIM_DIR", str(tmp_path / "sim"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    commands = tmp_path / ".venv/bin"
    commands.mkdir(parents=True)
    main = "import sys; from smartbatch.cli.main import main; sys.exit(main())"
    for name, arguments in {"smartbatch": f" -P -c '{main}'", "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {sys.executable}{arguments} "$@"\n')
        (commands / name).chmod(0o755)
    own_registry(monkeypatch)  # a page registers its own providers
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def only_loopback(monkeypatch):
    look_up = socket.getaddrinfo

    def guarded(host, *args, **kwargs):
        assert host in ("127.0.0.1", "::1", "localhost", None), f"an example would call {host}"
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", guarded)


@pytest.fixture
def emu(monkeypatch, folder):
    with emulator(latency=0.01, batch_turnaround=0.2) as running:
        for name, value in at_home(running).items():
            monkeypatch.setenv(name, value)
        yield running


@pytest.mark.full
@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.name)
@pytest.mark.usefixtures("only_loopback", "known_hosts")
def test_every_example_of_a_page_does_what_it_shows(page, folder, emu):
    before = set(sys.modules)
    try:
        Reader(page, folder, emu).read()
    finally:
        for name in set(sys.modules) - before:
            if str(folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if re.search(r"^def test_", page.text, re.MULTILINE)],
    ids=lambda p: p.name,
)
@pytest.mark.full
def test_tests_shown_on_a_page_pass(page, folder):
    blocks = [block for block in page.blocks() if block.language == "python" and block.not_run is None]
    (folder / "test_page.py").write_text("".join(block.text for block in blocks))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_page.py"]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout


def test_blocks_are_of_a_known_kind_and_few_are_not_run():
    blocks = [(page.name, block) for page in PAGES for block in page.blocks()]
    assert [(name, b.line, b.language) for name, b in blocks if b.language not in LANGUAGES] == []
    marked = [(name, b.line, b.not_run) for name, b in blocks if b.not_run is not None]
    assert len([one for one in marked if not is_run_elsewhere(one[0], one[2])]) == NOT_RUN, marked
    markers = sum(page.text.count("<!-- not run:") for page in PAGES)
    assert markers == len(marked), "a marker stands before no block"


def is_run_elsewhere(name: str, reason: str) -> bool:
    test = ROOT / reason.split()[0]
    return reason.startswith("tests/") and name in test.read_text()


def test_no_two_pages_write_the_same_output():
    """A reader goes from page to page in one folder: the output of the last page would be carried on."""
    written = [(name, page.name) for page in PAGES for name in _outputs(page)]
    assert len(written) > 5
    assert len({name for name, _ in written}) == len(written), sorted(written)


def _outputs(page: Page) -> set[str]:
    text = "\n".join(block.text for block in page.blocks())
    return set(re.findall(r"(?:-o|--output|>) ([\w-]+\.jsonl)\b", text))


def test_the_readme_opens_with_two_commands():
    first, second = [b.text for b in page("README.md").blocks() if b.language == "bash"][:2]
    install = "python3 -m venv .venv && .venv/bin/pip install -q "
    assert first.startswith(f"{install}. && .venv/bin/smartbatch run examples/questions.txt --model ")
    assert second == f"{install}-e '.[test]' && .venv/bin/pytest\n"
    assert second in (ROOT / ".ci/run").read_text()
    assert all(INSTALLS.fullmatch(part) for part in second.strip().split(" && "))


def test_the_overview_repeats_the_measured_figures():
    table = page("docs/explanation/overview.md").text.split("## Measured")[1].split("\n## ")[0]
    rows = [row.split("|")[2] for row in table.splitlines() if row.startswith("|")][2:]
    figures = re.findall(r"\d+(?:\.\d+)?", " ".join(rows))
    measured = page("docs/reference/measurements.md").text
    assert len(figures) >= len(rows)
    assert [one for one in figures if not re.search(rf"(?<![\d.]){one}(?![\d.]*\d)", measured)] == []


def test_every_command_of_the_measurements_exists():
    commands = re.findall(r"`((?:python -m )?benchmarks\.[^`]+|nox [^`]+)`", MEASUREMENTS.text)
    assert len(commands) > 20
    full = [c if c.startswith(("python", "nox")) else f"python -m {c}" for c in commands]
    assert [command for command in full if not is_command(command)] == []


_DRAWN = re.compile(r"[─│►▼]")
_FORMULA = re.compile(r"[a-z +]+ (=|<=) ")


def is_command(line: str) -> bool:
    """Whether the files, sessions and options named by a command exist."""
    words = [word.removeprefix(".venv/bin/") for word in line.partition(" #")[0].split()]
    sources = {
        "python": f"benchmarks/{words[2].removeprefix('benchmarks.')}.py" if len(words) > 2 else "",
        "nox": "noxfile.py",
    }
    if INSTALLS.match(line) or words in ([".ci/run"], ["pre-commit", "install"]):
        return True
    if words[0] not in sources:
        return words[0] == "pytest" and all((ROOT / word).exists() for word in words if "/" in word)
    source = ROOT / sources[words[0]]
    rest = [word for word in words[2:] if word != "--"]
    named = [word for word in rest if word.startswith("-")]
    if words[0] == "nox":
        named = [f"def {word}(" for word in rest if word.isalpha()]
    return source.is_file() and all(name in source.read_text() for name in named)


def wrong_text(block: Block) -> list[str]:
    """What a block of ``text`` has that is neither drawn, nor a formula, nor a command that exists.

    What something prints belongs into ``output`` or ``console``, where it is compared.
    """
    if _DRAWN.search(block.text) or _FORMULA.match(block.text) or block.text.startswith("smartbatch/\n"):
        return []
    return [line for line in block.text.splitlines() if not is_command(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_block_that_is_only_read_shows_no_output_and_no_stale_command(page):
    blocks = [block for block in page.blocks() if block.language == "text" and block.not_run is None]
    assert [(block.line, line) for block in blocks for line in wrong_text(block)] == []
