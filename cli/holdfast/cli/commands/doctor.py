"""`holdfast doctor|probe`: whether an installation, this machine or a script is well; whether GPUs are."""

import importlib.metadata
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import click
import msgspec

from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable
from holdfast.api.selftest import Tested, TestLevel, Verdict
from holdfast.cli.doctor.facts import Finding, Level, Unseen, findings_text
from holdfast.cli.output import ExitCode, Format, emit, format_option, seconds, table
from holdfast.cli.site import look_around, open_site
from holdfast.cli.statedirectory import runs_under_here
from holdfast.cli.target import JobWord, Place, Target, place_of, split_job, target_options

PYTHON_LEAST: Final = (3, 11)
TORCH_LEAST: Final = (2, 9)
DISK_LEAST_BYTES: Final = 10 << 30  # a few checkpoints of a small model
SHM_LEAST_BYTES: Final = 1 << 30  # snapshots and gloo's buffers; containers often have 64 MB
GIB: Final = 1 << 30
_EXIT_CODES = {
    Verdict.PASSED: ExitCode.OK,
    Verdict.FAILED: ExitCode.FAILED,
    Verdict.UNKNOWN: ExitCode.UNAVAILABLE,
}


@click.command()
@click.argument("script", required=False, type=click.Path())
@target_options(JobWord.NONE)
@format_option
def doctor(script: str | None, target: Target, form: Format) -> ExitCode:
    """Check an installation in a cluster, or this machine for runs on it, and say what is missing.

    With SCRIPT: read that training script, never run it, and say which change buys what. With the job file of a
    plan: what the plan assumed beside what was measured. Exits with 1 when anything fails.
    """
    if script is not None and Path(script).suffix in (".yaml", ".yml", ".json"):
        return _told(_examine_job(Path(script), target), form)
    if script is not None:
        from holdfast.cli.doctor.script import read_script
        from holdfast.cli.doctor.scriptchecks import examine_script

        return _told(examine_script(read_script(Path(script))), form)
    try:
        place = place_of(target, look_around)
    except Unavailable:
        place = Place.STATE_DIRECTORY  # nothing is here yet: whether a run could be is what is asked
    if place is Place.CLUSTER:
        from holdfast.cli.cluster.kubeapi import connect
        from holdfast.cli.cluster.proxiedline import Installation
        from holdfast.cli.doctor.checks import examine
        from holdfast.cli.doctor.gathering import Gathering

        api = connect(target)
        installation = Installation.of(target.holdfast_namespace, target.holdfast_service)
        findings = examine(Gathering(api, installation, target.namespace or api.namespace).facts())
    else:
        findings = examine_machine(look(target))
    return _told(findings, form)


def _examine_job(file: Path, target: Target) -> Sequence[Finding]:
    """The plan that a job file carries, beside the run that there is of the job, if any."""
    from holdfast.cli.doctor.planchecks import examine_plan, read_planned, truth_of

    job, question, layout = read_planned(file)
    if layout is None:
        fix = "write it with `holdfast plan --write`: it then says what it assumed"
        return [Finding(Level.WARN, "plan", f"{file} carries no layout that was planned", fix)]
    namespace, name = split_job(job, "")
    try:
        source = open_site(replace(target, job=f"{target.namespace or namespace}/{name}")).source()
        truth, unread = truth_of(source, question, layout)
    except (Unavailable, InvalidInput) as error:
        fix = "start it, or say where it is (--state-dir, --watchdog, --namespace); ask again when it trains"
        return [Finding(Level.WARN, "run", f"none is found to compare the plan of {job} with: {error}", fix)]
    return [*unread, *examine_plan(question, layout, truth)]


def _told(findings: Sequence[Finding], form: Format) -> ExitCode:
    failed = [each.what for each in findings if each.level is Level.FAIL]
    emit(form, findings, table=findings_text, names=failed)
    return ExitCode.FAILED if failed else ExitCode.OK


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What is seen of this machine. `run` tells of the run there is, empty when there is none."""

    python: tuple[int, int, int]
    holdfast: str | None
    torch: str | None
    directory: Path
    writable: bool
    disk_free_bytes: int | Unseen
    shm_free_bytes: int | Unseen
    port: str | Unseen
    run: str | Unseen


def look(target: Target) -> Machine:
    """Look at this machine; `target` says which run, if any."""
    directory = target.state_dir or Path(".holdfast").absolute()
    nearest = next(each for each in (directory, *directory.absolute().parents) if each.exists())
    port: str | Unseen = "a free one on loopback is found when a run starts"
    try:
        socket.create_server(("127.0.0.1", 0)).close()
    except OSError as error:
        port = Unseen(f"no port on loopback can be listened on: {error.strerror}")
    run: str | Unseen = ""
    if target.state_dir is not None or target.watchdog is not None or runs_under_here():
        try:
            told = [f"{each.job} is {each.phase}" for each in open_site(target).statuses()]
            run = ", ".join(told) or "the watchdog knows no job"
        except HoldfastError as error:
            run = Unseen(str(error))
    return Machine(
        python=sys.version_info[:3],
        holdfast=_version("holdfast"),
        torch=_version("torch"),
        directory=directory,
        writable=os.access(nearest, os.W_OK),
        disk_free_bytes=_free_bytes(nearest),
        shm_free_bytes=_free_bytes(Path("/dev/shm")),
        port=port,
        run=run,
    )


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _free_bytes(path: Path) -> int | Unseen:
    try:
        return shutil.disk_usage(path).free
    except OSError as error:
        return Unseen(f"{path}: {error.strerror} on {platform.system()}")


def examine_machine(machine: Machine) -> tuple[Finding, ...]:
    """Every finding; pure."""
    says = f"{'.'.join(map(str, machine.python))}, holdfast {machine.holdfast or 'of unknown version'}"
    python = Finding(Level.OK, "Python", says)
    if machine.python[:2] < PYTHON_LEAST:
        python = Finding(Level.FAIL, "Python", says, "use Python 3.11 or newer")

    least = ".".join(map(str, TORCH_LEAST))
    if machine.torch is None:
        torch = Finding(Level.WARN, "torch", "not installed", "training needs it: pip install 'holdfast[torch]'")
    elif tuple(int(part) for part in machine.torch.split(".")[:2] if part.isdecimal()) < TORCH_LEAST:
        torch = Finding(Level.FAIL, "torch", machine.torch, f"install {least} or newer")
    else:
        torch = Finding(Level.OK, "torch", machine.torch)

    directory = Finding(Level.OK, "state directory", str(machine.directory))
    if not machine.writable:
        fix = "name another with --state-dir, or change its rights"
        directory = Finding(Level.FAIL, "state directory", f"{machine.directory} cannot be written", fix)

    spaces = []
    for what, free_bytes, least_bytes, fix in (
        ("disk", machine.disk_free_bytes, DISK_LEAST_BYTES, "checkpoints need it: free some, or set --state-dir"),
        ("/dev/shm", machine.shm_free_bytes, SHM_LEAST_BYTES, "in a container, start it with --shm-size=8g"),
    ):
        if isinstance(free_bytes, Unseen):
            spaces.append(Finding(Level.WARN, what, f"not known: {free_bytes.reason}"))
        elif free_bytes < least_bytes:
            spaces.append(Finding(Level.WARN, what, f"{free_bytes / GIB:.1f} GiB free", fix))
        else:
            spaces.append(Finding(Level.OK, what, f"{free_bytes / GIB:.1f} GiB free"))

    port = Finding(Level.OK, "port", str(machine.port))
    if isinstance(machine.port, Unseen):
        port = Finding(Level.FAIL, "port", machine.port.reason, "the watchdog listens on loopback: allow it")

    run = Finding(Level.OK, "run", str(machine.run) or "none here yet")
    if isinstance(machine.run, Unseen):
        run = Finding(Level.WARN, "run", machine.run.reason, "a run that is over answers no more; start it again")
    return (python, torch, directory, *spaces, port, run)


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
    rows = [
        (each.verdict.value, each.check, each.device, seconds(each.took_s), each.says) for each in tested.checks
    ]
    lines = table(("VERDICT", "CHECK", "DEVICE", "TOOK", "SAYS"), rows)
    text = f"{lines}\n\n{tested.verdict.value} in {seconds(tested.took_s)}: {tested.says}"
    emit(form, tested, table=lambda _: text, names=failed)
    return _EXIT_CODES[tested.verdict]
