"""A program imports nothing before its first request that this request does not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from smartbatch.testing import emulator

SCRIPT = "import smartbatch; assert smartbatch.generate(['hello'], model='openai:gpt-5-mini')[0].ok"
RUN = """
from smartbatch.cli.main import main
sys.argv[1:] = ["run", "rows.jsonl", "--model", "openai:gpt-5-mini", "--prompt-field=text", "-o", "out.jsonl"]
assert main() == 0
"""
WATCHED = """
import os, socket, stat, sys
seen = []
def watched(sending):
    def send(to, *rest):
        if not seen and (isinstance(to, socket.socket) or stat.S_ISSOCK(os.fstat(to).st_mode)):
            seen.extend(sorted(sys.modules))
        return sending(to, *rest)
    return send
socket.socket.send = watched(socket.socket.send)
socket.socket.sendall = watched(socket.socket.sendall)
os.write = watched(os.write)
{program}
print(*seen)
"""
HEAVY = {
    *("anthropic", "google.genai", "openai", "httpx2", "pydantic", "genai_prices", "requests"),
    *("jsonschema", "json_repair", "structlog", "cattrs", "h11", "tqdm", "argcomplete", "yaml"),
    *("pandas", "polars", "pyarrow", "numpy", "dask", "distributed", "opentelemetry", "prometheus_client"),
    *("psycopg", "redis", "asyncio", "multiprocessing", "unittest", "tomllib"),
}
"""Slow imports that serve other purposes."""
UNUSED = {
    *("emulator", "dashboard", "reports", "cluster", "integrations", "testing"),
    *("providers.anthropic", "providers.gemini", "providers.sim", "providers.mock"),
    *("jobs.steps.batch_step", "jobs.steps.create", "jobs.steps.collect", "jobs.store.postgres"),
}
"""Modules of the library that serve other purposes."""
UNUSED_IN_A_SCRIPT = {
    *("cli", "stored_jobs"),
    *("jobs.job", "jobs.records", "jobs.payload", "jobs.job_submission", "jobs.jobs_engine", "jobs.store"),
    *("jobs.supervision", "jobs.runner", "jobs.realtime_items", "jobs.steps"),
}


def imported_until_the_first_request(program: str, folder: Path, url: str) -> set[str]:
    """Return the modules of a program's second run, which uses what the first run kept."""
    environ = {
        **{name: str(folder) for name in ("HOME", "XDG_STATE_HOME")},
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "sk-test-0000",
        "PYTHONPATH": str(Path(__file__).parents[1]),
    }
    (folder / "rows.jsonl").write_text('{"text": "hello"}\n')
    for _ in range(2):
        (folder / "out.jsonl").unlink(missing_ok=True)
        ended = subprocess.run(
            [sys.executable, "-c", WATCHED.format(program=program)],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
    return set(ended.stdout.split())


@pytest.mark.full
@pytest.mark.parametrize(("program", "unused"), [(SCRIPT, UNUSED | UNUSED_IN_A_SCRIPT), (RUN, UNUSED)])
def test_what_the_first_request_does_not_use_is_not_imported_before_it(program, unused, tmp_path):
    with emulator() as served:
        modules = imported_until_the_first_request(program, tmp_path, served.base_url)
    assert "smartbatch.client" in modules
    assert HEAVY & modules == set()
    assert {f"smartbatch.{name}" for name in unused} & modules == set()
