"""Process ids of pods, found in a made-up /proc."""

import os
from pathlib import Path

import pytest

from holdfast.agent.sensors.process import PidMap
from holdfast.agent.tenants import Tenant

UID = "0a1b2c3d-1111-2222-3333-444455556666"
OF_THE_POD = f"0::/kubepods/burstable/pod{UID}/0123\n"
OTHER_UID = "ffffffff-1111-2222-3333-444455556666"


class Proc:
    """A /proc below `folder`: a file stands for a namespace, its inode is the namespace's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "proc"
        self.folder.mkdir()
        (self.folder / "self").mkdir()
        (self.folder / "uptime").touch()
        self.namespaces = folder / "namespaces"
        self.namespaces.mkdir()
        self.listings = 0

    def namespace(self, name: str) -> int:
        path = self.namespaces / name
        path.touch()
        return path.stat().st_ino

    def add(self, outer: int, *inner: int, namespace: str = "host", cgroup: str = OF_THE_POD) -> None:
        process = self.folder / str(outer)
        (process / "ns").mkdir(parents=True)
        ids = "\t".join(str(each) for each in (outer, *inner))
        (process / "status").write_text(f"Name:\tpython\nPid:\t{outer}\nNSpid:\t{ids}\nNSpgid:\t{ids}\n")
        (process / "cgroup").write_text(cgroup)
        self.namespace(namespace)
        os.link(self.namespaces / namespace, process / "ns" / "pid")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def a_tenant(namespace: int | None, pod: str = UID) -> Tenant:
    return Tenant("ns/gpt", f"/pods/{pod}", pid_namespace=namespace, pod=pod)


def test_ids_of_its_own_namespace_are_what_they_are(proc: Proc) -> None:
    own = os.stat("/proc/self/ns/pid").st_ino
    pids = PidMap(str(proc.folder))
    assert pids.locate(a_tenant(None, pod=""), 30, 0.0) == 30
    assert pids.locate(a_tenant(own, pod=""), 30, 0.0) == 30
    proc.add(30)
    assert pids.locate(a_tenant(own), 30, 0.0) == 30, "the pod shares the node's namespace"


@pytest.mark.parametrize(
    "cgroup", ["0::/system.slice/kubelet.service\n", f"0::/kubepods/pod{OTHER_UID}/0123\n", ""]
)
def test_a_pod_that_claims_the_nodes_or_anothers_namespace_is_told_nothing(proc: Proc, cgroup: str) -> None:
    proc.add(30, cgroup=cgroup)
    proc.add(1000, 30, namespace="a", cgroup=cgroup)
    pids = PidMap(str(proc.folder))
    assert pids.locate(a_tenant(os.stat("/proc/self/ns/pid").st_ino), 30, 0.0) is None
    assert pids.locate(a_tenant(proc.namespace("a")), 30, 0.0) is None


def test_the_id_is_found_in_the_pods_own_namespace(proc: Proc) -> None:
    proc.add(1000, 30, namespace="a")
    proc.add(2000, 30, namespace="b")
    proc.add(30)
    pids = PidMap(str(proc.folder))
    assert pids.locate(a_tenant(proc.namespace("b")), 30, 0.0) == 2000


def test_an_id_that_nobody_has_is_unknown_and_looked_for_ever_more_rarely(proc: Proc) -> None:
    pids = PidMap(str(proc.folder))
    tenant = a_tenant(proc.namespace("a"))
    assert pids.locate(tenant, 30, 0.0) is None
    proc.add(1000, 30, namespace="a")
    assert pids.locate(tenant, 30, 0.9) is None
    assert pids.locate(tenant, 30, 1.0) == 1000
    assert pids.locate(tenant, 31, 2.0) is None
    assert pids.locate(tenant, 31, 3.0) is None
    proc.add(1001, 31, namespace="a")
    assert pids.locate(tenant, 31, 4.9) is None
    assert pids.locate(tenant, 31, 5.0) == 1001


def test_a_number_that_went_to_another_process_since_the_listing_is_not_taken(proc: Proc) -> None:
    proc.add(1000, 30, namespace="a")
    pids = PidMap(str(proc.folder))
    tenant = a_tenant(proc.namespace("a"))
    assert pids.locate(tenant, 29, 0.0) is None
    (proc.folder / "1000" / "status").write_text("Name:\tsh\nNSpid:\t1000\t77\n")
    assert pids.locate(tenant, 30, 0.5) is None


class Unprivileged(PidMap):
    """May not look at other users' namespaces."""

    def _namespace_of(self, outer: int) -> int:
        raise PermissionError


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods/burstable/pod{UID}/0123456789abcdef\n",
        f"0::/../../pod{UID}/0123456789abcdef\n",
        f"12:pids:/node-1/kubepods/besteffort/pod{UID}/0123\n1:name=systemd:/x\n",
        f"0::/kubepods.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-0123.scope\n",
    ],
)
def test_without_a_look_at_namespaces_the_control_group_tells_the_pod(proc: Proc, cgroup: str) -> None:
    proc.add(1000, 30, namespace="a", cgroup=cgroup)
    proc.add(2000, 30, namespace="b", cgroup=f"0::/kubepods/burstable/pod{OTHER_UID}/0123\n")
    assert Unprivileged(str(proc.folder)).locate(a_tenant(1), 30, 0.0) == 1000


def test_two_containers_of_a_pod_with_the_same_id_are_not_guessed_between(proc: Proc) -> None:
    for outer in (1000, 2000):
        proc.add(outer, 30, namespace=f"{outer}", cgroup=f"0::/kubepods/pod{UID}/{outer}\n")
    assert Unprivileged(str(proc.folder)).locate(a_tenant(1), 30, 0.0) is None
    assert PidMap(str(proc.folder)).locate(a_tenant(proc.namespace("2000")), 30, 0.0) == 2000
