"""A real control group with a real limit: the kernel counts what it kills there."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patient

pytestmark = pytest.mark.needs("cgroups")

GROUPS = Path("/sys/fs/cgroup")
LIMIT_BYTES = 96 << 20
# A process enters the group, and one that it starts takes more than there is.
SCRIPT = """
import os, sys
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
from holdfast.agent.launch.ending import MemoryLimit
limit = MemoryLimit()
if not os.fork():
    Path("/proc/self/oom_score_adj").write_text("1000")
    held = bytearray(1 << 30)
    held[::4096] = bytes(len(held[::4096]))
    os._exit(0)
status = os.wait()[1]
print(os.WTERMSIG(status), limit.has_killed(), limit.has_killed())
"""


# The same in a group below the limited one, as a container is in its pod's group: what the kernel counts of the
# pod is out of its sight.
BELOW = SCRIPT.replace(
    "limit = MemoryLimit()",
    """own = Path(sys.argv[1]).parent
limit = MemoryLimit(own, Path("/none"))
limit.look()
limit.look()""",
)


@pytest.fixture
def group() -> Iterator[Path]:
    is_v1 = (GROUPS / "memory").is_dir()
    made = (GROUPS / "memory" if is_v1 else GROUPS) / f"holdfast-limit-{os.getpid()}"
    made.mkdir()
    (made / limit_file()).write_text(str(LIMIT_BYTES))
    yield made
    made.rmdir()


def limit_file() -> str:
    return "memory.limit_in_bytes" if (GROUPS / "memory").is_dir() else "memory.max"


@pytest.fixture
def container(group: Path) -> Iterator[Path]:
    """A container without a limit of its own, whose kubelet gives it the pod's."""
    if not (GROUPS / "memory").is_dir():
        (group / "cgroup.subtree_control").write_text("+memory")
    made = group / "container"
    made.mkdir()
    (made / limit_file()).write_text(str(LIMIT_BYTES))
    yield made
    made.rmdir()


@pytest.fixture
def sidecar(group: Path) -> Iterator[None]:
    """What another container of the pod holds of its memory: a file that lies in memory."""
    made = group / "sidecar"
    made.mkdir()
    code = f"""
import os
open({str(made / "cgroup.procs")!r}, "w").write(str(os.getpid()))
held = bytearray({LIMIT_BYTES // 4})
print("holds", flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        yield
        holder.communicate("\n")
    made.rmdir()


def test_a_worker_beyond_its_groups_limit_is_seen_to_be_killed_for_it(group: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(group / "cgroup.procs")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(30.0))
    assert ended.stdout.split() == ["9", "True", "False"], ended.stderr


@pytest.mark.usefixtures("sidecar")
def test_a_worker_beyond_the_limit_of_its_whole_pod_is_seen_to_be_killed_for_it(container: Path) -> None:
    command = [sys.executable, "-c", BELOW, str(container / "cgroup.procs")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(30.0))
    assert ended.stdout.split() == ["9", "True", "False"], ended.stderr
