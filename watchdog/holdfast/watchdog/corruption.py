"""Silent corruption: back to what all replicas agreed on, without the one that computes wrong.

Replicas that were equal after a step were so after every earlier one, because a difference in parameters never
goes away by itself. So a checkpoint is verified when a later comparison, or one at its own step, found all alike;
what was saved since the last agreement may hold the error, and is not restored.

Where no two ranks hold the same, devices that answered right and memory that was not seen to change verify.
"""

from holdfast.api.checkpoint import restore_order
from holdfast.api.event import Event, ReplicasAgreed
from holdfast.api.finding import Confidence, Finding, FindingKind, ProvedBy
from holdfast.api.membership import Verified
from holdfast.api.policy import Policy, XidAction
from holdfast.api.round import Restore, Tier
from holdfast.api.status import Checkpoint
from holdfast.watchdog.effect import Vouch
from holdfast.watchdog.rewinding import known, up_to
from holdfast.watchdog.state import JobState, Rewind
from holdfast.watchdog.step import Reason, Step, changed, ignore


def agreed(state: JobState, event: Event, now: float) -> Step:
    """What all ranks held after a step of the newest round is right."""
    assert isinstance(event, ReplicasAgreed)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"round {event.round} is over")
    if state.recovery is not None and state.recovery.incidents:
        return ignore(state, "a fault was found in this round")
    if state.verified_step is not None and event.step <= state.verified_step:
        return ignore(state, f"step {event.step} is verified already")
    if event.by is ProvedBy.DEVICES and state.comparable:
        return ignore(state, "replicas are compared, which sees more")
    comparable = state.comparable or event.by is ProvedBy.REPLICAS
    after = changed(state, verified_step=event.step, verified_by=event.by, comparable=comparable)
    says = "all replicas agreed" if comparable else "all devices answered right, and no memory was seen to change,"
    return Step(after, (), Reason("verified", f"{says} after step {event.step}"))


def is_verified(state: JobState, checkpoint: Checkpoint) -> bool:
    """Whether what the checkpoint holds is known to be right."""
    return state.verified_step is not None and checkpoint.step <= state.verified_step


def vouch(state: JobState) -> Vouch | None:
    """What the newest round is told of what is verified and what is not healthy; nothing before it has said
    where it went on from.
    """
    round_, step, unhealthy_from = state.round, state.verified_step, state.unhealthy_from
    if round_ is None or state.restored_step is None or (step is None and unhealthy_from is None):
        return None
    return Vouch(round_.ranks[0].member, Verified(round_.number, step, unhealthy_from))


def rewound(state: JobState, policy: Policy, finding: Finding) -> JobState:
    """The state whose next round restores what is sound; what was saved since counts no more.

    Of parameters that differ that is what was verified. Detectors forget what was agreed on when they begin
    anew (a restart, another policy), the state does not. With nothing verified the round begins from where the
    one with the error began, which came before it.
    """
    limit = _limit(state, finding)
    kept = tuple(each for each in state.checkpoints if each.step <= limit)
    there = [each for each in known(state) if each.step <= limit]
    order = restore_order(there[::-1], state.unhealthy_from)
    if order:
        step: int | None = order[0].step
    else:
        step = state.restored_step if state.restored_step and state.restored_step <= limit else None
    tier = Tier.NONE if step is None else Tier.CHECKPOINT
    restore = Restore(tier, step, policy.checkpoint_uri, owner=state.incarnation)
    lower = lowered(state.verified_step, step)
    storage = up_to(state.storage, limit)
    return changed(state, checkpoints=kept, storage=storage, rewind=Rewind(restore), verified_step=lower)


def _limit(state: JobState, finding: Finding) -> int:
    """The last step that may be sound in the light of the finding."""
    if finding.kind is FindingKind.NON_FINITE:
        return (finding.step or 0) - 1
    known = [step for step in (finding.agreed_step, state.verified_step) if step is not None]
    return min(known) if known else (state.restored_step or 0)


def suspects(state: JobState, finding: Finding) -> tuple[str, ...]:
    """The members of all nodes that a finding names, sorted: who is to be tested when nobody is convicted."""
    nodes = {each.node for each in (finding.subject, *finding.also) if each.node is not None}
    return tuple(sorted(each.name for each in state.members.on_nodes(nodes)))


def is_of_replicas(finding: Finding) -> bool:
    """Whether it was found by comparing parameters, which says nothing where they are not meant to be equal."""
    return finding.cause.startswith("fingerprint")


def is_disputed(finding: Finding) -> bool:
    """Whether replicas or devices differ and nobody is in the majority."""
    return finding.confidence is Confidence.UNKNOWN and finding.asks is not XidAction.WATCH


def lowered(verified: int | None, restored: int | None) -> int | None:
    """What is verified of a line that goes on from the step restored: what came after it is trained anew."""
    return None if verified is None or restored is None else min(verified, restored)
