"""The sensor of the node itself, on the machine the test runs on."""

import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from holdfast.agent.conditions.book import Held
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.reading import DiskDetail, Reading
from holdfast.agent.sensors.background import Polled, Sight
from holdfast.agent.sensors.nodebasics import NodeBasics, disk_at
from holdfast.api.condition import ConditionKind, ConditionState


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
    assert (node.disks[0].path, node.disks[0].read_only) == (str(tmp_path), False)


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


def test_a_disk_that_an_earlier_run_found_full_is_over_by_what_this_one_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "held.json")
    before = Held(ConditionKind.DISK_FULL, "full", 1.0, device="/checkpoints")
    ConditionMemory(path, boot="boot-1").keep((before,), 1.0)
    seen: list[Sight[DiskDetail]] = []
    monkeypatch.setattr(Polled, "latest", lambda polled, now: seen[-1] if seen else None)
    sensor = NodeBasics(disks=["/checkpoints"], memory=ConditionMemory(path, boot="boot-2"))
    reading = sensor.read(10.0)
    assert full(reading) == [ConditionState.RAISED]
    assert reading.all_clear == ()  # the disk was not seen yet
    seen.append(
        Sight(
            replace(disk_at(str(tmp_path)), path="/checkpoints", free_bytes=1, total_bytes=1, total_inodes=None),
            11.0,
        )
    )
    assert full(sensor.read(11.0)) == [ConditionState.CLEARED]
    left = ConditionMemory(path, boot="boot-2").recall(12.0)
    assert [each for each in left if each.kind is ConditionKind.DISK_FULL] == []


def full(reading: Reading) -> list[ConditionState]:
    return [each.state for each in reading.conditions if each.kind is ConditionKind.DISK_FULL]
