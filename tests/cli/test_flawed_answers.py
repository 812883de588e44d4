"""Answers that are truncated, empty or refused: counted by themselves, and sent again by ``--resend``."""

from __future__ import annotations

import csv
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cli.runs import prompts, written
from levels import sampled

import smartbatch
from smartbatch import BatchingClient, Result
from smartbatch._words import money
from smartbatch.cli.main import main

USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.status = 200
        super().__init__(("127.0.0.1", 0), Handler)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt, limit = (
            body["messages"][-1]["content"],
            body.get("max_tokens") or body["max_completion_tokens"],
        )
        self.asked.append((prompt, limit))
        number = int(prompt.rpartition(" ")[2])
        text, reason = f"answer {number}", "stop"
        if limit < 100 and number % 2 == 0:
            text, reason = ("" if number % 4 == 0 else "an"), "length"
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice], "usage": USAGE}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = self.server.status
        data = self.server.answer(body) if status == 200 else {"error": {"message": "no", "code": "bad"}}
        raw = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(calls, monkeypatch):
    with Server() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        yield server
        server.shutdown()


def run(*more: str, tokens: int = 50, output: str = "out.jsonl") -> int:
    model = ("--model", "openai:gpt-5-mini", "--strategy", "individual", "--max-tokens", str(tokens))
    return main(["run", "in.txt", *model, "-o", output, *more])


def test_the_summary_counts_each_defect(server, capfd):
    prompts(8)
    assert run() == 0
    told = capfd.readouterr().err
    advice = "Replace the truncated ones with --resend truncated and a higher --max-tokens."
    assert f"Flawed answers: 4 truncated, 2 empty. {advice}" in told.splitlines()
    assert run() == 0  # nothing is sent, and the count stays
    assert "Flawed answers: 4 truncated, 2 empty." in capfd.readouterr().err
    assert len(server.asked) == 8


@pytest.mark.parametrize("output", sampled(["out.jsonl", "out.csv"]))
def test_truncated_answers_are_sent_again_and_their_cost_stays_counted(server, output, capfd):
    prompts(8)
    assert run(output=output) == 0
    first = amounts(output)
    server.asked.clear()
    assert run("--resend", "truncated", tokens=500, output=output) == 0
    assert sorted(server.asked) == [(f"prompt {n}", 500) for n in (0, 2, 4, 6)]
    rows = amounts(output)
    assert [row["text"] for row in rows] == [f"answer {n}" for n in range(8)]
    assert [row["output_tokens"] for row in rows] == [10, 5] * 4
    assert [row["cost"] for row in rows] == pytest.approx(
        [(1 + (n % 2 == 0)) * row["cost"] for n, row in enumerate(first)]
    )
    told = capfd.readouterr().err
    whole, now = sum(row["cost"] for row in rows), 4 * first[0]["cost"]
    assert f"Cost: {money(whole)}, of which {money(now)} in this run." in told.splitlines()
    for tokens in (500, 50):  # with the settings of either run, nothing is left
        assert run(tokens=tokens, output=output) == 0
    assert run("--resend", "truncated", tokens=500, output=output) == 0
    assert len(server.asked) == 4
    assert amounts(output) == rows


def amounts(output: str) -> list[dict[str, Any]]:
    if output.endswith(".csv"):
        with open(output, newline="") as file:
            rows = list(csv.DictReader(file))
        names = ("cost", "output_tokens")
        return [{"text": row["text"], **{name: json.loads(row[name]) for name in names}} for row in rows]
    return [
        {"text": row["text"], "cost": row["cost"], "output_tokens": row["usage"]["output_tokens"]}
        for row in written(output)
    ]


@pytest.mark.parametrize("output", sampled(["out.jsonl", "out.csv"]))
def test_an_answer_stays_until_the_new_one_is_there(server, output):
    prompts(8)
    run(output=output)
    before = amounts(output)
    server.status = 400
    assert run("--resend", "truncated", tokens=500, output=output) == 1
    assert amounts(output) == before
    server.status = 200
    server.asked.clear()
    assert run(tokens=500, output=output) == 0  # the rows are still to be replaced
    assert sorted(server.asked) == [(f"prompt {n}", 500) for n in (0, 2, 4, 6)]
    assert [row["text"] for row in amounts(output)] == [f"answer {n}" for n in range(8)]


def test_other_settings_are_refused_without_resend(server, capfd):
    prompts(4)
    run()
    assert run(tokens=500) == 2
    assert "the system text or parameters have changed" in capfd.readouterr().err
    assert run("--resend", "failed", tokens=500) == 0  # no row failed: none is sent
    assert len(server.asked) == 4


def test_resend_needs_an_output(server, capfd):
    prompts(1)
    assert main(["run", "in.txt", "--model", "sim:echo", "--resend", "empty"]) == 2
    assert "--resend replaces answers in an output file: give it with -o" in capfd.readouterr().err


def test_resend_sends_no_rows_that_were_never_sent(server, capfd):
    prompts(8)
    assert run("--limit", "4") == 0
    server.asked.clear()
    assert run("--resend", "failed", tokens=500) == 0
    assert "out.jsonl: no row failed, so nothing is sent" in capfd.readouterr().err
    assert run("--resend", "truncated", tokens=500) == 0
    assert sorted(server.asked) == [("prompt 0", 500), ("prompt 2", 500)]
    assert run("--resend", "truncated", tokens=500) == 0
    assert "out.jsonl: no answer is truncated, so nothing is sent" in capfd.readouterr().err
    assert run(tokens=500) == 0
    assert len(server.asked) == 6
    assert len(written("out.jsonl")) == 8


def test_resend_without_an_earlier_output_is_refused(server, capfd):
    prompts(2)
    assert run("--resend", "truncated") == 2
    assert "out.jsonl: has no rows to send again" in capfd.readouterr().err
    assert not server.asked
    assert not Path("out.jsonl").exists()


def test_an_answer_that_is_cut_off_again_is_replaced_once_a_command(server):
    prompts(2)
    run()
    server.asked.clear()
    assert run("--resend", "truncated", tokens=60) == 0
    assert server.asked == [("prompt 0", 60)]
    assert run("--resend", "truncated", tokens=500) == 0
    assert written("out.jsonl")[0]["text"] == "answer 0"
    assert written("out.jsonl")[0]["attempts"] == 3


def test_a_list_and_its_report_count_each_defect(server, tmp_path):
    results = smartbatch.generate(prompts(8), model="openai:gpt-5-mini", max_tokens=50)
    assert (results.succeeded, results.truncated, results.empty, results.refused) == (8, 4, 2, 0)
    assert "8 succeeded (4 truncated, 2 empty)" in repr(results)
    assert "8 of 8 requests were answered" in results.report().html
    assert "(4 truncated, 2 empty)" in results.report().html


@pytest.mark.parametrize("strategy", sampled(["individual", "batch"]))
def test_a_job_and_its_report_count_each_defect(tmp_path, strategy):
    model = "sim:demo?latency=0&batch_seconds=0.05"
    with BatchingClient(
        model, store=str(tmp_path / "s.db"), max_tokens=1, batch_poll_interval=0.05
    ) as client:
        plan = client.forecast(["a long prompt", "another"], strategy=strategy)
        job = client.submit_run(["a long prompt", "a long prompt", "another"], plan)
        status = job.wait(60)
        assert (status.completed, status.truncated, status.empty, status.refused) == (3, 3, 0, 0)
        assert "answers   3 truncated" in str(status)
        assert "(3 truncated)" in job.report().html


@pytest.mark.parametrize(
    ("result", "defects"),
    [
        (Result("r", text="yes", finish_reason="stop"), ()),
        (Result("r", text="y", finish_reason="length"), ("truncated",)),
        (Result("r", text="", finish_reason="length"), ("truncated", "empty")),
        (Result("r", text=" \n", finish_reason="stop"), ("empty",)),
        (Result("r", text="I cannot", finish_reason="refusal"), ("refused",)),
        (Result("r", finish_reason="content_filter"), ("refused",)),
        (Result("r", parsed=0, finish_reason="stop"), ()),
        (Result("r", finish_reason="tool_calls"), ()),
        (Result("r", error=smartbatch.QueueFull("full"), finish_reason="length"), ()),
    ],
)
def test_defects_of_a_result(result, defects):
    assert result.defects == defects
