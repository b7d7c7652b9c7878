"""Names on the wire, as they are accepted: bounded, printable, fit for a path."""

import re

from holdfast.api.errors import InvalidInput, Problem
from holdfast.watchdog.auth import Caller
from holdfast.watchdog.server.frames import BadMessage

# Kubernetes' names for a namespace and an object in it.
# Source: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
JOB = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# Names of nodes and pods, and what people call processes of their own.
PEER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
# Twice the largest cluster planned for: what names that nobody uses can cost is bounded.
PEERS_MAX = 32_768


def check_job(name: str) -> None:
    """Raises InvalidInput when `name` is not namespace/name."""
    if JOB.fullmatch(name) is None:
        fix = "name it namespace/name, in lower-case letters, digits and '-'"
        raise InvalidInput(Problem("job", name[:64], fix))


def check_allowed(caller: Caller, job: str) -> None:
    """Raises BadMessage when the caller may not send signals for the job."""
    if not caller.may_ingest_for(job):
        raise BadMessage(
            f"{caller.name} may send signals for jobs of namespace {caller.namespace} only, not {job}"
        )


def check_speaks_for(caller: Caller, node: str) -> None:
    """Raises BadMessage unless the caller may speak for that node: what it says can take the node away.

    The role ingest lets speak for nodes; a token that says on which node its pod runs, for that one alone.
    """
    if caller.namespace is not None:
        raise BadMessage(f"{caller.name} may not report for nodes: grant it the role ingest")
    if caller.node is not None and caller.node != node:
        raise BadMessage(f"node: {node} is not accepted; the token of {caller.name} is of a pod on {caller.node}")


def check_peer(**names: str) -> None:
    """Raises BadMessage naming the field whose value is no name."""
    for field, name in names.items():
        if PEER.fullmatch(name) is None:
            raise BadMessage(f"{field}: {name[:64]!r} is not accepted; use letters, digits, '.', '_' and '-'")


def check_room(known: int) -> None:
    """Raises BadMessage when no further peer is taken in."""
    if known >= PEERS_MAX:
        raise BadMessage(f"this job has {PEERS_MAX} peers already")
