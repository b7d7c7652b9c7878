"""A recorded run beside what the simulator makes of it, and beside what another policy would have made of it."""

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.simulator.comparison import Comparison, Side, compared
from holdfast.simulator.estimate import Estimate, estimate
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.recorded import Really, Recorded
from holdfast.simulator.scenario import Scenario
from holdfast.simulator.verdict import losses, lost_gpu_hours

LIKE: Final = {"lost_money": "lost_gpu_hours", "goodput": "lost_minutes"}
"""Figures that are as far beside the truth as another, which a run's ledger tells."""


class Reproduced(msgspec.Struct, frozen=True):
    """One figure of the run, and what the simulator makes of it under the policy that the run had."""

    name: str
    really: float
    simulated: Estimate

    @property
    def off(self) -> float:
        """By how much the simulator is beside it."""
        return self.simulated.mean - self.really


class Relived(msgspec.Struct, frozen=True):
    """`error_minutes` is by how many minutes of lost time the simulator is beside the run: a difference between
    two policies that is no larger says nothing. `says` is what it comes to: "better", "worse" or "noise" under the
    new policy, empty without one.
    """

    job: str
    days: float
    happenings: int
    left_out: dict[str, int]
    reproduced: tuple[Reproduced, ...]
    error_minutes: float
    comparison: Comparison | None = None
    says: str = ""


def replayed(run: Recorded, old: Side, new: Side | None, by: str) -> Relived:
    """Raises InvalidInput as `compared`."""
    told = tuple(_reproduced(run.really, old.scenario, old.outcomes))
    lost = next(each for each in told if each.name == "lost_minutes")
    comparison = compared(old, new, by) if new is not None else None
    return Relived(
        job=run.job,
        days=old.scenario.days,
        happenings=len(run.happenings),
        left_out=run.left_out,
        reproduced=told,
        error_minutes=abs(lost.off),
        comparison=comparison,
        says=_says(comparison, told, new.says) if comparison is not None and new is not None else "",
    )


def _says(comparison: Comparison, told: Sequence[Reproduced], new: str) -> str:
    """Beyond the noise of the seeds, and beyond what the simulator is beside the truth in what decides."""
    like = LIKE.get(comparison.by, comparison.by)
    error = next((abs(each.off) for each in told if each.name == like), 0.0)
    if not comparison.winner or abs(comparison.of(like).change.mean) <= error:
        return "noise"
    return "better" if comparison.winner == new else "worse"


def _reproduced(really: Really, scenario: Scenario, outcomes: Sequence[Outcome]) -> list[Reproduced]:
    minutes = (really.elapsed_s - really.trained_s) / 60.0
    told = [
        Reproduced("ettr", really.trained_s / really.elapsed_s, estimate([each.ettr for each in outcomes])),
        Reproduced(
            "lost_minutes",
            minutes,
            estimate([(really.elapsed_s - each.trained_s) / 60.0 for each in outcomes]),
        ),
        Reproduced(
            "lost_gpu_hours",
            really.gpu_hours - really.trained_gpu_hours,
            estimate([lost_gpu_hours(each, scenario) for each in outcomes]),
        ),
        Reproduced("evictions", really.evictions, estimate([float(each.right + each.wrong) for each in outcomes])),
        Reproduced("pages", really.pages, estimate([float(each.pages) for each in outcomes])),
        Reproduced("rounds", really.rounds, estimate([float(each.rounds) for each in outcomes])),
    ]
    every = [losses(each, scenario) for each in outcomes]
    for phase in LostTo:
        seen = really.lost_s.get(phase.value, 0.0) / 60.0
        simulated = [sum(part for (_, of), part in each.items() if of == phase.value) for each in every]
        if seen or any(simulated):
            told.append(Reproduced(f"lost_minutes.{phase.value}", seen, estimate(simulated)))
    return told
