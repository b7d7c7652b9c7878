"""Process ids of pods, as this process knows them.

A rank record names its process by the id it has in its own pod. An agent that shares the node's process namespace
sees the same process under another id. The kernel tells both (NSpid in /proc/PID/status), but not whose the inner
id is: many pods have a process 30. The process's control group tells, whose path names the pod's UID and which
anybody may read; which of the pod's containers it is in, the namespace itself, where the agent may look at it
(CAP_SYS_PTRACE). What a pod says of its namespace is only its word: it is told nothing of processes that are not
in its control group, be they the node's own.
Source: proc_pid_status(5), NSpid; pid_namespaces(7); cgroups(7), /proc/PID/cgroup
"""

import os
from dataclasses import dataclass
from typing import Final

from holdfast.agent.memberfile import own_pid_namespace
from holdfast.agent.tenants import Tenant

_FRESH_S: Final = 1.0  # a listing of all processes serves everybody who asks within this time
_PAUSE_S_MAX: Final = 60.0  # an id that cannot be found is looked for ever more rarely
_WAITING_MAX: Final = 4096
_READ_BYTES: Final = 8192


@dataclass(frozen=True, slots=True)
class _Waiting:
    again_at: float
    pause_s: float


class PidMap:
    """Finds the processes of tenants. What cannot be found for certain is None, never a guess."""

    def __init__(self, proc: str = "/proc") -> None:
        self._proc = proc
        self._own_namespace = own_pid_namespace()
        self._outer_of: dict[int, list[int]] = {}
        self._listed_at = float("-inf")
        self._waiting: dict[tuple[str, int], _Waiting] = {}

    def locate(self, tenant: Tenant, pid: int, now: float) -> int | None:
        """The id, here, of the process that `tenant` knows as `pid`. `now` is CLOCK_MONOTONIC in seconds."""
        if tenant.pid_namespace in (None, self._own_namespace):
            return pid if not tenant.pod or self._is_in_its_pod(pid, tenant) else None
        asked = (tenant.run_dir, pid)
        waiting = self._waiting.get(asked)
        if waiting is not None and now < waiting.again_at:
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
        pause_s = min(2 * waiting.pause_s, _PAUSE_S_MAX) if waiting is not None else _FRESH_S
        if len(self._waiting) >= _WAITING_MAX:
            self._waiting.clear()
        self._waiting[asked] = _Waiting(now + pause_s, pause_s)
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
            return self._namespace_of(outer) == tenant.pid_namespace and self._is_in_its_pod(outer, tenant)
        except PermissionError:
            return self._is_in_its_pod(outer, tenant)
        except OSError:
            return False

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
