"""A namespace of the real API server, an operator as its own process, and the eyes of a test."""

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
from api_stream import ApiStream
from apiserver import ApiServer, Refused
from fake_kubelet import FakeKubelet, Pod
from fake_watchdog_for_operator import TOKEN
from patience import patient
from server_process import ServerProcess, free_port
from silent_strangers import with_few_files

PATIENCE_S = 40.0  # in the place of a pod that failed soon, another one comes after ten seconds alone
POLL_S = 0.03
LEASE_S = 10.0  # long: a machine may stand still for a while; tests that wait for its end take a shorter one
METRICS_TOKEN = "metrics-token-of-a-test"
WRITES = ("POST", "PATCH", "DELETE")  # PUT is the lease alone
GROUP = "/apis/holdfast.dev/v1alpha1"

Manifest = dict[str, Any]


async def eventually(
    what: str,
    holds: Callable[[], Awaitable[bool]],
    seen: Callable[[], object] = lambda: "nothing more is known",
    within_s: float = PATIENCE_S,
) -> None:
    """Wait until it holds. Raises AssertionError that says what was seen."""
    deadline = asyncio.get_running_loop().time() + patient(within_s)
    while True:
        if await holds():
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"not {what} within {within_s} s: {seen()}")
        await asyncio.sleep(POLL_S)


class OperatorProcess:
    """One `python -m holdfast.operator`. It survives `kill` and `start` with the same flags."""

    def __init__(
        self,
        server: ApiServer,
        namespace: str,
        watchdog: str,
        folder: Path,
        *,
        name: str = "one",
        lease_s: float = LEASE_S,
    ) -> None:
        token_file, metrics_file = folder / "watchdog-token", folder / "metrics-token"
        token_file.write_text(TOKEN + "\n")
        metrics_file.write_text(METRICS_TOKEN + "\n")
        self.port = free_port()
        self.log = folder / f"operator-{name}.log"
        self._command = [
            *(sys.executable, "-m", "holdfast.operator", "--watchdog", watchdog),
            *("--watchdog-token-file", token_file, "--launcher-image", "launcher:test"),
            *("--namespace", namespace, "--lease-namespace", namespace, "--lease-seconds", str(lease_s)),
            *("--identity", name, "--listen", f"127.0.0.1:{self.port}", "--metrics-token-file", metrics_file),
            *("--kubeconfig", server.admin_kubeconfig(), "--resync", "1.0"),
        ]
        self._process: ServerProcess | None = None

    def sign_in(self, kubeconfig: Path) -> None:
        """Be somebody else than the administrator. A later flag wins."""
        self._command += ["--kubeconfig", kubeconfig]

    def start(self, *flags: str, fault: str = "", has_few_files: bool = False) -> None:
        """`fault` is NAME:COUNT of where it is to die."""
        self.stop()  # what is left of the one before
        env = {**os.environ, "HOLDFAST_OPERATOR_FAULT": fault}
        command = [*map(str, self._command), *flags]
        self._process = ServerProcess(
            "operator", with_few_files(command) if has_few_files else command, self.log, env
        )
        self._process.start()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def pause(self) -> None:
        assert self._process is not None
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None
        self._process.resume()

    async def leads(self) -> bool:
        try:
            return await self.metric("holdfast_operator_leader") == 1
        except aiohttp.ClientError:
            return False  # it does not listen yet

    async def ready(self) -> bool:
        try:
            async with aiohttp.ClientSession() as session:
                answer = await session.get(f"http://127.0.0.1:{self.port}/readyz")
        except aiohttp.ClientError:
            return False
        return answer.status == 200

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        assert self._process is not None
        assert self._process.process is not None
        return self._process.process.poll()

    async def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of that name with these labels."""
        total = 0.0
        for line in (await self._metrics()).splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{key}="{each}"' in head for key, each in labels.items()):
                total += float(value)
        return total

    async def exported(self) -> set[str]:
        """The names of the metrics that have a sample."""
        lines = (await self._metrics()).splitlines()
        return {re.split(r"[{ ]", line)[0] for line in lines if not line.startswith("#")}

    async def writes(self) -> float:
        """Requests that change something, the lease left out."""
        counted = [await self.metric("holdfast_operator_api_requests_total", verb=verb) for verb in WRITES]
        return sum(counted)

    async def _metrics(self) -> str:
        headers = {"Authorization": f"Bearer {METRICS_TOKEN}"}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}/metrics", headers=headers) as answer,
        ):
            assert answer.status == 200, await answer.text()
            return await answer.text()


class Nodes(FakeKubelet):
    """Waits as long as everything here does, for before the first pod an operator has to start."""

    async def wait(self, what: str, seen: Callable[[dict[str, Pod]], bool], within_s: float = PATIENCE_S) -> None:
        await super().wait(what, seen, within_s)

    async def wait_running(self, count: int, within_s: float = PATIENCE_S) -> None:
        await super().wait_running(count, within_s)


class Cluster:
    """A namespace as a user of kubectl sees it."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace
        self.api = ApiStream(server, 16)
        self.pods_created: dict[str, str] = {}
        self._shown: Manifest | None = None
        self._watching = asyncio.create_task(self._watch_pods())

    def id(self, name: str = "gpt") -> str:
        """As the watchdog calls the job."""
        return f"{self.namespace}/{name}"

    async def close(self) -> None:
        self._watching.cancel()
        await asyncio.gather(self._watching, return_exceptions=True)
        await self.api.close()
        await asyncio.sleep(0.05)  # turns of the loop, in which what was hung up is closed

    async def apply(self, name: str = "gpt", **spec: Any) -> Manifest:
        """Create a job, or change fields of its spec."""
        try:
            return await self.api.call("POST", self.path(), job_manifest(self.namespace, name, **spec))
        except Refused as refused:
            if refused.code != 409:
                raise
        return await self.patch(name, {"spec": spec})

    async def patch(self, name: str, patch: Manifest, sub: str = "") -> Manifest:
        content = "application/merge-patch+json"
        return await self.api.call("PATCH", self.path(name, sub), patch, content=content)

    async def delete(self, name: str = "gpt") -> None:
        await self.api.call("DELETE", self.path(name))

    async def job(self, name: str = "gpt") -> Manifest | None:
        return await self.get(self.path(name))

    async def get(self, path: str) -> Manifest | None:
        try:
            return await self.api.call("GET", path)
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    async def listed(self, plural: str) -> list[Manifest]:
        found = await self.api.call("GET", f"/api/v1/namespaces/{self.namespace}/{plural}")
        items: list[Manifest] = found["items"]
        if plural == "pods":  # a list may be ahead of the watch
            self.pods_created |= {each["metadata"]["uid"]: each["metadata"]["name"] for each in items}
        return items

    async def pods(self) -> dict[str, Manifest]:
        """Those that are not being deleted and have not ended, by name."""
        ended = ("Succeeded", "Failed")
        return {
            each["metadata"]["name"]: each
            for each in await self.listed("pods")
            if "deletionTimestamp" not in each["metadata"] and each["status"].get("phase") not in ended
        }

    async def until(
        self,
        what: str,
        holds: Callable[[Manifest | None], bool],
        name: str = "gpt",
        within_s: float = PATIENCE_S,
    ) -> Manifest | None:
        """Until the job is as wanted. None: it is gone."""

        async def so() -> bool:
            self._shown = await self.job(name)
            return holds(self._shown)

        await eventually(what, so, lambda: self._shown and self._shown.get("status"), within_s)
        return self._shown

    async def until_pods(self, *names: str, within_s: float = PATIENCE_S) -> dict[str, Manifest]:
        """Until exactly these pods are there, none of them being deleted."""
        pods: dict[str, Manifest] = {}

        async def so() -> bool:
            nonlocal pods
            pods = await self.pods()
            self._shown = await self.job()
            return set(pods) == set(names)

        await eventually(
            f"just the pods {names}",
            so,
            lambda: (sorted(pods), self._shown and self._shown.get("status")),
            within_s,
        )
        return pods

    def path(self, name: str = "", sub: str = "", plural: str = "trainingjobs") -> str:
        path = f"{GROUP}/namespaces/{self.namespace}/{plural}"
        return path + (f"/{name}" if name else "") + (f"/{sub}" if sub else "")

    async def _watch_pods(self) -> None:
        async with aclosing(self.api.follow(f"/api/v1/namespaces/{self.namespace}/pods")) as changes:
            async for kind, pod in changes:
                if kind not in ("DELETED", "CLEARED"):
                    self.pods_created[pod["metadata"]["uid"]] = pod["metadata"]["name"]


async def add_nodes(kubelet: FakeKubelet, count: int, labels: dict[str, str] | None = None) -> list[str]:
    """Nodes of this test, whose names nobody else has."""
    names = [f"{kubelet.namespace}-n{each}" for each in range(count)]
    await kubelet.add_nodes(names, labels=labels)
    return names


def job_manifest(namespace: str, name: str, **spec: Any) -> Manifest:
    given: Manifest = {
        "entrypoint": ["train.py"],
        "nodes": {"min": 1, "max": 2},
        "template": {
            # Named, because the test server runs without the admission that fills it in.
            "spec": {"serviceAccountName": "default", "containers": [{"name": "trainer", "image": "train:test"}]}
        },
    }
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": given | spec,
    }


def condition(job: Manifest | None, kind: str) -> str:
    """The status of that condition, empty when there is none."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return next((str(each["status"]) for each in conditions if each["type"] == kind), "")


def phase(job: Manifest | None) -> str:
    return str(((job or {}).get("status") or {}).get("phase") or "")
