"""What a job holds and what for: from its state to the lanes of its ledger.

Each member that is there holds its GPUs. Those with ranks hold them as one; so does who was lost of them, while
their round is shown. The roster keeps all figures: nothing here walks over members, but where the spec has several
prices and a round is new, or members without ranks changed.
"""

from collections.abc import Iterable, Iterator, Set
from typing import Final

from holdfast.api.event import Event, FindingMade, PodChanged
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.ledger import MONEY_UNITS, Row
from holdfast.api.policy import Offer, Policy
from holdfast.api.round import Round
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.accounts import NOBODY, Charge
from holdfast.watchdog.brain.ledger import Holding, Lane, Ledger
from holdfast.watchdog.brain.rounds import legal_size
from holdfast.watchdog.brain.selftests import waiting_for_tests
from holdfast.watchdog.brain.state import JobState

NOWHERE: Final = Offer()
CAUSE_LENGTH_MAX: Final = 80
# In these, members without ranks are among those of the lane.
MIXED = (Row.SUSPENDED, Row.WAITING_FOR_NODES)
# Of these the kind alone does not say what it was.
TOLD_BY_CAUSE = (FindingKind.XID, FindingKind.CONDITION)


def booked(before: JobState, after: JobState, event: Event, now: float) -> Ledger:
    """The ledger once `event` has led from one state to the other."""
    ledger = after.ledger
    if before.avoided is not after.avoided and isinstance(event, FindingMade | PodChanged):
        kept_away = after.avoided_nodes
        for order in before.avoided:
            if order.node not in kept_away and order.node in after.returned:
                ledger = ledger.exonerated(Charge(order.incident or "", node=order.node), now)
    return ledger.follow(holding(before, after), now)


def holding(before: JobState, after: JobState) -> Holding:
    """What is held in `after`, to which the state `before` has led."""
    policy, currency = after.policy, ""
    if policy is None or after.phase is JobPhase.SUCCEEDED:
        return Holding()
    if policy.gpu_hour is not None:
        currency = policy.gpu_hour.currency
    if after.phase is JobPhase.FAILED:  # somebody may restart it: until then it holds nothing, and nothing is done
        return Holding(Lane(Row.DECIDING, 0), currency=currency)
    prices = _Prices(before, after, policy)
    if after.phase is JobPhase.SUSPENDED:
        there = _there(after) * policy.processes_per_node
        lane = Lane(Row.SUSPENDED, there, prices.of_all(there))
        return Holding(lane, currency=currency)
    evicted = tuple(_evicted(after, prices))
    apart = sum(each.gpus for each in evicted)
    size, tests = policy.processes_per_node, after.members.tested(after.ranked())
    idle, tested, forming = _idle(after) * size - apart, len(tests) * size, 0
    if after.round is None:
        charge, row = NOBODY, Row.SELF_TEST if after.phase is JobPhase.PREFLIGHT else Row.WAITING_FOR_NODES
        gpus = min(max(0, idle), policy.members_wanted * size)
        idle -= gpus
        rate = prices.of_idle(gpus)
    else:
        row = _row(after, policy)
        charge = _charge(before, after, row)
        shown = isinstance(after.desired, Round)
        gpus = after.round.training_size if shown else _there(after) * size - idle - tested - apart
        forming = after.round.world_size - gpus if shown else 0
        rate = prices.of_ranks(gpus)
        if row is Row.WAITING_FOR_NODES:  # who came in place of those that left waits with the others
            more = min(max(0, idle), max(0, policy.members_wanted * size - gpus))
            gpus, idle, rate = gpus + more, idle - more, rate + prices.of_idle(more)
    sides = [Lane(Row.IDLE_SPARE, idle, prices.of_idle(idle))] if idle > 0 else []
    if tested > 0:
        sides.append(Lane(Row.SELF_TEST, tested, prices.of_some(tests, tested)))
    if forming > 0:  # of replica groups that do not train yet
        sides.append(Lane(Row.FORMING, forming, prices.of_ranks(forming)))
    fault = _incident(after, charge.incident) if _is_new(after, charge) else None
    lane = Lane(row, gpus, rate, charge)
    return Holding(lane, (*sides, *evicted), fault.began_at if fault is not None else None, currency)


def _row(state: JobState, policy: Policy) -> Row:
    """What those with ranks do."""
    recovery = state.recovery
    if isinstance(state.desired, Round):
        if recovery is not None and recovery.incidents:
            return Row.DECIDING
        if state.phase is JobPhase.RUNNING and (state.ledger.stepped_at is not None or not state.publishes):
            return Row.UNJUDGED
        return Row.FORMING if state.ledger.entered < len(state.desired.ranks) else Row.LOADING
    if waiting_for_tests(state) is not None or state.phase is JobPhase.PREFLIGHT:
        return Row.SELF_TEST
    gathers = state.phase in (JobPhase.PENDING, JobPhase.FORMING)
    if gathers or not legal_size(policy, state.eligible_count()):
        return Row.WAITING_FOR_NODES
    return Row.DECIDING


def _there(state: JobState) -> int:
    """How many members hold their node. One that was not heard of since the watchdog started may."""
    members = state.members
    return len(members) - len(members.absent()) + len(members.unheard())


def _idle(state: JobState) -> int:
    """How many members hold their node and have neither ranks nor a test."""
    beyond, tested = state.members.beyond(state.ranked()), state.members.tested(state.ranked())
    return len(beyond) - len(_nowhere(state)) - len(tested)  # who is not there is not tested


def _nowhere(state: JobState) -> Set[str]:
    """Names of the members without ranks that hold nothing: few, as a rule."""
    members = state.members
    return (members.absent() & members.beyond(state.ranked())) - members.unheard()


def _evicted(state: JobState, prices: "_Prices") -> Iterator[Lane]:
    """Members without ranks on nodes that are kept away from: it is not known yet whether they are healthy."""
    ranked, absent, unheard = state.ranked(), state.members.absent(), state.members.unheard()
    for order in state.avoided:
        names = [each.name for each in state.members.on_nodes((order.node,)) if each.name not in ranked]
        there = [name for name in names if name not in absent or name in unheard]
        gone = [name for name in there if name in state.members.tested(ranked)]
        if gpus := (len(there) - len(gone)) * prices.policy.processes_per_node:
            charge = Charge(order.incident or "", node=order.node)
            yield Lane(Row.IDLE_SPARE, gpus, prices.of_some(there, gpus), charge)


def _charge(before: JobState, after: JobState, row: Row) -> Charge:
    """Whom the ranks are charged to: the fault that is healed, from its finding to the first step after it."""
    recovery, lane, newest = after.recovery, after.ledger.ranks, after.round
    if recovery is not None and recovery.incidents:
        known = lane.charge if lane is not None else NOBODY
        id = recovery.incidents[0]
        return known if known.incident == id else charge_of(_incident(after, id), id)
    if row is Row.UNJUDGED or newest is None:
        return NOBODY
    if newest is before.round:
        return lane.charge if lane is not None else NOBODY
    healed = (
        each
        for each in reversed(after.incidents)
        if each.state is IncidentState.OPEN and each.recovered_round == newest.number
    )
    if before.recovery is not None and before.recovery.incidents:
        id = before.recovery.incidents[0]
        return charge_of(_incident(after, id), id)
    found = next(healed, None)
    return charge_of(found, found.id) if found is not None else NOBODY


def _is_new(state: JobState, charge: Charge) -> bool:
    lane = state.ledger.ranks
    return bool(charge.incident) and (lane is None or lane.charge.incident != charge.incident)


def _incident(state: JobState, id: str) -> Incident | None:
    return next((each for each in reversed(state.incidents) if each.id == id), None)


def charge_of(incident: Incident | None, id: str) -> Charge:
    """The incident of that id as the ledger names it: its kind, and of some the cause; its culprit's node."""
    if incident is None:
        return Charge(id)
    kind = incident.kind
    cause = f"{kind.value}: {incident.cause}" if kind in TOLD_BY_CAUSE else kind.value
    node = None if incident.innocent else incident.culprit.node
    return Charge(id, cause[:CAUSE_LENGTH_MAX], node or "")


class _Prices:
    """What GPUs cost an hour, in billionths of money. With one price it is a product. With several, nodes are
    looked at where who holds what has changed.
    """

    def __init__(self, before: JobState, after: JobState, policy: Policy) -> None:
        self.policy, self._state = policy, after
        self._one = round(policy.gpu_hour.amount * MONEY_UNITS) if policy.gpu_hour is not None else 0
        same_offers = before.sold is after.sold and before.policy is after.policy
        self._same_round = same_offers and before.round is after.round and bool(after.ledger.rate)

    def of_all(self, gpus: int) -> int:
        """Of every member that is there, `gpus` in all."""
        if not self.policy.prices:
            return gpus * self._one
        members = self._state.members
        away = members.absent() - members.unheard()
        return self.of_some([each.name for each in members if each.name not in away], gpus)

    def of_ranks(self, gpus: int) -> int:
        """Of `gpus` of those with ranks: each costs what they cost in the mean."""
        state, size = self._state, self.policy.processes_per_node
        if not self.policy.prices or state.round is None:
            return gpus * self._one
        lane = state.ledger.ranks
        if self._same_round and lane is not None and lane.gpus == gpus and lane.row not in MIXED:
            return state.ledger.rate
        world = state.round.world_size
        return self._sum((share.node for share in state.round.ranks), size) * gpus // world if world else 0

    def of_idle(self, gpus: int) -> int:
        """Of `gpus` of the members that have neither ranks nor a test, and whose node nobody keeps away from."""
        if not self.policy.prices:
            return gpus * self._one
        state = self._state
        apart = {each.name for each in state.members.on_nodes(state.avoided_nodes)} | _nowhere(state)
        apart |= state.members.tested(state.ranked())
        names = [name for name in state.members.beyond(state.ranked()) if name not in apart]
        return self.of_some(names, gpus)

    def of_some(self, names: Iterable[str], gpus: int) -> int:
        """Of `gpus` of the members of these names: each costs what they cost in the mean."""
        if not self.policy.prices:
            return gpus * self._one
        by_name, nodes = self._state.members.by_name, 0
        total = 0
        for name in names:
            nodes, total = nodes + 1, total + self._price(by_name[name].node)
        return total * gpus // nodes if nodes else 0

    def _sum(self, nodes: Iterable[str], size: int) -> int:
        return sum(self._price(node) for node in nodes) * size

    def _price(self, node: str) -> int:
        amount = self.policy.price_of(self._state.sold.get(node, NOWHERE))
        return round(amount * MONEY_UNITS) if amount is not None else 0
