"""The stored form of a decision: JSON with a version, from which its table of routes can be shown again."""

from __future__ import annotations

import enum
import json
from typing import Any

from attrs import asdict, fields_dict

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.constraints import Constraints
from smartbatch.core.routing.offers import AnswerLengths, Cost, Load
from smartbatch.core.routing.options import Option
from smartbatch.types import Route, Strategy

VERSION = 1
"""Of the form; it grows with every change of the fields of the records in it."""


def decision_text(decision: Decision) -> str:
    """Return a decision as ASCII text, a kilobyte or two; fields that have their default are left out."""
    options = list(decision.options)
    form = {
        "version": VERSION,
        "load": _form(decision.load),
        "constraints": _form(decision.constraints),
        "options": [_form(option) for option in options],
        "chosen": _place(decision.chosen, options),
        "alone": _place(decision.alone, options),
        "batch": None if decision.batch is None else _place(decision.batch, options),
        "closed": [[route.value, why] for route, why in decision.closed],
        "reason": decision.reason,
    }
    return json.dumps(form, separators=(",", ":"))


def decision_of(text: str) -> Decision | None:
    """Return the decision of :func:`decision_text`; ``None`` where a newer release wrote it, or it is
    damaged: it is only shown, so nothing depends on it.
    """
    try:
        form = json.loads(text)
        if form["version"] > VERSION:
            return None
        load, constraints = form["load"], form["constraints"]
        if "answers" in load:
            load["answers"] = AnswerLengths(**load["answers"])
        if "strategy" in constraints:
            constraints["strategy"] = Strategy(constraints["strategy"])
        options = [_option(each) for each in form["options"]]
        batch = form["batch"]
        return Decision(
            load=Load(**load),
            constraints=Constraints(**constraints),
            options=tuple(options),
            chosen=_at(form["chosen"], options),
            reason=str(form["reason"]),
            alone=_at(form["alone"], options),
            batch=None if batch is None else _at(batch, options),
            closed=tuple((Route(route), str(why)) for route, why in form["closed"]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
        return None


def _form(record: Any) -> dict[str, Any]:
    """Return what is not as by default of a record, and of the records in it."""
    defaults = {name: attribute.default for name, attribute in fields_dict(type(record)).items()}
    plain = asdict(record, value_serializer=_plain)
    return {name: value for name, value in plain.items() if getattr(record, name) != defaults[name]}


def _plain(_record: object, _field: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _place(option: Option, options: list[Option]) -> int | dict[str, Any]:
    """Return which of the options it is, or what it is, where it is none of them."""
    return options.index(option) if option in options else _form(option)


def _at(place: int | dict[str, Any], options: list[Option]) -> Option:
    return options[place] if isinstance(place, int) else _option(place)


def _option(form: dict[str, Any]) -> Option:
    cost = form.get("cost")
    return Option(**{**form, "route": Route(form["route"]), "cost": None if cost is None else Cost(**cost)})
