"""`holdfast console`: where a run's console is, or a cluster's console on this machine."""

import os
import sys

import click

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.output import ExitCode
from holdfast.cli.site import look_around
from holdfast.cli.statedirectory import address_with_token, find_state_directory
from holdfast.cli.target import JobWord, Place, Target, place_of, target_options


@click.command()
@target_options(JobWord.NONE)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=7080, show_default=True, help="Of this machine; 0: any."
)
def console(port: int, target: Target) -> ExitCode:
    """Print the address of the console, with a token in it that the browser keeps to itself.

    Of a run on this machine it is there while the run is. Of a cluster it is made reachable on this machine,
    through the API server, until Ctrl-C: to read; what changes a job is for the other commands. With --watchdog
    and --token-file a console for that watchdog is started here.
    """
    match place_of(target, look_around):
        case Place.STATE_DIRECTORY:
            directory = find_state_directory(target.state_dir)
            at = directory.console_at()
            if at is None:
                raise Unavailable(f"no console runs for {directory.root}; 'holdfast run' starts one")
            click.echo(address_with_token(directory, at))
        case Place.ADDRESS:
            _start(target, port)
        case Place.CLUSTER:
            _forward(target, port)
    return ExitCode.OK


def _start(target: Target, port: int) -> None:
    """Become a console of the watchdog at an address."""
    if target.watchdog is None or target.token_file is None:
        raise InvalidInput(Problem("--token-file", None, "name the file with a token of that watchdog"))
    words = ["--watchdog", target.watchdog, "--token-file", str(target.token_file)]
    if target.ca_file is not None:
        words += ["--watchdog-ca-file", str(target.ca_file)]
    if port:  # of any free one the console itself says which
        click.echo(f"http://127.0.0.1:{port}/", err=True)
    os.execv(sys.executable, [sys.executable, "-m", "holdfast.console", *words, "--listen", f"127.0.0.1:{port}"])


def _forward(target: Target, port: int) -> None:
    """Until Ctrl-C. Raises as asking a cluster's watchdog does."""
    from holdfast.cli.cluster import kubeapi
    from holdfast.cli.cluster.consoleforward import Forwarder, TokenOfReads
    from holdfast.cli.cluster.proxiedline import Installation, ProxiedLine

    api = kubeapi.connect(target)
    at = Installation.of(target.holdfast_namespace, target.holdfast_service)
    token = TokenOfReads(ProxiedLine(api, at, target.namespace or api.namespace))
    token()  # what is missing is said here, not in the browser
    try:
        forwarder = Forwarder(api, f"{at.namespace}/{at.console}", token, port)
    except OSError as error:
        raise Unavailable(f"port {port} cannot be used: {error.strerror}; give another one with --port") from error
    with forwarder:
        click.echo(forwarder.address)
        forwarder.serve_forever()
