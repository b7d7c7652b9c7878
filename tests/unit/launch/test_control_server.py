"""Where the workers' control socket is."""

import asyncio
import os
import socket
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.launch.control import ControlServer
from holdfast.api.control import Attached, Finished, FromWorker
from holdfast.api.errors import Unavailable
from holdfast.wire.frame import frame
from holdfast.wire.unixsocket import reachable


def server_in(run_dir: Path) -> ControlServer:
    return ControlServer(
        run_dir=run_dir,
        on_message=lambda worker, message: None,
        on_detached=lambda worker: None,
    )


async def test_it_is_in_the_run_directory_however_long_its_path_and_nobody_elses(tmp_path: Path) -> None:
    run_dir = tmp_path / ("r" * 120)
    run_dir.mkdir()
    server = server_in(run_dir)
    await server.open()
    assert server.path == run_dir / "launcher.sock"
    assert server.path.is_socket()
    assert server.path.stat().st_mode & 0o777 == 0o600
    await server.close()
    assert list(run_dir.iterdir()) == []


async def test_a_run_directory_that_will_not_do_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"missing/launcher\.sock.*name another --run-dir"):
        await server_in(tmp_path / "missing").open()


async def test_what_a_worker_said_last_is_known_before_the_loop_turns(tmp_path: Path) -> None:
    heard: list[FromWorker] = []
    is_heard = asyncio.Event()

    def hear(worker: int, message: FromWorker) -> None:
        heard.append(message)
        is_heard.set()

    server = ControlServer(run_dir=tmp_path, on_message=hear, on_detached=lambda worker: None)
    await server.open()
    with socket.socket(socket.AF_UNIX) as worker:
        worker.settimeout(0)
        with reachable(server.path) as address:
            await asyncio.get_running_loop().sock_connect(worker, address)
        worker.send(frame(msgspec.msgpack.encode(Attached(os.getpid()))))
        await is_heard.wait()
        worker.send(frame(msgspec.msgpack.encode(Finished(7))))
        assert heard == [Attached(os.getpid())]
        server.drain(os.getsid(0))
        assert heard == [Attached(os.getpid()), Finished(7)]
        server.drain(os.getsid(0))
        server.drain(-1)
        assert len(heard) == 2
    await server.close()


@pytest.mark.parametrize(
    ("said", "keeps_line"),
    [
        ({"type": "Pausing", "round": 3}, True),
        ({"type": "Reenters", "reentry": "OtherWorld", "because": "it"}, True),
        ({"type": "Entered", "round": 3, "more": 1}, True),
        ({"type": "Entered", "round": -3}, False),
        ({"round": 3}, False),
    ],
)
async def test_a_word_of_a_later_trainer_is_passed_over_and_one_that_is_wrong_ends_the_line(
    tmp_path: Path, said: dict[str, object], keeps_line: bool
) -> None:
    heard: list[FromWorker] = []
    is_over = asyncio.Event()

    def hear(worker: int, message: FromWorker) -> None:
        heard.append(message)
        if message == Finished(7):
            is_over.set()

    server = ControlServer(run_dir=tmp_path, on_message=hear, on_detached=lambda worker: is_over.set())
    await server.open()
    with socket.socket(socket.AF_UNIX) as worker:
        worker.settimeout(0)
        with reachable(server.path) as address:
            await asyncio.get_running_loop().sock_connect(worker, address)
        worker.send(frame(msgspec.msgpack.encode(said)) + frame(msgspec.msgpack.encode(Finished(7))))
        await is_over.wait()
    assert (Finished(7) in heard) is keeps_line
    await server.close()
