"""The numbers a job is judged by: a TrainingJob's fault policy, resolved to plain values and units.

Built once from a TrainingJob (`holdfast.api.trainingjob.policy_of`), journaled with the submission, read by
the detectors and the brain. Every default is what a user gets unasked.
"""

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from holdfast.api.bounds import (
    WHOLE_MAX,
    Code,
    Few,
    Figure,
    Job,
    Many,
    Name,
    Nodes,
    PerNode,
    Rank,
    Rate,
    Seconds,
    Uri,
    Whole,
)
from holdfast.api.scalars import RANKS_SHOWN_MAX
from holdfast.api.selftest import TestLevel

# How long a node that is being drained is kept while nobody can take its ranks.
DRAIN_GRACE_S = 300.0
# How long each member that joins has the others wait for the rest.
FORM_GRACE_S = 10.0


class XidAction(StrEnum):
    """What an XID asks for, from harmless to worst."""

    IGNORE = "Ignore"
    WATCH = "Watch"  # recorded as evidence; acts only when it repeats
    RESTART = "Restart"  # new worker process on the same node
    EVICT = "Evict"  # the node leaves the job


class CordonOn(StrEnum):
    """Whose word takes a node out of service for every job, and not only for the job that says it."""

    ANYTHING = "anything"  # also what a job's own processes say: one owner
    SENSORS = "sensors"  # what the agents' sensors say: jobs of many owners


class EvictionBudget(msgspec.Struct, frozen=True):
    """At most `count` evictions in any `per_s` seconds, and at most `fraction` of the job's nodes avoided."""

    count: Whole = 4
    per_s: Seconds = 3600.0
    fraction: Figure = 0.05


class RestartBudget(msgspec.Struct, frozen=True):
    """At most `count` restarts in any `per_s` seconds; `backoff_s` before the second one without progress."""

    count: Whole = 100
    per_s: Seconds = 86400.0
    backoff_s: Seconds = 10.0


class FaultAction(StrEnum):
    """What is done about a node that a detector is sure of."""

    REPORT = "Report"
    RESTART = "Restart"
    EVICT = "Evict"


class SlowAction(StrEnum):
    """How far it may go for a node that makes all others wait. Each includes those before it."""

    REPORT = "Report"  # it is told, and the node is tested in the next gap between rounds
    SWAP = "Swap"  # a spare takes its ranks, once; the node stays, as the last to be given ranks
    EVICT = "Evict"  # and leaves the job, if its ranks are not slow elsewhere


class NoticeAction(StrEnum):
    """What is done about a node that is about to be taken away."""

    REPORT = "Report"
    CHECKPOINT = "Checkpoint"
    MIGRATE = "Migrate"


class ThermalPolicy(msgspec.Struct, frozen=True):
    """A GPU within `margin_c` of slowing itself down for `sustained_s` seconds is too hot."""

    margin_c: Figure = 3.0
    sustained_s: Seconds = 60.0
    action: FaultAction = FaultAction.EVICT


class CorruptionPolicy(msgspec.Struct, frozen=True):
    """How silent corruption is looked for. `fingerprint_every` is in steps, 0: not at all."""

    fingerprint_every: Whole = 0
    self_test_every_s: Seconds = 1800.0
    action: FaultAction = FaultAction.EVICT


class LinkPolicy(msgspec.Struct, frozen=True):
    """How the links between nodes are tested before the first round: bytes flow for `flow_s` seconds between each
    two that are measured, then for `gang_s` in rings of all, and the round waits for no longer than `timeout_s`.
    """

    flow_s: Seconds = 2.0
    gang_s: Seconds = 5.0
    timeout_s: Seconds = 120.0


class SpikeLimits(msgspec.Struct, frozen=True):
    """How far a gradient norm may go, in place of what the script says (None: as it says).

    A step is left out above `skip_above` times the running mean; `deviations` standard deviations above that mean
    it is clipped.
    """

    skip_above: Annotated[float, msgspec.Meta(gt=1, le=1e6)] | None = None
    deviations: Annotated[float, msgspec.Meta(gt=0, le=1e6)] | None = None


class LossPolicy(msgspec.Struct, frozen=True):
    """A loss that is too high for `rewind_after` steps sends the job back to before it rose.

    Then the learning rate is scaled, up to the first bad step and for `learning_rate_steps` more (None: for good),
    and the batches up to the first bad step and `skip_batches` more are passed over (0: none of them). `spikes`
    None: what a gradient norm may be is for the script to say.
    """

    rewind_after: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_MAX)]
    learning_rate_scale: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    skip_batches: Whole = 0
    learning_rate_steps: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_MAX)] | None = None
    spikes: SpikeLimits | None = None


class StragglerPolicy(msgspec.Struct, frozen=True):
    """When a rank is too slow: its step is `slower_than` longer than its peers' (a ratio: 0.15 is 15 %), for
    `sustained` steps. None: as the job's own noise allows.
    """

    slower_than: Figure | None = None
    sustained: Annotated[int, msgspec.Meta(ge=1, le=WHOLE_MAX)] | None = None
    action: SlowAction = SlowAction.REPORT


class MemoryPolicy(msgspec.Struct, frozen=True):
    """Snapshots in host memory after every `every_steps` steps, each copied to `replicas` other nodes."""

    every_steps: Whole = 1
    replicas: PerNode = 1


class CheckpointInterval(msgspec.Struct, frozen=True):
    """How long from one checkpoint to the next: `seconds` or `steps`; both None: as cost and faults suggest."""

    seconds: Figure | None = None
    steps: Whole | None = None


class GpuHour(msgspec.Struct, frozen=True):
    """What one GPU costs for an hour. `currency` is an ISO 4217 code."""

    amount: Figure
    currency: Name


class Capacity(StrEnum):
    """How a node is paid for."""

    ON_DEMAND = "OnDemand"
    SPOT = "Spot"  # it may be taken away at short notice


class Offer(msgspec.Struct, frozen=True):
    """What a node is: the product name of its GPUs, and how it is paid for. Empty and None: it is not known."""

    gpu: Name = ""
    capacity: Capacity | None = None


class Price(msgspec.Struct, frozen=True):
    """What a GPU costs for an hour on nodes of this product and capacity, empty and None: of any."""

    amount: Figure
    gpu: Name = ""
    capacity: Capacity | None = None

    def fits(self, offer: Offer) -> bool:
        """Whether it is the price of such a node."""
        return self.gpu in ("", offer.gpu) and self.capacity in (None, offer.capacity)


class Budget(msgspec.Struct, frozen=True):
    """What the job may cost in all, and the share of it from which on somebody is told."""

    amount: Figure
    alert_ratio: Figure = 0.8


class ModelFlops(msgspec.Struct, frozen=True):
    """Floating-point operations: those the model needs for one token, and those a GPU could do in one second."""

    per_token: Annotated[float, msgspec.Meta(gt=0, le=1e30)]
    gpu_peak_per_s: Annotated[float, msgspec.Meta(gt=0, le=1e30)]


class Expects(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """What the plan counts on, in seconds and bytes a second: a step's time, what kernels reach of a GPU's memory,
    and what a GPU sends to its neighbours over NVLink (0: there is none).
    """

    step_seconds: Annotated[float, msgspec.Meta(gt=0, le=1e9)]
    memory_rate: Annotated[float, msgspec.Meta(gt=0, le=1e30)]
    nvlink_rate: Rate = 0.0


class WandbTarget(msgspec.Struct, frozen=True):
    """Where a job is shown in Weights & Biases. `entity` and `url` empty: as the environment says."""

    project: Name
    entity: Name = ""
    url: Uri = ""


class MlflowTarget(msgspec.Struct, frozen=True):
    """Where a job is shown in MLflow. `uri` empty: as the environment says; `experiment` empty: the job's."""

    uri: Uri = ""
    experiment: Name = ""


class ReportingPolicy(msgspec.Struct, frozen=True):
    """Where a job is published, and whose own series are shown: those of ranks below `ranks`.

    `secret` names the Secret in the job's namespace with what the trackers ask for; on one machine the environment
    has it. `tensorboard`: event files are written. `webhook` empty: nobody is told of incidents.
    """

    wandb: WandbTarget | None = None
    mlflow: MlflowTarget | None = None
    tensorboard: bool = False
    webhook: Uri = ""
    secret: Name = ""
    ranks: Annotated[int, msgspec.Meta(ge=1, le=RANKS_SHOWN_MAX)] = 1


class Policy(msgspec.Struct, frozen=True):
    """One job's resolved policy.

    `model_ranks` is tensor x context x pipeline: every world size is a multiple of it. `hang_timeout_s` None means
    "from the job's own step times". `form_grace_s` is how long forming waits for the maximum once the minimum has
    joined. `save_grace_s` is how long at least a planned stop (drain, suspension, deletion) or a growth waits for
    its checkpoint, `drain_grace_s` how long a node that is being drained is kept while nobody can take its ranks.

    `uid` and `generation` are the TrainingJob's; another uid is another job of the same name. `suspend` is what
    its spec says.

    `preflight` is the self-test a member passes before it is given ranks (None: none), `tensor` how many ranks
    must share one NVLink domain, `context` how many share a sequence. `links` None: no links between nodes are
    tested.
    `memory` None: no snapshots in memory; `interval` None: the script alone says
    when a checkpoint is due; `keep` None: the script alone says how many stay. `condition_actions` and
    `xid_actions` override the catalogues. `observe`: what would be done about a fault is told, and not done.
    `loss` None: no loss that is finite is a fault. `prices` are those of some GPUs, in the currency of `gpu_hour`,
    and `team` who pays, as the job's label says. `reporting` None: the job is published nowhere.
    `cordon_on` and `cluster_xid_actions` are the cluster's words, not the job's; `xid_actions` come before these.
    So is `admitted`: how many nodes, spares among them, the cluster's queue lets the job have; 0 for none, None
    where the job waits in no queue. `expects` is what the job's plan counts on; None: it carries no plan.

    `replica_nodes` is how many members make a replica group, which leaves and comes back alone; 0: the job is one
    group. Rounds then have whole groups.

    `held`: the spec asks for another policy than this, which is being checked or was found worse.
    """

    job: Job
    nodes_min: Nodes
    nodes_max: Nodes
    spares: Nodes = 0
    processes_per_node: PerNode = 1
    model_ranks: Rank = 1
    heartbeat_interval_s: Seconds = 1.0
    lost_after_s: Seconds = 3.0
    hang_timeout_s: Seconds | None = None
    startup_timeout_s: Seconds = 600.0
    form_grace_s: Seconds = FORM_GRACE_S
    checkpoint_uri: Uri = ""
    xid_actions: Annotated[dict[Code, XidAction], Many] = {}
    evictions: EvictionBudget = EvictionBudget()
    restarts: RestartBudget = RestartBudget()
    save_grace_s: Seconds = 60.0
    drain_grace_s: Seconds = DRAIN_GRACE_S
    uid: Name = ""
    generation: Whole = 0
    suspend: bool = False
    preflight: TestLevel | None = None
    tensor: Rank = 1
    context: Rank = 1
    condition_actions: Annotated[dict[Name, XidAction], Many] = {}
    thermal: ThermalPolicy = ThermalPolicy()
    corruption: CorruptionPolicy = CorruptionPolicy()
    notices: NoticeAction = NoticeAction.MIGRATE
    gpu_hour: GpuHour | None = None
    flops: ModelFlops | None = None
    memory: MemoryPolicy | None = None
    interval: CheckpointInterval | None = None
    keep: Whole | None = None
    observe: bool = False
    cordon_on: CordonOn = CordonOn.ANYTHING
    cluster_xid_actions: Annotated[dict[Code, XidAction], Many] = {}
    loss: LossPolicy | None = None
    straggler: StragglerPolicy = StragglerPolicy()
    prices: Annotated[tuple[Price, ...], Few] = ()
    budget: Budget | None = None
    team: Name = ""
    reporting: ReportingPolicy | None = None
    links: LinkPolicy | None = None
    admitted: Nodes | None = None
    expects: Expects | None = None
    replica_nodes: Nodes = 0
    held: bool = False

    def judged(self) -> dict[str, Any]:
        """What `JUDGED` names, by name."""
        return {name: getattr(self, name) for name in JUDGED}

    def judged_as(self, other: "Policy") -> "Policy":
        """With what `JUDGED` names as `other` has it."""
        memory = None if self.replica_nodes else other.memory  # replica groups hold each other's state
        return msgspec.structs.replace(self, **{**other.judged(), "memory": memory})

    @property
    def members_wanted(self) -> int:
        """How many members a round is to have at most: as many as the spec says, and no more than are admitted."""
        return min(self.nodes_max, self.admitted) if self.admitted else self.nodes_max

    @property
    def spares_wanted(self) -> int:
        """How many spares there are to be beside them: of what is admitted, those that are left."""
        return min(self.spares, self.admitted - self.members_wanted) if self.admitted else self.spares

    @property
    def is_kept_out(self) -> bool:
        """Whether the job is to have no nodes at all: its spec suspends it, or its queue has not let it in."""
        return self.suspend or self.admitted == 0

    def price_of(self, offer: Offer) -> float | None:
        """What a GPU of such a node costs for an hour; None where the job says nothing.

        Of the prices that fit, the one that names most counts: product and capacity, then the product, then the
        capacity; without one, that of any GPU.
        """
        if self.gpu_hour is None:
            return None
        fitting = [each for each in self.prices if each.fits(offer)]
        best = max(fitting, key=lambda each: (bool(each.gpu), each.capacity is not None), default=None)
        return best.amount if best is not None else self.gpu_hour.amount

    def world_sizes_allow(self, members: int) -> bool:
        """Whether `members` nodes make a legal world: within the range, and whole model replicas and groups."""
        world = members * self.processes_per_node
        whole = world % self.model_ranks == 0 and members % (self.replica_nodes or 1) == 0
        return self.nodes_min <= members <= self.nodes_max and whole


JUDGED: Final = (
    "spares",
    "heartbeat_interval_s",
    "lost_after_s",
    "hang_timeout_s",
    "startup_timeout_s",
    "xid_actions",
    "condition_actions",
    "evictions",
    "restarts",
    "thermal",
    "corruption",
    "notices",
    "memory",
    "interval",
    "loss",
    "straggler",
)
"""How faults are met: what a replay of the run so far can judge, and what is held back until it has.

The rest of a changed spec takes effect at once: how large the job is and how it is split, whether it is suspended,
what is told of it, and what the cluster says.
"""
