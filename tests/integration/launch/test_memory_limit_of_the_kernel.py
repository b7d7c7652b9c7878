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


@pytest.fixture
def group() -> Iterator[Path]:
    is_v1 = (GROUPS / "memory").is_dir()
    made = (GROUPS / "memory" if is_v1 else GROUPS) / f"holdfast-limit-{os.getpid()}"
    made.mkdir()
    (made / ("memory.limit_in_bytes" if is_v1 else "memory.max")).write_text(str(LIMIT_BYTES))
    yield made
    made.rmdir()


def test_a_worker_beyond_its_groups_limit_is_seen_to_be_killed_for_it(group: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(group / "cgroup.procs")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=patient(30.0))
    assert ended.stdout.split() == ["9", "True", "False"], ended.stderr
