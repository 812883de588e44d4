"""A WSGI application with a client at module level, which real web servers run; see web_servers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import smartbatch
from smartbatch import BatchingClient, SmartbatchError
from smartbatch.observe.prometheus import PrometheusReporter

client = BatchingClient(
    "openai:gpt-5-mini", parallelism=16, request_timeout=20, exit_grace=5, deduplicate=False
)

if "USED_BEFORE_THE_FORK" in os.environ:
    client.submit("asked by the process that forks").result()
if "BUSY_BEFORE_THE_FORK" in os.environ:
    left = client.submit("left by the process that forks")


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/metrics":
        start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4"), ("Connection", "close")])
        return [PrometheusReporter(smartbatch.participants).text()]
    prompt = environ["QUERY_STRING"]
    try:
        status, text = "200 OK", client.submit_urgent(prompt).result().text
    except SmartbatchError as error:
        status, text = "503 Service Unavailable", f"{type(error).__name__}: {error}"
    start_response(status, [("Content-Type", "text/plain"), ("Connection", "close")])
    return [f"{os.getpid()} {text}".encode()]
