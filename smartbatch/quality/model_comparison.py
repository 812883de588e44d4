"""Compares the answers of several models to the same sample with those of the first model."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from smartbatch._words import UNKNOWN, known_money, plural, without_middle
from smartbatch.quality.comparison import Comparison
from smartbatch.quality.projection import Projection
from smartbatch.results import defects_in_words
from smartbatch.views.model import Cell, Column, DataTable, Facts, Section, View


@frozen
class SampledModel:
    """A model that answered a sample.

    Attributes:
        comparison: its answers (the second output), compared with those of the first model.
        projection: the cost of all rows.
    """

    comparison: Comparison
    projection: Projection


def model_view(models: Sequence[SampledModel]) -> View:
    """Return a table of the models, their agreement with the first, and the projected cost of all rows."""
    first, *others = models
    name = first.comparison.second.name
    agreements = [(each.comparison.second.name, str(each.comparison.agreement)) for each in others]
    costs = [(each.comparison.second.name, str(each.projection.total or UNKNOWN)) for each in models]
    sections = [
        Section("models", "Sample", (_model_table(models),)),
        Section("agreement", f"Agreement with {name}", (Facts(tuple(agreements)),)),
        Section("costs", f"Cost of all {plural(first.projection.rows, 'row')}", (Facts(tuple(costs)),)),
    ]
    if any(each.comparison.fields for each in models):
        title = f"Agreement with {name} in each field"
        sections.append(Section("fields", title, (_field_table(others, title),)))
    return View(f"Comparison of models, {plural(first.projection.sampled, 'row')}", tuple(sections))


def _model_table(models: Sequence[SampledModel]) -> DataTable:
    rows: list[tuple[Cell, ...]] = []
    for each in models:
        output, total = each.comparison.second, each.projection.total
        rows.append(
            (
                output.name,
                None if each is models[0] else each.comparison.agreement.percent,
                output.failed,
                defects_in_words(output) or None,
                known_money(output.cost.total or 0.0, output.cost.unknown),
                UNKNOWN if total is None else total.amount,
                output.latency.median,
            )
        )
    columns = "model, agreement, failed:number, defects/1, cost:money, all rows:money, latency:duration"
    return DataTable.of("Sample", columns, rows)


def _field_table(models: Sequence[SampledModel], title: str) -> DataTable:
    names = dict.fromkeys(field.name for each in models for field in each.comparison.fields)
    rows: list[tuple[Cell, ...]] = []
    for each in models:
        shares = {field.name: field.agreement.percent for field in each.comparison.fields}
        rows.append((each.comparison.second.name, *(shares.get(name) for name in names)))
    columns = (Column("model"), *(Column(without_middle(name, 60), drop=at) for at, name in enumerate(names)))
    return DataTable(title, columns, tuple(rows))
