"""What simulations came to, as tables and sentences for people."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from holdfast.cli.output import pairs, seconds, table
from holdfast.cli.simulation.chart import Bars
from holdfast.simulator.comparison import Comparison, Difference
from holdfast.simulator.estimate import CONFIDENCE, Estimate, at_most
from holdfast.simulator.replayed import Relived
from holdfast.simulator.sweep import Ranked, says
from holdfast.simulator.verdict import Verdict

NAMES: Final[Mapping[str, str]] = {
    "ettr": "ETTR",
    "goodput": "goodput",
    "lost_minutes": "lost minutes",
    "lost_gpu_hours": "lost GPU-hours",
    "lost_money": "lost money",
    "faults": "faults",
    "evictions_right": "evictions, right",
    "evictions_wrong": "evictions, wrong",
    "missed": "faults missed",
    "spares_used": "spares used",
    "pages": "pages to humans",
    "rounds": "rounds",
}
CAUSES_SHOWN: Final = 12
POINTS_SHOWN: Final = 20
NO_CAUSE: Final = "(no fault)"
COLUMNS: Final = ("ettr", "lost_gpu_hours", "lost_money", "evictions_wrong", "pages")


def value(number: float, unit: str) -> str:
    """A figure as people write it."""
    if unit == "share":
        return f"{number:.2%}"
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def figure(estimate: Estimate, unit: str) -> str:
    """With its interval. Of what no run had, what the mean can be at most."""
    told = value(estimate.mean, unit)
    if estimate.low is None or estimate.high is None:
        return told
    if estimate.mean == 0.0 and estimate.high == 0.0:
        return f"{told}  (at most {at_most(estimate.seeds):.2g})" if not unit else told
    return f"{told}  ({value(estimate.low, unit)} to {value(estimate.high, unit)})"


def verdict_text(found: Verdict) -> str:
    """All of one policy."""
    runs = len(found.seeds)
    heading = (
        f"{found.says}: {found.nodes} nodes ({found.gpus:,} GPUs) and {found.spares} spares, {found.days:g} days, "
        f"{runs} run{'s' if runs > 1 else ''}"
    )
    if runs > 1:
        heading += f"; means of one run, {CONFIDENCE:.0%} intervals (Student's t over seeds)"
    units = _units(found.currency)
    rows = [
        (_with_money(name, found.currency), figure(each, units.get(name, "")))
        for name, each in found.figures.items()
    ]
    if found.recovery is not None:
        took = found.recovery
        rows.append(("recovery", f"median {seconds(took.median_s)}, 95 % within {seconds(took.p95_s)}"))
    rows += [("ended early", f"{count} of {runs}: {why}") for why, count in found.ended.items()]
    parts = [heading, pairs(rows)]
    if found.by_phase:
        parts.append(table(("LOST TO PHASE", "MINUTES"), _minutes(found.by_phase)))
    if found.by_cause:
        causes = [
            (name or NO_CAUSE, _times(found, name), figure(each, "")) for name, each in found.by_cause.items()
        ]
        text = table(("LOST TO", "TIMES", "MINUTES"), causes[:CAUSES_SHOWN])
        left = len(causes) - CAUSES_SHOWN
        parts.append(text + (f"\n({left} more: -o json)" if left > 0 else ""))
    return "\n\n".join(parts)


def _with_money(name: str, currency: str) -> str:
    return f"{NAMES[name]}, {currency}" if name == "lost_money" and currency else NAMES[name]


def _units(currency: str) -> Mapping[str, str]:
    return {
        "ettr": "share",
        "goodput": "share",
        "lost_minutes": "min",
        "lost_gpu_hours": "h",
        "lost_money": currency,
    }


def _minutes(told: Mapping[str, Estimate]) -> list[tuple[str, str]]:
    return [(name, figure(each, "min")) for name, each in told.items()]


def _times(found: Verdict, name: str) -> str:
    return f"{found.faults[name].mean:.3g}" if name in found.faults else "-"


def comparison_text(found: Comparison) -> str:
    """Which of the two is better, and by how much."""
    rows = [
        (
            _with_money(each.name, found.currency),
            value(each.first.mean, each.unit),
            value(each.second.mean, each.unit),
            _change(each.change, each.unit),
            _better(each),
        )
        for each in found.differences
    ]
    headers = ("", found.first, found.second, f"CHANGE ({CONFIDENCE:.0%})", "BETTER")
    return "\n\n".join([sentence(found), *_sizes(found), table(headers, rows)])


def _sizes(found: Comparison) -> Iterator[str]:
    """What is to be said before minutes and hours of two sizes are laid beside each other."""
    one, other = found.gpus
    if one != other:
        told = "shares compare (--by goodput), minutes and hours do not"
        yield f"They are of two sizes, {one:,} and {other:,} GPUs: {told}."


def _change(change: Estimate, unit: str) -> str:
    told = value(change.mean, unit)
    if change.low is None or change.high is None or change.low == change.high:
        return told
    return f"{told}  ({value(change.low, unit)} to {value(change.high, unit)})"


def _better(each: Difference) -> str:
    if each.better:
        return each.better
    return "" if each.seeds_needed is None else f"noise; about {each.seeds_needed} seeds would tell"


def sentence(found: Comparison) -> str:
    """The answer in one sentence."""
    decides = found.of(found.by)
    days, runs = f"{found.days:g} days", f"{len(found.seeds)} seed{'s' if len(found.seeds) > 1 else ''}"
    if not found.winner:
        if len(found.seeds) < 2:
            return f"One seed says nothing of noise: give more with --seeds ({found.first} and {found.second})."
        more = f"; about {decides.seeds_needed} seeds would tell" if decides.seeds_needed else ""
        between = f"Between {found.first} and {found.second}"
        return f"{between} there is nothing but noise over {runs}, by {NAMES[found.by]}{more}."
    sign = 1.0 if found.winner == found.second else -1.0
    told = [
        f"{value(abs(each.change.mean), each.unit)} {words} {'more' if sign * each.change.mean > 0 else 'less'}"
        for each, words in _told(found)
    ]
    return f"{found.winner} is better by {NAMES[found.by]} over {runs}: in {days}, {', '.join(told)}."


def _told(found: Comparison) -> Iterator[tuple[Difference, str]]:
    """What a comparison is about first of all: minutes, money, evictions."""
    words = {
        "lost_minutes": "minutes lost",
        "lost_gpu_hours": "GPU-hours lost",
        "lost_money": f"{found.currency} lost".strip(),
        "evictions_wrong": "wrong evictions",
        "pages": "pages",
    }
    for each in found.differences:
        if each.name in words and each.change.mean:
            yield each, words[each.name]


def replayed_text(found: Relived) -> str:
    """How well the run is reproduced, and what the other policy would have made of it."""
    heading = f"{found.job}: {found.happenings} faults in {found.days:.3g} days, lived through again"
    if found.left_out:
        left = ", ".join(f"{count} {kind}" for kind, count in found.left_out.items())
        heading += f"; left out: {left}"
    rows = [
        (
            _named(each.name),
            value(each.really, _unit(each.name)),
            figure(each.simulated, _unit(each.name)),
            value(each.off, _unit(each.name)),
        )
        for each in found.reproduced
    ]
    parts = [heading, table(("AS IT WAS", "REALLY", "SIMULATED", "OFF BY"), rows)]
    if found.comparison is not None:
        parts.append(comparison_text(found.comparison))
        parts.append(_answer(found))
    return "\n\n".join(parts)


def _answer(found: Relived) -> str:
    """What the new policy comes to, beside what the simulator itself is wrong by."""
    unit, named = _unit(found.by), NAMES[found.by]
    apart, error = value(abs(found.differs), unit), value(found.error, unit)
    beside = f"the policies are {apart} of {named} apart, and the simulator is {error} beside the run"
    if found.says == "noise":
        return f"That is noise, or within what the simulator itself is wrong by: {beside}."
    return f"The new policy is {found.says}: {beside}."


def _unit(name: str) -> str:
    return "share" if name == "ettr" else ""


def _named(name: str) -> str:
    first, _, phase = name.partition(".")
    return f"  {phase}" if phase else NAMES.get(first, first)


def ranking_text(found: Sequence[Ranked], by: str) -> str:
    """The best first."""
    shown = [name for name in COLUMNS if found and name in found[0].verdict.figures]
    units = _units("")
    rows = [
        (
            says(each.point),
            "best" if place == 0 else "ties" if each.ties else "",
            *(figure(each.verdict.figures[name], units.get(name, "")) for name in shown),
        )
        for place, each in enumerate(found[:POINTS_SHOWN])
    ]
    text = table(("SETTINGS", f"BY {NAMES[by].upper()}", *(NAMES[name].upper() for name in shown)), rows)
    left = len(found) - POINTS_SHOWN
    return text + (f"\n({left} more: -o json)" if left > 0 else "")


# The same as groups of bars.


def verdict_bars(found: Verdict) -> list[Bars]:
    """Where the time went."""
    causes = [(name or NO_CAUSE, each) for name, each in found.by_cause.items()]
    return [
        Bars(f"{found.says}: minutes lost to each phase, in {found.days:g} days", list(found.by_phase.items())),
        Bars(f"{found.says}: minutes lost to each cause", causes),
    ]


def ranking_bars(found: Sequence[Ranked], by: str) -> list[Bars]:
    """The points, the best first."""
    return [Bars(NAMES[by], [(says(each.point), each.verdict.figures[by]) for each in found])]
