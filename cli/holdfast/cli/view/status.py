"""A job's state and its ranks, as text."""

from collections.abc import Sequence

from holdfast.api.status import JobStatus, RankStatus
from holdfast.cli.view.table import number, pairs, seconds, table


def status_text(status: JobStatus) -> str:
    """One line per fact."""
    members = status.members
    saved = status.last_checkpoint
    return pairs(
        [
            ("job", status.job),
            ("phase", f"{status.phase} ({status.reason})"),
            ("round", number(status.round)),
            ("members", f"{members.ready} of {members.wanted} ready, {members.spares} spare"),
            ("world size", str(status.world_size)),
            ("step", number(status.step)),
            ("loss", number(status.loss)),
            ("step time", seconds(status.step_time_s)),
            (
                "checkpoint",
                f"step {saved.step}, {seconds(max(0.0, status.now - saved.at))} ago" if saved else "none",
            ),
            ("restarts", str(status.restarts)),
            ("evictions", str(status.evictions)),
            ("incidents", f"{status.incidents_open} open, {status.incidents_total} in all"),
            ("avoided nodes", ", ".join(status.avoided_nodes) or "none"),
        ]
    )


RANK_HEADERS = ("RANK", "NODE", "PROCESS", "PHASE", "STEP", "LOSS", "STEP TIME", "PROGRESS", "HEARD", "PID")


def rank_row(rank: RankStatus) -> tuple[str, ...]:
    """The cells of one rank, in the order of `RANK_HEADERS`."""
    return (
        str(rank.rank),
        rank.node,
        rank.process.value,
        "?" if rank.phase is None else rank.phase.name.lower(),
        number(rank.step),
        number(rank.loss),
        seconds(rank.step_time_s),
        f"{seconds(rank.progress_age_s)} ago",
        f"{seconds(rank.heard_age_s)} ago",
        number(rank.pid),
    )


def ranks_text(ranks: Sequence[RankStatus]) -> str:
    """One line per rank."""
    if not ranks:
        return "no round is running"
    return table(RANK_HEADERS, [rank_row(rank) for rank in ranks])
