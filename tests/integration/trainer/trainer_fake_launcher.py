"""A launcher for tests: a unix socket that speaks `holdfast.api.control`, and real worker processes behind it."""

import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import msgspec
from forked_process import ONE_THREAD, ForkedProcess, ForkServer
from patience import patient
from server_process import free_port

from holdfast.api import rankrecord
from holdfast.api.control import (
    CONTROL_VARIABLE,
    RUN_DIRECTORY_VARIABLE,
    Assignment,
    Attached,
    FromWorker,
    RoundEnded,
    RoundLeft,
    ToWorker,
    record_file_name,
)
from holdfast.api.rankrecord import PulseZone, StepZone
from holdfast.api.round import Endpoint, Restore

DEADLINE_S = patient(60.0)
M = TypeVar("M", bound=msgspec.Struct)
Z = TypeVar("Z")


class Worker:
    """One worker process and its end of the control socket."""

    def __init__(self, process: ForkedProcess, local_rank: int, run_directory: Path) -> None:
        self.process = process
        self.local_rank = local_rank
        self.run_directory = run_directory
        self._record = run_directory / record_file_name(local_rank)
        self._buffer = bytearray()
        self.connection: socket.socket

    def say(self, message: ToWorker) -> None:
        body = msgspec.msgpack.encode(message)
        self.connection.sendall(struct.pack("<I", len(body)) + body)

    def expect(self, kind: type[M], *, deadline_s: float = DEADLINE_S) -> M:
        """The next message of `kind`; others before it are passed over."""
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            message = self._next(deadline)
            if isinstance(message, kind):
                return message
        raise AssertionError(f"worker {self.local_rank} did not say {kind.__name__}")

    def step_zone(self) -> StepZone:
        return self._consistent(rankrecord.STEP_SEQUENCE_OFFSET, rankrecord.unpack_step)

    def pulse_zone(self) -> PulseZone:
        return self._consistent(rankrecord.PULSE_SEQUENCE_OFFSET, rankrecord.unpack_pulse)

    def await_step(self, *, round: int, at_least: int = 0) -> float:
        """When (monotonic) the worker was seen to have completed a step of `round`."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            if self._record.exists():
                zone = self.step_zone()
                if zone.round == round and zone.step >= at_least:
                    return time.monotonic()
            assert self.process.poll() is None, f"worker {self.local_rank} exited"
            time.sleep(0.001)
        raise AssertionError(f"worker {self.local_rank} made no step in round {round}")

    def await_pulse(self, accepted: Callable[[PulseZone], bool]) -> PulseZone:
        """The pulse, which comes from time to time, once it is accepted."""
        deadline = time.monotonic() + DEADLINE_S
        while not accepted(zone := self.pulse_zone()):
            assert self.process.poll() is None, f"worker {self.local_rank} exited"
            assert time.monotonic() < deadline, f"worker {self.local_rank} shows {zone}"
            time.sleep(0.001)
        return zone

    def _consistent(self, sequence_offset: int, unpack: Callable[[bytes], Z]) -> Z:
        while True:
            raw = self._record.read_bytes()
            if len(raw) < rankrecord.SIZE:
                continue  # Just created.
            (sequence,) = rankrecord.SEQUENCE.unpack_from(raw, sequence_offset)
            if sequence % 2 == 0:
                return unpack(raw)

    def _next(self, deadline: float) -> FromWorker:
        while True:
            if len(self._buffer) >= 4:
                (size,) = struct.unpack_from("<I", self._buffer)
                if len(self._buffer) >= 4 + size:
                    body = bytes(self._buffer[4 : 4 + size])
                    del self._buffer[: 4 + size]
                    return msgspec.msgpack.decode(body, type=FromWorker)
            self.connection.settimeout(max(0.01, deadline - time.monotonic()))
            chunk = self.connection.recv(65536)
            assert chunk, f"worker {self.local_rank} hung up"
            self._buffer += chunk


class FakeLauncher:
    """Starts workers, shows them rounds, and kills whatever is left at the end."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = str(directory / "control")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self._path)
        self._listener.listen()
        self._listener.settimeout(DEADLINE_S)
        self._port = free_port()
        self._fork_server = ForkServer()
        self.workers: list[Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fork_server.__exit__(kind, error, trace)
        for worker in self.workers:
            worker.connection.close()
        self._listener.close()

    def start(self, count: int, script: Path, *options: str, nodes: bool = False) -> list[Worker]:
        """Start `count` workers more and wait until they are attached. `nodes`: each on a node of its own."""
        started = []
        for _ in range(count):
            place = len(self.workers)
            run_directory = self._directory / f"node-{place}" if nodes else self._directory
            run_directory.mkdir(exist_ok=True)
            local_rank = 0 if nodes else place
            variables = {
                CONTROL_VARIABLE: self._path,
                RUN_DIRECTORY_VARIABLE: str(run_directory),
                "LOCAL_RANK": str(local_rank),
                **dict.fromkeys(
                    ("HOLDFAST_ROUND", "HOLDFAST_RANK", "RANK", "WORLD_SIZE"), "0"
                ),  # a round says them
                "GLOO_SOCKET_IFNAME": "lo",
                **ONE_THREAD,
            }
            argv = (str(script), *options)
            process = self._fork_server.fork(argv, env={**os.environ, **variables}, cwd=run_directory)
            started.append(Worker(process, local_rank, run_directory))
            self.workers.append(started[-1])
        for _ in range(count):
            self._accept(started)
        return started

    def show(
        self,
        round: int,
        workers: Sequence[Worker],
        *,
        restore: Restore | None = None,
        told: Sequence[Worker] | None = None,
    ) -> None:
        """Assign `workers`, in rank order, to `round`. `told`: only these hear of it; it forms when all have."""
        endpoint = Endpoint("127.0.0.1", self._port)
        nodes = list(dict.fromkeys(worker.run_directory for worker in workers))
        for rank, worker in enumerate(workers):
            if told is not None and worker not in told:
                continue
            worker.say(
                Assignment(
                    job="tests/ring",
                    round=round,
                    rank=rank,
                    local_rank=worker.local_rank,
                    world_size=len(workers),
                    local_size=len(workers) // len(nodes),
                    place=nodes.index(worker.run_directory),
                    members=len(nodes),
                    endpoint=endpoint,
                    restore=restore or Restore(),
                    reason="test",
                )
            )

    def end(self, round: int, workers: Sequence[Worker]) -> list[RoundLeft]:
        """End `round` for `workers` and wait until they have left it."""
        for worker in workers:
            worker.say(RoundEnded(round=round, reason="test"))
        return [worker.expect(RoundLeft) for worker in workers]

    def end_and_find_trapped(self, round: int, workers: Sequence[Worker], *, within_s: float) -> list[Worker]:
        """End `round`; who has not left within that time, as the real launcher sees it."""
        for worker in workers:
            worker.say(RoundEnded(round=round, reason="test"))
        trapped = []
        for worker in workers:
            try:
                worker.expect(RoundLeft, deadline_s=within_s)
            except TimeoutError:
                trapped.append(worker)
        return trapped

    def _accept(self, started: Sequence[Worker]) -> None:
        connection, _ = self._listener.accept()
        connection.settimeout(DEADLINE_S)
        (size,) = struct.unpack("<I", connection.recv(4, socket.MSG_WAITALL))
        attached = msgspec.msgpack.decode(connection.recv(size, socket.MSG_WAITALL), type=Attached)
        next(worker for worker in started if worker.process.pid == attached.pid).connection = connection
