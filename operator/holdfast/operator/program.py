"""The operator as a program: reads its flags, serves health, runs the operation, and ends cleanly."""

import asyncio
import contextlib
import hmac
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import click
from aiohttp import web

from holdfast.api.errors import Fenced, HoldfastError, Unavailable
from holdfast.api.exposition import accepted
from holdfast.operator.act import faultpoint
from holdfast.operator.decide.allowance import CHECKS_POLICY, COPIES_LAUNCHER, read_allowance
from holdfast.operator.decide.conditionmap import read_rules
from holdfast.operator.decide.observed import PROVISIONING_CLASS, Capacity, Cordoning, HandOn, Mode
from holdfast.operator.decide.places import read_labels
from holdfast.operator.metrics import Metrics
from holdfast.operator.operation import Operation, Settings
from holdfast.wire.door import HELLO_S, Door, listen, raise_open_files_max

BODY_BYTES_MAX: Final = 1024

logger = logging.getLogger(__name__)

RESOURCES: Final = {"--launcher-resources": COPIES_LAUNCHER, "--policy-check-resources": CHECKS_POLICY}
EXIT_CANNOT_START: Final = 3
FENCED: Final = 4


async def serve(settings: Settings) -> int:
    """Run until a signal: 0, or until another operator may lead: FENCED. Raises HoldfastError at start."""
    metrics = Metrics()
    # The one place that reads the wall clock: what people read has its time, and so have Kubernetes' objects.
    operation = Operation(settings, metrics, time.time)  # noqa: TID251
    runner = web.AppRunner(
        surface(metrics, settings.metrics_token_file, operation.waiting_for),
        access_log=None,
        shutdown_timeout=1.0,
        keepalive_timeout=HELLO_S,
    )
    try:
        door = Door(listen(*settings.listen_at), files=raise_open_files_max())
    except OSError as error:
        raise Unavailable(f"cannot listen on {settings.listen}: {error.strerror}") from error
    logger.info("listening address=%s", door.address)
    await runner.setup()
    try:
        assert runner.server is not None
        door.open(runner.server)
        return await _until_signalled(asyncio.create_task(operation.run()))
    finally:
        await door.close()
        await runner.cleanup()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line's entry. Ends the process."""
    command(args=arguments, prog_name="python -m holdfast.operator")


@click.command()
@click.option("--watchdog", required=True, help="HOST:PORT, as this program and the pods reach it.")
@click.option(
    "--watchdog-token-file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Read again for every connection.",
)
@click.option(
    "--watchdog-ca-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="CA certificate (PEM) to trust for the watchdog; enables TLS; pods get it, too. [default: no TLS]",
)
@click.option("--launcher-image", required=True, help="The image that carries the launcher.")
@click.option("--audience", default="holdfast", show_default=True, help="Of the token pods show the watchdog.")
@click.option("--namespace", "namespaces", multiple=True, help="Act only there; repeatable. [default: all]")
@click.option("--mode", default="act", type=click.Choice([each.value for each in Mode]), show_default=True)
@click.option(
    "--cordoning", default="own", type=click.Choice([each.value for each in Cordoning]), show_default=True
)
@click.option("--maintenance-taint", "maintenance_taints", multiple=True, help="A key; repeatable.")
@click.option(
    "--capacity", default="pods", type=click.Choice([each.value for each in Capacity]), show_default=True
)
@click.option(
    "--provisioning-class", default=PROVISIONING_CLASS, show_default=True, help="Of provisioning requests."
)
@click.option(
    "--hand-on", default="nothing", type=click.Choice([each.value for each in HandOn]), show_default=True
)
@click.option("--kueue", is_flag=True, help="Jobs with the name of a queue wait until Kueue admits them.")
@click.option("--policy-check-image", default="", help="Tries changed policies on the run so far. [default: none]")
@click.option(
    "--policy-check-timeout", "policy_check_timeout_s", default=900.0, show_default=True, help="Seconds."
)
@click.option(
    "--launcher-resources", default="", help="Of the init container, a JSON mapping. [default: a small one]"
)
@click.option("--policy-check-resources", default="", help="Of the pod that tries a policy, likewise.")
@click.option("--remediation-ttl", "remediation_ttl_s", default=86400.0, show_default=True, help="Seconds.")
@click.option("--node-conditions", "condition_map", default="", help="Rules for others' conditions, a JSON list.")
@click.option("--place-labels", default="", help="Labels of nodes that name a place: LABEL=KIND, by commas.")
@click.option("--lease-namespace", default="default", show_default=True)
@click.option("--lease-name", default="holdfast-operator", show_default=True)
@click.option("--identity", default="", help="Of this candidate. [default: host name and a random part]")
@click.option("--lease-seconds", "lease_s", default=15.0, show_default=True)
@click.option("--listen", default="127.0.0.1:0", show_default=True, help="HOST:PORT for health and metrics.")
@click.option(
    "--metrics-token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with a bearer token that grants access to /metrics.",
)
@click.option("--kubeconfig", default="", help="[default: the pod's own service account]")
@click.option("--resync", "resync_s", default=300.0, show_default=True, help="Seconds.")
@click.option(
    "--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), show_default=True
)
def command(log_level: str, **flags: Any) -> None:
    """Make the cluster match its TrainingJobs and the watchdog's plans."""
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        faultpoint.arm(os.environ.get(faultpoint.VARIABLE, ""))
        flags["mode"], flags["cordoning"] = Mode(flags["mode"]), Cordoning(flags["cordoning"])
        flags["capacity"] = Capacity(flags["capacity"])
        flags["hand_on"] = HandOn(flags["hand_on"])
        flags["condition_map"] = read_rules(flags["condition_map"])
        flags["place_labels"] = read_labels(flags["place_labels"])
        for flag, default in RESOURCES.items():
            name = flag.removeprefix("--").replace("-", "_")
            flags[name] = read_allowance(flags[name], flag, default)
        flags["identity"] = flags["identity"] or f"{socket.gethostname()}_{uuid4().hex[:8]}"
        code = asyncio.run(serve(Settings(**flags)))
    except HoldfastError as error:
        click.echo(f"holdfast operator: {error}", err=True)
        raise SystemExit(EXIT_CANNOT_START) from None
    if code == FENCED:
        # It lost its turn to another one, and nothing of it is broken: it stands by, as the same process, and
        # forgets all that it was about to do. To Kubernetes it has not ended.
        logger.warning("another operator may lead; this one begins anew as a standby")
        logging.shutdown()
        os.execv(sys.executable, sys.orig_argv)
    raise SystemExit(code)


async def _until_signalled(running: "asyncio.Task[Any]") -> int:
    """0 when told to end, FENCED when another may lead."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        return 0
    except BaseExceptionGroup as errors:
        if errors.subgroup(Fenced) is None:
            raise
        logger.error("this operator must stop acting: the lease is lost")
        return FENCED
    return 0


# What the operator serves: health and readiness to anybody, metrics to whoever shows the token.


def surface(metrics: Metrics, token_file: Path | None, ready: Callable[[], str]) -> web.Application:
    """`ready` says what is still waited for, empty when nothing is."""

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        waiting = ready()
        return web.Response(text=f"waiting for {waiting}\n" if waiting else "ok\n", status=503 if waiting else 200)

    async def show_metrics(request: web.Request) -> web.Response:
        wanted = ""
        if token_file is not None:  # read for every request: mounted secrets change
            with contextlib.suppress(OSError, UnicodeDecodeError):
                wanted = token_file.read_text(encoding="utf-8").strip()
        if not wanted:
            refusal = {"error": "Start the operator with --metrics-token-file, a file with a token in it."}
            return web.json_response(refusal, status=503)
        given = request.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {wanted}".encode()):
            refusal = {"error": "Send the operator's metrics token as `Authorization: Bearer TOKEN`."}
            return web.json_response(refusal, status=401, headers={"WWW-Authenticate": "Bearer"})
        style = accepted(request.headers.get("Accept", ""))
        return web.Response(body=metrics.text(style), headers={"Content-Type": style.value})

    application = web.Application(client_max_size=BODY_BYTES_MAX)
    application.router.add_get("/healthz", healthz)
    application.router.add_get("/readyz", readyz)
    application.router.add_get("/metrics", show_metrics)
    return application
