"""`holdfast launch`: the launcher as a command, with torchrun's flags where it has the same ones.

This is the program's entry: the environment is read here and nowhere else.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.agent.launch.host import ReservedPorts
from holdfast.agent.launch.memoryfolder import ROOT
from holdfast.agent.launch.settings import (
    MEMBER_VARIABLE,
    NODE_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Flags,
    LauncherSettings,
    settings_of,
)
from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from holdfast.agent.launch.launcher import Outcome

TERMINATION_LOG = "/dev/termination-log"
_BYTES_MAX = 4096
_REASON_BYTES_MAX = 1024  # the end of a traceback says more than the end of a long reason
_CUT = b"...\n"
_RESERVED_PORTS = 8  # rounds that may follow each other before a port is used again

FAILED = 1
USAGE = 2


def _option(name: str, *, short: str | None = None, **attributes: Any) -> click.Option:
    """An option in both of torchrun's spellings, `--rdzv-id` and `--rdzv_id`."""
    spellings = dict.fromkeys([f"--{name}", f"--{name.replace('-', '_')}"])
    return click.Option([*([short] if short else []), *spellings], **attributes)


PARAMETERS = (
    # The defaults that are not here are those of `Flags`.
    _option("nnodes", default="1:1", help="Nodes, or a range such as 1:4, of a job that nobody has submitted."),
    _option("nproc-per-node", default="1", show_default=True, help="Workers here: a number, gpu, cpu or auto."),
    _option("rdzv-endpoint", required=True, metavar="HOST:PORT", help="The watchdog."),
    _option("rdzv-id", required=True, metavar="NAMESPACE/NAME", help="The job; its namespace may be left out."),
    _option("rdzv-backend", default="holdfast", type=click.Choice(["holdfast"]), help="Always holdfast."),
    _option("max-restarts", type=int, help="Handed to the script; the job's fault policy decides."),
    _option("module", short="-m", is_flag=True, help="The entry point is a module, as for python -m."),
    _option("no-python", is_flag=True, help="The entry point is a program of its own."),
    _option("run-path", is_flag=True, help="Accepted: scripts are always run this way."),
    _option("log-dir", help="Where each worker's log goes. Default: RUN_DIR/logs, and output is also shown here."),
    _option("redirects", short="-r", default="0", help="Accepted: output always goes to the log files."),
    _option(
        "tee", short="-t", help="Whose output to show here too: none, all, or torchrun's numbers (3; 0:3,1:3)."
    ),
    _option("local-addr", help="This node's address for others. Default: the one towards the watchdog."),
    _option(
        "member",
        help=f"This launcher's name. Default: ${MEMBER_VARIABLE}, the pod that the token names, or host name and "
        "process id.",
    ),
    _option("node", help=f"This node's name. Default: ${NODE_VARIABLE}, the token's node, or the host name."),
    _option("run-dir", help="Where rank records and the control socket live. Default: a temporary directory."),
    _option("memory-dir", help=f"In memory; a folder for snapshots is made in it. Default: {ROOT}."),
    _option("token-file", help=f"Default: ${TOKEN_VARIABLE}, or the file ${TOKEN_FILE_VARIABLE} names."),
    _option(
        "preload",
        metavar="MODULES",
        help="What the warm parent imports beside torch: installed modules, separated by commas, and learned for "
        "what the script imported before.  [default: learned]",
    ),
    _option("heartbeat-interval", type=click.FloatRange(min=0.01), help="Seconds between beats."),
    _option(
        "leave-grace",
        type=click.FloatRange(min=0),
        metavar="SECONDS",
        help="After SIGTERM stay this long, at most, for the ranks to be moved. Default: leave at once.",
    ),
    _option(
        "termination-log",
        default=TERMINATION_LOG,
        show_default=True,
        help="Where to leave the reason of a failure, if there is such a file (a pod's terminationMessagePath).",
    ),
    _option("log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"])),
    _option("node-rank", hidden=True),
    _option("master-addr", hidden=True),
    _option("master-port", hidden=True),
    click.Argument(["entrypoint"], nargs=-1, required=True, type=click.UNPROCESSED),
)


@click.command(context_settings={"allow_interspersed_args": False}, params=[*PARAMETERS])
def launch(termination_log: str, log_level: str, **given: object) -> None:
    """Run ENTRYPOINT on every local rank, in the rounds the watchdog shows.

    Takes the place of torchrun on a node: ENTRYPOINT and everything after it are the training script and its
    arguments.
    """
    flags = msgspec.convert({name: value for name, value in given.items() if value is not None}, Flags)
    logging.basicConfig(
        level=log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        outcome = run(settings_of(flags, environment=os.environ, host=socket.gethostname()))
    except HoldfastError as error:
        click.echo(f"holdfast launch: {error}", err=True)
        leave_last_words(termination_log, str(error))
        sys.exit(USAGE if isinstance(error, InvalidInput) else FAILED)
    if not outcome.succeeded:
        click.echo(f"holdfast launch: {outcome.reason}", err=True)
        leave_last_words(termination_log, last_words(outcome))
    sys.exit(outcome.exit_status)


def run(settings: LauncherSettings) -> "Outcome":
    """Be the launcher `settings` describe. Raises HoldfastError when it cannot, or may not, be one."""
    from holdfast.agent.launch.launcher import Launcher

    try:
        for directory in (settings.run_dir, settings.log_dir):
            directory.mkdir(parents=True, exist_ok=True)
        try:
            tempfile.gettempdir()
        except FileNotFoundError:
            # Importing torch's compiler needs such a place, and in a pod the whole file system may be read-only.
            directory = settings.run_dir / "tmp"
            directory.mkdir(exist_ok=True)
            settings = replace(settings, environment={**settings.environment, "TMPDIR": str(directory)})
    except OSError as error:
        raise Unavailable(f"the directory {error.filename} cannot be made: {error.strerror}") from error
    with ReservedPorts(settings.address, _RESERVED_PORTS) as ports:
        return asyncio.run(Launcher(settings, ports).run())


# What a launcher that fails leaves for whoever asks why its pod ended: the container's termination message.
#
# The kubelet makes the file, takes up to 4096 bytes of it and shows them in the pod's status.
# Source: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/


def last_words(outcome: "Outcome") -> str:
    """Why the run failed, and how the worker that failed last put it."""
    if not outcome.failures:
        return outcome.reason
    rank, failure = list(outcome.failures.items())[-1]
    how = f"signal {-failure.exit_code}" if failure.exit_code < 0 else f"exit code {failure.exit_code}"
    return f"{outcome.reason}\nrank {rank} ended with {how}\n{failure.error}"


def leave_last_words(path: str, words: str) -> None:
    """Write `words` to `path` where there is such a file, cut to what the kubelet takes. Never raises."""
    with contextlib.suppress(OSError):
        # Not created: outside a pod nobody would look for it.
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
        try:
            os.write(descriptor, shortened(words))
        finally:
            os.close(descriptor)


def shortened(words: str) -> bytes:
    """`words` in at most 4096 bytes: the beginning, which is the reason, and the end, which is the error."""
    content = words.encode("utf-8", "replace")
    if len(content) <= _BYTES_MAX:
        return content
    reason = content.split(b"\n", 1)[0][:_REASON_BYTES_MAX] + b"\n" + _CUT
    cut = reason + content[-(_BYTES_MAX - len(reason)) :]
    return cut.decode("utf-8", "ignore").encode()  # without the characters that were cut through
