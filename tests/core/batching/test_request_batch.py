"""What a batch may become, and how its requests are completed (A11, A12)."""

from __future__ import annotations

import itertools

import pytest

from smartbatch.core.batching.request_batch import TRANSITIONS, Batch, BatchState, IllegalTransition

LEGAL = [(before, after) for before, afters in TRANSITIONS.items() for after in afters]


def empty(*, opened: float = 0.0, state: BatchState = BatchState.ACCUMULATING) -> Batch[str, str | None]:
    return Batch("batch-1", "sim:m", opened, state=state)


def sent(*items: str) -> Batch[str, str | None]:
    """A batch whose call is under way."""
    batch = empty()
    batch.fill(items, tokens=1)
    for state in (BatchState.READY, BatchState.SENDING, BatchState.AWAITING_RESPONSE):
        batch.move(state)
    return batch


@pytest.mark.parametrize(("before", "after"), list(itertools.product(BatchState, BatchState)))
def test_a_batch_follows_the_table_and_nothing_else(before, after):
    batch = empty(state=before)
    if (before, after) in LEGAL:
        batch.move(after)
        assert batch.state is after
        return
    with pytest.raises(IllegalTransition) as caught:
        batch.move(after)
    assert batch.state is before
    assert caught.value.batch_id == "batch-1"
    assert before.value in str(caught.value)
    assert after.value in str(caught.value)


def test_the_table_is_the_life_of_a_batch():
    life = [
        BatchState.ACCUMULATING,
        BatchState.READY,
        BatchState.SENDING,
        BatchState.AWAITING_RESPONSE,
        BatchState.PROCESSING_RESPONSE,
        BatchState.COMPLETED,
    ]
    steps = set(itertools.pairwise(life)) | {(state, BatchState.FAILED) for state in life[:-1]}
    assert set(LEGAL) == steps


@pytest.mark.parametrize("state", [state for state in BatchState if state is not BatchState.ACCUMULATING])
def test_a_batch_on_its_way_takes_nobody_along(state):
    batch = empty(state=state)
    with pytest.raises(IllegalTransition, match="takes no more requests"):
        batch.fill(["late"], tokens=1)
    assert len(batch) == 0


def test_a_batch_is_completed_all_at_once():
    batch = sent("a", "b")
    batch.complete_all(["A", None])
    assert batch.state is BatchState.PROCESSING_RESPONSE
    assert batch.outcomes == ["A", None]
    batch.close(answered=True)
    assert batch.state is BatchState.COMPLETED


def test_a_batch_is_completed_one_by_one_in_any_order():
    batch = sent("a", "b", "c")
    batch.complete(2, "C")
    batch.complete(0, "A")
    assert batch.outcomes == ["A", "C"]
    with pytest.raises(IllegalTransition, match="completed item 2 before"):
        batch.complete(2, "again")
    batch.complete(1, None)
    batch.close(answered=False)
    assert (batch.outcomes, batch.state) == (["A", None, "C"], BatchState.FAILED)


def test_an_error_completes_what_has_no_outcome_yet():
    batch = sent("a", "b")
    batch.complete(0, "A")
    batch.fail("broken")
    batch.close(answered=True)
    assert (batch.outcomes, batch.state, batch.ended) == (["A", "broken"], BatchState.FAILED, True)


@pytest.mark.parametrize("state", [BatchState.READY, BatchState.COMPLETED, BatchState.FAILED])
def test_a_batch_that_is_not_under_way_is_not_completed(state):
    with pytest.raises(IllegalTransition):
        empty(state=state).complete(0, "early or late")
