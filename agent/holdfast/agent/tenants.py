"""Whose run directories are on this node: one that was named, or those of all pods that the kubelet runs here."""

import os
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.agent.memberfile import FILE_NAME, read_member
from holdfast.api.errors import Damaged, Unavailable
from holdfast.api.telemetry import Unreadable

_PARTS: Final = 3  # none of them may have an underscore
RUN_VOLUME: Final = "holdfast-run"
"""The name of the emptyDir volume, in a pod, that is its launcher's run directory."""
_PATH_IN_POD: Final = f"volumes/kubernetes.io~empty-dir/{RUN_VOLUME}"
_LOOK_INTERVAL_S: Final = 1.0


class PodNames:
    """The pods of this node by UID, as the kubelet knows them: by namespace and name.

    It keeps a folder of logs for each pod, named by its namespace, its name and its UID, and no pod can write
    there.
    Source: https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-location-node
    """

    def __init__(self, directory: str) -> None:
        """Raises Unavailable when the directory of logs cannot be listed."""
        self._directory = directory
        self._known: dict[str, tuple[str, str]] = {}
        try:
            self._read()
        except OSError as error:
            fix = "Mount the node's /var/log/pods there, read-only, and run as root."
            raise Unavailable(
                f"The pods' log directory {directory} cannot be listed: {error.strerror}. {fix}"
            ) from error

    def of(self, uid: str) -> tuple[str, str] | None:
        """The pod; None while the kubelet tells of none with this UID."""
        if uid not in self._known:
            try:
                self._read()
            except OSError:
                return None
        return self._known.get(uid)

    def _read(self) -> None:
        with os.scandir(self._directory) as entries:
            parts = [entry.name.split("_") for entry in entries]
        self._known = {each[2]: (each[0], each[1]) for each in parts if len(each) == _PARTS}


@dataclass(frozen=True, slots=True)
class Tenant:
    """One launcher's run directory. `member` is the pod's name, where it is a pod's.

    `pid_namespace` is that of the ids in its records, None: this process's own. `pod` is the pod's UID.
    """

    job: str
    run_dir: str
    member: str = ""
    boot: str = ""
    pid_namespace: int | None = None
    pod: str = ""


class Tenants(Protocol):
    """Who is on the node."""

    def look(self, now: float) -> tuple[Tenant, ...]:
        """All tenants there are at `now` (CLOCK_MONOTONIC, seconds); called about ten times a second."""
        ...

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        """What kept the last look from seeing."""
        ...


class OneTenant:
    """The run directory somebody named."""

    unreadable: tuple[Unreadable, ...] = ()

    def __init__(self, job: str, run_dir: str) -> None:
        self._tenants = (Tenant(job, run_dir),)

    def look(self, now: float) -> tuple[Tenant, ...]:
        return self._tenants


class KubeletPods:
    """The pods below the kubelet's pods directory that hold a launcher. It is only ever read.

    What is in a pod's volume is that pod's own word, so nothing there is followed or waited for, and it is taken
    only for the member that the pod is: of a job of its own namespace, under its own name.
    """

    def __init__(self, directory: str, names: PodNames) -> None:
        """Raises Unavailable when the directory cannot be listed."""
        self._directory = directory
        self._names = names
        self._next_look_at = float("-inf")
        self._known: dict[str, _Pod] = {}
        self._problem: str | None = None
        try:
            os.scandir(directory).close()
        except OSError as error:
            fix = "Mount the node's /var/lib/kubelet/pods there, read-only, and run as root."
            raise Unavailable(
                f"The pods directory {directory} cannot be listed: {error.strerror}. {fix}"
            ) from error

    @property
    def unreadable(self) -> tuple[Unreadable, ...]:
        # One source for them all: pods come and go, and sources are remembered and exported for good.
        problems = [Unreadable("pods", f"{uid}: {pod.problem}") for uid, pod in self._known.items() if pod.problem]
        if self._problem is not None:
            problems.append(Unreadable("kubelet-pods", self._problem))
        return tuple(problems)

    def look(self, now: float) -> tuple[Tenant, ...]:
        if now >= self._next_look_at:
            self._next_look_at = now + _LOOK_INTERVAL_S
            try:
                with os.scandir(self._directory) as entries:
                    uids = [entry.name for entry in entries]
                self._problem = None
                present = ((uid, self._pod(uid)) for uid in uids)
                self._known = {uid: pod for uid, pod in present if pod is not None}
            except OSError as error:
                # Who was there is not gone for that: their records are open.
                self._problem = f"cannot list {self._directory}: {error.strerror}"
        return tuple(each.tenant for each in self._known.values() if each.tenant is not None)

    def _pod(self, uid: str) -> "_Pod | None":
        """What is in a pod's volume now; None for a pod that holds no launcher."""
        run_dir = f"{self._directory}/{uid}/{_PATH_IN_POD}"
        try:
            # Not os.path.exists: most pods are no launchers, and this is the cheapest way to learn it.
            found = os.lstat(f"{run_dir}/{FILE_NAME}")
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return _Pod((0, 0, 0), problem=f"cannot look at its run directory: {error.strerror}")
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        known = self._known.get(uid)
        if known is not None and known.seen == seen and known.pod is not None:
            return known
        pod = self._names.of(uid)
        if pod is None:
            return _Pod(seen, problem="the kubelet does not say which pod this is")
        try:
            said = read_member(f"{run_dir}/{FILE_NAME}")
        except OSError as error:
            return _Pod(seen, pod, problem=f"cannot open {FILE_NAME}: {error.strerror}")
        except Damaged as error:
            return _Pod(seen, pod, problem=str(error))
        if (said.job.partition("/")[0], said.member) != pod:
            # Every job of the node is told: neither the pod nor what it claims is named.
            return _Pod(seen, pod, problem="it says that it is another pod than it is: nothing it says counts")
        return _Pod(seen, pod, Tenant(said.job, run_dir, said.member, said.boot, said.pid_namespace, uid))


@dataclass(frozen=True, slots=True)
class _Pod:
    """`seen` tells one member file from the next one in its place; `pod` is None until the kubelet names it."""

    seen: tuple[int, int, int]
    pod: tuple[str, str] | None = None
    tenant: Tenant | None = None
    problem: str = ""
