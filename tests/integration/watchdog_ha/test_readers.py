"""Every read of a watchdog, by people who may read the jobs of one namespace: asked of a real API server."""

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import test_utils
from apiserver import ApiServer
from forgetful_store import MemoryStore
from patience import patient
from peers import policy_of, quick_senses

from holdfast.api.event import JobSubmitted
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import Role
from holdfast.watchdog.access.readership import GET_LOG, Readership, Right
from holdfast.watchdog.access.reviews import AccessReviewer, TokenReviewer
from holdfast.watchdog.server.app import JOB, ROUTES, Route, make_app
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import KubernetesAuth

pytestmark = pytest.mark.kubernetes
AUDIENCE = "holdfast"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
# What open and programs' doors are: no read of a job.
OPEN = {"/healthz", "/livez", "/readyz"}
GRANTED_ONLY = {"/metrics", "/v1/feed", "/v1/fleet"}
OF_THE_CALLER = {"/v1/whoami"}


def bound(server: ApiServer, account: str, namespace: str, resources: tuple[str, ...], name: str) -> None:
    """Let the account `namespace:name` read these resources in its own namespace."""
    rules = [{"apiGroups": ["holdfast.dev"], "resources": resources, "verbs": ["get", "list", "watch"]}]
    server.call("POST", f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": name}, "rules": rules})
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    server.call("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", binding)


class Place:
    """A watchdog with the job `gpt` in each of two namespaces, `own` and `other`."""

    def __init__(self, server: ApiServer, own: str, url: str) -> None:
        self.server = server
        self.own = own
        self.other = f"{own}-other"
        self.url = url
        self._http = aiohttp.ClientSession()

    def token(self, account: str) -> str:
        return self.server.service_account_token(self.own, account, [AUDIENCE])

    async def ask(self, token: str, path: str, method: str = "GET") -> tuple[int, Any]:
        headers = {"X-Holdfast-Token": token}
        async with self._http.request(method, f"{self.url}{path}", headers=headers) as answer:
            content = await answer.read()
            is_packed = answer.content_type.endswith("msgpack")
            return answer.status, (msgspec.msgpack if is_packed else msgspec.json).decode(content)

    async def close(self) -> None:
        await self._http.close()


@pytest.fixture
async def place(apiserver: ApiServer, namespace: str, tmp_path: Path) -> AsyncIterator[Place]:
    account = tmp_path / "account"
    account.mkdir()
    (account / "ca.crt").write_bytes(apiserver.authority.certificate.read_bytes())
    for name in ("watchdog", "reader", "seer", "stranger"):
        apiserver.new_service_account(namespace, name)
    (account / "token").write_text(apiserver.service_account_token(namespace, "watchdog"))
    delegator = {
        "metadata": {"name": f"{namespace}-reviews"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:auth-delegator",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "watchdog", "namespace": namespace}],
    }
    apiserver.call("POST", f"{RBAC}/clusterrolebindings", delegator)
    bound(apiserver, "reader", namespace, ("trainingjobs", "trainingjobs/log"), "reads")
    bound(apiserver, "seer", namespace, ("trainingjobs",), "sees")
    settings = KubernetesAuth(apiserver.url, account, AUDIENCE, None)
    authenticator = TokenReviewer(settings, now=time.time)
    rights = AccessReviewer(settings, now=time.time)
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=quick_senses, fenced=lambda _: None)
    watchdog.start()
    for each in (namespace, f"{namespace}-other"):
        policy = policy_of(job=f"{each}/gpt")
        watchdog.host(policy.job).demand(JobSubmitted(policy))
    app = make_app(watchdog, authenticator, readership=Readership(rights))
    async with test_utils.TestServer(app) as server:
        made = Place(apiserver, namespace, str(server.make_url("")).rstrip("/"))
        yield made
        await made.close()
    await authenticator.close()
    await rights.close()
    watchdog.stop()


def reads() -> Iterator[Route]:
    """Every path of the watchdog that reads, but for the programs' lines."""
    for route in ROUTES:
        if route.method == "GET" and route.needs not in (Role.INGEST, Role.OPERATE):
            yield route


def path_of(route: Route, namespace: str) -> str:
    query = "?rank=0" if route.path.endswith("/logs") else ""
    return route.path.format(namespace=namespace, name="gpt", id="inc-1") + query


async def wait_until_bound(place: Place, token: str) -> None:
    """RBAC sees a new binding a moment after it was made, and a refusal is remembered for seconds."""
    deadline = time.monotonic() + patient(20.0)
    while (await place.ask(token, f"/v1/jobs/{place.own}/gpt/status"))[0] != 200:
        assert time.monotonic() < deadline


async def test_who_may_read_one_namespace_reads_it_and_no_other(place: Place) -> None:
    """Goes by the application's own table, so that no path can be forgotten."""
    reader, seer, stranger = (place.token(each) for each in ("reader", "seer", "stranger"))
    await wait_until_bound(place, reader)
    await wait_until_bound(place, seer)
    of_jobs = [route for route in reads() if route.path.startswith(JOB)]
    others = OPEN | GRANTED_ONLY | OF_THE_CALLER | {"/v1/jobs"}
    assert {route.path for route in reads()} == {route.path for route in of_jobs} | others
    for route in of_jobs:
        own, other = path_of(route, place.own), path_of(route, place.other)
        assert isinstance(route.needs, Right), route
        status, said = await place.ask(reader, own)
        assert status in (200, 400, 404), (own, said)  # let in; the job has no such incident, or nothing was asked
        assert (await place.ask(seer, own))[0] == (403 if route.needs == GET_LOG else status), own
        for token, path in ((reader, other), (seer, other), (stranger, own), (stranger, other)):
            status, said = await place.ask(token, path)
            assert status == 403, (path, said)
            assert f"this needs the right to {route.needs} in namespace " in said["error"]
    for path in ("/metrics", "/v1/fleet"):
        status, said = await place.ask(reader, path)
        assert (status, said["error"]) == (
            403,
            f"this needs the role view; system:serviceaccount:{place.own}:reader has ingest",
        )
    for token, jobs in ((reader, [f"{place.own}/gpt"]), (stranger, [])):
        status, said = await place.ask(token, "/v1/jobs")
        assert (status, [each["job"] for each in said]) == (200, jobs)
        assert place.other not in str(said)


async def test_what_changes_a_job_still_needs_the_role(place: Place) -> None:
    reader = place.token("reader")
    await wait_until_bound(place, reader)
    for route in ROUTES:
        if route.method != "GET":
            status, said = await place.ask(reader, path_of(route, place.own), route.method)
            assert (status, said["error"].split(";")[0]) == (403, "this needs the role operate"), route


async def test_what_names_no_job_is_not_asked_about(place: Place) -> None:
    status, said = await place.ask(place.token("stranger"), "/v1/jobs/Some%20where/gpt/status")
    assert status == 400
    assert "name it namespace/name" in said["error"]
