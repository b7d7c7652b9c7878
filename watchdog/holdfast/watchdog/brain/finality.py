"""Which steps are final: no remedy that is taken without a human goes back behind them."""

from holdfast.watchdog.brain.rewinds import known_checkpoints
from holdfast.watchdog.brain.state import JobState


def final_step(state: JobState) -> int | None:
    """The newest step of which that is known, None while it is of none.

    It is that of the newest checkpoint that any remedy would still restore: committed, finite on all ranks, not
    after what was verified where anything was, and old enough for a loss that stays high to have shown. While the
    job is sent back it is what the next round restores, if that is older. A human may ask for an older one, and
    the newest may turn out to be damaged: who publishes steps is then told by the round that goes back.
    """
    limits = [state.high_step]
    if state.verified_step is not None:
        limits.append(state.verified_step)
    if state.unhealthy_from is not None:
        limits.append(state.unhealthy_from - 1)
    if state.policy is not None and state.policy.loss is not None:
        limits.append((state.step or 0) - state.policy.loss.rewind_after)
    if state.rewind is not None:
        limits.append(state.rewind.restore.step or 0)
    steps = [each.step for each in known_checkpoints(state) if each.step <= min(limits)]
    return max(steps, default=None)
