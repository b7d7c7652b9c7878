"""The test cluster's nodes get their control groups on machines of either version, or it is told why not."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cgroups(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "cluster"))
    return importlib.import_module("cgroups")


def first_version(root: Path) -> None:
    for name in ("cpuset", "memory", "systemd", "unified"):
        (root / name).mkdir()
        (root / name / "cgroup.procs").touch()
    (root / "cpuset" / "cpuset.cpus").write_text("0-1")
    (root / "cpuset" / "cpuset.mems").write_text("0")


def second_version(root: Path, controllers: str) -> None:
    (root / "cgroup.controllers").write_text(controllers)
    (root / "cgroup.procs").touch()
    (root / "cgroup.subtree_control").touch()


def test_of_version_1_every_controller_gets_a_group_and_a_cpuset_its_processors(
    cgroups: ModuleType, tmp_path: Path
) -> None:
    first_version(tmp_path)
    group = cgroups.make("node-1", tmp_path)
    assert {each.parent.name for each in tmp_path.glob(f"*/{group}")} == {"cpuset", "memory", "systemd"}
    assert (tmp_path / "cpuset" / group / "cpuset.cpus").read_text() == "0-1"


def test_of_version_2_there_is_one_group_and_controllers_are_handed_down(
    cgroups: ModuleType, tmp_path: Path
) -> None:
    second_version(tmp_path, "cpuset cpu io memory pids")
    group = cgroups.make("node-1", tmp_path)
    assert (tmp_path / group).is_dir()
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpuset +cpu +memory +pids"


def test_a_machine_that_lacks_controllers_is_told_which(cgroups: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(cgroups.CgroupsMissing, match="no controllers of version 1 or 2"):
        cgroups.make("node-1", tmp_path)
    second_version(tmp_path, "cpu io")
    with pytest.raises(cgroups.CgroupsMissing, match="has no cpuset, memory, pids"):
        cgroups.make("node-1", tmp_path)


def test_processes_in_the_group_itself_are_named_where_nothing_is_handed_down(
    cgroups: ModuleType, tmp_path: Path
) -> None:
    second_version(tmp_path, "cpuset cpu memory pids")
    (tmp_path / "cgroup.procs").write_text("4711\n")
    (tmp_path / "cgroup.subtree_control").unlink()
    (tmp_path / "cgroup.subtree_control").mkdir()  # it cannot be written to
    with pytest.raises(cgroups.CgroupsMissing, match=r"\['4711'\]"):
        cgroups.make("node-1", tmp_path)
