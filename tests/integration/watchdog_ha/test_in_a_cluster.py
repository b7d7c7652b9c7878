"""The program as a cluster runs it: tokens reviewed, beyond loopback, encrypted."""

import asyncio
import json
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
from apiserver import ApiServer
from cluster_keys import Authority, KeyPair
from replicas import PATIENCE_S, until

from holdfast.api.errors import Unavailable
from holdfast.watchdog.leadership import ServicePeer
from holdfast.watchdog.program import ServingCertificate
from holdfast.watchdog.settings import TlsFiles


class Program:
    """Starts watchdogs over a file, and ends them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "holdfast.watchdog", "--store", str(self.folder / "w.db"), *arguments]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.folder
        )
        self._stack.callback(_end, process)
        return process

    async def port(self, process: "subprocess.Popen[str]") -> int:
        path = self.folder / "watchdog.json"
        await until(lambda: path.exists() or process.poll() is not None, "it listens")
        assert process.poll() is None, process.communicate()[0]
        return int(json.loads(path.read_text())["port"])


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    with ExitStack() as stack:
        yield Program(tmp_path, stack)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "keys")


def trusting(authority: Authority) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=authority.certificate)


async def test_beyond_loopback_the_api_server_says_whose_a_token_is(
    program: Program, apiserver: ApiServer, namespace: str
) -> None:
    apiserver.new_service_account(namespace, "watchdog")
    apiserver.new_service_account(namespace, "viewer")
    binding = {
        "metadata": {"name": namespace},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": "system:auth-delegator",
        },
        "subjects": [{"kind": "ServiceAccount", "name": "watchdog", "namespace": namespace}],
    }
    apiserver.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    account, grants = program.folder / "account", program.folder / "grants.yaml"
    account.mkdir()
    (account / "token").write_text(apiserver.service_account_token(namespace, "watchdog"))
    shutil.copy(apiserver.authority.certificate, account / "ca.crt")
    grants.write_text(f"users:\n  system:serviceaccount:{namespace}:viewer: [view]\n")
    process = program.start(
        *("--listen", "0.0.0.0:0", "--auth", "kubernetes", "--api-server", apiserver.url),
        *("--account-dir", str(account), "--grants", str(grants), "--audience", "research"),
    )
    url = f"http://{own_address()}:{await program.port(process)}/v1/jobs/{namespace}/unknown/status"
    expected = {
        apiserver.service_account_token(namespace, "viewer", ["research"]): 404,
        apiserver.service_account_token(namespace, "default", ["research"]): 403,
        apiserver.service_account_token(namespace, "viewer", ["holdfast"]): 401,
        "made-up": 401,
    }
    async with aiohttp.ClientSession() as http:
        for token, status in expected.items():
            async with http.get(url, headers={"X-Holdfast-Token": token}) as answer:
                assert answer.status == status, await answer.text()


async def test_with_a_certificate_it_speaks_encrypted_only(program: Program, authority: Authority) -> None:
    pair = authority.server("watchdog", ["localhost"], ["127.0.0.1"])
    tls = ("--tls-cert", str(pair.certificate), "--tls-key", str(pair.key))
    process = program.start("--listen", "0.0.0.0:0", "--token-file", str(program.folder / "token"), *tls)
    port = await program.port(process)
    async with aiohttp.ClientSession() as http:
        async with http.get(f"https://127.0.0.1:{port}/livez", ssl=trusting(authority)) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await http.get(f"http://127.0.0.1:{port}/livez")
    # What a leader would be told that looks for another one behind an encrypted service.
    files = TlsFiles(pair.certificate, pair.key)
    assert await ServicePeer(f"https://127.0.0.1:{port}/", files).fence() == 1
    other = authority.server("other", ["localhost"], ["127.0.0.1"])
    assert await ServicePeer(f"https://127.0.0.1:{port}/", TlsFiles(other.certificate, other.key)).fence() is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--listen", "0.0.0.0:0", "--token-file", "t"), "--auth kubernetes"),
        (("--token-file", "t", "--tls-cert", "nowhere", "--tls-key", "nowhere"), "nowhere"),
        (("--auth", "kubernetes", "--api-server", "https://127.0.0.1:1", "--account-dir", "nowhere"), "nowhere"),
        (("--auth", "kubernetes", "--api-server", "http://127.0.0.1:1", "--grants", "nowhere"), "nowhere"),
        ((), "--token-file"),
    ],
    ids=["open to all", "no certificate", "no account", "no grants", "no tokens"],
)
def test_what_would_not_work_is_said_at_the_start(program: Program, arguments: tuple[str, ...], says: str) -> None:
    process = program.start(*arguments)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, output
    assert says in output
    assert output.count("\n") == 1, output


async def test_nobody_behind_the_service_is_nobody() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert await ServicePeer(f"http://127.0.0.1:{unused.getsockname()[1]}", None).fence() is None


class TestRenewal:
    """A certificate that is replaced while it serves."""

    async def serial(self, certificate: ServingCertificate, authority: Authority) -> str:
        server = await asyncio.start_server(
            lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=certificate.context
        )
        async with server:
            port = server.sockets[0].getsockname()[1]
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority))
            found: str = writer.get_extra_info("peercert")["serialNumber"]
            writer.close()
            await writer.wait_closed()
            return found

    def put(self, pair: KeyPair, folder: Path) -> TlsFiles:
        files = TlsFiles(folder / "tls.crt", folder / "tls.key")
        for source, target in ((pair.certificate, files.certificate), (pair.key, files.key)):
            shutil.copy(source, folder / "fresh")
            (folder / "fresh").replace(target)
        return files

    async def test_the_new_one_serves_new_connections(self, authority: Authority, tmp_path: Path) -> None:
        certificate = ServingCertificate(self.put(authority.server("first", [], ["127.0.0.1"]), tmp_path))
        first = await self.serial(certificate, authority)
        certificate.refresh()
        assert await self.serial(certificate, authority) == first
        self.put(authority.server("second", [], ["127.0.0.1"]), tmp_path)
        certificate.refresh()
        assert await self.serial(certificate, authority) != first

    async def test_one_that_cannot_be_read_leaves_the_older_one_serving(
        self, authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = self.put(authority.server("first", [], ["127.0.0.1"]), tmp_path)
        certificate = ServingCertificate(files)
        first = await self.serial(certificate, authority)
        files.certificate.unlink()
        certificate.refresh()
        assert await self.serial(certificate, authority) == first
        assert "certificate stays as it was" in caplog.text

    def test_without_any_there_is_no_start(self, tmp_path: Path) -> None:
        with pytest.raises(Unavailable, match="cannot be read"):
            ServingCertificate(TlsFiles(tmp_path / "c", tmp_path / "k"))


def own_address() -> str:
    """An address of this machine beyond loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # a network for documents, RFC 5737
        return str(probe.getsockname()[0])
