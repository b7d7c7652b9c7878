"""The sensor of the node itself, on the machine the test runs on."""

import time
from pathlib import Path

import pytest

from holdfast.agent.sensors.node_detail import MemoryDetail, Writability
from holdfast.agent.sensors.nodebasics import NodeBasics, disk_at, memory_of

MACHINE = MemoryDetail(total_bytes=1000, available_bytes=800)


def group(tmp_path: Path, **files: str) -> str:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return str(tmp_path)


def test_this_machine_is_read(tmp_path: Path) -> None:
    sensor = NodeBasics(disks=[str(tmp_path)])
    for second in range(2000):
        node = sensor.read(float(second)).node
        assert node is not None
        if node.disks:
            break
        time.sleep(0.01)
    sensor.close()
    assert node.memory is not None
    assert 0 < node.memory.available_bytes <= node.memory.total_bytes
    assert node.boot_id
    assert (node.disks[0].path, node.disks[0].writability) == (str(tmp_path), Writability.WRITABLE)


def test_a_path_that_is_not_there_is_unreadable(tmp_path: Path) -> None:
    sensor = NodeBasics(disks=[str(tmp_path / "absent")])
    said: list[str] = []
    for second in range(2000):
        said = [each.source for each in sensor.read(float(second)).unreadable if each.source.startswith("disk")]
        if said:
            break
        time.sleep(0.01)
    sensor.close()
    assert said == [f"disk {tmp_path}/absent"]
    with pytest.raises(FileNotFoundError):
        disk_at(str(tmp_path / "absent"))


def test_a_control_group_that_cannot_be_read_makes_memory_unknown(tmp_path: Path) -> None:
    sensor = NodeBasics(cgroup=group(tmp_path, memory__max="500\n"))
    reading = sensor.read(0.0)
    assert reading.node is not None
    assert reading.node.memory is None
    assert "memory" in [each.source for each in reading.unreadable]


@pytest.mark.parametrize(
    ("files", "total", "available"),
    [
        pytest.param({}, 1000, 800, id="no limit at the root of all groups"),
        pytest.param({"memory__max": "max"}, 1000, 800, id="no limit"),
        pytest.param(
            {"memory__max": "500", "memory__current": "450", "memory__stat": "anon 1\ninactive_file 40\n"},
            500,
            90,
            id="a limit of version 2",
        ),
        pytest.param(
            {
                "memory__limit_in_bytes": "500",
                "memory__usage_in_bytes": "450",
                "memory__stat": "inactive_file 7\ntotal_inactive_file 40\n",
            },
            500,
            90,
            id="a limit of version 1",
        ),
        pytest.param(
            {"memory__max": "900", "memory__current": "10", "memory__stat": ""},
            900,
            800,
            id="the machine has less left than the group may take",
        ),
        pytest.param(
            {"memory__limit_in_bytes": "9223372036854771712"}, 1000, 800, id="version 1's way of saying no limit"
        ),
    ],
)
def test_the_control_groups_limit_counts_where_it_is_lower(
    tmp_path: Path, files: dict[str, str], total: int, available: int
) -> None:
    wanted = MemoryDetail(total_bytes=total, available_bytes=available)
    assert memory_of(MACHINE, group(tmp_path, **files)) == wanted
