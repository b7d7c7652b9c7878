"""What the watchdog and the operator say to each other (embedded: the watchdog and the local cluster).

The operator opens one connection per job and says `OperatorHello`, then whatever it sees of nodes and pods; it
repeats all of it after a reconnect. The watchdog shows it the `Plan`, a desired state, and the `JobReport`, which
is for people to read.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.api.bounds import Few, Job, Name, Text, Whole
from holdfast.api.incident import Incident
from holdfast.api.nodecondition import NodeCondition
from holdfast.api.place import PLACES_MAX, Place
from holdfast.api.policy import Offer, Policy
from holdfast.api.status import JobStatus
from holdfast.api.xid import Recovery


class NodeOrder(msgspec.Struct, frozen=True):
    """A node to keep away from, and why. `remedy` is what would bring it back, `gpu` the GPU at fault if it is
    one.
    """

    node: str
    reason: str
    incident: str | None = None
    remedy: Recovery = Recovery.NOTHING
    gpu: str | None = None


class Plan(msgspec.Struct, frozen=True, tag=True):
    """Desired state. `number` grows with every change.

    `members` and `spares` are how many launchers should exist in and beside the round; `avoid` are nodes to place
    nothing on; `cordon` are nodes to take out of service (a subset of `avoid`'s names); `returned` are nodes to
    put back into service, of which those in `trying` are not trusted yet; `release` are members that are needed no
    more, to be removed first when there are more than `members` and `spares`, and always when their node is to be
    left.
    """

    job: str
    number: int
    members: int
    spares: int
    avoid: tuple[NodeOrder, ...] = ()
    cordon: tuple[NodeOrder, ...] = ()
    returned: tuple[str, ...] = ()
    release: tuple[str, ...] = ()
    trying: tuple[str, ...] = ()


class NodeState(StrEnum):
    """What the operator sees of a node."""

    READY = "Ready"
    NOT_READY = "NotReady"
    DRAINING = "Draining"  # somebody is taking it out of service: it works still, and is to be left in good order
    GONE = "Gone"
    UNKNOWN = "Unknown"


class NodeObserved(msgspec.Struct, frozen=True, tag=True):
    """Operator to watchdog: a node's state changed. `rack` is its topology label's value, empty without one.
    `places` are what it shares with the nodes beside it, as far as its labels tell. `offer` is what they say of
    its GPUs and of how it is paid for, None where they say nothing. `conditions` are those of others that hold and
    mean something; `remediated` is the job's incident for which the node was repaired, empty while it was not.
    """

    node: Name
    state: NodeState
    reason: Text = ""
    rack: Name = ""
    offer: Offer | None = None
    conditions: Annotated[tuple[NodeCondition, ...], Few] = ()
    remediated: Name = ""
    places: Annotated[tuple[Place, ...], Meta(max_length=PLACES_MAX)] = ()


class PodState(StrEnum):
    """What the operator sees of a member's pod."""

    PENDING = "Pending"  # not running yet; the reason says why
    RUNNING = "Running"
    LEAVING = "Leaving"  # told to end (preempted, evicted by somebody); it has its grace period
    GONE = "Gone"  # ended or deleted; the reason says how (OOMKilled, Evicted, ...)


class PodEnd(StrEnum):
    """Who ends a pod, or ended it, where its node has no part in that."""

    OWN_LIMIT = "OwnLimit"  # it used more memory or local storage than its own limit
    DELETED = "Deleted"  # somebody deleted it
    DISPLACED = "Displaced"  # preempted, or evicted through the API


class PodObserved(msgspec.Struct, frozen=True, tag=True):
    """Operator to watchdog: the pod of `member` changed. `node` is empty while it has none.

    `end` is None as long as nobody ends it, and where its node may have had a part in its end.
    """

    member: Name
    node: Name
    state: PodState
    reason: Text = ""
    end: PodEnd | None = None


class OperatorHello(msgspec.Struct, frozen=True, tag=True):
    """First message of the operator's connection. `round` is the newest that the job's own status tells of."""

    job: Job
    round: Whole | None = None


class JobReport(msgspec.Struct, frozen=True, tag=True):
    """The job as people should see it: at once when its phase, round or incidents change, else every few seconds.

    `generation` is that of the newest policy the watchdog took, None when nobody has submitted the job to it;
    `uid` is that of the TrainingJob it came from; `incidents` are the newest ten, newest first; `trouble` is why
    nothing can be decided now, None while all is well. `admitted` is that of the policy. `policy` is the one in
    force, None of a watchdog that does not tell.
    """

    status: JobStatus
    generation: int | None = None
    uid: str = ""
    incidents: tuple[Incident, ...] = ()
    trouble: str | None = None
    admitted: int | None = None
    policy: Policy | None = None


FromOperator = OperatorHello | NodeObserved | PodObserved
ToOperator = Plan | JobReport
