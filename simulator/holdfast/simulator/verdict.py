"""What became of a policy over several seeds: each figure with the interval that its mean is in.

Everything is counted over the whole time that was asked for: a run that ended before it trained nothing in the
rest, and its machines waited.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.simulator.estimate import Estimate, estimate
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import DAY_S, Scenario

ROUNDING_S: Final = 1e-6
ENDED: Final = "run ended"
"""What is lost in the time that a run which ended did not see."""


class Figure(msgspec.Struct, frozen=True):
    """One thing that a run is judged by. `better` is 1 where more is better, -1 where less is, 0 where it only
    counts. `unit` is "share", "min", "h", "money" or empty for a number.
    """

    name: str
    unit: str
    better: int
    of: Callable[[Outcome, Scenario], float]

    @property
    def is_count(self) -> bool:
        """Whether it is a whole number in each run."""
        return not self.unit

    def estimated(self, values: Sequence[float]) -> Estimate:
        """Its mean over runs: no figure is below 0, and no share above 1."""
        return estimate(values, 0.0, 1.0 if self.unit == "share" else math.inf)


def window_s(scenario: Scenario) -> float:
    """How long was asked for."""
    return scenario.days * DAY_S


def goodput(outcome: Outcome, scenario: Scenario) -> float:
    """The share of what all its nodes could have trained in the time asked for, that was trained and kept."""
    return outcome.full_s / window_s(scenario)


def lost_gpu_hours(outcome: Outcome, scenario: Scenario) -> float:
    """GPU-hours of all machines of the job, spares among them, that were no training which was kept."""
    fleet = scenario.fleet
    held = (fleet.nodes + fleet.spares) * window_s(scenario)
    return (held - fleet.nodes * outcome.full_s) * fleet.gpus_per_node / 3600.0


def lost_money(outcome: Outcome, scenario: Scenario) -> float:
    """The same in money; 0 without a price."""
    return lost_gpu_hours(outcome, scenario) * (scenario.fleet.gpu_hour or 0.0)


def lost_minutes(outcome: Outcome, scenario: Scenario) -> float:
    """Of the whole job, everything but training that was kept."""
    return (window_s(scenario) - outcome.trained_s) / 60.0


FIGURES: Final = (
    Figure("ettr", "share", 1, lambda outcome, _: outcome.ettr),
    Figure("goodput", "share", 1, goodput),
    Figure("lost_minutes", "min", -1, lost_minutes),
    Figure("lost_gpu_hours", "h", -1, lost_gpu_hours),
    Figure("lost_money", "money", -1, lost_money),
    Figure("faults", "", 0, lambda outcome, _: float(sum(outcome.faults.values()))),
    Figure("evictions_right", "", 0, lambda outcome, _: float(outcome.right)),
    Figure("evictions_wrong", "", -1, lambda outcome, _: float(outcome.wrong)),
    Figure("missed", "", -1, lambda outcome, _: float(outcome.missed)),
    Figure("spares_used", "", 0, lambda outcome, _: float(outcome.spares_used)),
    Figure("pages", "", -1, lambda outcome, _: float(outcome.pages)),
    Figure("rounds", "", 0, lambda outcome, _: float(outcome.rounds)),
)
BY_NAME: Final[Mapping[str, Figure]] = {each.name: each for each in FIGURES}


def figures_of(scenario: Scenario) -> tuple[Figure, ...]:
    """Those that can be told of it: money where there is a price."""
    return tuple(each for each in FIGURES if each.unit != "money" or scenario.fleet.gpu_hour is not None)


def deciding(name: str, scenarios: Iterable[Scenario]) -> Figure:
    """The figure of that name, by which one of these can be better than another. Raises InvalidInput."""
    figure = BY_NAME.get(name)
    if figure is None or not figure.better or any(figure not in figures_of(each) for each in scenarios):
        known = (each.name for each in FIGURES if each.better)
        raise InvalidInput(Problem("--by", name, f"give one of {', '.join(known)}; lost_money needs a price"))
    return figure


class Recovery(msgspec.Struct, frozen=True):
    """How long the recoveries of all runs took, in seconds: half were quicker than `median_s`, and so on."""

    count: int
    median_s: float
    p95_s: float
    most_s: float


class Verdict(msgspec.Struct, frozen=True):
    """A policy's. `figures` are of one run each, by name (`FIGURES`).

    `by_phase` and `by_cause` are minutes of the whole job that one run lost, by phase of the recovery and by the
    name of what failed ("" is what no fault cost), `faults` how often each came. `ended` counts the runs that
    ended before their time by why. `recovery` is None where nothing had to recover.
    """

    says: str
    days: float
    nodes: int
    spares: int
    gpus: int
    seeds: tuple[int, ...]
    figures: dict[str, Estimate]
    by_phase: dict[str, Estimate]
    by_cause: dict[str, Estimate]
    faults: dict[str, Estimate]
    recovery: Recovery | None = None
    ended: dict[str, int] = {}
    currency: str = ""


def verdict(says: str, scenario: Scenario, outcomes: Sequence[Outcome]) -> Verdict:
    """Of at least one run. `says` is what the policy is called."""
    fleet, policy = scenario.fleet, scenario.policy
    every = [losses(each, scenario) for each in outcomes]
    phases = {phase for each in every for _, phase in each}
    causes = {cause for each in every for cause, _ in each}
    names = {name for each in outcomes for name in each.faults}
    phase_minutes = {name: estimate([_sum(each, phase=name) for each in every], 0.0) for name in phases}
    cause_minutes = {name: estimate([_sum(each, cause=name) for each in every], 0.0) for name in causes}
    return Verdict(
        says=says,
        days=scenario.days,
        nodes=fleet.nodes,
        spares=fleet.spares,
        gpus=fleet.gpus,
        seeds=tuple(each.seed for each in outcomes),
        figures={
            each.name: each.estimated([each.of(run, scenario) for run in outcomes])
            for each in figures_of(scenario)
        },
        by_phase=_largest_first(phase_minutes),
        by_cause=_largest_first(cause_minutes),
        faults=_largest_first(
            {name: estimate([float(run.faults.get(name, 0)) for run in outcomes], 0.0) for name in names}
        ),
        recovery=_recovery(outcomes),
        ended=dict(Counter(each.ended for each in outcomes if each.ended)),
        currency=policy.gpu_hour.currency if policy.gpu_hour is not None else "",
    )


def losses(outcome: Outcome, scenario: Scenario) -> dict[tuple[str, str], float]:
    """Minutes that were lost, by cause and phase, with the time that a run which ended did not see."""
    told = {
        (cause, phase.value): seconds / 60.0
        for cause, phases in outcome.lost_s.items()
        for phase, seconds in phases.items()
        if seconds > ROUNDING_S
    }
    unseen = window_s(scenario) - outcome.elapsed_s
    if unseen > 1.0:
        told[ENDED, LostTo.WAIT.value] = unseen / 60.0
    return told


def _sum(told: Mapping[tuple[str, str], float], *, cause: str | None = None, phase: str | None = None) -> float:
    return sum(
        minutes for (name, part), minutes in told.items() if cause in (None, name) and phase in (None, part)
    )


def _largest_first(told: dict[str, Estimate]) -> dict[str, Estimate]:
    return dict(sorted(told.items(), key=lambda each: (-each[1].mean, each[0])))


def _recovery(outcomes: Sequence[Outcome]) -> Recovery | None:
    took = sorted(seconds for each in outcomes for seconds in each.recoveries_s)
    if not took:
        return None
    return Recovery(len(took), quantile(took, 0.5), quantile(took, 0.95), took[-1])


def quantile(values: Sequence[float], share: float) -> float:
    """The least of sorted values that so large a share of them does not exceed."""
    place = max(0, -int(-share * len(values) // 1) - 1)
    return values[min(place, len(values) - 1)]
