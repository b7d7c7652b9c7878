"""`holdfast probe`."""

import subprocess
import sys

import click
import msgspec

from holdfast.api.selftest import Tested, TestLevel, Verdict
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.output import Format, Shown, emit, format_option
from holdfast.cli.view.selftest import selftest_text

_EXIT_CODES = {
    Verdict.PASSED: ExitCode.OK,
    Verdict.FAILED: ExitCode.FAILED,
    Verdict.UNKNOWN: ExitCode.UNAVAILABLE,
}


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
    emit(Shown(value=tested, table=lambda: selftest_text(tested), names=lambda: failed), form)
    return _EXIT_CODES[tested.verdict]
