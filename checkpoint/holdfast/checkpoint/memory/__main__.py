"""The transfer server as a process: `python -m holdfast.checkpoint.memory`. The launcher starts one a node."""

import argparse
import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from holdfast.checkpoint.memory.nodesnapshots import NodeSnapshots
from holdfast.checkpoint.memory.protocol import PATIENCE_S, parse_address
from holdfast.checkpoint.memory.server import POLL_EVERY_S, TransferServer
from holdfast.wire.door import raise_open_files_max

_LOG = logging.getLogger(__name__)

_LOCK_NAME = "server.lock"
_NICENESS = 10


def main(arguments: list[str] | None = None) -> int:
    parent = os.getppid()
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    key = (sys.stdin.read() if options.key_file is None else options.key_file.read_text()).strip()
    if not key:
        raise SystemExit("the key is empty: give the job's owner token in a file or on standard input")
    # Run when training leaves a core idle, or nearly so; a node that forbids it is served all the same.
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    raise_open_files_max()
    options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # One server a folder: wait until the one of a launcher that died has gone. Closing frees the lock.
    lock = os.open(options.folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        family = socket.AF_INET6 if ":" in options.listen[0] else socket.AF_INET
        with socket.create_server(options.listen, family=family, backlog=256) as listener:
            server = TransferServer(
                NodeSnapshots(options.folder, key),
                ceiling_bytes_s=options.mb_s * 1e6,
                patience_s=options.patience_s,
            )
            asyncio.run(_serve(server, listener, options.port_file, parent=options.parent or parent))
    finally:
        os.close(lock)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.checkpoint.memory", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="the node's folder for snapshots, in /dev/shm")
    parser.add_argument(
        "--listen", type=_address, default=("0.0.0.0", 0), help="host:port; port 0 takes a free one (0.0.0.0:0)"
    )
    parser.add_argument("--port-file", type=Path, help="the port is written here once the server listens")
    parser.add_argument("--key-file", type=Path, help="holds the job's owner token; standard input when left out")
    parser.add_argument(
        "--mb-s",
        type=float,
        default=2000.0,
        help="copies leave this node no faster, in 10^6 bytes a second (2000)",
    )
    parser.add_argument(
        "--patience-s", type=float, default=PATIENCE_S, help="a peer that is silent for so long is given up (10)"
    )
    parser.add_argument(
        "--parent", type=int, help="ends when its parent is not this process any more (the one that started it)"
    )
    return parser


def _address(text: str) -> tuple[str, int]:
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


async def _serve(server: TransferServer, listener: socket.socket, port_file: Path | None, *, parent: int) -> None:
    """Until a signal, or until the launcher that started this has died: the next one starts another."""
    serving = asyncio.create_task(server.serve(listener))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.cancel)
    host, port = listener.getsockname()[:2]
    if port_file is not None:
        unfinished = port_file.with_name(f".{port_file.name}.new")
        unfinished.write_text(f"{port}\n")
        os.replace(unfinished, port_file)
    _LOG.info("serving snapshots address=%s:%d", host, port)
    while not serving.done():
        if os.getppid() != parent:
            serving.cancel()
        await asyncio.wait([serving], timeout=POLL_EVERY_S)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


if __name__ == "__main__":
    sys.exit(main())
