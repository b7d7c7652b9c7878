"""A recorded run beside what the simulator makes of it, and beside what another policy would have made of it."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.judgement import Brief, Judgement
from holdfast.simulator.comparison import Comparison, Side, compared
from holdfast.simulator.estimate import Estimate, estimate
from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.recorded import Really, Recorded
from holdfast.simulator.scenario import Scenario
from holdfast.simulator.verdict import losses, lost_gpu_hours

LIKE: Final[Mapping[str, str]] = {
    "ettr": "ettr",
    "goodput": "lost_minutes",
    "lost_minutes": "lost_minutes",
    "lost_gpu_hours": "lost_gpu_hours",
    "lost_money": "lost_gpu_hours",
    "pages": "pages",
}
"""What another policy can be judged by, and the figure of the run that says how far the simulator is beside it."""


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
    """`error` is how far the simulator is beside the run in the figure `by`, `differs` how far the new policy is
    from the old one in it: a difference that is no larger than the error says nothing. `says` is what it comes to:
    "better", "worse" or "noise" under the new policy, empty without one.
    """

    job: str
    days: float
    happenings: int
    left_out: dict[str, int]
    reproduced: tuple[Reproduced, ...]
    by: str
    error: float
    comparison: Comparison | None = None
    differs: float = 0.0
    says: str = ""


def judged_by(by: str) -> str:
    """The figure of a run that says how far to believe what is judged by `by`. Raises InvalidInput for none."""
    if by not in LIKE:
        fix = f"of a run that was, give one that its journal tells: {', '.join(LIKE)}"
        raise InvalidInput(Problem("--by", by, fix))
    return LIKE[by]


def replayed(run: Recorded, old: Side, new: Side | None, by: str) -> Relived:
    """Raises InvalidInput as `compared` and `judged_by`."""
    like = judged_by(by)
    told = tuple(_reproduced(run.really, old.scenario, old.outcomes))
    error = next(abs(each.off) for each in told if each.name == like)
    comparison = compared(old, new, by) if new is not None else None
    differs = comparison.of(like).change.mean if comparison is not None else 0.0
    says = ""
    if comparison is not None:
        is_noise = not comparison.winner or abs(differs) <= error
        says = "noise" if is_noise else "worse" if comparison.winner == old.says else "better"
    return Relived(
        job=run.job,
        days=old.scenario.days,
        happenings=len(run.happenings),
        left_out=run.left_out,
        reproduced=told,
        by=like,
        error=error,
        comparison=comparison,
        differs=differs,
        says=says,
    )


def brief_of(found: Relived) -> Brief:
    """What another policy comes to, in short. Where nothing has failed, faults judge no policy."""
    comparison = found.comparison
    assert comparison is not None, "there is another policy"
    change = {each.name: each.change.mean for each in comparison.differences}
    nothing_failed = not found.happenings
    return Brief(
        says=Judgement.NOT_JUDGED if nothing_failed else Judgement(found.says),
        why="nothing that can be lived through again has failed in the run so far" if nothing_failed else "",
        days=found.days,
        faults=found.happenings,
        seeds=len(comparison.seeds),
        minutes=change["lost_minutes"],
        gpu_hours=change["lost_gpu_hours"],
        money=change.get("lost_money"),
        currency=comparison.currency,
        evictions=change["evictions_right"] + change["evictions_wrong"],
        pages=change["pages"],
        by=found.by,
        differs=found.differs,
        error=found.error,
    )


def _reproduced(really: Really, scenario: Scenario, outcomes: Sequence[Outcome]) -> list[Reproduced]:
    minutes, fleet = (really.elapsed_s - really.trained_s) / 60.0, scenario.fleet
    # As of a simulated run: those that the policy wants, all the time.
    held = (fleet.nodes + fleet.spares) * fleet.gpus_per_node * really.elapsed_s / 3600.0
    told = [
        Reproduced("ettr", really.trained_s / really.elapsed_s, estimate([each.ettr for each in outcomes])),
        Reproduced(
            "lost_minutes",
            minutes,
            estimate([(really.elapsed_s - each.trained_s) / 60.0 for each in outcomes]),
        ),
        Reproduced(
            "lost_gpu_hours",
            held - really.trained_gpu_hours,
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
