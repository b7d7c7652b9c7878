"""Two namespaces that share nodes and a watchdog: one trains, the other means it ill."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import WSMsgType, test_utils
from apiserver import ApiServer
from forgetful_store import MemoryStore
from patience import patient
from peers import AgentPeer, LauncherPeer, join

from holdfast.api.membership import Join, Refused, ToLauncher
from holdfast.api.plan import OperatorHello, PodObserved, PodState
from holdfast.api.policy import CordonOn, Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import AgentHello, NodeReport, ProcessState, RankSample
from holdfast.watchdog import brain
from holdfast.watchdog.access.readership import Readership
from holdfast.watchdog.access.reviews import AccessReviewer, TokenReviewer
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.clock import WatchdogClock
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import ClusterPolicy, KubernetesAuth

AUDIENCE = "holdfast"
NODES = ("node-1", "node-2")
NEVER_S = 1e6  # nobody of the victim's is lost for being silent here
HANG_S = 60.0
SECRET_STEP = 424_242
SECRET_LOSS = 0.123456789
TO_LAUNCHER: msgspec.msgpack.Decoder[ToLauncher] = msgspec.msgpack.Decoder(ToLauncher)


@dataclass
class Tokens:
    """What the API server gave to whom. Pods' tokens are bound to their pods."""

    victim: str
    intruder: str
    folder: Path
    server: ApiServer
    of: dict[str, str] = field(default_factory=dict)
    readers: str = "tenants-view"

    def pod(self, namespace: str, name: str, node: str) -> None:
        """A pod on a node, and its token."""
        path = f"/api/v1/namespaces/{namespace}"
        container = {"name": "main", "image": "any"}
        spec = {"nodeName": node, "containers": [container], "serviceAccountName": "default"}
        pod = self.server.call("POST", f"{path}/pods", {"metadata": {"name": name}, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
        self.of[f"pod {name}"] = self._token(namespace, "default", {"boundObjectRef": bound})

    def account(self, namespace: str, name: str, called: str, *, reads: bool = False) -> None:
        """An account and its token; `reads` gives it the right that the chart's role for people has, there."""
        self.server.new_service_account(namespace, name)
        self.of[called] = self._token(namespace, name, {})
        if reads:
            self.server.call(
                "POST",
                f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
                bound(f"{name}-reads", self.readers, ("ServiceAccount", name, namespace)),
            )

    def _token(self, namespace: str, account: str, more: dict[str, Any]) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        spec = {"audiences": [AUDIENCE], "expirationSeconds": 3600, **more}
        token: str = self.server.call("POST", path, {"spec": spec})["status"]["token"]
        return token


def tokens_of(server: ApiServer, folder: Path) -> Tokens:
    """Both namespaces, and the accounts of Holdfast's own parts."""
    made = Tokens(server.new_namespace("victim"), server.new_namespace("intruder"), folder, server)
    own = server.new_namespace("holdfast")
    for name in ("watchdog", "agent", "operator"):
        made.account(own, name, name)
    account = folder / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(server.authority.certificate.read_bytes())
    (account / "token").write_text(server.service_account_token(own, "watchdog"))
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    binding = bound(f"{own}-reviews", "system:auth-delegator", ("ServiceAccount", "watchdog", own))
    server.call("POST", f"{rbac}/clusterrolebindings", binding)
    rule = {
        "apiGroups": ["holdfast.dev"],
        "resources": ["trainingjobs", "trainingjobs/log"],
        "verbs": ["get", "list", "watch"],
    }
    server.call("POST", f"{rbac}/clusterroles", {"metadata": {"name": made.readers}, "rules": [rule]})
    parts = {"agent": "ingest", "operator": "operate"}
    roles = {f"system:serviceaccount:{own}:{name}": [role] for name, role in parts.items()}
    (folder / "grants.yaml").write_bytes(msgspec.json.encode({"users": roles}))
    for name, node in (
        ("gpt-0", "node-1"),
        ("gpt-1", "node-2"),
        ("bystander", "node-1"),
        ("bystander-2", "node-2"),
    ):
        made.pod(made.victim, name, node)
    for name, node in (("evil-0", "node-1"), ("evil-1", "node-2")):
        made.pod(made.intruder, name, node)
    made.account(made.intruder, "default", "account of the intruder")
    made.account(made.victim, "default", "account of the victim")
    made.account(made.intruder, "viewer", "viewer of the intruder", reads=True)
    made.account(made.victim, "viewer", "viewer of the victim", reads=True)
    made.of["nobody"] = ""
    return made


def bound(name: str, role: str, subject: tuple[str, str, str]) -> dict[str, Any]:
    """A binding of the ClusterRole to one subject: its kind, name and namespace."""
    kind, of, namespace = subject
    return {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": kind, "name": of, "namespace": namespace}],
    }


class SteeredClock(WatchdogClock):
    """The watchdog's clock, which a test may set forward."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


@dataclass(frozen=True)
class Standing:
    """What the watchdog holds of the victim: its job, how far its ranks are, and what is held against nodes."""

    state: bytes
    offset: int
    ranks: tuple[str, ...]
    step: int | None
    nodes: tuple[str, ...]


class Scene:
    """The victim trains on two nodes; the intruder has two pods of its own on them."""

    def __init__(
        self, tokens: Tokens, watchdog: Watchdog, clock: SteeredClock, http: aiohttp.ClientSession, url: str
    ) -> None:
        self.tokens = tokens
        self.watchdog = watchdog
        self.clock = clock
        self.http = http
        self.url = url
        self.of_node: dict[str, AgentPeer] = {}  # the victim's agents
        self.members: dict[str, LauncherPeer] = {}  # its launchers
        self.before: Standing | None = None
        self.victim = f"{tokens.victim}/gpt"
        self.intruder = f"{tokens.intruder}/evil"
        self.sequence = 0
        self.lines: list[aiohttp.ClientWebSocketResponse] = []  # what nobody holds is closed, which would be said

    def host(self, job: str) -> JobHost:
        return self.watchdog.host(job)

    def headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens.of[who]}"} if self.tokens.of[who] else {}

    async def connect(self, path: str, who: str) -> aiohttp.ClientWebSocketResponse:
        line = await self.http.ws_connect(f"{self.url}{path}", headers=self.headers(who), max_msg_size=0)
        self.lines.append(line)
        return line

    async def operate(self, job: str, pods: dict[str, str], **fields: Any) -> aiohttp.ClientWebSocketResponse:
        """The operator submits a job of two members, and tells of its pods."""
        policy = Policy(
            job=job,
            processes_per_node=2,
            uid=f"uid of {job}",
            **({"nodes_min": 1, "nodes_max": 2, "form_grace_s": 30.0, "lost_after_s": NEVER_S} | fields),
        )
        body = msgspec.json.encode(policy)
        async with self.http.post(f"{self.url}/v1/jobs", data=body, headers=self.headers("operator")) as answer:
            assert answer.status == 200, await answer.text()
        line = await self.connect("/v1/operator", "operator")
        await line.send_bytes(msgspec.msgpack.encode(OperatorHello(job)))
        for pod, node in pods.items():
            await line.send_bytes(msgspec.msgpack.encode(PodObserved(pod, node, PodState.RUNNING)))
        return line

    async def launcher(self, job: str, member: str, node: str, who: str = "", **fields: Any) -> LauncherPeer:
        peer = LauncherPeer(await self.connect("/v1/member", who or f"pod {member}"), member)
        said: Join = join(member, job=job, node=node, local_size=2, **fields)
        await peer.say(said)
        return peer

    async def agent(self, job: str, node: str) -> AgentPeer:
        peer = AgentPeer(await self.connect("/v1/agent", "agent"))
        await peer.say(AgentHello(node, "b1", job))
        await peer.told()
        return peer

    def report(self, node: str, *ranks: RankSample, **said: Any) -> NodeReport:
        self.sequence += 1
        return NodeReport(node, "b1", self.sequence, ranks=ranks, **said)

    def sample(self, rank: int, step: int, member: str) -> RankSample:
        number = self.host(self.victim).job.state.round
        assert number is not None
        return RankSample(
            number.number, rank, ProcessState.RUNNING, Phase.FORWARD, 0.0, 0.0,
            step=step, loss=SECRET_LOSS, member=member,
        )  # fmt: skip

    async def refusal(self, peer: LauncherPeer) -> str:
        """Why the launcher is not let in; empty when it is."""
        said = ""
        while True:
            message = await peer.socket.receive(timeout=patient(15.0))
            if message.type is not WSMsgType.BINARY:
                return said or str(message.extra)
            shown = TO_LAUNCHER.decode(message.data)
            if not isinstance(shown, Refused):
                return ""
            said = shown.reason

    async def settled(self) -> None:
        """Everything said so far is taken: the same connection answers in order."""
        line = await self.connect("/v1/operator", "operator")
        await line.send_bytes(msgspec.msgpack.encode(OperatorHello(self.victim)))
        await line.receive(timeout=patient(15.0))
        await line.close()

    async def honest(self) -> None:
        """The victim's agents say what they said before: all is well, at the step that nobody else knows."""
        for place, node in enumerate(self.of_node):
            ranks = (self.sample(2 * place + each, SECRET_STEP, f"gpt-{place}") for each in range(2))
            await self.tell(node, self.report(node, *ranks))

    async def tell(self, node: str, report: NodeReport) -> None:
        """The victim's agent of the node says it, and it is taken."""
        await self.of_node[node].say(report)
        taken = self.host(self.victim).taken
        await self.until(lambda: node in taken and taken[node].sequence >= report.sequence)

    async def until(self, holds: Callable[[], object]) -> None:
        """Raises AssertionError when it does not come to hold."""
        ends = time.monotonic() + patient(5.0)
        while not holds():
            assert time.monotonic() < ends, "it did not come to hold"
            await asyncio.sleep(0.005)

    async def later(self, seconds: float) -> None:
        """Time passes, for the victim without an event; whatever anybody waited for is due."""
        self.clock.ahead_s += seconds
        await self.honest()
        for host in self.watchdog.hosts():
            host._wake()
        await self.settled()

    def standing(self) -> Standing:
        host = self.host(self.victim)
        assert host.job.senses is not None
        gauge, now = host.job.senses.progress, self.clock.now()
        ranks = (
            f"{each.rank} of {each.member}: round {each.round} step {each.step} loss {each.loss} {each.process} "
            f"{'late' if max(each.progress_age_s, each.pulse_age_s or 0.0) > HANG_S else 'in time'}"
            for each in sorted(gauge.newest().samples, key=lambda sample: sample.rank)
        )
        told = (self.watchdog.fleet.told_of(node, now, self.victim) for node in NODES)
        return Standing(
            msgspec.msgpack.encode(host.job.state),
            host.job.offset,
            tuple(ranks),
            gauge.step(),
            (*self.watchdog.fleet.quarantined, *told),
        )

    def found(self, kind: str) -> bool:
        """Whether the victim's job has an incident of that kind."""
        return kind in [each.kind.value for each in self.host(self.victim).job.state.incidents]

    def kept_from(self, job: str) -> frozenset[str]:
        """The nodes that jobs of the job's namespace keep away from."""
        return self.watchdog.fleet._fleet.kept_from(job)

    def assert_nothing_changed(self) -> None:
        now = self.standing()
        assert self.before is not None
        differs = {
            name: (getattr(self.before, name), getattr(now, name))
            for name in ("nodes", "step", "ranks", "offset", "state")
            if getattr(self.before, name) != getattr(now, name)
        }
        assert not differs, differs


@asynccontextmanager
async def scene(tokens: Tokens, cordon_on: CordonOn = CordonOn.SENSORS) -> AsyncIterator[Scene]:
    """The victim's job is submitted and runs; each of its ranks published a step that nobody else knows."""
    grants = tokens.folder / "grants.yaml"
    settings = KubernetesAuth(tokens.server.url, tokens.folder / "account", AUDIENCE, grants)
    reviewer = TokenReviewer(settings, now=time.time)
    watchdog = Watchdog(
        MemoryStore(),
        brain=brain,
        senses_for=senses_for,
        fenced=lambda reason: None,
        cluster=ClusterPolicy(cordon_on=cordon_on),
    )
    watchdog.start()
    watchdog.clock = clock = SteeredClock()
    rights = AccessReviewer(settings, now=time.time)
    server = test_utils.TestServer(make_app(watchdog, reviewer, readership=Readership(rights)))
    async with AsyncExitStack() as stack:
        await server.start_server()
        stack.push_async_callback(reviewer.close)
        stack.push_async_callback(rights.close)
        stack.callback(watchdog.stop)
        stack.push_async_callback(server.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Scene(tokens, watchdog, clock, http, str(server.make_url("")).rstrip("/"))
        pods = {"gpt-0": "node-1", "gpt-1": "node-2"}
        await made.operate(made.victim, pods, hang_timeout_s=HANG_S)
        for member, node in pods.items():
            made.members[member] = await made.launcher(made.victim, member, node)
        for peer in made.members.values():
            await peer.enter()
        for node in NODES:
            made.of_node[node] = await made.agent(made.victim, node)
        await made.honest()
        made.before = made.standing()
        yield made
