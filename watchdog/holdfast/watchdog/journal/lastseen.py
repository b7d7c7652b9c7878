"""What was last known of a job when it ended, or when its watchdog was stopped: kept in the store for readers.

It is kept beside the job's snapshot, under a name that no job can have, and replaced as a whole. Nothing is
decided by it. Where a watchdog was killed, the journal alone says how far the job was, up to a minute before.
"""

from typing import Final

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Malformed
from holdfast.api.status import Hearing, JobPhase, LastSeen, NodeStatus, RankStatus, reading
from holdfast.api.telemetry import ProcessState
from holdfast.watchdog.brain.status import status_of
from holdfast.watchdog.brain.step import Brain
from holdfast.watchdog.detectors.progress import mean
from holdfast.watchdog.journal.replay import recalled
from holdfast.watchdog.store.store import Fence, Snapshot, Store

ENDED: Final = (JobPhase.SUCCEEDED, JobPhase.FAILED)


def name_of(job: str) -> str:
    """Where it is kept. A job's name has one slash."""
    return f"{job}/last"


def keep(store: Store, last: LastSeen, *, offset: int, fence: Fence) -> None:
    """Keep it in place of the one before. `offset` is the journal's last line then. Raises as `Store.save`."""
    snapshot = Snapshot(offset, last.at, msgspec.msgpack.encode(last))
    store.save(name_of(last.status.job), snapshot, fence=fence)


def kept(store: Store, job: str) -> tuple[LastSeen, int] | None:
    """What was kept, and the journal's last line then; None when that is nothing, or of another version.

    Raises Unavailable, Damaged.
    """
    snapshot = store.load(name_of(job))
    if snapshot is None:
        return None
    try:
        return decode_msgpack(snapshot.state, LastSeen), snapshot.offset
    except Malformed:
        return None


def recall(store: Store, job: str, *, brain: Brain) -> LastSeen | None:
    """What was last known of a job that nobody watches now; None when nothing ever was.

    What was kept counts while the journal has not gone on since, or when the job had ended by then. Else the
    journal tells: the ranks of its newest round, and the step that all of them had completed. Raises Unavailable,
    Damaged.
    """
    left = recalled(store, job, brain=brain)
    state, at = left.state, left.at
    found = kept(store, job)
    if found is not None:
        last, offset = found
        if offset == store.last(job) or (state.phase in ENDED and last.status.ended_at == state.ended_at):
            return last
    if state.policy is None:
        return None
    shares = state.round.ranks if state.round is not None else ()
    ranks = tuple(
        RankStatus(rank, share.member, share.node, ProcessState.UNKNOWN, step=state.step)
        for share in shares
        for rank in range(share.first_rank, share.first_rank + share.local_size)
    )
    # Of the GPUs of the nodes the journal knows nothing.
    avoided = {order.node: order.reason for order in state.avoided}
    names = sorted({*(share.node for share in shares), *avoided})
    nodes = tuple(NodeStatus(name, 0.0, avoided=avoided.get(name, ""), hearing=Hearing.ENDED) for name in names)
    return LastSeen(at, status_of(state, None, at), ranks, nodes)


def completed(last: LastSeen) -> LastSeen:
    """With step and loss of the ranks, where the newest round has none of its own.

    Members that are told to stop leave one after the other, and a round is formed of the rest.
    """
    status = last.status
    steps = [each.step for each in last.ranks if each.step is not None]
    losses = [float(each.loss) for each in last.ranks if each.loss is not None]
    step = status.step if status.step is not None else min(steps, default=None)
    loss = status.loss if status.loss is not None else reading(mean(losses))
    return msgspec.structs.replace(last, status=msgspec.structs.replace(status, step=step, loss=loss))


def aged(last: LastSeen, now: float) -> LastSeen:
    """The same at `now`: older, and none of its processes said to run."""
    passed_s = max(0.0, now - last.at)
    ranks = tuple(
        msgspec.structs.replace(
            each,
            process=ProcessState.GONE if each.process is ProcessState.GONE else ProcessState.UNKNOWN,
            progress_age_s=None if each.progress_age_s is None else each.progress_age_s + passed_s,
            heard_age_s=None if each.heard_age_s is None else each.heard_age_s + passed_s,
        )
        for each in last.ranks
    )
    nodes = tuple(
        msgspec.structs.replace(each, heard_age_s=each.heard_age_s + passed_s, hearing=Hearing.ENDED)
        for each in last.nodes
    )
    return msgspec.structs.replace(last, ranks=ranks, nodes=nodes)
