"""Whose a token is, asked of a real API server."""

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import WSMsgType, test_utils
from apiserver import ApiServer
from forgetful_store import MemoryStore
from patience import patient
from peers import TO_LAUNCHER, join, quick_senses
from replicas import Relay

from holdfast.api.errors import Unavailable
from holdfast.api.membership import Refused
from holdfast.api.telemetry import AgentHello
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import Authenticator, Caller, Role
from holdfast.watchdog.access.reviews import TokenReviewer
from holdfast.watchdog.access.verdicts import ACCEPTED_S, LAST_RESORT_S
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import KubernetesAuth

AUDIENCE = "holdfast"


class Cluster:
    """A namespace with accounts, and this watchdog's own account in it."""

    def __init__(self, server: ApiServer, namespace: str, folder: Path) -> None:
        self.server = server
        self.namespace = namespace
        self.account = folder / "account"
        self.grants = folder / "grants.yaml"
        self.now = time.time()
        self.made: list[TokenReviewer] = []
        self.account.mkdir()
        (self.account / "ca.crt").write_bytes(server.authority.certificate.read_bytes())
        server.new_service_account(namespace, "watchdog")
        self.may_review("watchdog")
        self.own_token(server.service_account_token(namespace, "watchdog"))
        agent, viewer = self.user("agent"), self.user("viewer")
        self.grants.write_text(json.dumps({"users": {agent: ["ingest"], viewer: ["view"]}}))
        for name in ("agent", "viewer"):
            server.new_service_account(namespace, name)

    def user(self, account: str) -> str:
        return f"system:serviceaccount:{self.namespace}:{account}"

    def own_token(self, token: str) -> None:
        (self.account / "token").write_text(token)

    def may_review(self, account: str) -> None:
        binding = {
            "metadata": {"name": f"{self.namespace}-{account}"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:auth-delegator",
            },
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}],
        }
        self.server.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)

    def token(self, account: str = "default", audience: str = AUDIENCE) -> str:
        return self.server.service_account_token(self.namespace, account, [audience])

    def reviewer(self, api_server: str | None = None) -> TokenReviewer:
        settings = KubernetesAuth(api_server or self.server.url, self.account, AUDIENCE, self.grants)
        self.made.append(TokenReviewer(settings, now=lambda: self.now))
        return self.made[-1]


@pytest.fixture
async def cluster(apiserver: ApiServer, namespace: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(apiserver, namespace, tmp_path)
    yield made
    for reviewer in made.made:
        await reviewer.close()


@pytest.fixture
def reviewer(cluster: Cluster) -> TokenReviewer:
    return cluster.reviewer()


class Line:
    """The way to the API server, which can be cut."""

    def __init__(self, relay: Relay, open_: list[bool]) -> None:
        self._relay = relay
        self._open = open_

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._relay.port}"

    def cut(self) -> None:
        self._open[0] = False
        self._relay.cut()

    def mend(self) -> None:
        self._open[0] = True


@pytest.fixture
async def line(cluster: Cluster) -> AsyncIterator[Line]:
    open_ = [True]
    relay = Relay(lambda: cluster.server.port if open_[0] else None)
    await relay.start()
    yield Line(relay, open_)
    await relay.close()


async def test_a_pod_of_any_account_may_speak_for_its_namespace(cluster: Cluster, reviewer: TokenReviewer) -> None:
    caller = await reviewer.caller(cluster.token())
    assert without_identity(caller) == Caller(cluster.user("default"), frozenset({Role.INGEST}), cluster.namespace)
    assert caller is not None
    assert caller.identity is not None
    assert f"system:serviceaccounts:{cluster.namespace}" in caller.identity.groups


def without_identity(caller: Caller | None) -> Caller | None:
    return None if caller is None else msgspec.structs.replace(caller, identity=None)


async def test_who_is_granted_more_has_more(cluster: Cluster, reviewer: TokenReviewer) -> None:
    agent = await reviewer.caller(cluster.token("agent"))
    assert without_identity(agent) == Caller(cluster.user("agent"), frozenset({Role.INGEST}), None)
    viewer = await reviewer.caller(cluster.token("viewer"))
    assert viewer is not None
    assert viewer.roles == {Role.VIEW, Role.INGEST}


async def test_a_group_is_granted_as_well(cluster: Cluster) -> None:
    group = f"system:serviceaccounts:{cluster.namespace}"
    cluster.grants.write_text(json.dumps({"groups": {group: ["operate"]}}))
    reviewer = cluster.reviewer()
    caller = await reviewer.caller(cluster.token())
    assert caller is not None
    assert caller.roles == {Role.INGEST, Role.OPERATE}


async def test_a_token_made_for_somebody_else_is_worth_nothing(cluster: Cluster, reviewer: TokenReviewer) -> None:
    assert await reviewer.caller(cluster.token(audience="vault")) is None
    # The API server's own audience opens the API server, not this.
    assert await reviewer.caller(cluster.server.service_account_token(cluster.namespace, "default")) is None


@pytest.mark.parametrize("token", ["made-up", "a.b.c", "x" * 4000, "\udcff", "ü"])
async def test_a_made_up_token_is_nobodys(reviewer: TokenReviewer, token: str) -> None:
    assert await reviewer.caller(token) is None


async def test_an_expired_token_is_nobodys(cluster: Cluster, reviewer: TokenReviewer) -> None:
    expired = resigned(cluster, lambda claims: claims | {"exp": int(time.time()) - 3600, "iat": 0, "nbf": 0})
    valid = resigned(cluster, lambda claims: claims)
    assert await reviewer.caller(valid) is not None
    assert await reviewer.caller(expired) is None


async def test_a_token_whose_account_is_gone_is_refused_within_a_minute(
    cluster: Cluster, reviewer: TokenReviewer
) -> None:
    cluster.server.new_service_account(cluster.namespace, "short-lived")
    token = cluster.token("short-lived")
    assert await reviewer.caller(token) is not None
    cluster.server.call("DELETE", f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/short-lived")
    assert await reviewer.caller(token) is not None  # remembered
    cluster.now += ACCEPTED_S
    async with asyncio.timeout(patient(20.0)):
        # The API server remembers for some seconds as well.
        while await reviewer.caller(token) is not None:
            cluster.now += ACCEPTED_S
            await asyncio.sleep(0.2)


class TestWhileTheApiServerIsAway:
    async def test_who_was_accepted_stays_so_for_ten_minutes_and_others_are_put_off(
        self, cluster: Cluster, line: Line
    ) -> None:
        reviewer = cluster.reviewer(line.url)
        known, unknown = cluster.token(), cluster.token("agent")
        assert await reviewer.caller(known) is not None
        line.cut()
        cluster.now += LAST_RESORT_S - 1.0
        assert await reviewer.caller(known) is not None
        with pytest.raises(Unavailable, match="API server cannot be asked"):
            await reviewer.caller(unknown)
        cluster.now += 1.0
        with pytest.raises(Unavailable):
            await reviewer.caller(known)
        line.mend()
        cluster.now += 2.0
        assert await reviewer.caller(known) is not None
        assert await reviewer.caller(unknown) is not None

    async def test_a_token_is_never_accepted_beyond_its_end(self, cluster: Cluster, line: Line) -> None:
        reviewer = cluster.reviewer(line.url)
        token = resigned(cluster, lambda claims: claims | {"exp": int(cluster.now) + 120})
        assert await reviewer.caller(token) is not None
        line.cut()
        cluster.now += 119.0
        assert await reviewer.caller(token) is not None
        cluster.now += 2.0
        with pytest.raises(Unavailable):
            await reviewer.caller(token)

    async def test_it_is_said_once(self, cluster: Cluster, line: Line, caplog: pytest.LogCaptureFixture) -> None:
        reviewer = cluster.reviewer(line.url)
        line.cut()
        for _ in range(5):
            with pytest.raises(Unavailable):
                await reviewer.caller("some-token")
            cluster.now += 2.0
        assert caplog.text.count("reviews cannot be had kind=TokenReview") == 1


async def test_an_account_that_may_not_review_is_told_what_it_lacks(
    cluster: Cluster, reviewer: TokenReviewer
) -> None:
    cluster.own_token(cluster.server.service_account_token(cluster.namespace, "agent"))
    with pytest.raises(Unavailable, match="system:auth-delegator"):
        await reviewer.caller(cluster.token())


async def test_our_own_token_is_read_again_when_it_was_replaced(cluster: Cluster, reviewer: TokenReviewer) -> None:
    good = (cluster.account / "token").read_text()
    cluster.own_token("outdated")
    with pytest.raises(Unavailable, match="our own account's token is not accepted"):
        await reviewer.caller(cluster.token())
    cluster.own_token(good)
    cluster.now += 2.0
    assert await reviewer.caller(cluster.token()) is not None


async def test_many_who_come_at_once_with_one_token_ask_once(cluster: Cluster, line: Line) -> None:
    reviewer = cluster.reviewer(line.url)
    token = cluster.token()
    callers = await asyncio.gather(*(reviewer.caller(token) for _ in range(50)))
    line.cut()
    assert await reviewer.caller(token) == callers[0]  # remembered, with nobody to ask
    assert len(set(callers)) == 1


async def test_an_api_server_nobody_vouches_for_is_not_asked(cluster: Cluster) -> None:
    (cluster.account / "ca.crt").write_text("no certificate")
    with pytest.raises(Unavailable, match=r"ca\.crt"):
        cluster.reviewer()


class TestServed:
    """Behind the watchdog's own doors."""

    async def test_a_launcher_joins_for_its_own_namespace_only(
        self, cluster: Cluster, reviewer: TokenReviewer
    ) -> None:
        async with served(reviewer) as (http, url):
            own, other = f"{cluster.namespace}/gpt", "research/gpt"
            assert await joined(http, url, cluster.token(), own) is None
            refused = await joined(http, url, cluster.token(), other)
            assert refused is not None
            assert f"jobs of namespace {cluster.namespace} only" in refused
            assert await joined(http, url, cluster.token("agent"), other) is None

    async def test_a_pod_may_not_speak_for_nodes(self, cluster: Cluster, reviewer: TokenReviewer) -> None:
        async with served(reviewer) as (http, url):
            hello = msgspec.msgpack.encode(AgentHello(job=f"{cluster.namespace}/gpt", node="n1", boot="b1"))
            for token, closed in ((cluster.token(), True), (cluster.token("agent"), False)):
                async with http.ws_connect(f"{url}/v1/agent", headers={"X-Holdfast-Token": token}) as socket:
                    await socket.send_bytes(hello)
                    async with asyncio.timeout(patient(5.0)):
                        message = await socket.receive()
                    assert (message.type is WSMsgType.CLOSE) is closed, message

    async def test_what_a_role_does_not_open_says_who_asked(
        self, cluster: Cluster, reviewer: TokenReviewer
    ) -> None:
        async with served(reviewer) as (http, url):
            headers = {"X-Holdfast-Token": cluster.token()}
            async with http.get(f"{url}/metrics", headers=headers) as answer:
                assert answer.status == 403
                says = (await answer.json())["error"]
            assert says == f"this needs the role view; {cluster.user('default')} has ingest"
            # The API server's proxy drops Authorization; ours goes before it in any case.
            headers = {"X-Holdfast-Token": cluster.token("viewer"), "Authorization": "Bearer other"}
            async with http.get(f"{url}/v1/jobs", headers=headers) as answer:
                assert answer.status == 200

    async def test_who_cannot_be_judged_is_put_off_and_not_turned_away(self, cluster: Cluster, line: Line) -> None:
        reviewer = cluster.reviewer(line.url)
        line.cut()
        headers = {"X-Holdfast-Token": "unknown"}
        async with served(reviewer) as (http, url), http.get(f"{url}/v1/jobs", headers=headers) as answer:
            assert answer.status == 503


@asynccontextmanager
async def served(authenticator: Authenticator) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=quick_senses, fenced=lambda reason: None)
    watchdog.start()
    server = test_utils.TestServer(make_app(watchdog, authenticator))
    await server.start_server()
    try:
        async with aiohttp.ClientSession() as http:
            yield http, str(server.make_url("")).rstrip("/")
    finally:
        await server.close()
        watchdog.stop()


async def joined(http: aiohttp.ClientSession, url: str, token: str, job: str) -> str | None:
    """Why the launcher is refused, None when it is shown a desired state."""
    async with http.ws_connect(f"{url}/v1/member", headers={"Authorization": f"Bearer {token}"}) as socket:
        await socket.send_bytes(msgspec.msgpack.encode(join("m1", job=job, nodes=(1, 1))))
        async with asyncio.timeout(patient(5.0)):
            message = await socket.receive()
        assert message.type is WSMsgType.BINARY, message
        shown = TO_LAUNCHER.decode(message.data)
        return shown.reason if isinstance(shown, Refused) else None


def resigned(cluster: Cluster, change: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """A token as the API server would have made it, with other claims. Made with the server's own key."""
    header, payload, _ = cluster.token().split(".")
    claims = change(json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))))
    signed = f"{header}.{unpadded(json.dumps(claims).encode())}"
    key = cluster.server.authority.folder / "service-accounts.key"
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    signature = subprocess.run(
        command, input=signed.encode(), capture_output=True, check=True, timeout=patient(10.0)
    ).stdout
    return f"{signed}.{unpadded(signature)}"


def unpadded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
