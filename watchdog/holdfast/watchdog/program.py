"""The watchdog as a program: opens the store, listens, says where, and ends cleanly."""

import asyncio
import gc
import importlib
import logging
import os
import signal
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
from aiohttp import web

from holdfast.api.errors import Fenced, HoldfastError, Unavailable
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import Authenticator, TokenFile
from holdfast.watchdog.access.readership import Readership, Rights
from holdfast.watchdog.access.reviews import AccessReviewer, TokenReviewer
from holdfast.watchdog.commandline import settings_from, watchdog_options
from holdfast.watchdog.leadership import Leadership, ServicePeer
from holdfast.watchdog.metrics.counts import Count
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.app import DOOR, make_app
from holdfast.watchdog.server.clock import WatchdogClock
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import TlsFiles, WatchdogSettings
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import Fence, Store
from holdfast.wire.door import HELLO_S, Door, raise_open_files_max
from holdfast.wire.listening import listener, told_in

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
    rights: Rights | None = None  # what beside roles lets callers read
    if isinstance(settings.auth, Path):
        authenticator: Authenticator = TokenFile.read_or_create(settings.auth)
    else:
        now = WatchdogClock().now
        authenticator, rights = TokenReviewer(settings.auth, now=now), AccessReviewer(settings.auth, now=now)
    files = raise_open_files_max()
    listening = listener(settings.listen.host, settings.listen.port, BACKLOG)
    certificate = ServingCertificate(settings.tls) if settings.tls else None
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    watchdog, leadership = _decider(settings, ended)
    beside: list[Coroutine[Any, Any, None]] = [certificate.follow()] if certificate else []
    if leadership is None:
        watchdog.start()
    else:
        beside.append(_lead(leadership, watchdog, ended))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _end, ended, 0)
    app = make_app(watchdog, authenticator, settings.metrics_token_file, Readership(rights))
    door = Door(listening, files=files, dropped=lambda: watchdog.tally.add(Count.DROPPED_STRANGERS))
    app[DOOR] = door
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S, keepalive_timeout=HELLO_S)
    await runner.setup()
    assert runner.server is not None
    door.open(runner.server, certificate.context if certificate else None)
    host, port = door.address
    with told_in(settings.state_file, host, port):
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
            if rights is not None:
                await rights.close()
            watchdog.stop()
            if leadership is not None:
                leadership.resign()  # last: from here on somebody else may write


def _end(ended: "asyncio.Future[int]", code: int) -> None:
    if not ended.done():
        ended.set_result(code)


def _decider(settings: WatchdogSettings, ended: "asyncio.Future[int]") -> tuple[Watchdog, Leadership | None]:
    """The watchdog over its store, and what makes it lead; None when it is alone with a file."""

    def fenced(reason: str) -> None:
        logger.error("this watchdog must stop reason=%s", reason)
        _end(ended, EXIT_FENCED)

    def over(store: Store) -> Watchdog:
        return Watchdog(store, brain=brain, senses_for=senses_for, fenced=fenced, cluster=settings.cluster)

    if isinstance(settings.store, Path):
        return over(SqliteStore(settings.store)), None
    # Imported here: a machine's own watchdog starts sooner without.
    from holdfast.watchdog.store.redis import RedisLease, RedisStore
    from holdfast.watchdog.store.redislink import RedisLink

    link, succession = RedisLink(settings.store), settings.succession
    watchdog = over(RedisStore(link))
    leadership = Leadership(
        RedisLease(link, identity=succession.identity, ttl_s=succession.ttl_s),
        ttl_s=succession.ttl_s,
        note=watchdog.note_store,
        note_replicas=watchdog.note_replicas,
        peer=ServicePeer(succession.peer, settings.tls) if succession.peer else None,
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
        # What is loaded by now is permanent; among the rest cycles are looked for less often.
        gc.collect()
        gc.freeze()
        gc.set_threshold(NEW_OBJECTS, 20, 50)
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            code = runner.run(serve(settings))
    except HoldfastError as error:
        click.echo(f"holdfast watchdog: {error}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None
    if code == EXIT_FENCED and not isinstance(settings.store, Path):
        # It lost its turn to another replica, and nothing of it is broken: it stands by, as the same process.
        # What it knew of jobs is out of date, so that it forgets all of it. To Kubernetes it has not ended.
        logger.warning("another watchdog leads; this one begins anew as a standby")
        logging.shutdown()
        os.execv(sys.executable, sys.orig_argv)
    raise SystemExit(code)


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop: uvloop's where there is one. It is an accelerator and no more.

    With it a message costs half: 25-37 us for a node's report and its launcher's beat, where asyncio's own loop
    took 58-81 us in the same minutes.
    """
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


# The certificate this watchdog serves with, read again when it is renewed.


class ServingCertificate:
    """`context` takes the newest certificate for new connections. Raises Unavailable when made without one."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._version: tuple[int, ...] = ()
        self._read_if_new()

    async def follow(self) -> None:
        """Look for a new certificate, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            self.refresh()

    def refresh(self) -> None:
        """Read the files if they have changed; while they cannot be read, the older certificate serves on."""
        try:
            if self._read_if_new():
                logger.info("certificate read path=%s", self._files.certificate)
        except Unavailable as error:
            logger.error("certificate stays as it was reason=%s", error)

    def _read_if_new(self) -> bool:
        certificate, key = self._files.certificate, self._files.key
        try:
            found = certificate.stat(), key.stat()
        except OSError as error:
            raise Unavailable(f"the certificate cannot be read: {error}") from error
        version = tuple(each for status in found for each in (status.st_mtime_ns, status.st_ino))
        if version == self._version:
            return False
        try:
            self.context.load_cert_chain(certificate, key)
        except OSError as error:
            raise Unavailable(f"{certificate} and its key cannot be used: {error}") from error
        self._version = version
        return True
