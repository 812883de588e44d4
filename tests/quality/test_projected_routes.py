"""A sample and a plan of the other rows give the time and cost of each route."""

import pytest

from smartbatch import Answer, Route, Usage
from smartbatch.quality.projected_routes import (
    projected_routes,
    projection_lines,
    routes_table,
)
from smartbatch.quality.projection import project
from smartbatch.quality.recorded_row import RecordedRow
from tests.faults.world import texts, world


def projected(results, rows):
    sample = [RecordedRow.of_result(index, result) for index, result in enumerate(results)]
    return project(sample, [20] * rows)


def test_each_route_costs_its_share_of_the_projection(tmp_path):
    prompts = texts(60)
    with world("openai", tmp_path) as w:
        client = w.process(max_tokens=40)
        sample = client.generate(prompts[:20], strategy="individual")
        plan = client.plan([*prompts[20:], prompts[20]])

    found = projected(sample, 61)
    routes = {each.route: each for each in projected_routes(found, plan)}

    alone, batch = routes[Route.INDIVIDUAL].cost, routes[Route.BATCH].cost
    assert alone.expected == pytest.approx(found.rest.expected * 40 / 41)  # one of 41 is a duplicate
    assert alone.low == pytest.approx(found.rest.low * 40 / 41)
    assert batch.expected == pytest.approx(alone.expected / 2)
    assert batch.high == pytest.approx(alone.high / 2)
    assert [each.route for each in routes.values() if each.chosen] == [plan.route]
    assert [each.p95 for each in routes.values()] == [option.p95 for option in plan.options]

    lines = list(projection_lines(found, plan, 100))
    assert lines[0] == (
        f"In real time, the other 41 rows (1 duplicate) would cost {alone}, projected from 20 answers."
    )
    assert routes_table(list(routes.values())).rows[0][3] == alone.amount
    assert [line[0] for line in lines[2:]] == [">" if each.chosen else " " for each in routes.values()]
    assert all(len(line) <= 100 for line in lines[1:])


def test_a_route_that_misses_the_deadline_has_a_note(tmp_path):
    with world("openai", tmp_path) as w:
        plan = w.process(max_tokens=40).plan(texts(60), deadline="3min")

    routes = projected_routes(projected([], 60), plan)

    problems = [each.problem for each in routes]
    assert problems == [option.problem or option.ruled_out for option in plan.options]
    assert any(problems)
    assert [row[-1] or "" for row in routes_table(routes).rows] == problems


@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "row without an answer is"), (2, "rows without an answer are")],
)
def test_sampled_rows_without_an_answer_are_counted(count, words, tmp_path):
    rows = [RecordedRow(index=index, id=index, error_kind="timeout") for index in range(count)]
    with world("openai", tmp_path) as w:
        plan = w.process(max_tokens=40).plan(texts(9))

    assert next(projection_lines(project(rows, [20] * 9), plan)).startswith(f"{count} sampled {words}")


def test_routes_have_the_planned_cost_if_no_sampled_row_was_answered(tmp_path):
    with world("openai", tmp_path) as w:
        plan = w.process(max_tokens=40).plan(texts(20))

    found = projected([], 20)
    (route, *_) = projected_routes(found, plan)

    assert (route.cost.low, route.cost.expected) == (plan.options[0].cost.low, plan.options[0].cost.expected)
    assert next(projection_lines(found, plan, 80)).startswith("No sampled row has an answer")


def test_an_unknown_price_is_said_and_leaves_tokens(tmp_path):
    with world("openai", tmp_path) as w:
        client = w.process(model="of-unknown-price")
        found = projected(client.generate(texts(5)), 35)
        plan = client.plan(texts(30))

    line = next(projection_lines(found, plan, 80))
    table = routes_table(projected_routes(found, plan))

    assert {each.cost for each in projected_routes(found, plan)} == {None}
    assert line.startswith("The price is unknown; the other 30 rows would take about")
    assert table.rows[0][3:5] == ("unknown", None)


def test_calls_that_cost_nothing_have_a_projected_cost_of_nothing(client_of):
    client = client_of(lambda request, attempt: Answer("yes", usage=Usage(20, 1)))

    found = projected(client.generate(texts(5)), 35)
    (route, *_) = projected_routes(found, client.plan(texts(30)))

    assert route.cost.expected == route.cost.high == 0
