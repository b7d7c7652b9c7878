"""What the trackers' program is told: built from the command line once, checked, passed down."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors import InvalidInput, Problem
from holdfast.wire.access import Access, Address, Credential, Trust

SPOOL_MIB: Final = 256
"""A job whose script logs ten values a step at ten steps a second writes some 60 MiB a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSettings:
    """`folder` holds the spools, `event_files` TensorBoard's files. `job` None: all that the token may read.

    `secrets_server` is the API server that has the jobs' Secrets; None: our own environment has the credentials,
    as on one machine. `spool_bytes` bounds what waits on disk for one job's trackers.
    """

    watchdog: Access
    folder: Path
    event_files: Path
    job: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    secrets_server: str | None = None
    spool_bytes: int = SPOOL_MIB << 20
    die_with_parent: bool = False


def parse_settings(arguments: Sequence[str]) -> TrackerSettings:
    """Read the command line. Raises InvalidInput, or SystemExit where argparse answers itself."""
    given = _parser().parse_args(arguments)
    problems = []
    if given.job is not None and not re.fullmatch(r"[^/\s]+/[^/\s]+", given.job):
        problems.append(Problem("--job", given.job, "give it as NAMESPACE/NAME"))
    if not 1 <= given.spool_mib <= 1 << 20:
        problems.append(Problem("--spool-mib", given.spool_mib, "give 1 to 1048576"))
    for host in given.allow:
        if not re.fullmatch(r"\*|[A-Za-z0-9.-]+(:[0-9]{1,5})?", host):
            problems.append(Problem("--allow", host, "give HOST, HOST:PORT or *"))
    if problems:
        raise InvalidInput(*problems)
    folder = Path(given.folder).absolute()
    return TrackerSettings(
        watchdog=Access(
            Address.parse(given.watchdog, given_by="--watchdog"),
            Credential(file=Path(given.token_file).absolute()),
            Trust(given.watchdog_ca_file, given_by="--watchdog-ca-file"),
        ),
        folder=folder,
        event_files=Path(given.event_files).absolute() if given.event_files else folder / "tensorboard",
        job=given.job,
        allowed_hosts=tuple(given.allow),
        secrets_server=given.secrets_server,
        spool_bytes=given.spool_mib << 20,
        die_with_parent=given.die_with_parent,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.console.trackers",
        description="Publish jobs to W&B, MLflow, TensorBoard and webhooks, as their spec.reporting says.",
    )
    parser.add_argument("--watchdog", required=True, metavar="HOST:PORT", help="where the watchdog listens")
    parser.add_argument("--token-file", required=True, help="the token to show it, with the role view")
    parser.add_argument("--watchdog-ca-file", help="certificate authorities to accept of it, as PEM")
    parser.add_argument("--folder", required=True, help="where what waits for trackers lies")
    parser.add_argument("--event-files", help="where TensorBoard's files go; by default below --folder")
    parser.add_argument("--job", metavar="NAMESPACE/NAME", help="one job; ends when that is over and published")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="HOST[:PORT]", help="a host that jobs may have called"
    )
    parser.add_argument("--secrets-server", metavar="URL", help="the API server to read jobs' Secrets from")
    parser.add_argument("--spool-mib", type=int, default=SPOOL_MIB, help="how much may wait on disk for one job")
    parser.add_argument("--die-with-parent", action="store_true", help="end when whoever started it ends")
    return parser
