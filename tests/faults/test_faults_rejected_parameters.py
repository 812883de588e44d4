"""Servers that reject a parameter of a batch as a whole: its requests go again without it, and none fails."""

from __future__ import annotations

import json
from pathlib import Path

from tests.faults.world import Seen, texts, world

REASON = "Unknown parameter: 'seed'."


def test_a_create_that_rejects_a_parameter_is_made_again_without_it(tmp_path: Path) -> None:
    with world("openai", tmp_path) as w:
        uploads: list[bytes] = []

        def meet(seen: Seen) -> object:
            if seen.what == "upload":
                uploads.append(seen.body)
            rejected = seen.what == "create" and b'"seed"' in uploads[-1]
            return w.refusal(400, REASON) if rejected else None

        w.service.meet = meet
        client = w.process(seed=7)
        job = client.submit_batch(texts(5))
        results = w.results(job)
        assert [result.ok for result in results] == [True] * 5
        assert ["seed" in json.loads(_line(body))["body"] for body in uploads] == [True, False]
        assert {name for result in results for name, _ in result.dropped} == {"seed"}
        assert client.metrics.snapshot().parameters_dropped == 1 + 5
        assert not w.incidents(job)


def _line(upload: bytes) -> bytes:
    return next(line for line in upload.splitlines() if line.startswith(b'{"custom_id"'))
