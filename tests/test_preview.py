"""A preview answers a random sample of a list, and its run sends the other rows only."""

import signal
import threading

import pandas
import pytest

from smartbatch import (
    AllRequestsFailed,
    Answer,
    BatchingClient,
    ConfigError,
    Embedding,
    Interrupted,
    InvalidRequest,
    Route,
    RowSkipped,
    Usage,
)
from smartbatch.errors import ErrorKind, ProviderError
from smartbatch.testing import MockProvider
from tests.faults.world import MINUTE, texts, world
from tests.hostile import HOSTILE, Elements


def table(rows=100):
    data = {
        "text": [f"question {n}" for n in range(rows)],
        "kind": ["rare" if n < 3 else "usual" for n in range(rows)],
    }
    return pandas.DataFrame(data, index=[f"id-{n}" for n in range(rows)])


def asked(provider):
    return [call.request.prompt for call in provider.calls]


def test_a_preview_sends_a_sample_and_its_run_the_other_rows(tmp_path):
    prompts = texts(60)
    with world("openai", tmp_path, rare=60, batch_turnaround=20 * MINUTE) as w:
        client = w.process(max_tokens=40)
        preview = client.preview(prompts, sample=20, strategy="batch")

        assert len(w.requests("ask")) == 20
        assert {result.route for result in preview.results} == {Route.INDIVIDUAL}
        assert preview.results.texts == w.right([prompts[result.row] for result in preview.results])
        assert preview.plan.route is Route.BATCH
        assert preview.plan.requests == 40
        assert preview.plan.answers.seen == 20
        (batch,) = (each for each in preview.routes if each.chosen)
        assert batch.cost.expected == pytest.approx(preview.projection.rest.expected / 2)

        results = preview.run()

        assert results.texts == w.right(prompts)
        assert len(w.requests("ask")) == 20
        assert w.emu.ledger.paid_twice() == []
        assert results.wall >= 20 * MINUTE
        assert results.paid_now == pytest.approx(results.cost - preview.results.cost)
        assert results.cost == pytest.approx(preview.projection.paid + batch.cost.expected, rel=0.5)


def test_the_sample_and_the_results_keep_the_index_of_the_frame(client_of):
    frame = table()
    preview = client_of(MockProvider()).preview(frame, column="text", sample=10)

    sampled = preview.results.to_table()
    assert list(sampled.index) == [f"id-{result.row}" for result in preview.results]
    assert list(sampled.text) == [f"question {result.row}" for result in preview.results]
    assert list(preview.results.to_pandas().index) == list(sampled.index)

    whole = preview.run().to_table()
    assert list(whole.index) == list(frame.index)
    assert list(whole.loc[sampled.index].result_text) == list(sampled.result_text)


def test_every_value_of_a_column_is_in_a_sample_by_it(client_of):
    def answer(request):
        return Answer("yes", usage=Usage(10, 1000 if request.prompt.startswith("rare") else 10))

    preview = client_of(MockProvider(answer)).preview(table(), template="{kind}: {text}", sample=5, by="kind")

    assert sorted(preview.results.to_table().kind) == ["rare"] + 4 * ["usual"]
    # the rare row stands for 2 other rows, the usual ones for 93
    assert preview.projection.output_tokens.expected == pytest.approx(2 * 1000 + 93 * 10)


@pytest.mark.parametrize(
    "rows", [lambda: table().to_dict("records"), lambda: iter(table().to_dict("records"))]
)
def test_rows_as_mappings_can_be_previewed(client_of, rows):
    preview = client_of(MockProvider()).preview(rows(), template="{kind}: {text}", sample=5, by="kind")

    assert len(preview.results) == 5
    assert len(preview.run().to_table()) == 100


def test_the_same_seed_draws_the_same_rows(client_of):
    def drawn(sample_seed):
        preview = client_of(MockProvider()).preview(texts(100), sample=5, sample_seed=sample_seed)
        return [result.row for result in preview.results]

    assert drawn(1) == drawn(1) != drawn(2)


def test_a_sample_of_all_rows_leaves_nothing_to_run(client_of):
    provider = MockProvider()
    preview = client_of(provider).preview(texts(5), sample=20)

    assert preview.explain() == "All 5 rows are answered."
    assert preview.run().texts == preview.results.texts
    assert len(provider.calls) == 5


def test_sampled_rows_without_an_answer_are_sent_again(client_of):
    refused = {3: ErrorKind.CLIENT_ERROR}
    provider = MockProvider(fail_on=refused)
    preview = client_of(provider, parallelism=1).preview(texts(20), sample=5)

    assert preview.results.failed == 1
    assert preview.projection.unanswered == 1
    assert preview.plan.requests == 16
    results = preview.run()
    assert results.succeeded == 20
    assert [len(asked(provider)), len(set(asked(provider)))] == [21, 20]
    assert sorted(result.attempts for result in results) == [1] * 19 + [2]


def test_a_sample_without_any_answer_is_shown_not_raised(client_of):
    def refuse(request):
        return ProviderError("no such model", kind=ErrorKind.CLIENT_ERROR)

    preview = client_of(MockProvider(refuse)).preview(texts(50), sample=5)

    assert preview.results.failed == 5
    assert "No sampled row has an answer" in preview.explain()
    with pytest.raises(AllRequestsFailed) as caught:
        preview.run()
    assert len(caught.value.results) == 50


def test_skipped_rows_are_neither_sampled_nor_missing(client_of):
    frame = table(20)
    frame.loc["id-7", "text"] = " "
    preview = client_of(MockProvider()).preview(frame, column="text", on_missing="skip", sample=19)

    assert 7 not in [result.row for result in preview.results]
    assert preview.projection.rows == 19
    results = preview.run()
    assert len(results) == 20
    assert isinstance(results[7].error, RowSkipped)
    assert list(results.to_table().index) == list(frame.index)


def test_a_sampled_row_has_all_of_its_answers(client_of):
    provider = MockProvider(lambda request: "yes")
    preview = client_of(provider, n=3).preview(texts(10), sample=4)

    assert [result.sample for result in preview.results] == [0, 1, 2] * 4
    assert (preview.projection.sampled, preview.projection.remaining) == (4, 6)
    results = preview.run()
    assert [(result.row, result.sample) for result in results] == [
        (row, number) for row in range(10) for number in range(3)
    ]
    assert len(provider.calls) == 30


def test_a_budget_covers_the_sample_and_the_other_rows(tmp_path):
    with world("openai", tmp_path) as w:
        preview = w.process(max_tokens=40).preview(texts(50), sample=10, budget="5 USD")

    budget = preview.plan.decision.constraints.budget
    assert budget == pytest.approx(5 - preview.results.cost)


def test_the_answers_are_kept_if_the_rest_exceeds_the_budget(tmp_path):
    with world("openai", tmp_path) as w:
        client = w.process(max_tokens=40)
        paid = client.preview(texts(100, "first"), sample=50).projection.paid
        preview = client.preview(texts(100), sample=50, budget=1.02 * paid)

    assert preview.results.succeeded > 30
    with pytest.raises(ConfigError, match="no route meets a budget"):
        preview.run()
    assert "no route meets a budget" in preview._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"sample": 0}, "sample = 0 would send no row"),
        ({"sample": -1}, "sample = -1 is not a whole number"),
        ({"by": "kind"}, "by needs a table"),
        ({"key": "mine"}, "key cannot be used for a preview"),
        ({"temprature": 1}, "temprature"),
        ({"strategy": "batch"}, "Batch API"),
        ({"deadline": 0}, "deadline"),
    ],
)
def test_a_wrong_argument_is_rejected_before_anything_is_sent(client_of, arguments, words):
    provider = MockProvider()

    with pytest.raises((ConfigError, InvalidRequest), match=words):
        client_of(provider).preview(texts(50), **arguments)
    assert provider.calls == []


def test_a_deadline_that_no_route_meets_is_rejected_before_the_sample(tmp_path):
    with world("openai", tmp_path) as w:
        with pytest.raises(ConfigError, match="no route meets a deadline"):
            w.process().preview(texts(500), deadline=1)
        assert not w.service.seen


def test_an_invalid_row_outside_the_sample_is_rejected_as_well(client_of):
    provider = MockProvider()

    with pytest.raises(InvalidRequest, match="row 7"):
        client_of(provider).preview([*texts(7), "", *texts(92)], sample=2)
    assert provider.calls == []


def test_a_notebook_shows_answers_with_problems_first(client_of):
    def answer(request):
        if request.prompt == "question 1":
            return ProviderError("<b>refused</b>", kind=ErrorKind.CLIENT_ERROR)
        reason = "length" if request.prompt == "question 2" else "stop"
        return Answer(f"<script>{request.prompt}</script>", usage=Usage(5, 5), finish_reason=reason)

    preview = client_of(MockProvider(answer)).preview(table(4), column="text")
    page = preview._repr_html_()

    places = [page.index(f'<td style="text-align: left">id-{n}</td>') for n in (1, 2, 0, 3)]
    assert places == sorted(places)
    assert "truncated" in page
    assert "<script>" not in page
    assert "<b>refused" not in page
    assert "question" not in repr(preview)


def test_ctrl_c_keeps_the_sample_and_the_answers_so_far():
    prompts = texts(12)

    def answer(request):
        if request.prompt == interrupting:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        return f"re: {request.prompt}"

    interrupting = None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with BatchingClient(MockProvider(answer), parallelism=1) as client:
            preview = client.preview(prompts, sample=4)
            sampled = {result.row for result in preview.results}
            interrupting = [prompt for at, prompt in enumerate(prompts) if at not in sampled][5]
            with pytest.raises(Interrupted) as caught:
                preview.run()
    finally:
        signal.signal(signal.SIGINT, before)

    results = caught.value.results
    assert len(results) == 12
    assert results.succeeded >= 4 + 5
    assert all(result.ok for at, result in enumerate(results) if at in sampled)
    assert all(text == f"re: {prompt}" for text, prompt in zip(results.texts, prompts, strict=True) if text)


def test_failed_rows_of_a_run_can_be_sent_again(client_of):
    provider = MockProvider(fail_on={9: ErrorKind.CLIENT_ERROR})
    results = client_of(provider, parallelism=1).preview(texts(20), sample=5).run()
    assert results.failed == 1

    again = results.retry_failed()

    assert again.succeeded == 20
    assert len(provider.calls) == 21


def test_vectors_can_be_previewed(tmp_path):
    prompts = texts(30)
    with world("openai", tmp_path) as w:
        client = w.process(model="text-embedding-3-small")
        preview = client.preview(prompts, sample=5, embedding=Embedding())
        vectors = preview.run().vectors

    assert vectors.shape[0] == 30
    assert preview.projection.total.expected > 0
    assert preview.projection.total.high == pytest.approx(preview.projection.total.low, rel=0.5)
    assert "a vector of" in preview._repr_html_()


def test_hostile_prompts_and_answers_add_nothing_to_a_notebook(client_of):
    prompts = [text.encode("utf-8", "replace").decode() for text in HOSTILE.values()]
    answers = dict(zip(prompts, HOSTILE.values(), strict=True))
    frame = pandas.DataFrame({"text": prompts}, index=prompts)
    client = client_of(MockProvider(lambda request: answers[request.prompt]))

    preview = client.preview(frame, column="text")
    found = Elements(preview._repr_html_())

    assert preview.results.succeeded >= len(HOSTILE) - 1  # a provider cannot send half a pair
    assert set(found.tags) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td", "b"}
    assert {name for name, _ in found.attributes} == {"style"}
