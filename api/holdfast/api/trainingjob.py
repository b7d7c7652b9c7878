"""The TrainingJob as a user writes it, applied to a cluster or run on one machine.

Only `entrypoint` is required (in a cluster also `template`); every default is what a user gets unasked.
`read_trainingjob` refuses a bad document with `InvalidSpec`; `policy_of` resolves a job to the plain numbers
the watchdog judges it by.
"""

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    JsonValue,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from holdfast.api.bounds import (
    CONTEXT_MAX,
    ENTRIES_MAX,
    KEEP_MAX,
    LEARNED,
    LINE_LENGTH_MAX,
    MODULE_NAME,
    NAME_LENGTH_MAX,
    NODES_MAX,
    PER_NODE_MAX,
    PIPELINE_MAX,
    REPLICAS_MAX,
    STEPS_MAX,
    TENSOR_MAX,
)
from holdfast.api.costspec import Cost, budget_of, prices_of
from holdfast.api.errors import InvalidInput
from holdfast.api.faultpolicy import FaultPolicy, Loss, NoticeSource, Preemption, Straggler
from holdfast.api.gpus import Uncounted, gpus_of, most_gpus_of
from holdfast.api.jobstatus import TrainingJobStatus
from holdfast.api.metadata import Metadata
from holdfast.api.planned import expects_of
from holdfast.api.policy import (
    FORM_GRACE_S,
    CheckpointInterval,
    CorruptionPolicy,
    EvictionBudget,
    GpuHour,
    LinkPolicy,
    LossPolicy,
    MemoryPolicy,
    ModelFlops,
    NoticeAction,
    Policy,
    RestartBudget,
    SpikeLimits,
    StragglerPolicy,
    ThermalPolicy,
)
from holdfast.api.quantity import Duration, Interval, Steps, format_duration
from holdfast.api.reportingspec import Reporting, reporting_policy
from holdfast.api.section import Section, contradiction, parse
from holdfast.api.selftest import TestLevel

SAY_PROCESSES = "say how many workers a node runs, as the GPUs of the trainer's container cannot be counted"
TEAM_LABEL = "holdfast.dev/team"
"""The label of a TrainingJob that says who pays for it."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=LINE_LENGTH_MAX)]
Argument = Annotated[str, StringConstraints(max_length=LINE_LENGTH_MAX)]

PLACES = r"^(file://(localhost)?/|(s3|gs|az|abfs|abfss)://[^/]|[^:/]*(/|$))"
"""Where a job may have its checkpoints, as a regular expression that Go takes as well."""
PLACE_CHARACTERS_MAX = 1024
PLACES_IN_WORDS = "a path, file:///path, or s3://, gs://, az://, abfs:// or abfss://bucket/prefix"


def _known(uri: str) -> str:
    """Raises an error that names the fix for a place of a kind that is not known."""
    if not re.match(PLACES, uri):
        fix = f"write {PLACES_IN_WORDS}; a place of another kind the script can name"
        raise PydanticCustomError("place", "{fix}", {"fix": fix})
    return uri


Place = Annotated[
    Text,
    StringConstraints(max_length=PLACE_CHARACTERS_MAX),
    AfterValidator(_known),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": PLACE_CHARACTERS_MAX, "pattern": PLACES}),
]


ModuleName = Annotated[str, StringConstraints(max_length=NAME_LENGTH_MAX, pattern=MODULE_NAME)]


# What the definition and the reader say of the same; the reader adds the numbers.
ENTRYPOINT_FIX = "name the script, or -m and a module; only its arguments may be empty"
RANGE_FIX = "write at most the value of max, or raise max"
WHOLE_MODELS_FIX = "choose nodes whose processes divide by parallelism.tensor x context x pipeline"
WHOLE_GROUPS_FIX = "write a multiple of parallelism.replicaGroupNodes"
GROUPS_HOLD_STATE_FIX = "leave checkpoint.memory out: with replica groups, groups hold each other's state"
TOO_FEW_GPUS_FIX = "write at most the GPUs that the trainer asks for, or ask for more"
MODELS_IN_GROUP_FIX = "write nodes that hold whole models: their processes divide by tensor x context x pipeline"


class Preflight(StrEnum):
    """How much is tested before a job starts."""

    NONE = "none"
    LIGHT = "light"
    FULL = "full"


class PolicyCheck(StrEnum):
    """Whether a changed policy is tried on the run so far before it takes effect."""

    NONE = "none"
    WARN = "warn"  # what it comes to is told; then it takes effect
    REQUIRE = "require"  # one that is worse is held back, and so is one that could not be tried


class Nodes(Section):
    """The elastic range, and warm standbys outside the round. `max` is `min` when it is not given."""

    min: Annotated[int, Field(ge=1, le=NODES_MAX)] = 1
    """With fewer members than this the job does not run."""
    max: Annotated[int, Field(ge=1, le=NODES_MAX)] = 1
    """The job grows to this size when there is room. By default it is min."""
    spares: Annotated[int, Field(ge=0, le=NODES_MAX)] = 0
    """Warm members outside the round, ready to take a lost member's ranks."""

    @model_validator(mode="before")
    @classmethod
    def _max_follows_min(cls, given: Any) -> Any:
        match given:
            case {"min": int(least)} if "max" not in given and not isinstance(least, bool) and least >= 1:
                return {**given, "max": least}
        return given

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.min > self.max:
            raise contradiction("min", self.min, f"{RANGE_FIX} ({self.max})")
        return self


class Parallelism(Section):
    """The fixed axes; the data axis absorbs every change of size."""

    tensor: Annotated[int, Field(ge=1, le=TENSOR_MAX)] = 1
    """Ranks that share each layer."""
    context: Annotated[int, Field(ge=1, le=CONTEXT_MAX)] = 1
    """Ranks that share each sequence."""
    pipeline: Annotated[int, Field(ge=1, le=PIPELINE_MAX)] = 1
    """Ranks that share the layers among them, one after the other."""
    replica_group_nodes: Annotated[int, Field(ge=1, le=NODES_MAX)] | None = None
    """Nodes of one replica group, which leaves and comes back alone; without it the job is one group."""

    @property
    def model_ranks(self) -> int:
        """Ranks of one copy of the model: every world size is a multiple of it."""
        return self.tensor * self.context * self.pipeline


FLOW_MAX = timedelta(minutes=1)
GANG_MAX = timedelta(minutes=10)
LINKS_TIMEOUT_MIN, LINKS_TIMEOUT_MAX = timedelta(seconds=20), timedelta(hours=1)


class Links(Section):
    """A test of the links between all nodes before the first round, in pairs that rotate."""

    flow: Duration = timedelta(seconds=2)
    """For how long bytes flow between each two nodes that are measured: at most 1m."""
    gang: Duration = timedelta(seconds=5)
    """For how long bytes then go round among all nodes as in an all-reduce: at most 10m."""
    timeout: Duration = timedelta(minutes=2)
    """After this the job goes on without the rest of the answers: 20s to 1h."""

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if self.flow > FLOW_MAX:
            raise contradiction("flow", format_duration(self.flow), "write at most 1m")
        if self.gang > GANG_MAX:
            raise contradiction("gang", format_duration(self.gang), "write at most 10m")
        if not LINKS_TIMEOUT_MIN <= self.timeout <= LINKS_TIMEOUT_MAX:
            raise contradiction("timeout", format_duration(self.timeout), "write 20s to 1h")
        return self


class Startup(Section):
    """What happens before the first step."""

    preflight: Preflight = Preflight.LIGHT
    """How much is tested on each node before the job starts."""
    timeout: Duration = timedelta(minutes=10)
    """How long a member may take from its join to its first step."""
    links: Links | None = None
    """How the links between nodes are tested before the first round; without it they are not."""
    preload: Annotated[tuple[ModuleName, ...], Field(max_length=ENTRIES_MAX)] = (LEARNED,)
    """What each node imports before a worker needs it: installed modules; learned: what the script imported."""


class MemorySnapshots(Section):
    """Snapshots in host memory, and their copies in another failure domain."""

    every_steps: Annotated[int, Field(ge=0, le=STEPS_MAX)] = 1
    """Steps from one snapshot to the next; 0: none are taken."""
    replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = 1
    """Copies of each snapshot on other nodes."""


class CheckpointSpec(Section):
    """Where, how often and how many checkpoints are kept."""

    uri: Place | None = None
    """Where checkpoints go: a path, file:///path, s3://, gs:// or az://bucket/prefix. By default the script's."""
    interval: Interval = None
    """auto, a duration such as 10m, or a number of steps such as 500steps."""
    keep: Annotated[int, Field(ge=1, le=KEEP_MAX)] = 3
    """Committed checkpoints that are kept, unless the script says how many; older ones are deleted."""
    memory: MemorySnapshots = MemorySnapshots()
    """Snapshots in host memory."""


class Placement(Section):
    """Where members go. One member per node always.

    `pack` names node labels of failure or network domains, the closest first (an NVLink domain, then a rack):
    members are placed together in them as far as there is room.
    """

    pack: Annotated[tuple[Text, ...], Field(max_length=16)] = ()
    """Node labels of failure or network domains, the closest first."""


class Utilization(Section):
    """What model FLOPs utilization (MFU) is told from."""

    gigaflops_per_token: Annotated[float, Field(gt=0, le=1e9)]
    """10^9 operations the model needs for one token, forward and backward; recomputed ones do not count."""
    peak_teraflops_per_gpu: Annotated[float, Field(gt=0, le=1e9)]
    """10^12 operations a second a GPU could do in the training's precision, by its data sheet without sparsity."""


class JobSpec(Section):
    """What is to run, and how it is kept running."""

    entrypoint: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=ENTRIES_MAX)]
    """The training script and its arguments, of which any may be empty; every rank runs it."""
    nodes: Nodes = Nodes()
    """How many nodes the job runs on."""
    processes_per_node: Annotated[int, Field(ge=1, le=PER_NODE_MAX)] | None = None
    """By default the number of GPUs that the trainer's container asks for, by name or by claim; one for none."""
    parallelism: Parallelism = Parallelism()
    """How one copy of the model is split over ranks. World sizes stay multiples of tensor x context x pipeline."""
    startup: Startup = Startup()
    """What happens before the first step."""
    placement: Placement = Placement()
    """Where members go."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Where, how often and how many checkpoints are kept."""
    fault_policy: FaultPolicy = FaultPolicy()
    """How each kind of fault is judged and answered."""
    policy_check: PolicyCheck = PolicyCheck.NONE
    """Whether a changed policy is tried on the run so far before it takes effect, in a cluster.

    warn: what that comes to is told. require: and it is held back if it is worse, or cannot be tried.
    """
    cost: Cost | None = None
    """What a GPU costs; without it the ledger counts GPU hours only."""
    utilization: Utilization | None = None
    """What the model needs and a GPU could do; without it no MFU is told."""
    reporting: Reporting | None = None
    """Where the job is published, and who is told of its incidents."""
    suspend: bool = False
    """True: one more checkpoint, then the job gives its nodes back and waits. False: it goes on."""
    ttl_after_finished: Duration = timedelta(hours=24)
    """How long the job stays to be read after its end; then it is deleted."""
    template: dict[str, JsonValue] | None = None
    """An ordinary PodTemplateSpec; the API server checks it."""

    @model_validator(mode="after")
    def _names_a_script(self) -> Self:
        if not self.entrypoint[0]:
            raise contradiction("entrypoint[0]", "", ENTRYPOINT_FIX)
        return self

    @model_validator(mode="after")
    def _says_what_nobody_counts(self) -> Self:
        if self.processes_per_node is None and isinstance(counted := gpus_of(self.template), Uncounted):
            raise contradiction("processesPerNode", None, f"{SAY_PROCESSES}: {counted.why}")
        return self

    @model_validator(mode="after")
    def _worlds_hold_whole_models(self) -> Self:
        model_ranks = self.parallelism.model_ranks
        processes = self.local_size()
        if processes > PER_NODE_MAX:
            raise contradiction("template", f"{processes} GPUs", f"ask for at most {PER_NODE_MAX} in a pod")
        for end, nodes in (("min", self.nodes.min), ("max", self.nodes.max)):
            if nodes * processes % model_ranks:
                fix = f"{WHOLE_MODELS_FIX} ({nodes} x {processes} by {model_ranks})"
                raise contradiction(f"nodes.{end}", nodes, fix)
        return self

    @model_validator(mode="after")
    def _each_process_has_a_gpu(self, info: ValidationInfo) -> Self:
        wanted, gpus = self.processes_per_node, most_gpus_of(self.template)
        if wanted and gpus and wanted > gpus and wanted != info.context:
            raise contradiction("processesPerNode", wanted, f"{TOO_FEW_GPUS_FIX} ({gpus})")
        return self

    @model_validator(mode="after")
    def _replica_groups_are_whole(self) -> Self:
        split, group = self.parallelism, self.parallelism.replica_group_nodes
        if group is None:
            return self
        if group * self.local_size() % split.model_ranks:
            fix = f"{MODELS_IN_GROUP_FIX} ({split.model_ranks})"
            raise contradiction("parallelism.replicaGroupNodes", group, fix)
        for end, nodes in (("min", self.nodes.min), ("max", self.nodes.max)):
            if nodes % group:
                fix = f"{WHOLE_GROUPS_FIX} ({group})"
                raise contradiction(f"nodes.{end}", nodes, fix)
        if "memory" in self.checkpoint.model_fields_set and self.checkpoint.memory.every_steps:
            every = self.checkpoint.memory.every_steps
            raise contradiction("checkpoint.memory.everySteps", every, GROUPS_HOLD_STATE_FIX)
        return self

    def local_size(self) -> int:
        """Worker processes per node."""
        if self.processes_per_node is not None:
            return self.processes_per_node
        counted = gpus_of(self.template)
        return 1 if isinstance(counted, Uncounted) else counted or 1


class TrainingJob(Section):
    """One training run."""

    api_version: Literal["holdfast.dev/v1alpha1"]
    kind: Literal["TrainingJob"]
    metadata: Metadata
    spec: JobSpec
    status: TrainingJobStatus | None = None

    @model_validator(mode="after")
    def _has_a_name(self) -> Self:
        if self.metadata.name is None:
            raise contradiction("metadata.name", None, "give the job a name; it is how every command refers to it")
        return self

    @model_validator(mode="after")
    def _carries_a_plan_that_can_be_read(self) -> Self:
        try:
            expects_of(self.metadata.annotations)
        except InvalidInput as error:
            problem = error.problems[0]
            raise contradiction(problem.field, problem.value, problem.fix) from None
        return self

    @property
    def id(self) -> str:
        """`namespace/name`, as the job is called everywhere else."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


def read_trainingjob(document: Mapping[str, Any], runs_with: int | None = None) -> TrainingJob:
    """A decoded document as a TrainingJob. Raises InvalidSpec naming every problem.

    `runs_with` are the processes of a node that it runs with already: it goes on with them, though they may share
    GPUs.
    """
    return parse(TrainingJob, document, runs_with)


# How often machines fail by themselves grows with their number, and with it what is no chance any more. At the
# worst rates that are published (6.5 failures of hardware for 1,000 node-days, 23.7 of any cause) budgets that
# grow so are spent by chance less than once in a hundred thousand times their span, at any size.
# Source: https://arxiv.org/abs/2410.21680 (Meta, RSC-1)
NODES_AN_EVICTION = 1024
NODES_A_RESTART = 32
RESTARTS_MOST = 1000  # a watchdog remembers 1,024

# Pods come one after the other: they are placed, pull images, mount volumes. Processes of one machine do not.
POD_FORM_GRACE_S = 30.0


def _memory(wanted: MemorySnapshots) -> MemoryPolicy | None:
    return MemoryPolicy(wanted.every_steps, wanted.replicas) if wanted.every_steps else None


def _flops(told: Utilization) -> ModelFlops:
    return ModelFlops(per_token=told.gigaflops_per_token * 1e9, gpu_peak_per_s=told.peak_teraflops_per_gpu * 1e12)


def _loss(told: Loss) -> LossPolicy:
    limits = SpikeLimits(skip_above=told.skip_above_norm, deviations=told.clip_deviations)
    return LossPolicy(
        rewind_after=told.rewind_after.count,
        learning_rate_scale=told.learning_rate_scale,
        skip_batches=told.skip_batches,
        learning_rate_steps=told.learning_rate_steps,
        spikes=None if limits == SpikeLimits() else limits,
    )


def _interval(wanted: timedelta | Steps | None) -> CheckpointInterval:
    if isinstance(wanted, timedelta):
        return CheckpointInterval(seconds=wanted.total_seconds())
    return CheckpointInterval(steps=None if wanted is None else wanted.count)


def _straggler(wanted: Straggler) -> StragglerPolicy:
    return StragglerPolicy(
        slower_than=wanted.slower_than.ratio if wanted.slower_than else None,
        sustained=wanted.sustained.count if wanted.sustained else None,
        action=wanted.action,
    )


def _preflight(wanted: Startup) -> TestLevel | None:
    return TestLevel(wanted.preflight.value) if wanted.preflight is not Preflight.NONE else None


def _links(wanted: Links) -> LinkPolicy:
    return LinkPolicy(wanted.flow.total_seconds(), wanted.gang.total_seconds(), wanted.timeout.total_seconds())


def policy_of(job: TrainingJob) -> Policy:
    """The job's policy in plain values; seconds and ratios instead of texts."""
    spec, faults, hang = job.spec, job.spec.fault_policy, job.spec.fault_policy.hang.timeout
    return Policy(
        job=job.id,
        uid=job.metadata.uid or "",
        generation=job.metadata.generation or 0,
        suspend=spec.suspend,
        form_grace_s=POD_FORM_GRACE_S if job.metadata.uid else FORM_GRACE_S,
        nodes_min=spec.nodes.min,
        nodes_max=spec.nodes.max,
        spares=spec.nodes.spares,
        processes_per_node=spec.local_size(),
        model_ranks=spec.parallelism.model_ranks,
        replica_nodes=spec.parallelism.replica_group_nodes or 0,
        heartbeat_interval_s=faults.heartbeat.interval.total_seconds(),
        lost_after_s=faults.heartbeat.lost.total_seconds(),
        hang_timeout_s=None if hang is None else hang.total_seconds(),
        startup_timeout_s=spec.startup.timeout.total_seconds(),
        checkpoint_uri=spec.checkpoint.uri or "",
        memory=None if spec.parallelism.replica_group_nodes else _memory(spec.checkpoint.memory),
        keep=spec.checkpoint.keep,
        interval=_interval(spec.checkpoint.interval),
        xid_actions=dict(faults.xid),
        condition_actions={kind.value: action for kind, action in faults.conditions.items()},
        preflight=_preflight(spec.startup),
        links=_links(spec.startup.links) if spec.startup.links else None,
        expects=expects_of(job.metadata.annotations),
        tensor=spec.parallelism.tensor,
        context=spec.parallelism.context,
        thermal=ThermalPolicy(
            margin_c=faults.thermal.slowdown_margin_c,
            sustained_s=faults.thermal.sustained.total_seconds(),
            action=faults.thermal.action,
        ),
        corruption=CorruptionPolicy(
            fingerprint_every=faults.corruption.fingerprint_every_steps,
            self_test_every_s=faults.corruption.self_test_every.total_seconds(),
            action=faults.corruption.action,
        ),
        loss=_loss(faults.loss) if faults.loss else None,
        straggler=_straggler(faults.straggler),
        notices=_notice_action(faults.preemption),
        gpu_hour=GpuHour(spec.cost.gpu_hour, spec.cost.currency) if spec.cost else None,
        prices=prices_of(spec.cost) if spec.cost else (),
        budget=budget_of(spec.cost) if spec.cost else None,
        team=job.metadata.labels.get(TEAM_LABEL, ""),
        flops=_flops(spec.utilization) if spec.utilization else None,
        reporting=reporting_policy(spec.reporting),
        evictions=EvictionBudget(
            count=_or(faults.budget.evictions, EvictionBudget().count + spec.nodes.max // NODES_AN_EVICTION),
            per_s=faults.budget.per.total_seconds(),
            fraction=faults.budget.cluster_fraction.ratio,
        ),
        restarts=RestartBudget(
            count=_or(
                faults.restarts.max, min(RESTARTS_MOST, RestartBudget().count + spec.nodes.max // NODES_A_RESTART)
            ),
            per_s=faults.restarts.per.total_seconds(),
            backoff_s=faults.restarts.backoff.total_seconds(),
        ),
    )


def _or(given: int | None, default: int) -> int:
    return default if given is None else given


def _notice_action(preemption: Preemption) -> NoticeAction:
    """Without a source nothing is done about notices; what agents hear all the same is recorded."""
    return NoticeAction.REPORT if preemption.source is NoticeSource.NONE else preemption.action


def schema_text() -> str:
    """The JSON schema of a TrainingJob as files show it, in a stable order."""
    return json.dumps(TrainingJob.model_json_schema(), indent=2, sort_keys=True) + "\n"
