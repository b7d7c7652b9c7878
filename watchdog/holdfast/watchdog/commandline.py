"""The watchdog's command line: every flag, and the settings that they make."""

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.policy import CordonOn, XidAction
from holdfast.watchdog import settings

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
# As far as a TrainingJob's own overrides go.
XID_MAX = 1023
FOLDER = click.Path(file_okay=False, path_type=Path)

OPTIONS = (
    click.option(
        "--listen",
        default="127.0.0.1:0",
        show_default=True,
        help="HOST:PORT; 0 is any free port. Beyond loopback with --auth kubernetes or TLS only.",
    ),
    click.option("--store", required=True, help="The SQLite file, or redis://HOST:PORT/DB, or rediss:// for TLS."),
    click.option("--store-password-file", type=FILE, help="The Redis password, out of sight of the command line."),
    click.option(
        "--auth",
        default=settings.AuthMode.TOKEN_FILE.value,
        type=click.Choice([mode.value for mode in settings.AuthMode]),
        show_default=True,
        help="Who says whose a token is: a file, or the API server.",
    ),
    click.option("--token-file", type=FILE, help="For --auth token-file. Made when missing."),
    click.option("--audience", default="holdfast", show_default=True, help="What tokens must be made for."),
    click.option("--metrics-token-file", type=FILE, help="Who shows the token in it may read the metrics, too."),
    click.option("--grants", type=FILE, help="YAML: which roles users and groups have."),
    click.option("--api-server", help="The API server's URL; by default the one of the cluster this runs in."),
    click.option(
        "--account-dir",
        default=settings.ACCOUNT_DIRECTORY,
        type=FOLDER,
        show_default=True,
        help="This pod's own account: token and ca.crt.",
    ),
    click.option("--tls-cert", type=FILE, help="The certificate to serve with, and its chain."),
    click.option("--tls-key", type=FILE, help="Its key."),
    click.option(
        "--lease-ttl",
        default=settings.LEASE_TTL_S,
        type=float,
        show_default=True,
        help="Seconds after which a leader that is silent is replaced.",
    ),
    click.option("--identity", help="What to write into the lock; by default host name and process."),
    click.option("--peer", help="The URL of the service in front of all replicas."),
    click.option("--state-file", type=FILE, help="Where to write the address; beside the SQLite file by default."),
    click.option(
        "--xid",
        multiple=True,
        metavar="NUMBER=ACTION",
        help="What jobs do about this XID: Ignore, Watch, Restart or Evict. Repeatable; a job's own word wins.",
    ),
    click.option(
        "--cordon-on",
        default=CordonOn.ANYTHING.value,
        type=click.Choice([each.value for each in CordonOn]),
        show_default=True,
        help="What takes a node out of service for every job. With sensors, what only a job's own processes say "
        "(exits, hangs, self-tests, fingerprints) keeps that job's namespace away from the node, and all once two "
        "namespaces say it.",
    ),
    click.option(
        "--log-level", default="INFO", type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]), show_default=True
    ),
)


def watchdog_options(function: F) -> F:
    """Give a click command every flag of the watchdog."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def settings_from(given: Mapping[str, Any], environment: Mapping[str, str]) -> settings.WatchdogSettings:
    """The settings that the flags ask for. Raises InvalidInput, Unavailable."""
    told_in = given["state_file"]
    return settings.WatchdogSettings(
        listen=settings.ListenAddress.parse(given["listen"]),
        store=settings.store_address(given["store"], given["store_password_file"]),
        auth=_auth(given, environment),
        tls=_tls(given["tls_cert"], given["tls_key"]),
        succession=settings.Succession(
            given["identity"] or f"{socket.gethostname()}/{os.getpid()}", given["lease_ttl"], given["peer"]
        ),
        metrics_token_file=given["metrics_token_file"],
        told_in=told_in.absolute() if told_in else None,
        cluster=settings.ClusterPolicy(_xid_actions(given["xid"]), CordonOn(given["cordon_on"])),
    )


def _xid_actions(given: Sequence[str]) -> Mapping[int, XidAction]:
    """From NUMBER=ACTION, each number once. Raises InvalidInput with every problem."""
    actions, problems = {}, []
    for text in given:
        number, _, action = text.partition("=")
        known = number.isdecimal() and 1 <= int(number) <= XID_MAX and action in list(XidAction)
        if not known:
            names = ", ".join(XidAction)
            problems.append(Problem("--xid", text[:64], f"give a number from 1 to {XID_MAX} and one of {names}"))
        elif int(number) in actions:
            problems.append(Problem("--xid", text, "give each number once"))
        else:
            actions[int(number)] = XidAction(action)
    if problems:
        raise InvalidInput(*problems)
    return actions


def _auth(given: Mapping[str, Any], environment: Mapping[str, str]) -> Path | settings.KubernetesAuth:
    if given["auth"] == settings.AuthMode.TOKEN_FILE:
        if given["token_file"] is None:
            raise InvalidInput(Problem("--token-file", None, "name the file, or use --auth kubernetes"))
        token_file: Path = given["token_file"]
        return token_file.absolute()
    api_server = given["api_server"]
    if api_server is None:
        # What every pod is told. Source: https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
        host = environment.get("KUBERNETES_SERVICE_HOST")
        port = environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise InvalidInput(Problem("--api-server", None, "give its URL: this does not run in a cluster"))
        api_server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return settings.KubernetesAuth(
        api_server.rstrip("/"), given["account_dir"], given["audience"], given["grants"]
    )


def _tls(certificate: Path | None, key: Path | None) -> settings.TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        missing = "--tls-cert" if certificate is None else "--tls-key"
        raise InvalidInput(Problem(missing, None, "give both, or neither"))
    return settings.TlsFiles(certificate, key)
