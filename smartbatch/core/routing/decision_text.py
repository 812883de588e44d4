"""Converts a decision to the text that a store keeps, and back."""

from __future__ import annotations

import enum
import json
from typing import Any

from attrs import asdict, fields_dict

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.workload import AnswerLengths, Cost, Load
from smartbatch.types import Route, Strategy

FORM_VERSION = 1  # incremented whenever the fields of the stored records change


def decision_text(decision: Decision) -> str:
    """Return a decision as ASCII text of one or two kilobytes, without fields that have default values."""
    options = list(decision.options)
    form = {
        "version": FORM_VERSION,
        "load": _form(decision.load),
        "constraints": _form(decision.constraints),
        "options": [_form(option) for option in options],
        "chosen": _position(decision.chosen, options),
        "alone": _position(decision.alone, options),
        "batch": None if decision.batch is None else _position(decision.batch, options),
        "closed": [[route.value, why] for route, why in decision.closed],
        "reason": decision.reason,
    }
    return json.dumps(form, separators=(",", ":"))


def decision_of(text: str) -> Decision | None:
    """Return the decision stored by :func:`decision_text`; ``None`` if a newer release wrote it or it is
    damaged. Stored decisions are only displayed.
    """
    try:
        form = json.loads(text)
        if form["version"] > FORM_VERSION:
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
    defaults = {name: attribute.default for name, attribute in fields_dict(type(record)).items()}
    plain = asdict(record, value_serializer=_plain)
    return {name: value for name, value in plain.items() if getattr(record, name) != defaults[name]}


def _plain(_record: object, _field: object, value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _position(option: Option, options: list[Option]) -> int | dict[str, Any]:
    return options.index(option) if option in options else _form(option)


def _at(position: int | dict[str, Any], options: list[Option]) -> Option:
    return options[position] if isinstance(position, int) else _option(position)


def _option(form: dict[str, Any]) -> Option:
    cost = form.get("cost")
    return Option(**{**form, "route": Route(form["route"]), "cost": None if cost is None else Cost(**cost)})
