"""All layouts of a model on a cluster: which fit, how fast each is, what it costs, and why the others fall."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.checkpoint import checkpoint_bytes, written_s
from holdfast.planner.cluster import Cluster
from holdfast.planner.layout import Layout, Misfit, Order, Recompute, Schedule, Sharding, Training, misfits
from holdfast.planner.memory import memory_of, room_of
from holdfast.planner.model import Model
from holdfast.planner.quantity import Quantity, shown
from holdfast.planner.reliability import (
    DAY_S,
    Reliability,
    effective_share,
    failures_per_day,
    save_every_s,
    spares_for,
)
from holdfast.planner.replicagroups import Shares, in_groups
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.spot import Spot
from holdfast.planner.step import model_flops_utilization, step_time

MICRO_BATCHES: Final = (1, 2, 4, 8)
CHUNKS: Final = (1, 2, 4, 8)
MEMORY: Final = "memory"


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked: a model on a cluster, for so many tokens."""

    model: Model
    cluster: Cluster
    training: Training
    reliability: Reliability = Reliability()
    reached: Efficiency = Efficiency()
    spot: Spot | None = None

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if self.training.fp8 and not self.cluster.gpu.fp8:
            fix = f"leave it out, or give the FP8 rate of {self.cluster.gpu.name} (cluster.gpu.fp8)"
            raise InvalidInput(Problem("training.fp8", self.training.fp8, fix))

    @property
    def asked(self) -> tuple[Model, Cluster, Training]:
        """What a layout has to suit."""
        return self.model, self.cluster, self.training


class Option(msgspec.Struct, frozen=True):
    """One layout that fits. `days` and `money` are of all tokens, failures and spares included; None: none were
    asked for.
    """

    layout: Layout
    memory: Quantity
    step: Quantity
    mfu: float
    tokens_per_s: float
    days: float | None
    money: float | None

    @property
    def order(self) -> tuple[float, int, int]:
        """The fastest first; of equals the one that splits least."""
        return -self.tokens_per_s, self.layout.tensor * self.layout.pipeline, self.layout.micro_batch


class Rejected(msgspec.Struct, frozen=True):
    """One layout that does not fit, and why."""

    layout: Layout
    misfit: Misfit


class Plan(msgspec.Struct, frozen=True):
    """`options` are sorted, the best first. `spare_gpus` of the spare nodes stand by, and are paid. `groups` is
    what replica groups would leave of the time, where there are nodes enough.
    """

    options: tuple[Option, ...]
    rejected: tuple[Rejected, ...]
    failures: Quantity
    spares: Quantity
    interval: Quantity
    effective: Quantity
    spare_gpus: int
    groups: Shares | None = None


def interval_of(question: Question) -> Quantity:
    """Seconds from one checkpoint to the next; not fewer than one takes to storage, where that is known."""
    best = save_every_s(question.cluster.nodes, question.reliability)
    if question.cluster.storage is None:
        return best
    written = written_s(checkpoint_bytes(question.model, question.training), question.cluster.storage)
    if written <= best.value:
        return best
    says = f"as long as one takes to storage; {shown(best.value, best.unit)} would be best"
    return msgspec.structs.replace(best, value=written, formula=says)


def stand_by_gpus(question: Question) -> int:
    """Those of the spare nodes, which are paid and do not train."""
    cluster = question.cluster
    return round(spares_for(cluster.nodes, question.reliability).value) * min(cluster.per_node, cluster.gpus)


def plan(question: Question, pinned: Mapping[str, int] | None = None) -> Plan:
    """Judge every layout whose degrees are those that are `pinned`, by field of `Layout`.

    A pipeline whose GPUs hold too much is judged with gradients sharded too, and one that fits in the order of
    ranks that is faster; what fits without is not judged again with more recomputing.

    Raises InvalidInput when there is none.
    """
    wanted = pinned or {}
    nodes, reliability = question.cluster.nodes, question.reliability
    interval = interval_of(question)
    effective = effective_share(nodes, reliability, interval.value)
    spares = spares_for(nodes, reliability)
    stand_by = stand_by_gpus(question)
    options: list[Option] = []
    rejected: list[Rejected] = []
    roomy: set[Layout] = set()
    for layout in layouts(question, wanted):
        keeps_all = msgspec.structs.replace(layout, recompute=Recompute.NONE)
        if keeps_all in roomy:  # recomputing more than there is need for is slower and gains nothing
            continue
        judged = judge(layout, question, effective.value, stand_by)
        if layout.pipeline > 1 and isinstance(judged, Rejected) and judged.misfit.because == MEMORY:
            scattered = msgspec.structs.replace(layout, sharding=Sharding.GRADIENTS)
            judged = judge(scattered, question, effective.value, stand_by)
        if isinstance(judged, Option):
            options.append(_placed(judged, question, effective.value, stand_by))
            if judged.layout.sharding is layout.sharding:
                roomy.add(keeps_all)
        else:
            rejected.append(judged)
    if not options and not rejected:
        fix = f"give degrees whose product is {question.cluster.gpus} GPUs"
        raise InvalidInput(Problem("layout", dict(wanted), f"{fix}; expert parallelism is not one of its factors"))
    return Plan(
        options=tuple(sorted(options, key=lambda each: each.order)),
        rejected=tuple(rejected),
        failures=failures_per_day(nodes, reliability),
        spares=spares,
        interval=interval,
        effective=effective,
        spare_gpus=stand_by,
        groups=in_groups(nodes, question.cluster.gpus, reliability),
    )


def _placed(option: Option, question: Question, effective: float, stand_by: int) -> Option:
    """The option, or the same layout in the other order of ranks where that is faster: it can be where tensor and
    context parallelism leave neighbours in an NVLink domain, or a pod has less network beyond it.
    """
    layout, cluster = option.layout, question.cluster
    beside = layout.tensor * layout.context
    if layout.pipeline == 1 or layout.data == 1 or (2 * beside > cluster.domain and not cluster.pod):
        return option
    other = msgspec.structs.replace(layout, order=Order.PIPELINE_INSIDE)
    judged = judge(other, question, effective, stand_by)
    return judged if isinstance(judged, Option) and judged.order < option.order else option


def judge(layout: Layout, question: Question, effective: float, stand_by: int = 0) -> Option | Rejected:
    """What a layout comes to, or why it falls: `effective` is the share of time that trains, `stand_by` are GPUs
    that are paid beside those that it runs on.
    """
    model, cluster, training = question.model, question.cluster, question.training
    if (misfit := next(misfits(layout, model, cluster, training), None)) is not None:
        return Rejected(layout, misfit)
    memory, room = memory_of(model, layout, training), room_of(cluster.gpu)
    if memory.value > room:
        most = max(memory.of, key=lambda each: each.value)
        says = f"it takes {shown(memory.value, 'bytes')} of {shown(room, 'bytes')} a GPU"
        return Rejected(layout, Misfit(MEMORY, f"{says}; {shown(most.value, 'bytes')} of it are {most.name}"))
    run = Run(model, layout, cluster, training)
    step = step_time(run, question.reached)
    rate = training.batch * training.sequence / step.value
    days = money = None
    if training.tokens:
        days = training.tokens / (rate * effective) / DAY_S if effective else math.inf
        if cluster.price is not None:
            money = days * 24.0 * (cluster.gpus + stand_by) * cluster.price
    return Option(
        layout=layout,
        memory=memory,
        step=step,
        mfu=model_flops_utilization(run, step.value),
        tokens_per_s=rate,
        days=days,
        money=money,
    )


def layouts(question: Question, pinned: Mapping[str, int]) -> Iterator[Layout]:
    """Every layout worth a look: degrees that multiply to the cluster, those that are `pinned` or each that is
    usual, each schedule, sharding and recomputation. Of degrees that no batch is shared by, one that says so.
    """
    gpus, model = question.cluster.gpus, question.model
    usual = {
        "tensor": _powers(16),
        "pipeline": [each for each in _divisors(gpus, 64) if each <= model.layers],
        "context": _powers(16),
        "expert": [each for each in _powers(256) if model.experts and model.experts.count % each == 0] or [1],
        "micro_batch": MICRO_BATCHES,
    }
    asked = {name: [pinned[name]] if name in pinned else each for name, each in usual.items()}
    for tensor, pipeline, context in itertools.product(asked["tensor"], asked["pipeline"], asked["context"]):
        data, left = divmod(gpus, tensor * pipeline * context)
        if left or data != pinned.get("data", data):
            continue
        if question.training.batch % (data * min(asked["micro_batch"])):
            yield Layout(tensor, pipeline, context, data=data, micro_batch=min(asked["micro_batch"]))
            continue
        for expert, micro_batch, recompute in itertools.product(asked["expert"], asked["micro_batch"], Recompute):
            if question.training.batch % (data * micro_batch):
                continue
            base = Layout(tensor, pipeline, context, expert, data, micro_batch, recompute=recompute)
            yield from _variants(base, model, question.cluster)


def _variants(base: Layout, model: Model, cluster: Cluster) -> Iterator[Layout]:
    """Of one set of degrees: the schedules of a pipeline; without one how state is sharded, over all replicas or
    those that NVLink joins.
    """
    if base.pipeline > 1:
        yield from _schedules(base, model)
        return
    for sharding in (Sharding.OPTIMIZER, Sharding.PARAMETERS):
        yield msgspec.structs.replace(base, sharding=sharding)
    near = cluster.domain // base.tensor
    if 1 < near < base.shared_by and base.shared_by % near == 0:
        yield msgspec.structs.replace(base, sharding=Sharding.PARAMETERS, shards=near)


def _schedules(base: Layout, model: Model) -> Iterator[Layout]:
    yield base
    yield msgspec.structs.replace(base, schedule=Schedule.ZERO_BUBBLE)
    for chunks in CHUNKS[1:]:
        split = msgspec.structs.replace(base, schedule=Schedule.INTERLEAVED, chunks=chunks)
        if split.stages_most(model) >= base.pipeline * chunks:
            yield split


class Reason(msgspec.Struct, frozen=True):
    """Why layouts fall: how many for this reason, and the first of them in full."""

    because: str
    count: int
    example: str


def reasons(rejected: Sequence[Rejected]) -> tuple[Reason, ...]:
    """Of all that fall, the commonest reason first."""
    found: dict[str, Reason] = {}
    for each in rejected:
        because = each.misfit.because
        known = found.get(because) or Reason(because, 0, f"{each.layout}: {each.misfit.says}")
        found[because] = msgspec.structs.replace(known, count=known.count + 1)
    return tuple(sorted(found.values(), key=lambda each: -each.count))


def _powers(most: int) -> list[int]:
    return [2**power for power in range(most.bit_length()) if 2**power <= most]


def _divisors(number: int, most: int) -> list[int]:
    return [each for each in range(1, most + 1) if number % each == 0]
