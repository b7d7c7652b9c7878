"""The console as a program: `python -m holdfast.console`. Exit code 3 when it cannot start."""

import asyncio
import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import uvicorn

from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.console.checkfiles import checks_in
from holdfast.console.feed import Feed
from holdfast.console.keeping import SeriesKeeper
from holdfast.console.serving.application import make_application
from holdfast.console.serving.connection import Connection
from holdfast.console.serving.guard import Guard
from holdfast.wire.access import Access, Address, Credential, Trust
from holdfast.wire.door import raise_open_files_max
from holdfast.wire.http import WatchdogHttp
from holdfast.wire.listening import listener, told_in

logger = logging.getLogger(__name__)

EXIT_CANNOT_START: Final = 3
BACKLOG: Final = 512
# A service-account token takes two kilobytes, a browser's own headers one or two.
HEADER_BYTES_MAX: Final = 32 * 1024
CONNECTIONS_MAX: Final = 2048
IDLE_S: Final = 30
SHUTDOWN_S: Final = 1

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """Which watchdog it follows, where it listens, and the certificate and key it serves with (both or neither).

    `told_in`: the file where others on this machine read the address. `checks`: a folder of further checks of the
    runbook. `series`: the file in which jobs' figures outlive this console.
    """

    watchdog: Access
    listen: Address
    certificate: Path | None = None
    key: Path | None = None
    told_in: Path | None = None
    checks: Path | None = None
    series: Path | None = None


async def serve(settings: ConsoleSettings) -> None:
    """Serve until a signal. Raises Unavailable when it cannot begin."""
    settings.watchdog.credential.read()  # what is missing is said at the start
    checks = checks_in(settings.checks) if settings.checks is not None else ()
    raise_open_files_max()
    listening = listener(settings.listen.host, settings.listen.port, BACKLOG)
    feed, http = Feed(settings.watchdog, "console"), WatchdogHttp(settings.watchdog)
    config = uvicorn.Config(
        Guard(make_application(feed, http, checks)),
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=SHUTDOWN_S,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
    )
    server = _Server(config)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.end)
    beside = [asyncio.create_task(feed.run())]
    keeper = SeriesKeeper(feed, settings.series) if settings.series is not None else None
    if keeper is not None:
        beside.append(asyncio.create_task(keeper.keep()))
    host, port = listening.getsockname()[:2]
    try:
        with told_in(settings.told_in, host, port):
            logger.info("listening host=%s port=%d watchdog=%s", host, port, settings.watchdog.address)
            await server.serve(sockets=[listening])
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        if keeper is not None:
            keeper.write()
        await http.close()


class _Server(uvicorn.Server):
    """It leaves signals to us: uvicorn's own way ends the process by them again, before anything is put away."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        self.should_exit = True


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line's entry. Ends the process."""
    command(args=arguments, prog_name="python -m holdfast.console")


@click.command()
@click.option("--watchdog", required=True, metavar="HOST:PORT", help="The watchdog to follow.")
@click.option(
    "--token-file", required=True, type=FILE, help="A token with the role view, read for each connection."
)
@click.option("--watchdog-ca-file", type=FILE, help="Who may have signed the watchdog's certificate.")
@click.option(
    "--listen", default="127.0.0.1:7080", show_default=True, metavar="HOST:PORT", help="Port 0: any free."
)
@click.option("--tls-cert", type=FILE, help="The certificate to serve with, and its chain.")
@click.option("--tls-key", type=FILE, help="Its key.")
@click.option("--checks", type=FOLDER, help="A folder of checks, run with the runbook's own.")
@click.option(
    "--series-file", type=FILE, help="Where jobs' figures over time are kept, once a minute and at the end."
)
@click.option("--state-file", type=FILE, help="Where to write the address.")
@click.option(
    "--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), show_default=True
)
def command(log_level: str, **given: Any) -> None:
    """Show jobs to people: follow the watchdog, serve a page and an API."""
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        asyncio.run(serve(settings_from(**given)))
    except HoldfastError as error:
        click.echo(f"holdfast console: {error}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None


def settings_from(
    *,
    watchdog: str,
    token_file: Path,
    watchdog_ca_file: Path | None,
    listen: str,
    **files: Path | None,
) -> ConsoleSettings:
    """The settings that the flags ask for. `files`: tls_cert, tls_key, state_file, checks, series_file. Raises
    InvalidInput.
    """
    certificate, key = files["tls_cert"], files["tls_key"]
    if (certificate is None) is not (key is None):
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise InvalidInput(Problem(missing, None, "give both, or neither"))
    return ConsoleSettings(
        watchdog=Access(
            Address.parse(watchdog, given_by="--watchdog"),
            Credential(file=token_file),
            Trust(watchdog_ca_file, given_by="--watchdog-ca-file"),
        ),
        listen=Address.parse(listen, given_by="--listen", port_min=0),
        certificate=certificate,
        key=key,
        told_in=files["state_file"],
        checks=files["checks"],
        series=files["series_file"],
    )
