"""How often the nodes of a real fleet fail, from what `holdfast fleet -o json` tells of it."""

import msgspec

from holdfast.api.fleet import FleetReport, Rate

KINDS_TOLD = 3


class Failures(msgspec.Struct, frozen=True):
    """For 1,000 node-days; with 95 % confidence the true rate is from `low` to `high`. `kinds` are those of which
    there are most, each with its own rate.
    """

    rate: float
    low: float
    high: float
    kinds: tuple[tuple[str, float], ...] = ()


def failures_of(report: FleetReport, per_node: int) -> Failures | None:
    """Of nodes with so many GPUs; None where no GPU time is known."""
    found = report.all
    if found is None or found.per_1000_gpu_hours is None or found.low is None or found.high is None:
        return None
    kinds = sorted(report.tables.get("kind", ()), key=lambda each: -each.failures)[:KINDS_TOLD]
    return Failures(
        rate=_of_nodes(found.per_1000_gpu_hours, per_node),
        low=_of_nodes(found.low, per_node),
        high=_of_nodes(found.high, per_node),
        kinds=tuple((each.group, _rate(each, per_node)) for each in kinds if each.failures),
    )


def _rate(row: Rate, per_node: int) -> float:
    return _of_nodes(row.per_1000_gpu_hours or 0.0, per_node)


def _of_nodes(per_1000_gpu_hours: float, per_node: int) -> float:
    return per_1000_gpu_hours * per_node * 24.0
