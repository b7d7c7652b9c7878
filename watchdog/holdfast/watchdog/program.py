"""The watchdog as a program: opens the store, listens, says where, and ends cleanly."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click
from aiohttp import web

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.policy import Policy
from holdfast.watchdog import brain
from holdfast.watchdog.auth import TokenFile
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.progress import Progress
from holdfast.watchdog.senses import Senses
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.settings import ListenAddress, WatchdogSettings
from holdfast.watchdog.store.sqlite import SqliteStore

logger = logging.getLogger(__name__)

EXIT_CANNOT_START = 3
EXIT_FENCED = 4
BACKLOG = 4096
# Connections are told to end and have this long to; nothing is lost when they do not.
SHUTDOWN_S = 1.0


def senses_for(policy: Policy) -> Senses:
    """What watches a job in production."""
    return Senses(detectors_for(policy), Progress(policy))


async def serve(settings: WatchdogSettings) -> int:
    """Run until a signal or until another watchdog takes over; the exit code. Raises HoldfastError at start."""
    authenticator = TokenFile.read_or_create(settings.token_file)
    listener = _listener(settings.listen)
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def fenced(reason: str) -> None:
        logger.error("this watchdog must stop reason=%s", reason)
        _end(ended, EXIT_FENCED)

    watchdog = Watchdog(SqliteStore(settings.store), brain=brain, senses_for=senses_for, fenced=fenced)
    watchdog.start()
    _end_on_signals(ended)
    runner = web.AppRunner(make_app(watchdog, authenticator), access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.SockSite(runner, listener, backlog=BACKLOG).start()
    host, port = listener.getsockname()[:2]
    _write_state(settings.state_file, host, port)
    logger.info("listening host=%s port=%d store=%s", host, port, settings.store)
    try:
        return await ended
    finally:
        await runner.cleanup()
        watchdog.stop()
        _remove_state(settings.state_file)


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line's entry. Ends the process."""
    command(args=arguments, prog_name="python -m holdfast.watchdog")


@click.command()
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, help="HOST:PORT on loopback; 0 is any free port."
)
@click.option("--store", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The SQLite file.")
@click.option(
    "--token-file", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Made when missing."
)
@click.option(
    "--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), show_default=True
)
def command(listen: str, store: Path, token_file: Path, log_level: str) -> None:
    """Decide for the jobs of one machine: take signals, keep the journal, show rounds and plans."""
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = WatchdogSettings(ListenAddress.parse(listen), store.absolute(), token_file.absolute())
        code = asyncio.run(serve(settings))
    except HoldfastError as error:
        click.echo(f"holdfast watchdog: {error}", err=True)
        code = EXIT_CANNOT_START
    raise SystemExit(code)


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


def _write_state(path: Path, host: str, port: int) -> None:
    """Tell others where we are, whole or not at all. Raises Unavailable."""
    fresh = path.with_suffix(f".{os.getpid()}.tmp")
    try:
        fresh.write_text(json.dumps({"host": host, "port": port, "pid": os.getpid()}) + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}") from error


def _remove_state(path: Path) -> None:
    """Take the address back, unless another watchdog has put its own there."""
    with suppress(OSError, ValueError):
        if json.loads(path.read_text(encoding="utf-8")).get("pid") == os.getpid():
            path.unlink()
