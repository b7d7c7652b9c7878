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


# A limit of a group above: the pod's, which no container sees.

UNLIMITED = {"v1": str((1 << 63) - 4096), "v2": "max"}


class Machine:
    """A container's group and its node, of either version of control groups."""

    def __init__(self, root: Path, version: str, limit: str = "") -> None:
        self.write, folder, own = PLACES[f"{version} container"]
        self.group, self.node = root / "groups" / folder, root / "vmstat"
        (root / "own").write_text(own)
        self.write(self.group, 3, 7)
        file = "memory.limit_in_bytes" if version == "v1" else "memory.max"
        (self.group / file).write_text(f"{limit or UNLIMITED[version]}\n")
        self.stall(5)
        self.limit = MemoryLimit(root / "groups", root / "own", self.node)

    def stall(self, count: int) -> None:
        """How often whoever asked for memory had to look for some, on the whole node."""
        self.node.write_text(f"nr_free_pages 1000\nallocstall_normal {count - 1}\nallocstall_movable 1\n")

    def live(self) -> None:
        """Two looks: what went before is forgotten."""
        self.limit.look()
        self.limit.look()

    def kill(self) -> bool:
        """The kernel kills one, and the container's own group is short of nothing."""
        self.write(self.group, 4, 7)
        return self.limit.has_killed()


VERSIONS = pytest.mark.parametrize("version", ["v1", "v2"])


@VERSIONS
def test_a_kill_for_the_limit_of_the_whole_pod_is_its_own(version: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version, limit="1073741824")
    machine.stall(9)
    machine.live()
    assert machine.kill()


@VERSIONS
def test_a_kill_on_a_node_that_looked_for_memory_just_before_is_not(version: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version, limit="1073741824")
    machine.live()
    machine.stall(6)
    machine.limit.look()
    assert not machine.kill()


@VERSIONS
def test_a_kill_where_nothing_limits_the_group_is_the_nodes(version: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version)
    machine.live()
    assert not machine.kill()


@VERSIONS
def test_where_the_node_cannot_be_looked_at_only_the_own_groups_word_counts(version: str, tmp_path: Path) -> None:
    machine = Machine(tmp_path, version, limit="1073741824")
    machine.node.write_text("odd\n")
    machine.live()
    assert not machine.kill()
    machine.node.unlink()
    machine.write(machine.group, 5, 8)
    assert machine.limit.has_killed()
