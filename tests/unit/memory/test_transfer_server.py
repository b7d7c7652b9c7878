"""A transfer server goes on serving when its folder cannot be looked at for a while."""

import asyncio
import errno
import logging
import shutil
import socket
from pathlib import Path

import pytest

from holdfast.checkpoint.memory import server
from holdfast.checkpoint.memory.nodesnapshots import NodeSnapshots, copy_name
from holdfast.checkpoint.memory.server import TransferServer
from holdfast.checkpoint.memory.sharedbuffer import SharedBuffer


class OutOfFiles(NodeSnapshots):
    """There is no descriptor left the first few times."""

    failures_left = 3

    def refresh(self) -> None:
        if self.failures_left > 0:
            self.failures_left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        super().refresh()


async def test_it_outlives_a_shortage_of_descriptors_says_so_once_and_then_tidies_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "POLL_EVERY_S", 0.001)
    folder = tmp_path / "memory"
    folder.mkdir()
    stray = folder / copy_name(3, 0)
    SharedBuffer.create(stray, 1 << 16)
    snapshots = OutOfFiles(folder, "life")
    with caplog.at_level(logging.WARNING), socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(TransferServer(snapshots, ceiling_bytes_s=1e9).serve(listener))
        async with asyncio.timeout(1.5):
            while stray.exists():
                assert not serving.done()
                await asyncio.sleep(0.001)
            shutil.rmtree(folder)
            await serving
    assert [each.message for each in caplog.records] == [
        "the memory folder could not be read reason=[Errno 24] Too many open files"
    ]
