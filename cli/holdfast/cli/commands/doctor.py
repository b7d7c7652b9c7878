"""`holdfast doctor|probe`: whether an installation, or this machine, is well; whether its GPUs compute right."""

import subprocess
import sys

import click
import msgspec

from holdfast.api.errors import Unavailable
from holdfast.api.selftest import Tested, TestLevel, Verdict
from holdfast.cli.doctor.finding import Finding, Level, findings_text
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.opening import look_around
from holdfast.cli.output import Format, emit, format_option
from holdfast.cli.target import JobWord, Place, Target, place_of, target_options
from holdfast.cli.view.table import seconds, table

_EXIT_CODES = {
    Verdict.PASSED: ExitCode.OK,
    Verdict.FAILED: ExitCode.FAILED,
    Verdict.UNKNOWN: ExitCode.UNAVAILABLE,
}


@click.command()
@target_options(JobWord.NONE)
@format_option
def doctor(target: Target, form: Format) -> ExitCode:
    """Check an installation in a cluster, or this machine for runs on it, and say what is missing.

    Exits with 1 when anything fails.
    """
    findings = _examined(target)
    failed = [each.what for each in findings if each.level is Level.FAIL]
    emit(form, findings, table=lambda: findings_text(findings), names=lambda: failed)
    return ExitCode.FAILED if failed else ExitCode.OK


def _examined(target: Target) -> tuple[Finding, ...]:
    try:
        place = place_of(target, look_around)
    except Unavailable:
        place = Place.STATE_DIRECTORY  # nothing is here yet: whether a run could be is what is asked
    if place is not Place.CLUSTER:
        from holdfast.cli.doctor.machine import examine_machine, look

        return examine_machine(look(target))
    from holdfast.cli.cluster.kubeapi import connect
    from holdfast.cli.cluster.proxiedline import Installation
    from holdfast.cli.doctor.checks import examine
    from holdfast.cli.doctor.gathering import Gathering

    api = connect(target)
    installation = Installation.of(target.holdfast_namespace, target.holdfast_service)
    return examine(Gathering(api, installation, target.namespace or api.namespace).facts())


@click.command()
@click.option(
    "--level",
    type=click.Choice([each.value for each in TestLevel]),
    default=TestLevel.LIGHT.value,
    show_default=True,
    help="light takes less than a minute, full less than ten on a GPU.",
)
@click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", show_default=True)
@click.option("--tensor", type=click.IntRange(min=1), help="Ranks that must share one NVLink domain.")
@click.option("--golden", metavar="FILE", help="Compare with this table of results known to be good.")
@click.option("--record", metavar="FILE", help="Add what passed to this table.")
@click.option("--repeat", type=click.IntRange(min=1), help="Runs of each check. Default: what the level promises.")
@click.option("--seed", type=click.IntRange(min=0, max=2**31), help="Other inputs.")
@click.option(
    "--inject", multiple=True, metavar="FAULT", help="For drills: flip:probability=0.02:seed=7, stuck, hang."
)
@format_option
def probe(form: Format, inject: tuple[str, ...], **given: object) -> ExitCode:
    """Test the GPUs of this machine, or its CPU: exact arithmetic, memory, bandwidth, collectives.

    Exits with 1 when a device fails, and with 3 when that cannot be told.
    """
    command = [sys.executable, "-m", "holdfast.agent.selftest", "--json"]
    for name, value in given.items():
        command += [f"--{name}", str(value)] if value is not None else []
    for fault in inject:
        command += ["--inject", fault]
    # In a process of its own: it forks and kills, and this one stays without torch.
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if not ended.stdout:
        # It was refused, or it was killed or broke off: then nobody knows about the devices.
        return ExitCode.INVALID if ended.returncode == ExitCode.INVALID else ExitCode.UNAVAILABLE
    tested = msgspec.json.decode(ended.stdout, type=Tested)
    failed = [f"{each.device}/{each.check}" for each in tested.checks if each.verdict is Verdict.FAILED]
    emit(form, tested, table=lambda: _tested_text(tested), names=lambda: failed)
    return _EXIT_CODES[tested.verdict]


def _tested_text(tested: Tested) -> str:
    """One line per check, and the whole in a sentence below them."""
    rows = [
        (each.verdict.value, each.check, each.device, seconds(each.took_s), each.says) for each in tested.checks
    ]
    lines = table(("VERDICT", "CHECK", "DEVICE", "TOOK", "SAYS"), rows)
    return f"{lines}\n\n{tested.verdict.value} in {seconds(tested.took_s)}: {tested.says}"
