"""`holdfast fleet`: what all jobs of a watchdog together fail by, and behind which places faults gather."""

import dataclasses
from collections.abc import Sequence
from typing import Final

import click

from holdfast.api.fleet import FleetReport, Rate
from holdfast.cli.output import UNKNOWN, ExitCode, Format, emit, format_option, instant, table
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options

ROWS_SHOWN: Final = 10


@click.command()
@target_options(JobWord.ARGUMENT, of_many=True)
@format_option
def fleet(target: Target, form: Format) -> ExitCode:
    """How often the fleet fails, as all jobs together know it, asked of the watchdog of JOB or of any job there.

    Interruptions per thousand GPU-hours, by kind of fault, place, driver, temperature and hour of the day (UTC). A
    place behind which faults gather (a switch, a rack, a rail) is named; nothing is held against its nodes. -o
    wide shows every row, -o json is for planners.
    """
    found = _asked(target)
    names = [f"{each.place.kind}/{each.place.name}" for each in found.gatherings]
    return emit(form, found, table=fleet_text, wide=fleet_wide_text, names=names)


def _asked(target: Target) -> FleetReport:
    """Any job leads to the watchdog that knows them all. Raises as `JobSource`."""
    if target.job is None and (every := open_site(target).statuses()):
        target = dataclasses.replace(target, job=every[0].job, namespace=None, all_namespaces=False)
    return open_site(target).source().client().fleet()


def fleet_text(found: FleetReport) -> str:
    """Tables, one below the other; of each as many rows as are read, the worst first."""
    return _text(found, ROWS_SHOWN)


def fleet_wide_text(found: FleetReport) -> str:
    """The same with every row."""
    return _text(found, None)


def _text(found: FleetReport, shown: int | None) -> str:
    parts = []
    if found.all is not None:
        since = UNKNOWN if found.since is None else instant(found.since)
        parts.append(f"since {since}\n\n{_rates('ALL', (found.all,), None)}")
    parts += [_rates(name.upper(), rows, shown) for name, rows in found.tables.items()]
    if found.spares:
        rows = [(each.job, str(each.nodes), str(each.spares), str(each.advised)) for each in found.spares]
        parts.append(table(("JOB", "NODES", "SPARES", "ADVISED"), rows))
    parts.append(_gathered(found))
    return "\n\n".join(parts)


def _rates(name: str, rows: Sequence[Rate], shown: int | None) -> str:
    headers = (name, "FAILURES", "GPU-HOURS", "PER 1000 GPU-HOURS", "95 % FROM", "TO")
    text = table(headers, [_row(each) for each in rows[:shown]])
    left = len(rows) - len(rows[:shown])
    return text + (f"\n({left} more: -o wide)" if left else "")


def _row(rate: Rate) -> tuple[str, ...]:
    figures = (
        UNKNOWN if each is None else f"{each:.3g}" for each in (rate.per_1000_gpu_hours, rate.low, rate.high)
    )
    return rate.group, str(rate.failures), f"{rate.gpu_hours:,.1f}", *figures


def _gathered(found: FleetReport) -> str:
    if not found.gatherings:
        return "faults gather behind no place"
    rows = [
        (
            each.named,
            each.family.value,
            f"{each.faults} of {each.total}",
            f"{each.share:.1%}",
            f"{each.chance:.1g}",
            ", ".join(each.nodes),
        )
        for each in found.gatherings
    ]
    return table(("PLACE", "FAULTS OF", "BEHIND IT", "GPU TIME", "CHANCE", "NODES"), rows)
