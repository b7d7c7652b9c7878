"""Who is on the node, as the kubelet's pods directory shows it."""

import os
from pathlib import Path

import pytest

from holdfast.agent.memberfile import FILE_NAME, Member, write_member
from holdfast.agent.tenants import KubeletPods, OneTenant, PodNames
from holdfast.api.errors import Unavailable
from holdfast.api.telemetry import Unreadable

MEMBER = Member(job="ns/gpt", member="gpt-0", node="node-1", boot="b1", pid_namespace=4026532000)


def pod(pods: Path, uid: str, volume: str = "holdfast-run", name: str = "ns_gpt-0") -> Path:
    """A pod with an emptyDir volume, and the kubelet's folder of its logs; returns the volume."""
    (logs_of(pods) / f"{name}_{uid}").mkdir(parents=True)
    run_dir = pods / uid / "volumes" / "kubernetes.io~empty-dir" / volume
    run_dir.mkdir(parents=True)
    return run_dir


def logs_of(pods: Path) -> Path:
    return pods.parent / f"logs-of-{pods.name}"


def kubelet_pods(directory: Path) -> KubeletPods:
    logs_of(directory).mkdir(exist_ok=True)
    return KubeletPods(str(directory), PodNames(str(logs_of(directory))))


def members(pods: KubeletPods, now: float) -> list[str]:
    return [tenant.member for tenant in pods.look(now)]


def test_a_named_run_directory_is_the_only_one() -> None:
    (tenant,) = OneTenant("ns/gpt", "/run").look(0.0)
    assert (tenant.job, tenant.run_dir, tenant.pid_namespace) == ("ns/gpt", "/run", None)


def test_a_pod_with_a_launcher_is_found_and_others_are_not(tmp_path: Path) -> None:
    run_dir = pod(tmp_path, "1-2-3")
    write_member(run_dir, MEMBER)
    pod(tmp_path, "4-5-6", volume="scratch")
    pod(tmp_path, "7-8-9")
    (tmp_path / "a-file").touch()
    pods = kubelet_pods(tmp_path)
    (tenant,) = pods.look(0.0)
    assert (tenant.job, tenant.member, tenant.run_dir) == ("ns/gpt", "gpt-0", str(run_dir))
    assert (tenant.boot, tenant.pid_namespace, tenant.pod) == ("b1", 4026532000, "1-2-3")
    assert pods.unreadable == ()


def test_pods_come_and_go_within_a_second(tmp_path: Path) -> None:
    pods = kubelet_pods(tmp_path)
    assert members(pods, 0.0) == []
    run_dir = pod(tmp_path, "1-2-3")
    write_member(run_dir, MEMBER)
    assert members(pods, 0.9) == []
    assert members(pods, 1.0) == ["gpt-0"]
    (run_dir / FILE_NAME).unlink()
    assert members(pods, 2.0) == []


def test_a_launcher_that_starts_again_in_its_pod_is_another_tenant(tmp_path: Path) -> None:
    run_dir = pod(tmp_path, "1-2-3")
    write_member(run_dir, MEMBER)
    pods = kubelet_pods(tmp_path)
    (before,) = pods.look(0.0)
    assert pods.look(1.0) == (before,)
    write_member(run_dir, Member("ns/gpt", "gpt-0", "node-1", "b2", 4026532999))
    (after,) = pods.look(2.0)
    assert (after.boot, after.pid_namespace) == ("b2", 4026532999)


def test_a_file_that_is_no_member_file_is_said_and_the_others_are_read(tmp_path: Path) -> None:
    write_member(pod(tmp_path, "1-2-3"), MEMBER)
    (pod(tmp_path, "4") / FILE_NAME).write_text("{}")
    (pod(tmp_path, "5") / FILE_NAME).write_text("x" * 5000)
    (pod(tmp_path, "6") / FILE_NAME).symlink_to("/etc/passwd")
    write_member(pod(tmp_path, "7"), Member("no-namespace", "m", "n", "b", 1))
    pods = kubelet_pods(tmp_path)
    assert members(pods, 0.0) == ["gpt-0"]
    said = dict(each.reason.split(": ", 1) for each in pods.unreadable)
    assert "cannot be understood" in said["4"]
    assert "larger than 4096 bytes" in said["5"]
    assert "cannot open member.json" in said["6"]
    assert "is no NAMESPACE/NAME" in said["7"]
    assert {each.source for each in pods.unreadable} == {"pods"}, "no pod's name becomes a metric's label"


def test_a_fifo_in_its_place_blocks_nobody(tmp_path: Path) -> None:
    os.mkfifo(pod(tmp_path, "1") / FILE_NAME)
    pods = kubelet_pods(tmp_path)
    assert members(pods, 0.0) == []
    assert "cannot be understood" in pods.unreadable[0].reason


def test_a_directory_that_is_not_there_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Mount the node's /var/lib/kubelet/pods there, read-only"):
        kubelet_pods(tmp_path / "missing")


def test_a_directory_that_vanishes_later_is_said_and_who_was_there_stays(tmp_path: Path) -> None:
    directory = tmp_path / "pods"
    write_member(pod(directory, "1-2-3"), MEMBER)
    pods = kubelet_pods(directory)
    assert members(pods, 0.0) == ["gpt-0"]
    directory.rename(tmp_path / "moved")
    assert members(pods, 1.0) == ["gpt-0"]
    assert pods.unreadable == (Unreadable("kubelet-pods", f"cannot list {directory}: No such file or directory"),)


def test_a_pod_speaks_for_no_other_job_and_for_no_other_member(tmp_path: Path) -> None:
    for uid, name in (("1", "other_gpt-0"), ("2", "ns_gpt-1"), ("3", "ns_gpt-0"), ("4", "ns_x_gpt-0")):
        write_member(pod(tmp_path, uid, name=name), MEMBER)
    pods = kubelet_pods(tmp_path)
    assert [tenant.pod for tenant in pods.look(0.0)] == ["3"]
    said = dict(each.reason.split(": ", 1) for each in pods.unreadable)
    assert said["1"] == "it says that it is another pod than it is: nothing it says counts"
    assert said["2"] == "it says that it is another pod than it is: nothing it says counts"
    assert said["4"] == "the kubelet does not say which pod this is"


def test_a_pod_that_the_kubelet_names_a_moment_later_is_taken_then(tmp_path: Path) -> None:
    run_dir = pod(tmp_path, "1-2-3")
    write_member(run_dir, MEMBER)
    (name,) = logs_of(tmp_path).iterdir()
    name.rmdir()
    pods = kubelet_pods(tmp_path)
    assert members(pods, 0.0) == []
    name.mkdir()
    assert members(pods, 1.0) == ["gpt-0"]


def test_without_the_folders_of_logs_an_agent_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Mount the node's /var/log/pods there, read-only"):
        PodNames(str(tmp_path / "missing"))
