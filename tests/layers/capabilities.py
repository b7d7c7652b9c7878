"""What some tests need of a machine beyond `.venv`: whether it is here, and which command proves them elsewhere.

A test says it with `@pytest.mark.needs("redis")`, a module with `pytestmark`, or by asking for a fixture that is
listed here. A new capability is a row of CAPABILITIES.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

WHOLE = "make test FULL=1"
ASK_S_MAX = 20.0
CONTROL_GROUPS = Path("/sys/fs/cgroup")
# Servers are not on the PATH of everybody, but where Debian puts them.
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


@dataclass(frozen=True)
class Capability:
    """`lacking` says in a few words why the machine has it not, and nothing where it has.

    `is_installed`: a whole run gets it itself, where it is root and has apt-get. `proved_by` is the command that
    runs the tests which need it.
    """

    name: str
    lacking: Callable[[], str]
    is_installed: bool = False
    fixtures: frozenset[str] = frozenset()
    proved_by: str = WHOLE


def programs(*names: str) -> Callable[[], str]:
    """Lacking where one of them is not installed."""

    @cache
    def lacking() -> str:
        missing = [name for name in names if shutil.which(name, path=PATH) is None]
        return f"there is no {' and no '.join(missing)}" if missing else ""

    return lacking


@cache
def no_namespaces() -> str:
    """Asked of the kernel and not of the user's number: root in a container may make none either."""
    tried = ("unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt")
    return "" if succeeds(tried) else "only root may make namespaces and mount in them"


@cache
def no_control_groups() -> str:
    """Version 1 has a folder for each resource, version 2 one for all."""
    memory = CONTROL_GROUPS / "memory"
    folder = memory if memory.is_dir() else CONTROL_GROUPS
    return "" if os.access(folder, os.W_OK) else f"{folder} may not be written"


@cache
def not_root() -> str:
    return "" if os.geteuid() == 0 else "it is about what root may and others may not"


def succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=ASK_S_MAX, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def module(name: str) -> Callable[[], str]:
    """Lacking where Python finds none of this name."""

    @cache
    def lacking() -> str:
        return "" if find_spec(name) else "make install leaves it out: it is large, or wants another torch"

    return lacking


TUTORIALS, KUEUE = "make bench NAME=tutorials", "make bench NAME=kueue"
REDIS = frozenset({"redis_server", "shared_redis"})
CAPABILITIES = {
    each.name: each
    for each in (
        Capability("root", not_root),
        Capability("namespaces", no_namespaces),
        Capability("cgroups", no_control_groups),
        Capability("redis", programs("redis-server"), is_installed=True, fixtures=REDIS),
        Capability("prometheus", programs("prometheus", "promtool"), is_installed=True),
        Capability("alertmanager", programs("prometheus-alertmanager", "amtool"), is_installed=True),
        Capability("torchtitan", module("torchtitan"), proved_by=TUTORIALS),
        Capability("deepspeed", module("deepspeed"), proved_by=TUTORIALS),
        Capability("ray", module("ray"), proved_by=TUTORIALS),
        Capability(
            "kueue", lambda: "an API server with Kueue is started by its bench", proved_by="make bench NAME=kueue"
        ),
    )
}


def needed(words: Iterable[str], fixtures: Iterable[str] = ()) -> list[Capability]:
    """Those that a test names, and those behind its fixtures, in the order of the table. Raises ValueError."""
    named, asked = set(words), set(fixtures)
    if unknown := named - CAPABILITIES.keys():
        raise ValueError(
            f"needs({min(unknown)!r}): there is no such capability; there are: {', '.join(CAPABILITIES)}"
        )
    return [each for each in CAPABILITIES.values() if each.name in named or each.fixtures & asked]
