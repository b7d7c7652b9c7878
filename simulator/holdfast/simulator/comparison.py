"""Two policies in the same fleets: the same seeds, so that the same machines fail at the same times in both.

What differs is then the policies' doing, and the differences of single seeds vary far less than the runs do.
Source: A. Law, "Simulation modeling and analysis", chapter 11 (common random numbers, paired-t intervals)
"""

from collections.abc import Sequence

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.simulator.estimate import Estimate, estimate, is_beyond_noise, seeds_to_tell
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import Scenario
from holdfast.simulator.verdict import FIGURES, Figure, deciding, figures_of


class Difference(msgspec.Struct, frozen=True):
    """Of one figure: `first` and `second` as they are, `change` from the first to the second, paired by seed.

    `better` names the policy that is better beyond noise, empty where it is noise or where more is neither better
    nor worse. `seeds_needed` is about how many seeds would tell; None where none would, or it is told.
    """

    name: str
    unit: str
    first: Estimate
    second: Estimate
    change: Estimate
    better: str = ""
    seeds_needed: int | None = None


class Comparison(msgspec.Struct, frozen=True):
    """`winner` is the policy that is better by `by`, the figure that decides; empty where that is noise. `gpus`:
    how many each has with ranks.
    """

    first: str
    second: str
    days: float
    seeds: tuple[int, ...]
    by: str
    winner: str
    differences: tuple[Difference, ...]
    gpus: tuple[int, int]
    currency: str = ""

    def of(self, name: str) -> Difference:
        """The difference of a figure that was compared."""
        return next(each for each in self.differences if each.name == name)


class Side(msgspec.Struct, frozen=True):
    """One of the two."""

    says: str
    scenario: Scenario
    outcomes: Sequence[Outcome]


def compared(first: Side, second: Side, by: str) -> Comparison:
    """Over the seeds that both have lived through. `by` names the figure that decides.

    Raises InvalidInput when the two are not about the same time, there is no seed in common, or nothing is better
    by that figure.
    """
    if first.scenario.days != second.scenario.days:
        fix = f"give both the same days; the other has {first.scenario.days:g}"
        raise InvalidInput(Problem("days", second.scenario.days, fix))
    deciding(by, (first.scenario, second.scenario))
    ours = {each.seed: each for each in first.outcomes}
    theirs = {each.seed: each for each in second.outcomes}
    seeds = tuple(sorted(ours.keys() & theirs.keys()))
    if not seeds:
        raise InvalidInput(Problem("seeds", 0, "no seed was lived through under both policies"))
    shared = {each.name for each in figures_of(first.scenario)} & {
        each.name for each in figures_of(second.scenario)
    }
    told = []
    for figure in FIGURES:
        if figure.name in shared:
            one = [figure.of(ours[seed], first.scenario) for seed in seeds]
            other = [figure.of(theirs[seed], second.scenario) for seed in seeds]
            told.append(_difference(figure, one, other, (first.says, second.says)))
    decided = next(each for each in told if each.name == by)
    money = first.scenario.policy.gpu_hour
    return Comparison(
        first=first.says,
        second=second.says,
        days=first.scenario.days,
        seeds=seeds,
        by=by,
        winner=decided.better,
        differences=tuple(told),
        gpus=(first.scenario.fleet.gpus, second.scenario.fleet.gpus),
        currency=money.currency if money is not None else "",
    )


def _difference(
    figure: Figure, first: Sequence[float], second: Sequence[float], names: tuple[str, str]
) -> Difference:
    changes = [after - before for before, after in zip(first, second, strict=True)]
    change, tells = estimate(changes), is_beyond_noise(changes, counts=figure.is_count)
    better = ""
    if figure.better and tells:
        better = names[1] if change.mean * figure.better > 0 else names[0]
    return Difference(
        name=figure.name,
        unit=figure.unit,
        first=figure.estimated(first),
        second=figure.estimated(second),
        change=change,
        better=better,
        seeds_needed=None if tells else seeds_to_tell(changes),
    )
