"""Silent corruption: back to what all replicas agreed on, without the one that computes wrong.

Replicas that were equal after a step were so after every earlier one, because a difference in parameters never
goes away by itself. So a checkpoint is verified when a later comparison, or one at its own step, found all alike;
what was saved since the last agreement may hold the error, and is not restored.
"""

from holdfast.api.event import Event, ReplicasAgreed
from holdfast.api.finding import Confidence, Finding
from holdfast.api.membership import Verified
from holdfast.api.policy import Policy, XidAction
from holdfast.api.round import Restore, Tier
from holdfast.api.status import Checkpoint
from holdfast.watchdog.effect import Vouch
from holdfast.watchdog.state import JobState, Rewind
from holdfast.watchdog.step import Reason, Step, changed, ignore


def agreed(state: JobState, event: Event, now: float) -> Step:
    """All replicas held equal parameters after a step of the newest round."""
    assert isinstance(event, ReplicasAgreed)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.recovery is not None and state.recovery.incidents:
        return ignore(state, "a fault was found in this round")
    if state.verified_step is not None and event.step <= state.verified_step:
        return ignore(state, f"step {event.step} is verified already")
    after = changed(state, verified_step=event.step, comparable=True)
    return Step(after, (), Reason("verified", f"all replicas agreed after step {event.step}"))


def is_verified(state: JobState, checkpoint: Checkpoint) -> bool:
    """Whether all replicas are known to have agreed on what the checkpoint holds."""
    return state.verified_step is not None and checkpoint.step <= state.verified_step


def vouch(state: JobState) -> Vouch | None:
    """What the newest round is told of what is verified; nothing before it has said where it went on from."""
    round_, step = state.round, state.verified_step
    if round_ is None or state.restored_step is None or step is None:
        return None
    return Vouch(round_.ranks[0].member, Verified(round_.number, step))


def rewound(state: JobState, policy: Policy, finding: Finding) -> JobState:
    """The state whose next round restores what was verified; what was saved since counts no more.

    Detectors forget what was agreed on when they begin anew (a restart, another policy), the state does not. With
    nothing verified the round begins from where the one with the error began, which came before it.
    """
    known = [step for step in (finding.agreed_step, state.verified_step) if step is not None]
    limit = min(known) if known else (state.restored_step or 0)
    kept = tuple(each for each in state.checkpoints if each.step <= limit)
    if kept:
        step: int | None = kept[-1].step
    else:
        step = state.restored_step if state.restored_step and state.restored_step <= limit else None
    tier = Tier.NONE if step is None else Tier.CHECKPOINT
    restore = Restore(tier, step, policy.checkpoint_uri, owner=state.incarnation)
    lower = lowered(state.verified_step, step)
    return changed(state, checkpoints=kept, rewind=Rewind(restore), verified_step=lower)


def suspects(state: JobState, finding: Finding) -> tuple[str, ...]:
    """The members of all nodes that a finding names, sorted: who is to be tested when nobody is convicted."""
    nodes = {each.node for each in (finding.subject, *finding.also) if each.node is not None}
    return tuple(sorted(each.name for each in state.members.on_nodes(nodes)))


def is_disputed(finding: Finding) -> bool:
    """Whether replicas differ and nobody is in the majority."""
    return finding.confidence is Confidence.UNKNOWN and finding.asks is not XidAction.WATCH


def lowered(verified: int | None, restored: int | None) -> int | None:
    """What is verified of a line that goes on from the step restored: what came after it is trained anew."""
    return None if verified is None or restored is None else min(verified, restored)
