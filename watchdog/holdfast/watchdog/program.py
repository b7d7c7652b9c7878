"""The watchdog as a program: opens the store, listens, says where, and ends cleanly."""

import asyncio
import errno
import gc
import importlib
import json
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click
from aiohttp import web

from holdfast.api.errors import Fenced, HoldfastError, Unavailable
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import Authenticator, TokenFile
from holdfast.watchdog.access.readership import NoRights, Readership, Rights
from holdfast.watchdog.access.reviews import AccessReviewer, TokenReviewer
from holdfast.watchdog.commandline import settings_from, watchdog_options
from holdfast.watchdog.leadership import Leadership
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.app import DOOR, make_app
from holdfast.watchdog.server.clock import WatchdogClock
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.servicepeer import ServicePeer
from holdfast.watchdog.settings import KubernetesAuth, ListenAddress, TlsFiles, WatchdogSettings
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import Fence
from holdfast.wire.door import HELLO_S, Door, raise_open_files_max

# Certificates are renewed days before they end.
LOOK_EVERY_S = 60.0

# Objects made and not freed again before cycles are looked for among the new ones. With the default of 700 Python
# walks through everything that 25,000 connections hold, again and again, while they are made.
NEW_OBJECTS = 50_000

logger = logging.getLogger(__name__)

EXIT_CANNOT_START = 3
EXIT_FENCED = 4
BACKLOG = 4096
# Connections are told to end and have this long to; nothing is lost when they do not.
SHUTDOWN_S = 1.0
TAKE_UP_RETRY_S = 1.0


async def serve(settings: WatchdogSettings) -> int:
    """Run until a signal or until another watchdog takes over; the exit code. Raises HoldfastError at start."""
    authenticator, rights = _authenticator(settings.auth)
    files = raise_open_files_max()
    listener = _listener(settings.listen)
    certificate = ServingCertificate(settings.tls) if settings.tls else None
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    watchdog, leadership = _decider(settings, ended)
    beside: list[Coroutine[Any, Any, None]] = [certificate.follow()] if certificate else []
    if leadership is None:
        watchdog.start()
    else:
        beside.append(_lead(leadership, watchdog, ended))
    _end_on_signals(ended)
    app = make_app(watchdog, authenticator, settings.metrics_token_file, Readership(rights))
    door = Door(listener, files=files, dropped=lambda: watchdog.tally.add(Count.DROPPED_STRANGERS))
    app[DOOR] = door
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=HELLO_S)
    await runner.setup()
    assert runner.server is not None
    door.open(runner.server, certificate.context if certificate else None)
    host, port = door.address
    _write_state(settings.state_file, host, port)
    logger.info("listening host=%s port=%d store=%s", host, port, settings.store)
    tasks = [_ending_with(ended, each) for each in beside]
    try:
        return await ended
    finally:
        for task in tasks:
            task.cancel()
        await door.close()
        await runner.cleanup()
        await authenticator.close()
        await rights.close()
        watchdog.stop()
        if leadership is not None:
            leadership.resign()  # last: from here on somebody else may write
        _remove_state(settings.state_file)


def _authenticator(auth: Path | KubernetesAuth) -> tuple[Authenticator, Rights]:
    """Who tells whose a token is, and what beside roles lets callers read."""
    if isinstance(auth, Path):
        return TokenFile.read_or_create(auth), NoRights()
    now = WatchdogClock().now
    return TokenReviewer(auth, now=now), AccessReviewer(auth, now=now)


def _decider(settings: WatchdogSettings, ended: "asyncio.Future[int]") -> tuple[Watchdog, Leadership | None]:
    """The watchdog over its store, and what makes it lead; None when it is alone with a file."""

    def fenced(reason: str) -> None:
        logger.error("this watchdog must stop reason=%s", reason)
        _end(ended, EXIT_FENCED)

    if isinstance(settings.store, Path):
        store = SqliteStore(settings.store)
        return Watchdog(store, brain=brain, senses_for=senses_for, fenced=fenced, cluster=settings.cluster), None
    # Imported here: a machine's own watchdog starts sooner without.
    from holdfast.watchdog.store.redis import RedisStore
    from holdfast.watchdog.store.redislease import RedisLease
    from holdfast.watchdog.store.redislink import RedisLink

    link = RedisLink(settings.store)
    watchdog = Watchdog(
        RedisStore(link), brain=brain, senses_for=senses_for, fenced=fenced, cluster=settings.cluster
    )
    succession = settings.succession
    lease = RedisLease(link, identity=succession.identity, ttl_s=succession.ttl_s)
    peer = ServicePeer(succession.peer, settings.tls) if succession.peer else None
    leadership = Leadership(
        lease,
        ttl_s=succession.ttl_s,
        note=watchdog.note_store,
        note_replicas=watchdog.note_replicas,
        peer=peer,
    )
    return watchdog, leadership


async def _lead(leadership: Leadership, watchdog: Watchdog, ended: "asyncio.Future[int]") -> None:
    """Lead once it is our turn, until it is somebody else's."""
    try:
        fence = await leadership.won()
        # The lock is kept meanwhile: a store that is slow for a moment is no reason to change the leader.
        await asyncio.gather(_take_up(watchdog, fence), leadership.keep(fence))
    except Fenced as error:
        logger.error("this watchdog must stop reason=%s", error)
        _end(ended, EXIT_FENCED)


async def _take_up(watchdog: Watchdog, fence: Fence) -> None:
    """Start deciding, however often the store goes away while its journals are read."""
    while True:
        try:
            return watchdog.start(fence)
        except Unavailable as error:
            logger.warning("cannot lead yet, retrying in %g s reason=%s", TAKE_UP_RETRY_S, error)
            await asyncio.sleep(TAKE_UP_RETRY_S)


def _ending_with(ended: "asyncio.Future[int]", work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
    """Start `work`; the program ends with it when it fails, for it would only seem to run without it."""

    def fail(task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not ended.done():
            ended.set_exception(error)

    task = asyncio.create_task(work)
    task.add_done_callback(fail)
    return task


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line's entry. Ends the process."""
    command(args=arguments, prog_name="python -m holdfast.watchdog")


@click.command()
@watchdog_options
def command(log_level: str, **given: Any) -> None:
    """Decide for jobs: take signals, keep the journal, show rounds and plans."""
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = settings_from(given, os.environ)
        collect_rarely()
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(serve(settings))
    except HoldfastError as error:
        click.echo(f"holdfast watchdog: {error}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None
    if code == EXIT_FENCED and not isinstance(settings.store, Path):
        _begin_anew()
    raise SystemExit(code)


def _begin_anew() -> NoReturn:
    """Stand by, as the same process: it lost its turn to another replica, and nothing of it is broken.

    What it knew of jobs is out of date, so that it forgets all of it. To Kubernetes it has not ended.
    """
    logger.warning("another watchdog leads; this one begins anew as a standby")
    logging.shutdown()
    os.execv(sys.executable, sys.orig_argv)


def _listener(address: ListenAddress) -> socket.socket:
    """A bound socket, before anything else is touched: a taken port must leave no trace. Raises Unavailable."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.settimeout(0)
    try:
        listener.bind((address.host, address.port))
        # Two sockets may be bound to a port while neither listens; the second listen is what fails.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Unavailable(
                f"port {address.port} on {address.host} is taken; give another one with --listen"
            ) from error
        raise Unavailable(f"cannot listen on {address.host}:{address.port}: {error.strerror}") from error
    return listener


def _end_on_signals(ended: "asyncio.Future[int]") -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, ended, 0)


def _end(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def _write_state(path: Path | None, host: str, port: int) -> None:
    """Tell others where we are, whole or not at all. Raises Unavailable."""
    if path is None:
        return
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error


def _remove_state(path: Path | None) -> None:
    """Take the address back, unless another watchdog has put its own there."""
    if path is None:
        return
    with suppress(OSError, ValueError):
        if json.loads(path.read_text(encoding="utf-8")).get("pid") == os.getpid():
            path.unlink()


# The event loop that the watchdog runs on, and how rarely Python looks for cycles meanwhile.
#
# With uvloop, where it is installed, a message costs half: 25-37 us for a node's report and its launcher's beat,
# where asyncio's own loop took 58-81 us in the same minutes. It is an accelerator and no more.


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop: uvloop's where there is one."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


def collect_rarely() -> None:
    """Take what is loaded by now for permanent, and look for cycles among the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 50)


# The certificate this watchdog serves with, read again when it is renewed.


class ServingCertificate:
    """`context` takes the newest certificate for new connections. Raises Unavailable when made without one."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._version = self._load()

    async def follow(self) -> None:
        """Look for a new certificate, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.refresh()

    def refresh(self) -> None:
        """Read the files if they have changed; while they cannot be read, the older certificate serves on."""
        try:
            if self._stamp() != self._version:
                self._version = self._load()
                logger.info("certificate read path=%s", self._files.certificate)
        except Unavailable as error:
            logger.error("certificate stays as it was reason=%s", error)

    def _load(self) -> tuple[int, ...]:
        version = self._stamp()
        try:
            self.context.load_cert_chain(self._files.certificate, self._files.key)
        except (OSError, ssl.SSLError) as error:
            raise Unavailable(f"{self._files.certificate} and its key cannot be used: {error}") from error
        return version

    def _stamp(self) -> tuple[int, ...]:
        try:
            found = [path.stat() for path in (self._files.certificate, self._files.key)]
        except OSError as error:
            raise Unavailable(f"the certificate cannot be read: {error}") from error
        return tuple(each for status in found for each in (status.st_mtime_ns, status.st_ino))
