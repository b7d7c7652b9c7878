"""What is known of ranks that are slow, and what that costs so far.

A detector finds them once a round. From then on they count as slow while that round trains: the cost grows with
its steps. The incident is told anew each time the cost has doubled, and when it ends: else there would be a line
in the journal for every step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from holdfast.api.finding import Confidence, Finding, FindingKind, SlowCause, Slowness
from holdfast.api.incident import Incident, Slowed
from holdfast.watchdog.brain.accounts import Charge
from holdfast.watchdog.brain.incidents import update
from holdfast.watchdog.brain.saves import in_force
from holdfast.watchdog.brain.state import JobState, SlowRanks, SlowStage
from holdfast.watchdog.brain.step import NOTHING, Effect, Step, changed, stay

# Where the node makes the difference, so that another one may help.
OF_THE_NODE = (SlowCause.MACHINE, SlowCause.SOFTWARE)
KEPT_SLOW = 256
# What comes and goes was not slow for a while before it was found, and is watched for longer on another node; but
# not for days, where it took days.
LOOKED_MAX_S = 1800.0
UNDER_WAY = (SlowStage.LEAVING, SlowStage.MOVED)


def slow_ranks(state: JobState, finding: Finding, slow: Slowness, incident: str, now: float) -> SlowRanks:
    """What a finding of the round in force says."""
    assert state.round is not None
    named = (finding.subject, *finding.also)
    nodes = {each.node for each in named if each.node is not None}
    ranks = tuple(sorted({each.rank for each in named if each.rank is not None}))
    node = nodes.pop() if len(nodes) == 1 else None
    if node is not None and not ranks:
        shares = [each for each in state.round.ranks if each.node == node]
        ranks = tuple(each.first_rank + local for each in shares for local in range(each.local_size))
    is_sure = finding.asks is None and finding.confidence is not Confidence.UNKNOWN
    took_s = max(0.0, now - finding.began_at)
    steps = max(1, slow.steps_in(took_s))
    newest = finding.step if finding.step is not None else (state.step or 0)
    return SlowRanks(
        incident=incident,
        slow=slow,
        node=node,
        ranks=ranks,
        world_size=state.round.world_size,
        took_s=max(took_s, min(now - state.round_shown_at, LOOKED_MAX_S)),
        seen_at=now,
        movable=is_sure and node is not None and slow.cause in OF_THE_NODE,
        round=state.round.number,
        since_step=max(0, newest - steps),
    )


def is_same(known: SlowRanks, found: SlowRanks) -> bool:
    """Whether both are of one slowness: of a node, or of the same ranks on it."""
    if known.node != found.node:
        return False
    of_the_node = {known.slow.cause, found.slow.cause} <= {*OF_THE_NODE}
    if known.node is not None and of_the_node and known.stage is not SlowStage.FOLLOWED:
        return True
    return (of_the_node or known.slow.cause is found.slow.cause) and known.ranks == found.ranks


def follows(known: SlowRanks, found: SlowRanks) -> bool:
    """Whether ranks that another node was given are slow on it as well."""
    was_moved = known.stage in (SlowStage.MOVED, SlowStage.FOLLOWED)
    is_elsewhere = found.node is not None and found.node != known.node
    same_world = found.world_size == known.world_size
    return was_moved and is_elsewhere and same_world and not set(found.ranks).isdisjoint(known.ranks)


def with_record(state: JobState, record: SlowRanks) -> JobState:
    """The state with the record in place of the one with its incident, or behind the others."""
    if any(each.incident == record.incident for each in state.slow):
        return changed(
            state, slow=tuple(record if each.incident == record.incident else each for each in state.slow)
        )
    kept = (*state.slow, record)
    if len(kept) > KEPT_SLOW:
        # Who was only told of says least. What was proved of a node decides whom ranks are given.
        known = (each for each in state.slow if each.stage not in UNDER_WAY)
        out = min(known, key=lambda each: bool(each.tries))
        kept = tuple(each for each in kept if each is not out)
    return changed(state, slow=kept)


def put(state: JobState, record: SlowRanks, **fields: Any) -> JobState:
    """The state with some fields of the record replaced."""
    return with_record(state, msgspec.structs.replace(record, **fields))


def without_record(state: JobState, record: SlowRanks) -> JobState:
    """The state without the record."""
    return changed(state, slow=tuple(each for each in state.slow if each.incident != record.incident))


def rewrite(
    state: JobState, id: str, rewritten: Callable[[Incident], Incident]
) -> tuple[JobState, tuple[Effect, ...]]:
    """Change an incident, also one that is over, as far as it is kept."""
    known = next((each for each in state.incidents if each.id == id), None)
    return (state, ()) if known is None else update(state, rewritten(known))


def is_slow_now(state: JobState, record: SlowRanks) -> bool:
    """Whether the round that trains is the one that is slow."""
    newest = state.round.number if state.round is not None else None
    return record.lasts and record.round == newest and in_force(state)


def slow_now(state: JobState) -> Iterator[SlowRanks]:
    """What makes the round that trains slow."""
    return (each for each in state.slow if is_slow_now(state, each))


def where(state: JobState, record: SlowRanks) -> str | None:
    """The node on which it is slow: of ranks that it followed, the one that has them."""
    if record.stage is not SlowStage.FOLLOWED or state.round is None or not record.ranks:
        return record.node
    share = state.round.member_of(record.ranks[0])
    return share.node if share is not None else None


def reckon(state: JobState, now: float) -> Step:
    """Tell what slowness costs: while it lasts, when that has doubled; when it does not any more, all of it."""
    step = stay(state)
    for each in state.slow:
        if each.lasts:
            step = step.then(_reckoned, each)
    return step


def ended(state: JobState, record: SlowRanks) -> tuple[JobState, tuple[Effect, ...]]:
    """It is slow no more: tell all of what it cost."""
    steps = _steps(state, record)
    return _charged(put(state, record, told_steps=steps, lasts=False), record, steps - record.told_steps)


def _steps(state: JobState, record: SlowRanks) -> int:
    """How many steps it was slow in so far."""
    is_its_round = state.round is not None and state.round.number == record.round
    reached = state.step if is_its_round else None
    if reached is None or record.since_step is None:
        return record.told_steps
    return max(record.told_steps, reached - record.since_step)


def _reckoned(state: JobState, record: SlowRanks) -> Step:
    lasts, steps = is_slow_now(state, record), _steps(state, record)
    if lasts and steps < 2 * max(1, record.told_steps):
        return stay(state)
    state = put(state, record, told_steps=steps, lasts=lasts)
    state, effects = _charged(state, record, steps - record.told_steps)
    return Step(state, effects, NOTHING)


def charge_first(state: JobState, record: SlowRanks, newest: int) -> tuple[JobState, tuple[Effect, ...]]:
    """Tell what it cost until it was found, after step `newest`."""
    steps = max(1, newest - (record.since_step or 0))
    return _charged(put(state, record, told_steps=steps), record, steps)


def _charged(state: JobState, record: SlowRanks, steps: int) -> tuple[JobState, tuple[Effect, ...]]:
    if steps <= 0:
        return state, ()
    excess_s = record.slow.excess_s
    rank_s = excess_s * steps * record.world_size

    def charged(incident: Incident) -> Incident:
        known = incident.slowed or Slowed(excess_s, 0, 0.0)
        return msgspec.structs.replace(
            incident, slowed=Slowed(excess_s, known.steps + steps, known.rank_s + rank_s)
        )

    state, effects = rewrite(state, record.incident, charged)
    charge = Charge(record.incident, FindingKind.STRAGGLER.value, record.node or "")
    ledger = state.ledger.slowed(rank_s, charge)
    return changed(state, slowed_rank_s=state.slowed_rank_s + rank_s, ledger=ledger), effects
