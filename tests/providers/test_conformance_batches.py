"""What holds for the results of every provider's Batch API."""

from __future__ import annotations

import pytest
from batch_sides import GEMINI, OPENAI, create, world
from batching import MARK, ended, results

from smartbatch.types import Embedding, Kind, Request
from tests.levels import sampled


@pytest.mark.parametrize(
    "line",
    sampled(
        [
            b"",
            b"x",
            b"{",
            b"[]",
            b"{}",
            b"null",
            b"7",
            b"\xff\xfe\x00",
            b"[" * 100_000,
            b'{"a": ' * 50_000,
            b'{"custom_id": null, "key": null, "response": {}, "result": {}}',
            b'{"custom_id": "../x", "key": "../x", "response": {}, "result": {}}',
            b'{"custom_id": "a b", "key": "a b", "response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": 7, "key": 7, "response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": "", "key": "", "response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": "%b", "key": "%b", "result": {"type": "expired"}}' % (b"x" * 65, b"x" * 65),
            b'{"response": {}, "result": {"type": "expired"}}',
            b'{"custom_id": "n-0", "key": "n-0", "respo',
            b'{"custom_id": "n-0", "key": "n-0", "n": ' + b"9" * 5000 + b"}",
        ],
        keep=8,
    ),
)
def test_what_is_no_line_of_results_is_refused(service, line):
    api = service.at("http://127.0.0.1:9").batches()
    with pytest.raises(ValueError, match="the line") as caught:
        api.read_line(line, Kind.GENERATE)
    assert caught.value.__cause__ is None
    assert len(str(caught.value)) < 80


@pytest.mark.parametrize("side", [OPENAI, GEMINI], ids=lambda side: side.prefix)
def test_a_batch_of_vectors_is_the_real_time_vectors(side, tmp_path):
    asked = [Request(prompt=f"text {n}", embedding=Embedding(dimensions=8)) for n in range(3)]
    with world(side) as (emu, api):
        found = results(api, ended(api, create(api, tmp_path, asked, kind=Kind.EMBED)), Kind.EMBED)
        provider = side.provider(emu.url)
        answers = provider.embed(asked, model="m", attempt=0, timeout=10)
        provider.close()
    lines = [found[f"{MARK}-{number}"].answer for number in range(3)]
    assert [line.embedding for line in lines] == [answer.embedding for answer in answers]
    assert all(len(line.embedding) == 8 and line.usage.input_tokens > 0 for line in lines)
