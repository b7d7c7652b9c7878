"""Everything that speaks to an encrypted watchdog: with its authority, with another one, and after a renewal."""

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web
from cluster_keys import Authority
from forgetful_store import MemoryStore
from peers import JOB, TOKEN, join, policy_of, quick_senses
from replicas import until

from holdfast.agent.jobstream import Reporter
from holdfast.agent.launch.connection import Connection
from holdfast.agent.launch.settings import trust_of
from holdfast.agent.outbox import Outbox
from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.telemetry import AgentHello
from holdfast.cli.main import answer
from holdfast.operator.watchdog import JobLine
from holdfast.operator.watchdog import Watchdog as OperatorsWatchdog
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import ALL_ROLES, Grant, TokenFile
from holdfast.watchdog.program import ServingCertificate
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import TlsFiles
from holdfast.wire.access import NOT_TRUSTED, WATCHDOG_CA_VARIABLE, Access, Address, Credential, Trust


@dataclass
class Encrypted:
    """A watchdog that serves with a certificate for localhost."""

    watchdog: Watchdog
    certificate: ServingCertificate
    authority: Authority
    folder: Path
    port: int = 0

    @property
    def at(self) -> str:
        return f"localhost:{self.port}"

    @property
    def ca(self) -> Path:
        return self.authority.certificate

    @property
    def token_file(self) -> Path:
        return self.folder / "token"

    def there(self, peers: str) -> int:
        return sum(len(getattr(host, peers)) for host in self.watchdog.hosts())

    def renew(self) -> None:
        """As a mounted secret is: both files are others from one moment to the next."""
        _place(self.authority, self.folder)
        self.certificate.refresh()


def _place(authority: Authority, folder: Path) -> TlsFiles:
    pair = authority.server("watchdog", ["localhost"], ["127.0.0.1"])
    files = TlsFiles(folder / "tls.crt", folder / "tls.key")
    for source, target in ((pair.certificate, files.certificate), (pair.key, files.key)):
        shutil.copy(source, folder / "fresh")
        (folder / "fresh").replace(target)
    return files


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Encrypted]:
    authority = Authority(tmp_path / "keys")
    certificate = ServingCertificate(_place(authority, tmp_path))
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=quick_senses, fenced=lambda _: None)
    watchdog.start()
    runner = web.AppRunner(make_app(watchdog, TokenFile((Grant(TOKEN, ALL_ROLES),))), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificate.context).start()
    (tmp_path / "token").write_text(TOKEN)
    yield Encrypted(watchdog, certificate, authority, tmp_path, runner.addresses[0][1])
    await runner.cleanup()
    watchdog.stop()


@pytest.fixture
def stranger(tmp_path: Path) -> Path:
    """An authority that has signed nothing here."""
    return Authority(tmp_path / "other").certificate


def access(served: Encrypted, trust: Trust) -> Access:
    return Access(Address.parse(served.at, given_by="a test"), Credential(file=served.token_file), trust)


def launcher(served: Encrypted, ca: Path) -> Connection:
    return Connection(
        access(served, trust_of({WATCHDOG_CA_VARIABLE: ca.read_text()})),
        job=JOB,
        heartbeat_interval_s=0.3,
        join=lambda: join("m1"),
        on_shown=lambda _: None,
    )


def agent(served: Encrypted, ca: Path) -> Reporter:
    return Reporter(
        Outbox(node="node-1", boot="b", interval_s=1.0),
        AgentHello(node="node-1", boot="b", job=JOB),
        access(served, Trust(ca)),
    )


CLIENTS: dict[str, Callable[[Encrypted, Path], Connection | Reporter]] = {"launchers": launcher, "agents": agent}


async def ended(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("peers", CLIENTS)
async def test_a_client_with_the_authority_connects_also_after_a_renewal(served: Encrypted, peers: str) -> None:
    task = asyncio.create_task(CLIENTS[peers](served, served.ca).run())
    await until(lambda: served.there(peers), f"{peers} are there")
    served.renew()
    await ended(task)
    await until(lambda: not served.there(peers), "the first one has gone")
    task = asyncio.create_task(CLIENTS[peers](served, served.ca).run())
    await until(lambda: served.there(peers), f"{peers} are there with the renewed certificate")
    await ended(task)


@pytest.mark.parametrize("peers", CLIENTS)
async def test_a_client_with_another_authority_says_so_and_shows_no_token(
    served: Encrypted, stranger: Path, peers: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(CLIENTS[peers](served, stranger).run())
    await until(lambda: NOT_TRUSTED in caplog.text, "it says why")
    assert served.there(peers) == 0
    assert not task.done(), "the right certificate may come"
    await ended(task)


async def test_the_operator_submits_and_has_its_line(served: Encrypted, stranger: Path) -> None:
    authority = served.folder / "ca.crt"
    shutil.copy(stranger, authority)
    watchdog = OperatorsWatchdog(served.at, served.token_file, authority)
    try:
        with pytest.raises(Unavailable, match=NOT_TRUSTED):
            await watchdog.submit(policy_of(nodes=1))
        shutil.copy(served.ca, authority)  # corrected while it runs
        await watchdog.submit(policy_of(nodes=1))
        line = JobLine(watchdog, JOB, lambda: None, time.monotonic)
        task = asyncio.ensure_future(line.run())
        await until(lambda: line.connected, "the line is there")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        authority.unlink()
        with pytest.raises(Unavailable, match="cannot be used"):
            await watchdog.submit(policy_of(nodes=1))
    finally:
        await watchdog.close()


async def test_a_command_reads_with_the_authority_only(
    served: Encrypted, stranger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["status", "--watchdog", served.at, "--token-file", str(served.token_file)]
    assert await asyncio.to_thread(answer, [*flags, "--ca-file", str(served.ca)]) == 0
    assert await asyncio.to_thread(answer, [*flags, "--ca-file", str(stranger)]) != 0
    assert NOT_TRUSTED in capsys.readouterr().err


def test_what_is_no_authority_is_refused_by_name() -> None:
    assert not trust_of({}).encrypts
    with pytest.raises(InvalidInput, match=WATCHDOG_CA_VARIABLE):
        trust_of({WATCHDOG_CA_VARIABLE: "not a certificate"})
