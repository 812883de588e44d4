"""Which faults each batch and line of a run meets: thrown by its own number, so that none moves another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from attrs import evolve

from smartbatch.emulator.batches.backend import BatchBackend
from smartbatch.emulator.batches.batch_settings import BATCH_FAULTS, LINE_FAULTS
from smartbatch.emulator.settings import EmulatorSettings
from tests.faults.simulation.scenario import HOUR, MINUTE, Flavour, Plan, Scenario

_ODDITIES = ("shuffled", "results_unavailable", "cut_download", "odd_status", "cancel_completes")
_SECONDS, _MINUTES = 60.0, 20 * MINUTE
"""How late a create appears at most: seven in ten within seconds, the others within minutes."""


class FaultPlan:
    """The faults of one run. After the scenario's ``calm_at`` there are none."""

    def __init__(self, plan: Plan, what: Scenario, flavour: Flavour, now: Callable[[], float]) -> None:
        self._seed = f"{plan.flavour} {plan.seed}"
        self._what = what
        self._flavour = flavour
        self._now = now
        self._script = list(plan.faults)
        self._met: dict[int, tuple[str, ...]] = {}
        falls_back = what.policy.fallback == "individual"
        self._ends = ["expire_part", "expire_all", "fail_validation", "no_money_lines"]
        if falls_back and flavour.labels:
            # only a job with a time-out ever ends such a batch, and only one that it knows to be its own
            self._ends.append("stuck")
        if flavour.api == "anthropic":
            self._ends.remove("fail_validation")  # it knows no validation as a whole
        self.settings = EmulatorSettings(
            seed=plan.seed,
            batch_validating=5.0,
            batch_turnaround=what.turnaround,
            batch_turnaround_sigma=0.8,
            batch_cancel_seconds=20.0,
            batch_late_seconds=_SECONDS,
            batch_list_lag=60.0,
            batch_get_lag=60.0,
            batch_results_outage=10 * MINUTE,
            batch_window=24 * HOUR,
            batch_enqueued_tokens=what.enqueued_tokens,
            batch_fault_for=self.of_batch,
            batch_line_fault_for=self.of_line,
        )

    @property
    def calm(self) -> bool:
        return self._now() >= self._what.calm_at

    def of_batch(self, index: int, label: Mapping[str, str]) -> tuple[str, ...]:
        if index not in self._met:
            if "foreign" in label:
                self._met[index] = ()
            elif self._script:
                self._met[index] = self._script.pop(0)
            else:
                self._met[index] = () if self.calm else self._thrown(index)
        return tuple(name for name in self._met[index] if name in BATCH_FAULTS)

    def _thrown(self, index: int) -> tuple[str, ...]:
        rng, what = Random(f"{self._seed} batch {index}"), self._what
        met = []
        drawn = rng.random()
        for name, chance in (("lost_create", what.lost), ("dropped_create", what.dropped)):
            if 0 <= drawn < chance:
                met.append(name)
            drawn -= chance
        if 0 <= drawn < what.late:
            met.append("late_create")
        met += [name for name in ("list_lag", "get_lag") if rng.random() < what.lags]
        met += [name for name in _ODDITIES if rng.random() < 2 * what.ends]
        if rng.random() < 3 * what.ends:
            met.append(rng.choice(self._ends))
        return tuple(met)

    def late_by(self, backend: BatchBackend, index: int) -> None:
        far = Random(f"{self._seed} late {index}").random() < 0.3
        backend.configure(evolve(self.settings, batch_late_seconds=_MINUTES if far else _SECONDS))

    def of_line(self, index: int, position: int, custom_id: str | None) -> str | None:
        met = self._met.get(index, ())
        if custom_id is not None and custom_id.startswith("foreign"):
            return None
        if position == 0 and (scripted := [name for name in met if name in LINE_FAULTS]):
            return scripted[0]
        rng = Random(f"{self._seed} line {index} {position}")
        if self.calm or rng.random() >= 6 * self._what.lines:
            return None
        names = ["missing_lines", "malformed_lines", "foreign_lines", "item_error", "item_invalid"]
        names.append("status_zero" if self._flavour.api == "openai" else "no_usage")
        if "shuffled" not in met:  # else the wrong one of two may come first, which cannot be told
            names.append("doubled_lines")
        return rng.choice(names)
