"""What a list on a cluster is made from and given back as: a list, a bag, or a dataframe.

Bags and dataframes are recognised by their classes' modules; nothing is imported that is not loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, TypeAlias

from attrs import frozen

from smartbatch.core.preparation.preparer import prompt_list
from smartbatch.errors import InvalidRequest
from smartbatch.results import ResultList
from smartbatch.types import Prompt, Result

COLUMNS = ("answer", "error", "cost")
"""What a dataframe gets: the text, the name of the error, USD; each none where there is none."""
Template: TypeAlias = str | Callable[[Any], Prompt]
Compute: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Brings the partitions of a collection here."""


@frozen
class Collection:
    """Prompts, and what makes their results into what the prompts came in.

    Attributes:
        prompts: all of them, in order.
        rebuilt: takes all results, in order.
    """

    prompts: Sequence[Prompt]
    rebuilt: Callable[[ResultList[Any]], Any]


def collection(given: Any, template: Template | None, compute: Compute) -> Collection:
    """Return the prompts of a collection. The cases, in order: a bag, a dataframe of Dask, one of pandas, and
    any other list.

    Args:
        template: makes a prompt of a row; a text has ``{field}`` placeholders.
        compute: brings partitions here.

    Raises:
        InvalidRequest: names the row, or the column.
    """
    module = type(given).__module__
    if module.startswith("dask.bag"):
        parts = compute(given.to_delayed())
        rows = [row for part in parts for row in part]
        return Collection(_prompts(rows, template), lambda results: _bag(parts, results))
    if module.startswith("dask.dataframe"):
        frames = compute(given.to_delayed())
        return Collection(_of_frames(frames, template), lambda results: _dataframe(given, frames, results))
    if module.startswith("pandas") and hasattr(given, "columns"):
        return Collection(_of_frames([given], template), lambda results: _with_results(given, iter(results)))
    return Collection(_prompts(prompt_list(given), template), lambda results: results)


def _prompts(rows: Iterable[Any], template: Template | None) -> list[Prompt]:
    """Return the prompt of each row."""
    if template is None:
        return list(rows)
    if callable(template):
        return [template(row) for row in rows]
    return list(prompt_list(list(rows), template=template))


def _of_frames(frames: Sequence[Any], template: Template | None) -> list[Prompt]:
    """Return the prompts of the rows of dataframes: by the template, or their column ``prompt``."""
    columns = [str(name) for name in frames[0].columns] if frames else []
    if taken := [name for name in COLUMNS if name in columns]:
        raise InvalidRequest(f"the dataframe has a column {taken[0]!r} already: rename it", field="prompts")
    if template is None and "prompt" not in columns:
        raise InvalidRequest(
            "the dataframe has no column 'prompt': give template='… {column} …'", field="template"
        )
    if template is None:
        return [prompt for frame in frames for prompt in frame["prompt"]]
    return _prompts((row for frame in frames for row in frame.to_dict("records")), template)


def _with_results(frame: Any, results: Iterable[Result[Any]]) -> Any:
    """Return a dataframe of pandas with the results of its rows as columns."""
    own = list(islice(results, len(frame)))
    values = (
        [result.text for result in own],
        [None if result.error is None else type(result.error).__name__ for result in own],
        [result.cost for result in own],
    )
    kinds = ("object", "object", "float64")
    made = frame.copy()
    for name, column, kind in zip(COLUMNS, values, kinds, strict=True):
        made[name] = column
        made[name] = made[name].astype(kind)
    return made


def _bag(parts: Sequence[Any], results: ResultList[Any]) -> Any:
    """Return a bag of results with the partitions that the prompts had."""
    import dask
    from dask import bag

    each = iter(results)
    return bag.from_delayed([dask.delayed(list(islice(each, len(part)))) for part in map(list, parts)])


def _dataframe(given: Any, frames: Sequence[Any], results: ResultList[Any]) -> Any:
    """Return a dataframe with the results as columns, and the partitions and index that it had."""
    import dask
    from dask import dataframe

    each = iter(results)
    made = [_with_results(frame, each) for frame in frames]
    return dataframe.from_delayed(
        [dask.delayed(frame) for frame in made], meta=made[0].iloc[:0], divisions=given.divisions
    )
