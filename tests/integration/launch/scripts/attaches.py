"""A worker that speaks the control protocol: enters and leaves rounds as told, or misbehaves."""

import os
import socket
import struct
import sys
import time
from pathlib import Path

import msgspec

from holdfast.api.control import Assignment, Attached, Entered, FromWorker, RoundEnded, RoundLeft, ToWorker
from holdfast.api.membership import CheckpointCommitted, CollectiveFailed
from holdfast.wire.unixsocket import reachable

behaviour = sys.argv[1] if len(sys.argv) > 1 else "leave"
control = socket.socket(socket.AF_UNIX)
with reachable(Path(os.environ["HOLDFAST_CONTROL"])) as address:
    control.connect(address)


def say(message: FromWorker) -> None:
    body = msgspec.msgpack.encode(message)
    control.sendall(struct.pack("<I", len(body)) + body)


def hear() -> ToWorker:
    (size,) = struct.unpack("<I", control.recv(4, socket.MSG_WAITALL))
    return msgspec.msgpack.decode(control.recv(size, socket.MSG_WAITALL), type=ToWorker)


say(Attached(os.getpid()))
while True:
    message = hear()
    if isinstance(message, Assignment):
        print(f"entered {message.round} rank {message.rank} of {message.world_size} pid {os.getpid()}", flush=True)
        say(Entered(message.round))
        say(CheckpointCommitted(message.round, 10 * message.round, "file:///nowhere"))
        if behaviour == "collective":
            say(CollectiveFailed(message.round, message.rank, 0.0, "connection reset by peer"))
    elif isinstance(message, RoundEnded):
        if behaviour == "deaf":
            time.sleep(600)
        say(RoundLeft(message.round, step=41))
        print(f"left {message.round}", flush=True)
