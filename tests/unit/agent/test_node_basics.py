"""The sensor of the node itself, on the machine the test runs on."""

import time
from pathlib import Path

import psutil
import pytest

from holdfast.agent.sensors.node_detail import Writability
from holdfast.agent.sensors.nodebasics import NodeBasics, disk_at


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


def test_memory_that_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    reading = NodeBasics().read(0.0)
    assert reading.node is not None
    assert reading.node.memory is None
    assert "memory" in [each.source for each in reading.unreadable]
