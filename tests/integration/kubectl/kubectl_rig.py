"""Holdfast installed on a real API server, with a real watchdog and operator beside it, and people with rights.

No kubelet runs: the chart's pods are never started. In their place the watchdog and the operator are processes of
this machine, and the service's endpoints point at the watchdog.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import yaml
from apiserver import ApiServer, ApiServerSettings
from helm_python import Chart
from kubernetes_binaries import kubernetes_program
from patience import patient
from server_process import ServerProcess

from holdfast.api.membership import Beat, FromLauncher, Join, RoundEntered, ToLauncher
from holdfast.api.round import Seat
from holdfast.api.selftest import Tested, TestWanted, Verdict

CHART = Path(__file__).parents[3] / "helm" / "holdfast"
GROUP = "/apis/holdfast.dev/v1alpha1"
HOLDFAST = "hf-system"
TEAM = "research"
POD = "holdfast-watchdog-0"
PATIENCE_S = patient(30.0)
LOOK_S = 0.1
BEAT_S = 0.5
TO_LAUNCHER: msgspec.msgpack.Decoder[ToLauncher] = msgspec.msgpack.Decoder(ToLauncher)
PLUGINS = {
    "kubectl-holdfast": "from holdfast.cli.main import kubectl_main as main",
    "kubectl_complete-holdfast": "from holdfast.cli.main import kubectl_completion_main as main",
}


@dataclass(frozen=True)
class Said:
    """What a command line answered."""

    code: int
    out: str
    err: str


class Installation:
    """`start` it, `run` kubectl as somebody, `stop` it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.audit = folder / "audit.log"
        self.server = ApiServer(ApiServerSettings(flags=self._audit_flags()))
        self.address = own_address()
        self.port = 0
        self.watchdog: ServerProcess | None = None
        self.operator: ServerProcess | None = None

    def start(self) -> None:
        self.server.start()
        for namespace in (HOLDFAST, TEAM):
            self.server.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            self.server.new_service_account(namespace, "default")
        self._install_chart()
        self._write_plugins()
        self.start_watchdog()
        self._point_service_at_watchdog()
        self.start_operator()

    def stop(self) -> None:
        for process in (self.operator, self.watchdog):
            if process is not None and process.running:
                process.stop()
        self.server.close()

    def start_watchdog(self) -> None:
        """On the same port again, when it was there before."""
        account = self.folder / "account"
        account.mkdir(exist_ok=True)
        token = self.server.service_account_token(HOLDFAST, "holdfast-watchdog")
        (account / "token").write_text(token)
        shutil.copy(self.server.authority.certificate, account / "ca.crt")
        grants = self.server.call("GET", f"/api/v1/namespaces/{HOLDFAST}/configmaps/holdfast-watchdog-grants")
        (text,) = grants["data"].values()
        (self.folder / "grants").write_text(text)
        told = self.folder / "watchdog.json"
        told.unlink(missing_ok=True)
        self.watchdog = ServerProcess(
            "watchdog",
            [
                *(sys.executable, "-m", "holdfast.cli", "watchdog", "--auth", "kubernetes"),
                *("--listen", f"{self.address}:{self.port}", "--store", self.folder / "watchdog.db"),
                *("--state-file", told, "--api-server", self.server.url, "--account-dir", account),
                *("--grants", self.folder / "grants"),
            ],
            self.folder / "watchdog.log",
        )
        self.watchdog.start()
        self.watchdog.wait_until(told.exists, PATIENCE_S)
        self.port = json.loads(told.read_text())["port"]

    def start_operator(self) -> None:
        token = self.folder / "operator-token"
        audiences = ("holdfast",)
        token.write_text(self.server.service_account_token(HOLDFAST, "holdfast-operator", audiences))
        self.operator = ServerProcess(
            "operator",
            [
                *(sys.executable, "-m", "holdfast.cli", "operator"),
                *("--watchdog", f"{self.address}:{self.port}", "--watchdog-token-file", token),
                *("--launcher-image", "launcher:test", "--lease-namespace", HOLDFAST),
                *("--kubeconfig", self.server.service_account_kubeconfig(HOLDFAST, "holdfast-operator")),
            ],
            self.folder / "operator.log",
        )
        self.operator.start()

    def grant(self, user: str, role: str, namespace: str, *, kind: str = "ClusterRole") -> None:
        """Bind one of the chart's roles."""
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{user}-{role}"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        }
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings"
        self.server.call("POST", path, binding)

    def submit(self, name: str, nodes_max: int = 2) -> None:
        """Apply a TrainingJob, and wait until the watchdog has taken it."""
        # No controller gives pods their account here, and a token is mounted for one that is named only.
        pod = {"serviceAccountName": "default", "containers": [{"name": "trainer", "image": "trainer:test"}]}
        job = {
            "apiVersion": "holdfast.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": TEAM},
            "spec": {
                "entrypoint": ["train.py"],
                "nodes": {"min": 1, "max": nodes_max},
                "template": {"spec": pod},
            },
        }
        path = f"{GROUP}/namespaces/{TEAM}/trainingjobs"
        self.server.call("POST", path, job)

        def status() -> dict[str, Any]:
            found: dict[str, Any] = self.server.call("GET", f"{path}/{name}").get("status", {})
            return found

        def is_taken() -> bool:
            return any(
                (each["type"], each["status"]) == ("WatchdogReachable", "True")
                for each in status().get("conditions", [])
            )

        until(is_taken, lambda: f"job {name} was not taken: {status()}; {self._tails()}")

    def run(self, user: str | Path, *arguments: str, **environment: str) -> Said:
        """`kubectl ARGUMENTS` as that user, or with that kubeconfig file."""
        config = user if isinstance(user, Path) else self.server.kubeconfig(user)
        env = {
            **os.environ,
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "KUBECONFIG": str(config),
            "HOLDFAST_NAMESPACE": HOLDFAST,
            **environment,
        }
        ended = subprocess.run(
            ["kubectl", *arguments],
            env=env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=False,
        )
        return Said(ended.returncode, ended.stdout, ended.stderr)

    def audited(self, verb: str, resource: str) -> list[dict[str, Any]]:
        """What the API server's audit log has of it."""
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [each for each in lines if each["verb"] == verb and each["objectRef"]["resource"] == resource]

    def _install_chart(self) -> None:
        """What the chart makes, but for the pods of its test; no release is recorded."""
        with Chart.load(CHART) as chart:
            texts = chart.render({"viewer": {"namespaces": [TEAM]}}, name="holdfast", namespace=HOLDFAST)
        made = [
            each for name, text in texts.items() if name.endswith(".yaml") for each in yaml.safe_load_all(text)
        ]
        wanted = [each for each in made if each and each["kind"] != "Pod"]
        ended = subprocess.run(
            [kubernetes_program("kubectl"), "create", "-f", "-"],
            env={**os.environ, "KUBECONFIG": str(self.server.admin_kubeconfig())},
            input=json.dumps({"apiVersion": "v1", "kind": "List", "items": wanted}),
            capture_output=True,
            text=True,
            timeout=patient(60),
            check=False,
        )
        assert ended.returncode == 0, ended.stderr

    def _audit_flags(self) -> tuple[str, ...]:
        policy = self.folder / "audit-policy.yaml"
        rules = [
            {"level": "Metadata", "omitStages": ["RequestReceived"], "resources": [{"group": "holdfast.dev"}]},
            {"level": "None"},
        ]
        policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}))
        return (f"--audit-policy-file={policy}", f"--audit-log-path={self.audit}", "--audit-log-mode=blocking")

    def _point_service_at_watchdog(self) -> None:
        """What a controller does for pods. The proxy goes to pods only, and loopback is no pod's address."""
        core = f"/api/v1/namespaces/{HOLDFAST}"
        deployment = self.server.call("GET", f"/apis/apps/v1/namespaces/{HOLDFAST}/deployments/holdfast-watchdog")
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        spec = {"containers": [{"name": "watchdog", "image": "watchdog:test"}]}
        self.server.call("POST", f"{core}/pods", {"metadata": {"name": POD, "labels": labels}, "spec": spec})
        status = {
            "phase": "Running",
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        merge = "application/merge-patch+json"
        self.server.call("PATCH", f"{core}/pods/{POD}/status", {"status": status}, content=merge)
        port = {"name": "http", "port": self.port}
        self.server.new_endpoints(HOLDFAST, "holdfast-watchdog", self.address, port, pod=POD)

    def _write_plugins(self) -> None:
        """The installed scripts, whether or not they have been installed; and kubectl."""
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / "kubectl").symlink_to(kubernetes_program("kubectl"))
        for name, line in PLUGINS.items():
            script = folder / name
            script.write_text(f"#!{sys.executable}\n{line}\nif __name__ == '__main__':\n    main()\n")
            script.chmod(0o755)

    def _tails(self) -> str:
        processes = [each for each in (self.operator, self.watchdog) if each is not None]
        return "; ".join(f"{each.name}: {each.log.read_text()[-1500:]}" for each in processes)


class PlayedLauncher:
    """The launcher of one pod, as the watchdog sees it."""

    def __init__(self, line: aiohttp.ClientWebSocketResponse) -> None:
        self._line = line

    async def say(self, message: FromLauncher) -> None:
        await self._line.send_bytes(msgspec.msgpack.encode(message))

    async def enter(self, after: int = 0) -> int:
        """The number of the next round above that, whose workers run now. Raises TryAgain."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                message = await self._line.receive()
                if message.type is aiohttp.WSMsgType.CLOSE and message.data == aiohttp.WSCloseCode.TRY_AGAIN_LATER:
                    raise TryAgain
                assert message.type is aiohttp.WSMsgType.BINARY, message
                match TO_LAUNCHER.decode(message.data):
                    case TestWanted(number=number, level=level):
                        await self.say(Tested(number, level, Verdict.PASSED, took_s=0.1))
                    case Seat(number=number) if number > after:
                        await self.say(RoundEntered(number, reentrant=True))
                        return number

    async def beat(self) -> None:
        while True:
            await self.say(Beat())
            await asyncio.sleep(BEAT_S)


class TryAgain(Exception):
    """The watchdog does not know the pod yet."""


@asynccontextmanager
async def played_launcher(
    installed: Installation, job: str, pod: str
) -> AsyncIterator[tuple[PlayedLauncher, int]]:
    """It joins with the token of its pod, once the operator has made that and told of its node, and beats. With it
    the number of its first round.
    """
    node = f"node-of-{pod}"
    token = await asyncio.to_thread(_placed, installed, job.partition("/")[0], pod, node)
    url = f"http://{installed.address}:{installed.port}/v1/member"
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:
        while True:
            async with session.ws_connect(url) as line:
                launcher = PlayedLauncher(line)
                await launcher.say(Join(job, pod, node, "boot", "127.0.0.1", 1, (4000, 4001), warm=True))
                beating = asyncio.create_task(launcher.beat())
                try:
                    yield launcher, await launcher.enter()
                except TryAgain:
                    await asyncio.sleep(LOOK_S)
                    continue
                finally:
                    beating.cancel()
                    await asyncio.gather(beating, return_exceptions=True)
                return


def _placed(installed: Installation, namespace: str, pod: str, node: str) -> str:
    """Place the pod on a node, as a scheduler does; the token that is mounted into it."""
    call, pods = installed.server.call, f"/api/v1/namespaces/{namespace}/pods"
    until(
        lambda: any(each["metadata"]["name"] == pod for each in call("GET", pods)["items"]),
        lambda: f"no pod {pod} was made",
    )
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    call("POST", f"{pods}/{pod}/binding", {"metadata": {"name": pod}, "target": target})
    return installed.server.service_account_token(namespace, "default", ("holdfast",), pod=pod)


def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Wait for it, bounded."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, otherwise()
        time.sleep(LOOK_S)


def own_address() -> str:
    """An address of this machine that is not loopback: the API server takes no other for an endpoint."""
    found = subprocess.run(
        ["hostname", "-I"], capture_output=True, text=True, timeout=patient(10), check=True
    ).stdout.split()
    usable = [each for each in found if ":" not in each and not each.startswith(("127.", "169.254."))]
    assert usable, "this machine has no address beside loopback, which a service's endpoint needs"
    return usable[0]
