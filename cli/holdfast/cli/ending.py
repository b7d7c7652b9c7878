"""A job that is over: what its watchdog, or its state directory, still says of it is said to be that."""

from datetime import datetime
from typing import Final

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.status import NodeStatus, RankStatus
from holdfast.cli.output import remark
from holdfast.cli.seen import SeenStatus, seen
from holdfast.cli.watchdogclient import WatchdogClient

DAY_S: Final = 86400.0


def ranks_of(client: WatchdogClient) -> tuple[RankStatus, ...]:
    """Every rank as the watchdog knows it; stderr says when the job is over. Raises as `WatchdogClient.ranks`."""
    ranks = client.ranks()
    _remark_end_of(client)
    return ranks


def nodes_of(client: WatchdogClient) -> tuple[NodeStatus, ...]:
    """Every node as the watchdog knows it; stderr says when the job is over. Raises as `WatchdogClient.nodes`."""
    nodes = client.nodes()
    _remark_end_of(client)
    return nodes


def remark_end(status: SeenStatus) -> None:
    """Say on stderr that what follows is of a job that is over; nothing of one that goes on."""
    if status.ended_at is not None:
        remark(f"{status.job} {ended_text(status)}; this is what was last known")


def ended_text(status: SeenStatus) -> str:
    """`ended 12:03:04, Succeeded`, in local time; with the day when that is more than a day ago.

    `status.now` is when it is said.
    """
    assert status.ended_at is not None
    at = datetime.fromtimestamp(status.ended_at)
    is_recent = status.now is not None and status.now - status.ended_at < DAY_S
    return f"ended {at:%H:%M:%S}, {status.phase}" if is_recent else f"ended {at:%Y-%m-%d %H:%M:%S}, {status.phase}"


def _remark_end_of(client: WatchdogClient) -> None:
    try:
        status = client.status()
    except (Unavailable, InvalidInput):
        return  # the answer that was asked for is there, and this is only a word beside it
    remark_end(seen(status))
