"""How often the fleet fails, told apart by what can be known, with what few failures can say at most.

A rate is failures per thousand GPU-hours. Its interval is exact for a Poisson process (Garwood): the lowest rate
at which so many failures or more are still as likely as 2.5 %, and the highest at which so many or fewer are.
Beyond `EXACT_MAX` failures it is the transformation of Wilson and Hilferty, which is right to four digits there.
Source: F. Garwood, "Fiducial limits for the Poisson distribution", Biometrika 28, 1936,
https://doi.org/10.1093/biomet/28.3-4.437; E. B. Wilson, M. M. Hilferty, "The distribution of chi-square", PNAS
17, 1931, https://doi.org/10.1073/pnas.17.12.684
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import exp, lgamma, log, sqrt
from statistics import NormalDist
from typing import Final

from holdfast.api.finding import OF_NODES
from holdfast.api.fleet import Rate
from holdfast.watchdog.brain.failures import HOUR_S, WEEK_S, Failure, Failures, band_of, hour_of
from holdfast.watchdog.brain.saves import NODE_FAILURES_PER_DAY

DAY_S: Final = 86400.0
CONFIDENCE: Final = 0.95
EXACT_MAX: Final = 100
# A job's own failures are among the fleet's: with fewer than these they would count twice.
ENOUGH: Final = 5.0
# How long a node is away until it was repaired and tested. Our own assumption: a working day.
AWAY_S: Final = DAY_S
SPARES_MAX: Final = 4096


def interval(count: int) -> tuple[float, float]:
    """From which to which mean a count of events may come, at `CONFIDENCE`."""
    tail = (1.0 - CONFIDENCE) / 2.0
    if count > EXACT_MAX:
        z = NormalDist().inv_cdf(1.0 - tail)
        return _cubed(count, -z), _cubed(count + 1, z)
    low = 0.0 if count == 0 else _mean(lambda mean: 1.0 - at_most(count - 1, mean) < tail, count)
    return low, _mean(lambda mean: at_most(count, mean) > tail, count)


def _cubed(count: int, z: float) -> float:
    return count * float(1.0 - 1.0 / (9.0 * count) + z / (3.0 * sqrt(count))) ** 3


def _mean(is_below: Callable[[float], bool], count: int) -> float:
    """The mean up to which something holds, by bisection."""
    low, high = 0.0, 2.0 * count + 20.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2.0


def at_most(count: int, mean: float) -> float:
    """The probability of `count` events or fewer of a Poisson process with this mean."""
    if mean <= 0.0:
        return 1.0
    return min(1.0, sum(exp(k * log(mean) - mean - lgamma(k + 1)) for k in range(count + 1)))


def rate(group: str, failures: int, gpu_s: float) -> Rate:
    """The rate of one group."""
    hours = gpu_s / HOUR_S
    if hours <= 0.0:
        return Rate(group, failures, 0.0)
    low, high = (1000.0 * each / hours for each in interval(failures))
    return Rate(group, failures, hours, 1000.0 * failures / hours, low, high)


def interruptions(known: Failures) -> list[Failure]:
    """The failures that count: those for which training stood still."""
    return [each for each in known.failures if each.interrupts]


def overall(known: Failures) -> Rate:
    """The rate of all interruptions."""
    return rate("all", len(interruptions(known)), _gpu_s(known))


def tables(known: Failures) -> dict[str, tuple[Rate, ...]]:
    """The rate by each thing that failures are told apart by, where it is known of any GPU time."""
    counted = interruptions(known)
    of_kind = Counter(each.kind.value for each in counted)
    told = {"kind": tuple(rate(kind, count, _gpu_s(known)) for kind, count in of_kind.most_common())}
    spent = known.spent.values()
    by_hour = Counter(f"{hour_of(each.at):02d}" for each in counted)
    hours = _added({f"{hour:02d}": gpu_s for hour, gpu_s in each.hours.items()} for each in spent)
    by_band = Counter(band_of(each.celsius) for each in counted if each.celsius is not None)
    bands = _added(each.bands for each in spent)
    for name, count, time in (("hour", by_hour, hours), ("temperature", by_band, bands)):
        told[name] = tuple(rate(group, count[group], time[group]) for group in sorted(time))
    for kind in sorted({kind for each in spent for kind in each.behind}):
        behind = Counter(
            name
            for each in counted
            for name in {place.name for places in each.where.values() for place in places if place.kind == kind}
        )
        time = _added(each.behind.get(kind, {}) for each in spent)
        rates = [rate(name, behind[name], gpu_s) for name, gpu_s in time.items()]
        told[kind] = tuple(sorted(rates, key=lambda each: (-(each.low or 0.0), -each.failures, each.group)))
    return {name: rows for name, rows in told.items() if rows}


def _gpu_s(known: Failures) -> float:
    return sum(each.gpu_s for each in known.spent.values())


def _added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in parts:
        for group, gpu_s in part.items():
            total[group] = total.get(group, 0.0) + gpu_s
    return total


def watched_since(known: Failures) -> float | None:
    """The begin of the oldest week of which anything is kept."""
    return min(known.spent) * WEEK_S if known.spent else None


# What follows for jobs.


def node_failures_per_day(known: Failures) -> float | None:
    """How often a node fails, of the fleet's own record; None before `ENOUGH` failures of nodes, or so much time
    that as many were to be expected. The published rate counts as one failure in its own mean time.
    """
    failures = sum(each.kind in OF_NODES for each in interruptions(known))
    node_days = sum(each.node_s for each in known.spent.values()) / DAY_S
    if max(float(failures), node_days * NODE_FAILURES_PER_DAY) < ENOUGH:
        return None
    return (1.0 + failures) / (1.0 / NODE_FAILURES_PER_DAY + node_days)


def spares_for(nodes: int, per_day: float | None) -> int:
    """The fewest spares with which, at `CONFIDENCE`, no more nodes are away at once than there are spares; by
    the published rate where the fleet's own is not known.
    """
    mean = nodes * (per_day or NODE_FAILURES_PER_DAY) * AWAY_S / DAY_S
    return next((spares for spares in range(SPARES_MAX) if at_most(spares, mean) >= CONFIDENCE), SPARES_MAX)
