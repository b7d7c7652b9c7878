"""Who uses a run directory: one small file the launcher leaves there for the agent of its node."""

import os
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.bounds import Job, Name
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed

FILE_NAME: Final = "member.json"
_BYTES_MAX: Final = 4096


class Member(msgspec.Struct, frozen=True):
    """One run of a launcher.

    `pid_namespace` is the inode of the process namespace that the process ids in its rank records belong to.
    """

    job: Job
    member: Name
    node: Name
    boot: Name
    pid_namespace: int


def own_pid_namespace() -> int:
    """The inode of this process's process namespace. Source: namespaces(7), "The /proc/pid/ns/ directory"."""
    return os.stat("/proc/self/ns/pid").st_ino


def write_member(run_dir: Path, member: Member) -> None:
    """Leave `member` in `run_dir`, whole or not at all. Raises OSError."""
    fresh = run_dir / f"{FILE_NAME}.{os.getpid()}"
    fresh.write_bytes(msgspec.json.encode(member))
    os.replace(fresh, run_dir / FILE_NAME)


def read_member(path: str) -> Member:
    """Read what a workload wrote. Raises OSError, also for a symbolic link; Damaged when it is no member file."""
    # A link could lead anywhere on the node, and a FIFO would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        content = os.read(descriptor, _BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(content) > _BYTES_MAX:
        raise Damaged(f"{FILE_NAME} is larger than {_BYTES_MAX} bytes")
    try:
        member = decode_json(content, Member)
    except Malformed as error:
        raise Damaged(f"{FILE_NAME} cannot be understood: {error}") from error
    namespace, slash, name = member.job.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise Damaged(f"{FILE_NAME} names the job {member.job!r}, which is no NAMESPACE/NAME")
    return member
