"""`holdfast stacks|flight`: where the ranks of a job stand now, and the collectives that they issued last."""

import click

from holdfast.api.stacks import Standstill
from holdfast.cli.output import ExitCode, Format, emit, format_option
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def stacks(target: Target, form: Format) -> ExitCode:
    """Where each rank of JOB stands now: ranks at the same line share one, the fewest first.

    The ranks train on. An incident of a hang has what this command would have said before anything was ended:
    `holdfast why` shows it.
    """
    source = open_site(target).source()
    return emit(form, source.client().standing(), table=stacks_text, names=[f"job/{source.job}"])


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def flight(target: Target, form: Format) -> ExitCode:
    """Which rank of JOB is behind in which group, and where its ranks issued different collectives.

    Told by ranks that use holdfast.trainer, of the last collectives that torch recorded.
    """
    source = open_site(target).source()
    return emit(form, source.client().standing(), table=flight_text, names=[f"job/{source.job}"])


def stacks_text(found: Standstill) -> str:
    """A line for each place."""
    if not found.told:
        return "no rank says where it is: no round runs, or its launchers are away or of an older version"
    silent = found.world_size - found.told
    return "\n".join(
        [*found.stacks, *([f"{silent} of {found.world_size} ranks did not answer"] if silent else [])]
    )


def flight_text(found: Standstill) -> str:
    """What is wrong with the collectives, else that nothing is."""
    if found.collectives:
        return "\n".join(found.collectives)
    return f"the last collectives of the {found.told} of {found.world_size} ranks that answered are the same"
