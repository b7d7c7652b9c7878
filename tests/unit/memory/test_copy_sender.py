"""How often a worker's snapshots come, which their copies are paced by."""

import asyncio
from pathlib import Path

import pytest

from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.memory import copies as copier_module
from holdfast.checkpoint.memory.copies import CopySender
from holdfast.checkpoint.memory.nodesnapshots import NodeSnapshots, own_name
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer


def leave(folder: Path, *, round: int, step: int) -> None:
    buffer = SharedBuffer.create(folder / own_name(0, step % 2), 64 << 10)
    buffer.begin()
    entries = {"x": StoredObject(file="f", start=0, length_bytes=8)}
    buffer.complete(SnapshotRecord("life", round, 0, 1, step, step, "f", 8, entries, {"x": ("x",)}))


async def test_the_time_in_which_a_job_did_not_train_is_no_time_between_snapshots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the first copy of a round would take half as long as the job was down."""
    intervals = []

    def rate_for(image_bytes: int, interval_s: float | None, ceiling_bytes_s: float) -> float:
        intervals.append(interval_s)
        return ceiling_bytes_s

    monkeypatch.setattr(copier_module, "rate_for", rate_for)
    holdings = NodeSnapshots(tmp_path, "life")
    copier = CopySender(holdings, ceiling_bytes_s=1e9, patience_s=10.0)
    for round, step, now_s in ((1, 1, 0.0), (1, 2, 2.0), (1, 3, 4.0), (2, 4, 300.0), (2, 5, 303.0)):
        leave(tmp_path, round=round, step=step)
        holdings.refresh()
        copier.poll(now_s)
        await asyncio.gather(*copier._running.values())
    assert intervals == [None, 2.0, 2.0, None, 3.0]
