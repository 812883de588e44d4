"""Adds up the actual cost of a list for comparison with its plan, and stores decisions with their outcome."""

from __future__ import annotations

import enum
import json
from collections.abc import Collection
from typing import Any

from attrs import asdict, define, field, fields_dict, frozen

from smartbatch.core.routing.choice import Decision
from smartbatch.core.routing.options import Constraints, Option
from smartbatch.core.routing.workload import AnswerLengths, Cost, FileLoad, Load, Rates
from smartbatch.types import Result, Route, Strategy

_STANDARD = (Route.INDIVIDUAL, Route.SHARED)
_BATCH = (Route.BATCH,)
_REALTIME = (*_STANDARD, Route.FLEX)
FORM_VERSION = 1  # incremented whenever the fields of the stored records change


@define
class ActualCost:
    """Adds up results in constant memory. All amounts are USD."""

    paid: float | None = 0.0  # cost of the results; None if any cost is unknown
    individual: float | None = 0.0  # cost of their tokens in real time; None if unknown
    by_batch: float | None = 0.0  # cost of their tokens as a batch; None if unknown
    answered: int = 0  # successful results
    batched: int = 0  # requests sent as a batch
    realtime: int = 0  # requests sent in real time

    def add_result(self, result: Result, standard: Rates | None = None, batch: Rates | None = None) -> None:
        """Add a result. A result that needed no call, or that shares an answer, adds nothing.

        Args:
            standard: real-time prices of its model; ``None`` if unknown.
            batch: batch prices of its model; ``None`` if unknown.
        """
        self.answered += result.ok
        if result.paid_before:
            return
        if not result.deduplicated:
            self.batched += result.route in _BATCH
            self.realtime += result.route in _REALTIME
        cost = result.cost
        self.paid = None if self.paid is None or cost is None else self.paid + cost
        if self.individual is not None:
            cost = _cost_of(result, standard, _STANDARD)
            self.individual = None if cost is None else self.individual + cost
        if self.by_batch is not None:
            cost = _cost_of(result, batch, _BATCH)
            self.by_batch = None if cost is None else self.by_batch + cost


def rescue_in_words(decision: Decision, actual: ActualCost, reason: str | None) -> str | None:
    """Describe how many requests that were planned for a batch were sent in real time, and why; ``None`` if
    none were.
    """
    chosen = decision.chosen
    rescued = actual.realtime - chosen.first
    if not chosen.route.by_batch or rescued <= 0:
        return None
    planned = f"{rescued + actual.batched:,} requests were planned as a batch"
    return f"{planned}, {rescued:,} of them were sent in real time" + (f": {reason}" if reason else "")


def _cost_of(result: Result, rates: Rates | None, routes: Collection[Route]) -> float | None:
    """Return the amount paid if the result took one of the ``routes``; otherwise its cost at their prices."""
    if result.route in routes:
        return result.cost
    if not result.usage.total_tokens:
        return 0.0
    return None if rates is None else rates.cost(result.usage)


@frozen(kw_only=True)
class Measured:
    seconds: float  # from the submission to the last answer
    cost: float | None  # USD paid; None if a price is unknown
    individual_cost: float | None = None  # USD of the same tokens in real time; None if unknown
    batch_cost: float | None = None  # USD of the same tokens as a batch; None if unknown


@define(eq=False)
class ListDecision:
    """The decision on a list without a job, to be stored."""

    at: float  # Unix seconds
    model: str  # ``provider:model``
    decision: Decision = field(repr=False)
    measured: Measured | None = None  # actual time and cost, once known
    # how many requests were sent in real time instead of by batch, and why; set with ``measured``
    rescue: str | None = None
    no: int | None = None  # its number in the store, once stored

    @property
    def route(self) -> str:
        return self.decision.chosen.route.value


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
        if "files" in load:
            load["files"] = FileLoad(**load["files"])
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
