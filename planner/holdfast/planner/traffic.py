"""What the ranks of a layout send each other in a step, and how long each of it takes, in seconds.

Each kind of parallelism has a group of its own, which stands where `holdfast.planner.ranks` says.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from holdfast.planner.cluster import Reach, reach_of
from holdfast.planner.collective import exchange_s, gather_s, reduce_s, send_s
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding
from holdfast.planner.model import Model
from holdfast.planner.quantity import NOTHING, Took, shown
from holdfast.planner.ranks import (
    Group,
    context_ranks,
    expert_ranks,
    expert_replica_ranks,
    replica_ranks,
    shard_ranks,
    stage_ranks,
    tensor_ranks,
)
from holdfast.planner.run import Run
from holdfast.planner.stage import fullest_stage, parameters_of, trained_of

# Of what is computed, what can run beside a message without being slowed by it.
HIDES: Final = 0.9
TENSOR_PIECES: Final = 4
"""A tensor-parallel collective that overlaps is cut into so many; the last one, or the first, is waited for.

Source: https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/pytorch.html (num_splits of
userbuffers)
"""


def tensor_traffic(run: Run) -> Took:
    """Of a layer and micro-batch: two all-reduces forward and two backward, two more if computed again."""
    model, layout, cluster, training = run
    if layout.tensor == 1:
        return NOTHING
    reach = reach_of(cluster, *tensor_ranks(layout))
    bytes_ = 2.0 * layout.micro_batch * training.sequence / layout.context * model.hidden
    times = 6 if layout.recompute is Recompute.FULL else 4
    says = f"{times} all-reduces of {shown(bytes_, 'bytes')} among {reach}"
    if not layout.overlap_tensor:
        return Took(times * reduce_s(bytes_, reach), says)
    return Took(times * reduce_s(bytes_, reach) / TENSOR_PIECES, f"1/{TENSOR_PIECES} that shows of {says}")


def context_traffic(run: Run) -> Took:
    """Of a layer and micro-batch: keys and values of the whole sequence, gathered forward, again where all is
    computed again, and backward; and their gradients scattered.
    """
    model, layout, cluster, training = run
    if layout.context == 1:
        return NOTHING
    reach = reach_of(cluster, *context_ranks(layout))
    bytes_ = 2.0 * layout.micro_batch * training.sequence * model.gathered_width(layout.tensor)
    times = 4 if layout.recompute is Recompute.FULL else 3
    says = f"{times} times {shown(bytes_, 'bytes')} of keys and values gathered or scattered among {reach}"
    return Took(times * gather_s(bytes_, reach), says)


def expert_traffic(run: Run) -> Took:
    """Of a layer with experts and micro-batch: tokens to their experts and back, forward and backward, and again
    where all is computed again: to each expert by NVLink, once to each domain by the network, of which the slower
    is waited for. In FP8 they go out in 8 bits and come back in 16.
    """
    model, layout, cluster, training = run
    if layout.expert == 1 or model.experts is None:
        return NOTHING
    reach = reach_of(cluster, *expert_ranks(layout))
    tokens = layout.micro_batch * training.sequence / layout.context / layout.tensor
    domains = model.experts.domains or reach.size // reach.near
    copies = model.experts.active if reach.near >= reach.size else min(model.experts.active, domains)
    times = 3 if layout.recompute is Recompute.FULL else 2
    near = reach_of(cluster, (reach.near, 1))

    def exchanged(copies: int, reach: Reach) -> Took:
        bytes_ = tokens * copies * model.hidden * (1.0 + 2.0 if training.fp8 else 2.0 + 2.0)
        says = f"{times} times {shown(bytes_, 'bytes')} to and from the experts of {reach.size} GPUs at "
        says += f"{shown(reach.port, 'bytes/s')}, {copies} copies of a token"
        return Took(times * exchange_s(bytes_, reach), says)

    return max(exchanged(copies, reach), exchanged(model.experts.active, near))


class Handover(NamedTuple):
    """What of the pipeline's messages shows in a step, and how long one micro-batch computes beside those that do
    not: nothing else hides behind that.
    """

    shows: Took
    beside_s: float


def handover(run: Run, computes_s: float) -> Handover:
    """Of a step: activations to the next stage and their gradients back, of each micro-batch and chunk, and once
    all the way as the pipeline fills and drains. A schedule that has more at hand than the next micro-batch sends
    beside what it computes, which takes `computes_s` for a micro-batch.

    Sources: https://docs.nvidia.com/nemo/megatron-bridge/latest/training/communication-overlap.html (interleaved
    stages overlap their messages), https://arxiv.org/abs/2412.19437 (section 3.2.1: without bubble too)
    """
    model, layout, cluster, training = run
    if layout.pipeline == 1:
        return Handover(NOTHING, 0.0)
    reach = reach_of(cluster, *stage_ranks(layout))
    bytes_ = 2.0 * layout.micro_batch * training.sequence / layout.context * model.hidden / layout.tensor
    once = 2.0 * send_s(bytes_, reach.hop, reach.latency_s)
    hides = layout.overlap and layout.schedule is not Schedule.ONE_F_ONE_B
    beside_s = min(computes_s, layout.chunks * once / HIDES) if hides else 0.0
    shows = layout.chunks * once - HIDES * beside_s
    fills, count = layout.pipeline - 1, layout.micro_batches(training)
    says = f"{shown(bytes_, 'bytes')} there and back at {shown(reach.hop, 'bytes/s')}, {fills} times to fill and"
    says += f" drain; {shown(shows, 's')} of each of {count} micro-batches does not hide"
    return Handover(Took(count * shows + fills * once, says), beside_s)


def replica_traffic(run: Run) -> Took:
    """Of a step: gradients reduced over the replicas, and with FSDP the parameters gathered, in 16 bits each."""
    shares = tuple(_shares(run.model, run.layout))
    if all(reach_of(run.cluster, *each.replicas).size == 1 for each in shares):
        return NOTHING
    took_s = sum(_reduced_s(each, run) + _gathered_s(each, run) for each in shares)
    bytes_ = shown(sum(each.trained for each in shares), "bytes")
    says = f"{bytes_} of gradients among {reach_of(run.cluster, *shares[0].replicas)}"
    if run.layout.sharding is Sharding.PARAMETERS:
        says += f", and parameters twice among {reach_of(run.cluster, *shares[0].shards)}"
    return Took(took_s, says)


class _Share(NamedTuple):
    """Bytes in 16 bits of a GPU's parameters, and of those that train: who has them too, and which of those share
    them out.
    """

    bytes_: float
    trained: float
    replicas: Group
    shards: Group


def _shares(model: Model, layout: Layout) -> Iterator[_Share]:
    """What every rank has, and the experts, which expert parallelism leaves fewer replicas of."""
    stage = fullest_stage(model, layout)
    rest, experts = parameters_of(model, layout, stage)
    yield _Share(2.0 * rest, 2.0 * trained_of(model, layout, stage)[0], replica_ranks(layout), shard_ranks(layout))
    if experts:
        shards = ((layout.experts_shared_by, layout.expert),) if layout.shards else expert_replica_ranks(layout)
        yield _Share(2.0 * experts, 2.0 * experts, expert_replica_ranks(layout), shards)


def _reduced_s(share: _Share, run: Run) -> float:
    """Where gradients are shared out they are scattered for each micro-batch to where they are kept: a pipeline
    that does so gathers the weights once, groups that share parameters each for themselves reduce their shares
    once.
    """
    layout, cluster, count = run.layout, run.cluster, run.layout.micro_batches(run.training)
    reach = reach_of(cluster, *share.replicas)
    if layout.sharding is Sharding.PARAMETERS:
        near = reach_of(cluster, *share.shards)
        beyond = reach_of(cluster, (reach.size // near.size, share.shards[-1][1] * near.size))
        return count * gather_s(share.trained, near) + reduce_s(share.trained / near.size, beyond)
    if layout.sharding is Sharding.GRADIENTS:
        return (count + 1) * gather_s(share.trained, reach)
    return reduce_s(share.trained, reach)


def _gathered_s(share: _Share, run: Run) -> float:
    """FSDP: forward and again backward, of each micro-batch; with its gradients that is three times them."""
    if run.layout.sharding is not Sharding.PARAMETERS:
        return 0.0
    count = run.layout.micro_batches(run.training)
    return 2.0 * count * gather_s(share.bytes_, reach_of(run.cluster, *share.shards))
