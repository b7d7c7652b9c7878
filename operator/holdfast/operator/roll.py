"""The pods of a job, looked at once: who counts, who is on the way out, who has ended."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.api.plan import NodeObserved, NodeState, Plan
from holdfast.operator.objects import Pod
from holdfast.operator.observed import Observed
from holdfast.operator.podbuilder import ordinal_of
from holdfast.operator.podstate import has_ended

UNREACHABLE = frozenset((NodeState.GONE, NodeState.NOT_READY))
TO_BE_LEFT = frozenset((NodeState.GONE, NodeState.DRAINING))


@dataclass(slots=True)
class Roll:
    """The job's own pods, each in exactly one list.

    `live` count towards what the plan wants. `stranded` work still, but their node is to be left. `released` are
    needed no more. `leaving` are being deleted. `ended` are there for their logs only. `next_ordinal` is higher
    than any number in use, by whomever.
    """

    live: list[Pod] = field(default_factory=list)
    stranded: list[Pod] = field(default_factory=list)
    released: list[Pod] = field(default_factory=list)
    leaving: list[Pod] = field(default_factory=list)
    ended: list[Pod] = field(default_factory=list)
    next_ordinal: int = 0

    @property
    def there(self) -> list[Pod]:
        """All that have not ended."""
        return [*self.live, *self.stranded, *self.released, *self.leaving]


def call(observed: Observed, plan: Plan | None, nodes: Mapping[str, NodeObserved]) -> Roll:
    """Call the roll. A pod of another owner counts for nothing but its name."""
    roll, job = Roll(), observed.job.metadata
    released = frozenset(plan.release) if plan else frozenset()
    left = {order.node for order in (*plan.avoid, *plan.cordon)} if plan else set()
    left |= {name for name, node in nodes.items() if node.state in TO_BE_LEFT}
    highest = -1
    for pod in observed.pods:
        ordinal = ordinal_of(job.name, pod.metadata.name)
        if ordinal is None:
            continue
        highest = max(highest, ordinal)
        if not any(owner.uid == job.uid for owner in pod.metadata.owner_references):
            continue
        if has_ended(pod):
            # One that is being deleted has no more to say.
            (roll.ended if pod.metadata.deletion_timestamp is None else roll.leaving).append(pod)
        elif pod.metadata.deletion_timestamp is not None:
            roll.leaving.append(pod)
        elif pod.metadata.name in released:
            roll.released.append(pod)
        elif pod.spec.node_name in left:
            roll.stranded.append(pod)
        else:
            roll.live.append(pod)
    roll.next_ordinal = highest + 1
    return roll
