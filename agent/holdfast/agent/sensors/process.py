"""Processes of ranks: under which id this process knows them, and what the kernel says of each."""

import contextlib
import os
from dataclasses import dataclass
from typing import Final

from holdfast.agent.memberfile import own_pid_namespace
from holdfast.agent.tenants import Tenant
from holdfast.api.telemetry import ProcessState

_STAT_BYTES: Final = 512  # its first fields; the kernel cuts the name among them to 64 bytes
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")

# Source: proc_pid_stat(5), field 3, https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
# A zombie runs no more instruction, so it is gone for everybody who waits for its next step.
_STATES: Final = {
    "R": ProcessState.RUNNING,
    "S": ProcessState.RUNNING,
    "I": ProcessState.RUNNING,
    "D": ProcessState.BLOCKED,
    "T": ProcessState.STOPPED,
    "t": ProcessState.STOPPED,
    "Z": ProcessState.GONE,
    "X": ProcessState.GONE,
    "x": ProcessState.GONE,
}

_FRESH_S: Final = 1.0  # a listing of all processes serves everybody who asks within this time
_PAUSE_S_MAX: Final = 60.0  # an id that cannot be found is looked for ever more rarely
_WAITING_MAX: Final = 4096
_READ_BYTES: Final = 8192


def parse_state(stat: bytes) -> ProcessState:
    """The state in the text of /proc/PID/stat; UNKNOWN when the text is none.

    The name before the state is the process's own choice and may hold spaces and parentheses, so the state is
    looked for after the last closing parenthesis.
    """
    _, parenthesis, rest = stat.rpartition(b")")
    letter = rest[1:2].decode("ascii", "replace")
    return _STATES.get(letter, ProcessState.UNKNOWN) if parenthesis else ProcessState.UNKNOWN


def parse_worked_s(stat: bytes) -> float | None:
    """The time of processors that the process of /proc/PID/stat has used, in seconds; None when the text is none.

    Source: proc_pid_stat(5), fields 14 and 15, of all its threads.
    """
    fields = stat.rpartition(b")")[2].split()
    try:
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    except (IndexError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class ProcessSeen:
    """What the kernel says of a process: its state, and the time of processors that it has used, None: Unknown."""

    state: ProcessState
    worked_s: float | None = None


class WatchedProcess:
    """One process, followed through an open /proc/PID/stat.

    The open file belongs to the process and not to its number: once the process has died it says so, even when
    the number was given to another process in the meantime.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)

    def look(self) -> ProcessSeen:
        try:
            if self._file is not None:
                stat = os.pread(self._file, _STAT_BYTES, 0)
                return ProcessSeen(parse_state(stat), parse_worked_s(stat))
            # /proc does not show it: it may be hidden (hidepid) instead of dead.
            os.kill(self.pid, 0)
            return ProcessSeen(ProcessState.UNKNOWN)
        except ProcessLookupError:
            return ProcessSeen(ProcessState.GONE)
        except OSError:
            return ProcessSeen(ProcessState.UNKNOWN)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class PidMap:
    """Process ids of pods, as this process knows them. What cannot be found for certain is None, never a guess.

    A rank record names its process by the id it has in its own pod. An agent that shares the node's process
    namespace sees the same process under another id. The kernel tells both (NSpid in /proc/PID/status), but not
    whose the inner id is: many pods have a process 30. The process's control group tells, whose path names the
    pod's UID and which anybody may read; which of the pod's containers it is in, the namespace itself, where the
    agent may look at it (CAP_SYS_PTRACE). What a pod says of its namespace is only its word: it is told nothing of
    processes that are not in its control group, be they the node's own.
    Source: proc_pid_status(5), NSpid; pid_namespaces(7); cgroups(7), /proc/PID/cgroup
    """

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._own_namespace = own_pid_namespace()
        self._outer_of: dict[int, list[int]] = {}
        self._listed_at = float("-inf")
        self._waiting: dict[tuple[str, int], tuple[float, float]] = {}  # until when, and after how long a pause

    def locate(self, tenant: Tenant, pid: int, now: float) -> int | None:
        """The id, here, of the process that `tenant` knows as `pid`. `now` is CLOCK_MONOTONIC in seconds."""
        if tenant.pid_namespace in (None, self._own_namespace):
            return pid if not tenant.pod or self._is_in_its_pod(pid, tenant) else None
        asked = (tenant.run_dir, pid)
        again_at, paused_s = self._waiting.get(asked, (now, _FRESH_S / 2))
        if now < again_at:
            return None
        if now - self._listed_at >= _FRESH_S:
            self._listed_at, self._outer_of = now, {}
            for name in os.listdir(self._proc):
                if name.isdecimal() and (inner := self._inner_of(int(name))) is not None:
                    self._outer_of.setdefault(inner, []).append(int(name))
        found = [outer for outer in self._outer_of.get(pid, ()) if self._is_of(outer, tenant, pid)]
        if len(found) == 1:
            self._waiting.pop(asked, None)
            return found[0]
        pause_s = min(2 * paused_s, _PAUSE_S_MAX)
        if len(self._waiting) >= _WAITING_MAX:
            self._waiting.clear()
        self._waiting[asked] = (now + pause_s, pause_s)
        return None

    def _inner_of(self, outer: int) -> int | None:
        """The process's id in its innermost namespace; None for one that is in ours, or gone."""
        _, found, line = self._read(outer, "status").partition(b"\nNSpid:")
        ids = line.partition(b"\n")[0].split()
        return int(ids[-1]) if found and len(ids) > 1 else None

    def _is_of(self, outer: int, tenant: Tenant, pid: int) -> bool:
        if self._inner_of(outer) != pid:
            return False  # the number has gone to another process since the listing
        try:
            if self._namespace_of(outer) != tenant.pid_namespace:
                return False
        except PermissionError:
            pass  # then the control group has to do
        except OSError:
            return False
        return self._is_in_its_pod(outer, tenant)

    def _is_in_its_pod(self, outer: int, tenant: Tenant) -> bool:
        """Whether the kubelet put it into that pod's control group; its two drivers write the UID apart."""
        parts = self._read(outer, "cgroup").replace(b"\n", b"/").split(b"/")
        whole, ending = f"pod{tenant.pod}".encode(), f"pod{tenant.pod.replace('-', '_')}.slice".encode()
        return bool(tenant.pod) and any(part == whole or part.endswith(ending) for part in parts)

    def _namespace_of(self, outer: int) -> int:
        return os.stat(f"{self._proc}/{outer}/ns/pid").st_ino

    def _read(self, outer: int, name: str) -> bytes:
        try:
            descriptor = os.open(f"{self._proc}/{outer}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return os.read(descriptor, _READ_BYTES)
            finally:
                os.close(descriptor)
        except OSError:
            return b""
