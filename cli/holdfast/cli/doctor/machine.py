"""Checks of this machine for runs on it. Gathering is `look`; `examine_machine` is pure."""

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors import HoldfastError
from holdfast.cli.doctor.finding import Finding, Level, Unseen
from holdfast.cli.opening import open_site
from holdfast.cli.statedirectory import runs_under_here
from holdfast.cli.target import Target

PYTHON_LEAST: Final = (3, 11)
TORCH_LEAST: Final = (2, 9)
DISK_LEAST_BYTES: Final = 10 << 30  # a few checkpoints of a small model
SHM_LEAST_BYTES: Final = 1 << 30  # snapshots and gloo's buffers; containers often have 64 MB
GIB: Final = 1 << 30


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
    return Machine(
        python=sys.version_info[:3],
        holdfast=_version("holdfast"),
        torch=_version("torch"),
        directory=directory,
        writable=os.access(nearest, os.W_OK),
        disk_free_bytes=_free_bytes(nearest),
        shm_free_bytes=_free_bytes(Path("/dev/shm")),
        port=_port(),
        run=_run(target),
    )


def examine_machine(machine: Machine) -> tuple[Finding, ...]:
    """Every finding."""
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

    if isinstance(machine.port, Unseen):
        port = Finding(Level.FAIL, "port", machine.port.reason, "the watchdog listens on loopback: allow it")
    else:
        port = Finding(Level.OK, "port", machine.port)

    if isinstance(machine.run, Unseen):
        fix = "a run that is over answers no more; start it again"
        run = Finding(Level.WARN, "run", machine.run.reason, fix)
    else:
        run = Finding(Level.OK, "run", machine.run or "none here yet")

    disk_fix = "checkpoints need it: free some, or set --state-dir"
    disk = _space("disk", machine.disk_free_bytes, DISK_LEAST_BYTES, disk_fix)
    shm_fix = "in a container, start it with --shm-size=8g"
    shm = _space("/dev/shm", machine.shm_free_bytes, SHM_LEAST_BYTES, shm_fix)
    return (python, torch, directory, disk, shm, port, run)


def _space(what: str, free_bytes: int | Unseen, least_bytes: int, fix: str) -> Finding:
    if isinstance(free_bytes, Unseen):
        return Finding(Level.WARN, what, f"not known: {free_bytes.reason}")
    says = f"{free_bytes / GIB:.1f} GiB free"
    if free_bytes < least_bytes:
        return Finding(Level.WARN, what, says, fix)
    return Finding(Level.OK, what, says)


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


def _port() -> str | Unseen:
    """Whether a program may listen on loopback here."""
    try:
        with socket.create_server(("127.0.0.1", 0)):
            return "a free one on loopback is found when a run starts"
    except OSError as error:
        return Unseen(f"no port on loopback can be listened on: {error.strerror}")


def _run(target: Target) -> str | Unseen:
    if target.state_dir is None and target.watchdog is None and not runs_under_here():
        return ""
    try:
        found = open_site(target).statuses()
    except HoldfastError as error:
        return Unseen(str(error))
    return ", ".join(f"{each.job} is {each.phase}" for each in found) or "the watchdog knows no job"
