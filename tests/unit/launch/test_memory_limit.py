"""Whether a pod's own memory limit had a worker killed, by what its control group counts."""

from pathlib import Path

import pytest

from holdfast.agent.launch.ending import MemoryLimit


def write_v1(folder: Path, killed: int, short: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {killed}\n")
    (folder / "memory.failcnt").write_text(f"{short}\n")


def write_v2(folder: Path, killed: int, short: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.events").write_text(f"low 0\nhigh 0\nmax 9\noom {short}\noom_kill {killed}\n")


# Where the group is: in a container its own is the root, whatever the kernel tells; outside it is below.
PLACES = {
    "v1 container": (write_v1, "memory", "9:name=systemd:/\n4:cpu,memory:/kubepods/pod1/c\n"),
    "v1 host": (write_v1, "memory/kubepods/pod1/c", "4:memory:/kubepods/pod1/c\n0::/\n"),
    "v2 container": (write_v2, "", "0::/\n"),
    "v2 host": (write_v2, "user.slice/run", "0::/user.slice/run\n"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_killing_after_the_limit_was_reached_counts_once(place: str, tmp_path: Path) -> None:
    write, folder, own = PLACES[place]
    (tmp_path / "own").write_text(own)
    group = tmp_path / "groups" / folder
    write(group, 3, 7)
    limit = MemoryLimit(tmp_path / "groups", tmp_path / "own")
    assert not limit.has_killed(), "what was killed before is none of ours"
    write(group, 4, 9)
    assert limit.has_killed()
    assert not limit.has_killed()


@pytest.mark.parametrize("place", ["v1 container", "v2 container"])
def test_a_node_that_is_short_of_memory_is_not_the_pods_own_limit(place: str, tmp_path: Path) -> None:
    write, folder, own = PLACES[place]
    (tmp_path / "own").write_text(own)
    group = tmp_path / "groups" / folder
    write(group, 3, 7)
    limit = MemoryLimit(tmp_path / "groups", tmp_path / "own")
    write(group, 4, 7)
    assert not limit.has_killed()


def test_without_a_control_group_nothing_is_said(tmp_path: Path) -> None:
    assert not MemoryLimit(tmp_path / "none", tmp_path / "none").has_killed()


def test_what_cannot_be_understood_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill many\n")
    assert not MemoryLimit(tmp_path, tmp_path / "own").has_killed()
