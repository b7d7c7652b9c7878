"""A job's status, from what is decided and what is seen."""

from holdfast.api.round import Round
from holdfast.api.status import JobStatus, Membership
from holdfast.watchdog.senses import Gauge
from holdfast.watchdog.state import JobState, Standing


def status_of(state: JobState, gauge: Gauge | None, now: float) -> JobStatus:
    """The status at `now`. `gauge` None: nothing watches the ranks yet, so what they do is Unknown."""
    # Both are of the newest round. What is seen is newer as a rule; a commit or the end of the job may be ahead.
    known = [step for step in (gauge.step() if gauge else None, state.step) if step is not None]
    running = state.desired if isinstance(state.desired, Round) else None
    return JobStatus(
        job=state.job,
        phase=state.phase,
        reason=state.reason,
        round=state.round.number if state.round else None,
        members=_membership(state),
        world_size=running.world_size if running else 0,
        step=max(known, default=None),
        loss=gauge.loss() if gauge else None,
        step_time_s=gauge.step_time_s() if gauge else None,
        restarts=state.restart_count,
        evictions=len(state.evictions),
        incidents_open=len(state.open_incidents()),
        incidents_total=state.incident_count,
        last_checkpoint=state.checkpoints[-1] if state.checkpoints else None,
        avoided_nodes=tuple(order.node for order in state.avoided),
        now=now,
    )


def _membership(state: JobState) -> Membership:
    """Members with ranks, or on their way to get some, are ready; those beyond are spares."""
    wanted = state.policy.nodes_max if state.policy else 0
    there = [member.name for member in state.members if member.standing is Standing.PRESENT]
    seated = sum(1 for name in there if state.in_round(name))
    ready = seated if state.round is not None else min(len(there), wanted)
    return Membership(wanted=wanted, ready=ready, spares=len(there) - ready)
