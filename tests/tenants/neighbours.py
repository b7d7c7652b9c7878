"""Two namespaces that share nodes and a watchdog: one trains, the other means it ill."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import WSMsgType, test_utils
from apiserver import ApiServer
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
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import ClusterPolicy, KubernetesAuth
from holdfast.watchdog.store.memory import MemoryStore

AUDIENCE = "holdfast"
NODES = ("node-1", "node-2")
NEVER_S = 600.0  # nobody is lost for being silent here
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

    def pod(self, namespace: str, name: str, node: str) -> None:
        """A pod on a node, and its token."""
        path = f"/api/v1/namespaces/{namespace}"
        container = {"name": "main", "image": "any"}
        spec = {"nodeName": node, "containers": [container], "serviceAccountName": "default"}
        pod = self.server.call("POST", f"{path}/pods", {"metadata": {"name": name}, "spec": spec})
        bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod["metadata"]["uid"]}
        self.of[f"pod {name}"] = self._token(namespace, "default", {"boundObjectRef": bound})

    def account(self, namespace: str, name: str, called: str) -> None:
        self.server.new_service_account(namespace, name)
        self.of[called] = self._token(namespace, name, {})

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
    binding = {
        "metadata": {"name": f"{own}-reviews"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:auth-delegator",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "watchdog", "namespace": own}],
    }
    server.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    parts = {"agent": "ingest", "operator": "operate"}
    roles = {f"system:serviceaccount:{own}:{name}": [role] for name, role in parts.items()}
    (folder / "grants.yaml").write_bytes(msgspec.json.encode({"users": roles}))
    for name, node in (("gpt-0", "node-1"), ("gpt-1", "node-2"), ("bystander", "node-1")):
        made.pod(made.victim, name, node)
    for name, node in (("evil-0", "node-1"), ("evil-1", "node-2")):
        made.pod(made.intruder, name, node)
    made.account(made.intruder, "default", "account of the intruder")
    made.account(made.victim, "default", "account of the victim")
    made.of["nobody"] = ""
    return made


class Scene:
    """The victim trains on two nodes; the intruder has two pods of its own on them."""

    def __init__(self, tokens: Tokens, watchdog: Watchdog, http: aiohttp.ClientSession, url: str) -> None:
        self.tokens = tokens
        self.watchdog = watchdog
        self.http = http
        self.url = url
        self.victim = f"{tokens.victim}/gpt"
        self.intruder = f"{tokens.intruder}/evil"
        self.sequence = 0
        self.lines: list[aiohttp.ClientWebSocketResponse] = []  # of operators, who stay

    def host(self, job: str) -> JobHost:
        return self.watchdog.host(job)

    def headers(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.tokens.of[who]}"} if self.tokens.of[who] else {}

    async def connect(self, path: str, who: str) -> aiohttp.ClientWebSocketResponse:
        return await self.http.ws_connect(f"{self.url}{path}", headers=self.headers(who), max_msg_size=0)

    async def operate(self, job: str, pods: dict[str, str], **fields: Any) -> aiohttp.ClientWebSocketResponse:
        """The operator submits a job of two members, and tells of its pods."""
        policy = Policy(
            job=job,
            nodes_min=1,
            nodes_max=2,
            form_grace_s=30.0,
            processes_per_node=2,
            lost_after_s=NEVER_S,
            uid=f"uid of {job}",
            **fields,
        )
        body = msgspec.json.encode(policy)
        async with self.http.post(f"{self.url}/v1/jobs", data=body, headers=self.headers("operator")) as answer:
            assert answer.status == 200, await answer.text()
        line = await self.connect("/v1/operator", "operator")
        self.lines.append(line)
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

    def standing(self) -> tuple[bytes, int]:
        """All that the watchdog holds of the victim."""
        job = self.host(self.victim).job
        return msgspec.msgpack.encode(job.state), job.offset


@asynccontextmanager
async def scene(tokens: Tokens) -> AsyncIterator[Scene]:
    """Both jobs are submitted and run; each of the victim's ranks published a step that nobody else knows."""
    grants = tokens.folder / "grants.yaml"
    settings = KubernetesAuth(tokens.server.url, tokens.folder / "account", AUDIENCE, grants)
    reviewer = TokenReviewer(settings, now=time.time)
    watchdog = Watchdog(
        MemoryStore(),
        brain=brain,
        senses_for=senses_for,
        fenced=lambda reason: None,
        cluster=ClusterPolicy(cordon_on=CordonOn.SENSORS),
    )
    watchdog.start()
    rights = AccessReviewer(settings, now=time.time)
    server = test_utils.TestServer(make_app(watchdog, reviewer, readership=Readership(rights)))
    async with AsyncExitStack() as stack:
        await server.start_server()
        stack.push_async_callback(reviewer.close)
        stack.push_async_callback(rights.close)
        stack.callback(watchdog.stop)
        stack.push_async_callback(server.close)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        made = Scene(tokens, watchdog, http, str(server.make_url("")).rstrip("/"))
        await made.operate(made.victim, {"gpt-0": "node-1", "gpt-1": "node-2"})
        first = await made.launcher(made.victim, "gpt-0", "node-1")
        second = await made.launcher(made.victim, "gpt-1", "node-2")
        await first.enter()
        await second.enter()
        for place, (member, node) in enumerate((("gpt-0", "node-1"), ("gpt-1", "node-2"))):
            agent = await made.agent(made.victim, node)
            ranks = (made.sample(2 * place + each, SECRET_STEP, member) for each in range(2))
            await agent.say(made.report(node, *ranks))
        await made.settled()
        yield made
