"""Real files sent by clients that are killed: each answer is that of its file, and nothing happens twice."""

from __future__ import annotations

import pytest

pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")

WAYS = [(provider, way) for provider in ("anthropic", "openai", "gemini") for way in ("batch", "individual")]


@pytest.mark.full
@pytest.mark.parametrize(("provider", "way"), WAYS)
def test_files_of_killed_clients_are_answered_and_uploaded_once(provider, way, tmp_path):
    from benchmarks.files import send
    from benchmarks.real_files import write_images, write_pdfs

    images, pdfs = write_images(tmp_path, 12), write_pdfs(tmp_path, 3)
    one_question = send(provider, way, [*images, *pdfs], questions=1, kills=1, seed=2)
    assert (one_question.faults, one_question.uploads, one_question.rows) == (0, 0, 15)
    many = send(provider, way, pdfs, questions=10, kills=1, seed=3)
    assert (many.faults, many.uploads) == (0, 3)
