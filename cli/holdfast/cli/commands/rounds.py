"""`holdfast rounds` and `holdfast rollback`: what changed between rounds, what it did, and the way back."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.api.errors import HoldfastError, InvalidInput, Problem, Unavailable
from holdfast.api.intervention import InterventionAction
from holdfast.cli.casefile import case_of, remark_unread
from holdfast.cli.commands.intervene import DEFAULT_TIMEOUT_S, conclude
from holdfast.cli.output import ExitCode, Format, emit, format_option, plain, remark
from holdfast.cli.rounds.rollback import ImageRollback, code_of, image_rollback, round_named
from holdfast.cli.rounds.view import round_shown, rounds_text, rounds_wide_text
from holdfast.cli.site import open_site
from holdfast.cli.target import JobWord, Place, Target, place_of, target_options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.cluster.clustersite import ClusterSite
    from holdfast.cli.postmortem.case import Case
    from holdfast.cli.rounds.chronicle import RoundTold
    from holdfast.cli.rounds.comparison import Compared


@click.command()
@target_options(JobWord.ARGUMENT)
@format_option
def rounds(target: Target, form: Format) -> ExitCode:
    """Every round of JOB: what changed from the one before (code, configuration, data, image, packages,
    environment, world, history), and whether loss, MFU, tokens and step time moved beyond how they move by
    themselves.

    What changed is known as far as rounds tell how they were started, what it did as far as a console heard it.
    """
    case = case_of(open_site(target).source())
    found = _rounds_of(case)
    remark_unread(case)
    return emit(
        form,
        [round_shown(each) for each in found],
        table=lambda _: rounds_text(found),
        wide=lambda _: rounds_wide_text(found),
        names=[f"round/{each.round.number}" for each in found],
    )


@click.command()
@click.argument("number", metavar="ROUND", type=click.IntRange(min=0))
@click.option("--yes", is_flag=True, help="In a cluster: do it. Without it, what would be done is said.")
@click.option(
    "--to",
    "folder",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="On this machine: lay the code of that round out in this new folder.",
)
@target_options(JobWord.OPTION)
def rollback(number: int, yes: bool, folder: Path | None, target: Target) -> ExitCode:
    """Go back to the code that ROUND ran, as it told of it: never by itself, always because somebody asks for it.

    In a cluster: the job's template gets the image of that round again, and every worker starts anew from the
    newest checkpoint. The rest of the template stays as it is. On this machine: the commit and the diff of that
    round are laid out in a folder of their own; your work tree is left alone, and nothing is started.
    """
    from holdfast.cli.site import look_around

    site = open_site(target)
    case = case_of(site.source())
    wanted = round_named([each.round for each in _rounds_of(case)], number)
    if place_of(target, look_around) is Place.CLUSTER:
        if folder is not None:
            raise InvalidInput(Problem("--to", str(folder), "leave it out: a cluster goes back by the image"))
        return _of_image(site, case.job, wanted, is_meant=yes)
    if yes or folder is None:
        fix = "say with --to where the code is to be laid out; nothing is started on this machine"
        raise InvalidInput(Problem("--to", None, fix))
    return _laid_out(wanted, folder)


def _rounds_of(case: "Case") -> "Sequence[Compared]":
    """Raises Unavailable where the journal cannot be read: of a job that is known it has a line at least."""
    if not case.journal:
        raise Unavailable(" ".join(case.unread) or "the journal has no line of this job")
    return case.rounds


def _of_image(site: Any, job: str, wanted: "RoundTold", *, is_meant: bool) -> ExitCode:
    """Change the template, then have every worker start anew; the first alone moves nobody."""
    from holdfast.cli.cluster.podlogs import launcher_container

    cluster: ClusterSite = site
    namespace, _, name = job.partition("/")
    again = f"kubectl holdfast restart {name} -n {namespace}"
    spec = cluster.jobs().document(job).get("spec") or {}
    change = image_rollback(wanted, spec.get("template") or {}, launcher_container(spec))
    if change is None:
        says = f"the job's template has the image of round {wanted.number} already; nothing is to be changed"
        click.echo(f"{says}\nworkers that run another one start anew from it by: {again}")
        return ExitCode.OK
    says = f"container {change.container}: image {change.now} -> {change.then}, as round {wanted.number} told"
    if not is_meant:
        click.echo(plain(f"{says}\nthen every worker starts anew from the newest checkpoint\nto do it: add --yes"))
        return ExitCode.OK
    cluster.jobs().patch(job, change.patch)
    click.echo(plain(says))
    try:
        answer = cluster.hand_in(_restart(job, change, wanted), DEFAULT_TIMEOUT_S)
    except HoldfastError:
        remark(f"the template is changed, and no worker was started anew; once that is mended: {again}")
        raise
    return conclude(answer, DEFAULT_TIMEOUT_S)


def _restart(job: str, change: ImageRollback, wanted: "RoundTold") -> dict[str, Any]:
    from holdfast.api.metadata import API_VERSION

    namespace, _, name = job.partition("/")
    action = InterventionAction.RESTART
    reason = f"rolled back to the image of round {wanted.number}, {change.then}, from {change.now}"
    return {
        "apiVersion": API_VERSION,
        "kind": "Intervention",
        "metadata": {"generateName": f"{action.lower()}-", "namespace": namespace},
        "spec": {"job": name, "action": action.value, "reason": reason},
    }


def _laid_out(wanted: "RoundTold", folder: Path) -> ExitCode:
    """The code in a folder that was not there before; of a failure nothing is left."""
    import shutil

    from holdfast.cli.bisect.program import NotThere, is_as_recorded, lay_out

    code = code_of(wanted)
    if folder.exists():
        raise InvalidInput(Problem("--to", str(folder), "it exists: name a new folder"))
    try:
        root = lay_out(code, folder.absolute())
    except (NotThere, OSError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise Unavailable(f"the code of round {wanted.number} cannot be laid out: {error}") from error
    started_in, original = Path(code.directory), Path(code.root)
    place = root / started_in.relative_to(original) if started_in.is_relative_to(original) else root
    if code.files and not is_as_recorded(code, place):
        remark("some files are not as that round had them: they were not tracked by git, or differ")
    assert wanted.manifest is not None
    click.echo(plain(f"cd {shlex.quote(str(place))} && {shlex.join(wanted.manifest.command)}"))
    remark(f"the code of round {wanted.number} (commit {code.commit[:12]}) is in {folder}; it was started so")
    return ExitCode.OK
