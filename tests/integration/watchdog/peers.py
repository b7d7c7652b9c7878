"""A watchdog in this process, and the peers that talk to it over real connections."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar, get_args

import aiohttp
import msgspec
from aiohttp import test_utils
from forgetful_store import MemoryStore
from patience import patient

from holdfast.api.event import Event, RoundProgressed
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.membership import FromLauncher, Join, RoundEntered, ToLauncher
from holdfast.api.policy import Policy
from holdfast.api.round import Round, Seat
from holdfast.api.status import RankStatus
from holdfast.api.telemetry import RankSample, ToAgent
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import ALL_ROLES, Grant, Role, TokenFile
from holdfast.watchdog.detectors.detector import Disconnected, Exited, Reported, RoundStarted, Sample
from holdfast.watchdog.detectors.progress import Newest
from holdfast.watchdog.senses import Senses, SensesFor
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.store.store import Store

T = TypeVar("T")

JOB = "research/gpt"
TOKEN = "test-token-for-all-roles"
INGEST_TOKEN = "test-token-for-ingest"
VIEW_TOKEN = "test-token-of-a-viewer"
PATIENCE_S = patient(15.0)  # also of a member that is expected back after a restart

TO_LAUNCHER: msgspec.msgpack.Decoder[ToLauncher] = msgspec.msgpack.Decoder(ToLauncher)


def policy_of(*, job: str = JOB, nodes: int = 2, form_grace_s: float = 30.0, **fields: Any) -> Policy:
    """A job that forms as soon as all its nodes are there, however busy the machine that starts them is."""
    return Policy(job=job, nodes_min=1, nodes_max=nodes, form_grace_s=form_grace_s, **fields)


class QuickDetector:
    """Believes whatever it is told, at once: these tests are about the server, not about judgement."""

    subscribes_to = get_args(Sample)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round: Round | None = None
        self.stall_s: float | None = None

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        match sample:
            case RoundStarted(round=started):
                self._round = started
            case Exited(member=member, node=node, exit=exit_) if self._round and exit_.round == self._round.number:
                subject = Subject(self._job, node=node, member=member, rank=exit_.rank)
                return (self._finding(FindingKind.PROCESS_EXIT, subject, f"signal {exit_.signal}", now),)
            case Disconnected(member=member) if self._round and (share := self._round.share_of(member)):
                subject = Subject(self._job, node=share.node, member=member)
                return (self._finding(FindingKind.MEMBER_LOST, subject, "connection closed", now),)
            case Reported(report=report) if report.ranks:
                self.stall_s = report.ranks[0].step_time_s
        return ()

    def _finding(self, kind: FindingKind, subject: Subject, cause: str, now: float) -> Finding:
        number = self._round.number if self._round else None
        evidence = (Evidence("test", cause, now),)
        return Finding(kind, subject, cause, evidence, Confidence.CERTAIN, now, round=number)

    def elapse(self, now: float) -> Sequence[Finding]:
        return ()

    def next_wakeup(self) -> float | None:
        return None

    def stalled_after_s(self, now: float) -> float | None:
        return self.stall_s


class ReportGauge:
    """The step of any report is everybody's."""

    subscribes_to = (Reported,)

    def __init__(self) -> None:
        self._step: int | None = None

    def observe(self, sample: Sample, now: float) -> Sequence[Event]:
        if not isinstance(sample, Reported) or not sample.report.ranks or sample.report.ranks[0].step is None:
            return ()
        self._step = sample.report.ranks[0].step
        return (RoundProgressed(sample.report.ranks[0].round, self._step),)

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        return ()

    def last_ranks(self, now: float) -> tuple[RankStatus, ...]:
        return ()

    def newest(self) -> Newest:
        return Newest()

    def heard(self) -> tuple[Round | None, Mapping[int, RankSample]]:
        return None, {}

    def step(self) -> int | None:
        return self._step

    def loss(self) -> float | None:
        return float("nan")

    def step_time_s(self) -> float | None:
        return None


def quick_senses(policy: Policy) -> Senses:
    return Senses([QuickDetector(policy)], ReportGauge())


class LauncherPeer:
    """A launcher as the watchdog sees it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, member: str) -> None:
        self.socket = socket
        self.member = member

    async def say(self, message: FromLauncher) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(message))

    async def shown(self, kind: type[T]) -> T:
        """The next thing of that kind that is shown."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self.socket.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, message
                desired = TO_LAUNCHER.decode(message.data)
                if isinstance(desired, kind):
                    return desired

    async def round_after(self, number: int) -> Seat:
        """The first round shown with a greater number; numbers grow, but not one by one."""
        while (shown := await self.shown(Seat)).number <= number:
            pass
        return shown

    async def enter(self, after: int = 0) -> Seat:
        """Wait for the next round and say that its workers run."""
        shown = await self.round_after(after)
        await self.say(RoundEntered(shown.number, reentrant=True))
        return shown

    async def ended(self) -> tuple[int | None, str]:
        """How the watchdog closed the connection: code and reason."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self.socket.receive()
                if message.type is aiohttp.WSMsgType.CLOSE:
                    return message.data, str(message.extra)
                if message.type is not aiohttp.WSMsgType.BINARY:
                    return self.socket.close_code, ""


class AgentPeer:
    """An agent as the watchdog sees it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, message: object) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(message))

    async def told(self) -> ToAgent:
        async with asyncio.timeout(PATIENCE_S):
            message = await self.socket.receive()
        assert message.type is aiohttp.WSMsgType.BINARY, message
        return msgspec.msgpack.decode(message.data, type=ToAgent)  # type: ignore[no-any-return]


class Rig:
    """A served watchdog and a client of it."""

    def __init__(
        self, store: Store, *, roles: frozenset[Role] = ALL_ROLES, senses: SensesFor = quick_senses, port: int = 0
    ) -> None:
        self.fenced: list[str] = []
        self.watchdog = Watchdog(store, brain=brain, senses_for=senses, fenced=self.fenced.append)
        grants = (
            Grant(TOKEN, roles),
            Grant(INGEST_TOKEN, frozenset({Role.INGEST})),
            Grant(VIEW_TOKEN, frozenset({Role.VIEW})),
        )
        self.watchdog.start()
        self.server = test_utils.TestServer(make_app(self.watchdog, TokenFile(grants)), port=port or None)
        self.http = aiohttp.ClientSession()

    def url(self, path: str) -> str:
        return str(self.server.make_url(path))

    async def get(self, path: str, *, token: str = TOKEN) -> tuple[int, Any]:
        async with self.http.get(self.url(path), headers=bearer(token)) as response:
            return response.status, await response.json()

    async def page(self) -> str:
        """All metrics, as Prometheus reads them."""
        async with self.http.get(self.url("/metrics"), headers=bearer(TOKEN)) as response:
            return await response.text()

    async def scraped(self, name: str) -> float:
        """The metric `name`, which has no labels, as Prometheus reads it."""
        lines = (await self.page()).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    async def post(self, path: str, body: object, *, token: str = TOKEN) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with self.http.post(self.url(path), data=data, headers=bearer(token)) as response:
            return response.status, await response.json()

    async def connect(self, path: str, *, token: str = TOKEN) -> aiohttp.ClientWebSocketResponse:
        return await self.http.ws_connect(self.url(path), headers=bearer(token), max_msg_size=0)

    async def launcher(
        self, member: str, *, boot: str = "boot-1", held_round: int | None = None, takes_ledgers: bool = True
    ) -> LauncherPeer:
        peer = LauncherPeer(await self.connect("/v1/member", token=INGEST_TOKEN), member)
        await peer.say(join(member, boot=boot, held_round=held_round, takes_ledgers=takes_ledgers))
        return peer

    async def submit(self, policy: Policy) -> Any:
        status, body = await self.post("/v1/jobs", policy)
        assert status == 200, body
        return body

    async def status(self) -> Any:
        return (await self.get(f"/v1/jobs/{JOB}/status"))[1]

    async def until(self, path: str, accepted: Any) -> Any:
        """Read `path` until `accepted(body)`; no longer than the patience."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                _, body = await self.get(path)
                if accepted(body):
                    return body
                await asyncio.sleep(0.01)


@asynccontextmanager
async def rigged(store: Store | None = None, **options: Any) -> AsyncIterator[Rig]:
    """A watchdog over `store` (memory unless told), served on loopback. `options` are Rig's."""
    rig = Rig(store if store is not None else MemoryStore(), **options)
    await rig.server.start_server()
    try:
        yield rig
    finally:
        await rig.http.close()
        await rig.server.close()
        rig.watchdog.stop()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def join(member: str, *, boot: str = "boot-1", held_round: int | None = None, **fields: Any) -> Join:
    known: dict[str, Any] = {
        "job": JOB,
        "member": member,
        "node": f"node-{member}",
        "boot": boot,
        "address": "127.0.0.1",
        "local_size": 1,
        "ports": (4000, 4001),
        "warm": True,
        "held_round": held_round,
    }
    return Join(**(known | fields))


def read_json(path: Path) -> Any:
    return msgspec.json.decode(path.read_bytes())
