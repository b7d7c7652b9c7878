"""`holdfast fleet`: what all jobs of a watchdog together fail by, and behind which places faults gather."""

import dataclasses

import click

from holdfast.api.fleet import FleetReport
from holdfast.cli.output import ExitCode, Format, emit, format_option, table
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options


@click.command()
@target_options(JobWord.ARGUMENT, of_many=True)
@format_option
def fleet(target: Target, form: Format) -> ExitCode:
    """What all jobs together know of the fleet, asked of the watchdog of JOB, or of any job there.

    A place behind which faults gather (a switch, a rack, a rail) is named; nothing is held against its nodes.
    """
    found = _asked(target)
    names = [f"place/{each.place.kind}/{each.place.name}" for each in found.gatherings]
    return emit(form, found, table=fleet_text, names=names)


def _asked(target: Target) -> FleetReport:
    """Any job leads to the watchdog that knows them all. Raises as `JobSource`."""
    if target.job is None and (every := open_site(target).statuses()):
        target = dataclasses.replace(target, job=every[0].job, namespace=None, all_namespaces=False)
    return open_site(target).source().client().fleet()


def fleet_text(found: FleetReport) -> str:
    """The places as a table."""
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
