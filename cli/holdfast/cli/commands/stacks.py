"""`holdfast stacks|flight|profile`: where ranks stand now, their last collectives, and where a step goes."""

import time
from typing import Final

import click

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.profile import RANKS_MAX, STEPS, STEPS_MAX, ProfileStatus
from holdfast.api.stacks import Standstill
from holdfast.cli.commands.intervene import conclude, intervention
from holdfast.cli.output import ExitCode, Format, emit, format_option
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Target, target_options

LOOK_S: Final = 0.5


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


@click.command()
@click.option("--ranks", default="0", show_default=True, metavar="N,...", help=f"{RANKS_MAX} at most.")
@click.option(
    "--steps", type=click.IntRange(1, STEPS_MAX), default=STEPS, show_default=True, help="How many to record."
)
@click.option(
    "--within", type=click.IntRange(min=1), default=300, show_default=True, help="Seconds to wait for it."
)
@click.option("--reason", default="asked for on the command line", show_default=True, help="Why; recorded.")
@target_options(JobWord.ARGUMENT)
@format_option
def profile(ranks: str, steps: int, within: int, reason: str, target: Target, form: Format) -> ExitCode:
    """Record the next steps of some ranks of JOB: a trace for ui.perfetto.dev, and its collectives in lines.

    The traces lie on the ranks' nodes, below their working directory. Ranks are slower while they record; JOB has
    to use holdfast.trainer. It is an intervention: whoever may ask for others may ask for it.
    """
    site, until = open_site(target), time.monotonic() + within
    source = site.source()
    wanted = {"ranks": _numbers(ranks), "steps": steps}
    asked = site.hand_in(intervention(source.job, InterventionAction.PROFILE, reason, {"profile": wanted}), within)
    if asked.state is not InterventionState.DONE:
        return conclude(asked, within)
    client = source.client()
    found = before = client.profiled()
    while found.number == before.number and not found.over and time.monotonic() < until:
        time.sleep(LOOK_S)
        found = client.profiled()
    emit(form, found, table=profile_text, names=[f"job/{source.job}"])
    got = {each.rank for each in found.told if not each.problem}
    return ExitCode.OK if got == set(found.ranks) else ExitCode.FAILED


def _numbers(ranks: str) -> list[int]:
    try:
        return [int(each) for each in ranks.split(",")]
    except ValueError:
        raise InvalidInput(Problem("--ranks", ranks, "give ranks with commas between, such as 0,7")) from None


def profile_text(found: ProfileStatus) -> str:
    """Each rank's trace and its collectives."""
    lines = []
    for each in sorted(found.told, key=lambda told: told.rank):
        if each.problem:
            lines.append(f"rank {each.rank}: {each.problem}")
            continue
        lines.append(f"rank {each.rank}: {each.path} ({each.size / 1e6:.2g} MB)")
        lines += [f"  {line}" for line in each.summary]
    missing = sorted(set(found.ranks) - {each.rank for each in found.told})
    if missing:
        why = found.over or "not yet; ask again later with `holdfast profile`"
        lines.append(f"no answer of ranks {', '.join(map(str, missing))}: {why}")
    return "\n".join(lines)


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
