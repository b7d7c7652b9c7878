"""Plays launcher, workers and agent in every running pod of a fake cluster: they join, test, train and save."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Self

import aiohttp
import msgspec
from fake_kubelet import FakeKubelet, Pod
from fake_watchdog_for_operator import TOKEN

from holdfast.api.membership import (
    Beat,
    CheckpointCommitted,
    FromLauncher,
    Join,
    RoundEntered,
    SaveWanted,
    ToLauncher,
    WorkersFinished,
)
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Seat
from holdfast.api.selftest import Tested, TestWanted, Verdict
from holdfast.api.telemetry import AgentHello, FromAgent, NodeReport, ProcessState, RankSample
from holdfast.operator.decide.pods import ordinal_of

TO_LAUNCHER: msgspec.msgpack.Decoder[ToLauncher] = msgspec.msgpack.Decoder(ToLauncher)
LOOK_S = 0.05
BEAT_S = 0.5
REPORT_S = 0.2

Line = aiohttp.ClientWebSocketResponse


class PlayedLaunchers:
    """`async with PlayedLaunchers(kubelet, endpoint, job)`. A pod that goes takes its launcher with it."""

    def __init__(self, kubelet: FakeKubelet, endpoint: str, job: str) -> None:
        self._kubelet = kubelet
        self._endpoint = endpoint
        self._job = job
        self._playing: dict[str, asyncio.Task[None]] = {}
        self.finishing = asyncio.Event()
        self.rounds: dict[str, int] = {}
        self.seats: dict[str, Seat] = {}
        self._steps: dict[tuple[str, int], int] = {}
        self.saves: list[int] = []

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"})
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [self._following, *self._playing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._session.close()

    async def _follow(self) -> None:
        while True:
            job = self._job.partition("/")[2]  # there may be pods of other jobs, and one that is no member
            pods = (pod for pod in self._kubelet.pods.values() if ordinal_of(job, pod.name) is not None)
            running = {pod.uid: pod for pod in pods if pod.phase == "Running" and not pod.deleting}
            for uid in [uid for uid in self._playing if uid not in running]:
                self._playing.pop(uid).cancel()
            for uid, pod in running.items():
                if uid not in self._playing:
                    self._playing[uid] = asyncio.create_task(self._play(pod))
            await asyncio.sleep(LOOK_S)

    async def _play(self, pod: Pod) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_talking("/v1/member", self._launch, pod))
            group.create_task(self._keep_talking("/v1/agent", self._report, pod))

    async def _keep_talking(self, path: str, talk: Callable[[Line, Pod], Awaitable[None]], pod: Pod) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with self._session.ws_connect(f"ws://{self._endpoint}{path}") as line:
                    await talk(line, pod)
            await asyncio.sleep(LOOK_S)

    async def _report(self, line: Line, pod: Pod) -> None:
        """As an agent: its rank takes a step between any two reports."""
        await _say(line, AgentHello(pod.node, pod.uid, self._job))
        for sequence in count(1):
            ranks: tuple[RankSample, ...] = ()
            if (seat := self.seats.get(pod.name)) is not None:
                taken = self._steps[pod.uid, seat.number] = self._steps.get((pod.uid, seat.number), 0) + 1
                sample = RankSample(
                    seat.number, seat.first_rank, ProcessState.RUNNING, Phase.FORWARD, 0.01, 0.01, step=taken
                )
                ranks = (sample,)
            await _say(line, NodeReport(pod.node, pod.uid, sequence, ranks))
            await asyncio.sleep(REPORT_S)

    async def _launch(self, line: Line, pod: Pod) -> None:
        join = Join(self._job, pod.name, pod.node, pod.uid, "127.0.0.1", 1, (4000, 4001), warm=True)
        await _say(line, join)
        beating = asyncio.create_task(self._beat(line, pod))
        try:
            async for message in line:
                if message.type is aiohttp.WSMsgType.BINARY:
                    await self._obey(line, pod, TO_LAUNCHER.decode(message.data))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)

    async def _obey(self, line: Line, pod: Pod, shown: ToLauncher) -> None:
        match shown:
            case Seat(number=number):
                self.seats[pod.name] = shown
                self.rounds[pod.name] = number
                await _say(line, RoundEntered(number, reentrant=True))
            case TestWanted(number=wanted, level=level):
                await _say(line, Tested(wanted, level, Verdict.PASSED, took_s=0.1))
            case SaveWanted(round=number, number=wanted):
                self.saves.append(wanted)
                await _say(line, CheckpointCommitted(number, 7, f"file:///checkpoints/{wanted}", wanted))

    async def _beat(self, line: Line, pod: Pod) -> None:
        finished: int | None = None  # the round that was
        while True:
            await _say(line, Beat())
            number = self.rounds.get(pod.name)
            if self.finishing.is_set() and number is not None and number != finished:
                finished = number
                await _say(line, WorkersFinished(number, 9))
            await asyncio.sleep(BEAT_S)


async def _say(line: Line, message: FromLauncher | FromAgent) -> None:
    await line.send_bytes(msgspec.msgpack.encode(message))
