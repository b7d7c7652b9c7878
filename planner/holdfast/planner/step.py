"""How long one step takes: computing by roofline, collectives by alpha and beta, and what waits for what.

A micro-batch goes through the stages of a pipeline; the slowest stage sets the pace, the others wait in the
bubble. What data-parallel ranks exchange hides behind the backward pass as far as it fits.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from holdfast.api.errors import InvalidInput
from holdfast.planner.bounds import positive
from holdfast.planner.bubble import bubble_formula, bubble_passes
from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.collective import SOURCE as RING
from holdfast.planner.collective import exchange_s, gather_s, reduce_s, send_s
from holdfast.planner.layout import Layout, Recompute, Sharding, Training
from holdfast.planner.loader import SOURCE as LOADER
from holdfast.planner.loader import step_bytes
from holdfast.planner.memory import end_layers, expert_parameters, gpu_parameters, kept_parameters
from holdfast.planner.model import Model
from holdfast.planner.quantity import Quantity, total

FSDP: Final = "https://arxiv.org/abs/2304.11277"
# Of a backward pass, what can run beside a collective without being slowed by it.
HIDES: Final = 0.9
TENSOR_PIECES: Final = 4
"""A tensor-parallel collective that overlaps is cut into so many; the last one, or the first, is waited for.

Source: https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/api/pytorch.html (num_splits of
userbuffers)
"""


class Efficiency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the data sheet's rates is reached: assumptions that a measurement should replace.

    `matmul` of the GPU's dense rate by large matmuls, `flash` of its BF16 rate by fused attention, `memory` of its
    memory's rate, `links` of NVLink's.

    Of published runs `matmul` is 0.65 on A100, 0.50 to 0.60 in BF16 and 0.48 in FP8 on H100 (docs/planner.md).

    Source: https://arxiv.org/abs/2407.08608 (fused attention: FlashAttention-2 reaches 35% of an H100, the third
    version 75%)
    """

    matmul: float = 0.56
    flash: float = 0.5
    memory: float = 0.8
    links: float = 0.8

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        if problems := list(positive(self, "reached", self.__struct_fields__)):
            raise InvalidInput(*problems)


class Run(NamedTuple):
    """What takes the time: a model, split so, on these machines, with such a batch."""

    model: Model
    layout: Layout
    cluster: Cluster
    training: Training


class Pass(msgspec.Struct, frozen=True):
    """One micro-batch's way through one stage, forward and backward, in seconds."""

    matmul: float
    memory: float
    tensor: float
    context: float
    expert: float

    @property
    def whole(self) -> float:
        """Nothing of it hides behind anything else."""
        return self.matmul + self.memory + self.tensor + self.context + self.expert


def with_links(cluster: Cluster, reached: Efficiency) -> Cluster:
    """The cluster with the rate of NVLink that is reached."""
    gpu = cluster.gpu
    return msgspec.structs.replace(cluster, gpu=msgspec.structs.replace(gpu, nvlink=gpu.nvlink * reached.links))


def passes(layout: Layout, *, flash: bool) -> tuple[float, float]:
    """How often a layer's matmuls, and its attention's scores, are computed, in forward passes: 3 without
    recomputing.

    Flash attention computes the scores again in any case.
    """
    if layout.recompute is Recompute.FULL:
        return 4.0, 4.5 if flash else 4.0
    return 3.0, 4.0 if layout.recompute is Recompute.SELECTIVE and not flash else 3.5


def stage_pass(run: Run, reached: Efficiency) -> Pass:
    """Of the slowest stage: the last one has the logits to do besides its layers, others may have a layer more."""
    last = _stage_pass(run, reached, end_layers(run.model, run.layout), logits=True)
    if run.layout.pipeline <= 2 or not run.layout.is_balanced(run.model):
        return last
    between = _stage_pass(run, reached, end_layers(run.model, run.layout) + 1.0, logits=False)
    return max(last, between, key=lambda each: each.whole)


def _stage_pass(run: Run, reached: Efficiency, layers: float, *, logits: bool) -> Pass:
    """Of a stage of so many layers."""
    model, layout, cluster, training = run
    tokens = layout.micro_batch * training.sequence / layout.context
    times, score_times = passes(layout, flash=training.flash)
    rate = _matmul_rate(run, reached)
    plain_rate = cluster.gpu.bf16 * reached.matmul
    scores_rate = cluster.gpu.bf16 * reached.flash if training.flash else plain_rate
    linear = 2.0 * tokens * model.layer_parameters(active=True) / layout.tensor
    scores = tokens * model.attention_flops(training.sequence, causal=training.flash) / layout.tensor
    matmul = layers * (times * linear / rate + score_times * scores / scores_rate)
    if logits:
        matmul += 3.0 * 2.0 * tokens * model.vocab * model.hidden / layout.tensor / plain_rate
    memory = _memory_bound_s(run, reached) * layers
    expert = _expert_s(run) * layers * model.sparse_share
    if layout.overlap_experts:
        expert = max(0.0, expert - HIDES * (matmul + memory))
    return Pass(
        matmul=matmul,
        memory=memory,
        tensor=_tensor_s(run) * layers,
        context=_context_s(run) * layers,
        expert=expert,
    )


def _matmul_rate(run: Run, reached: Efficiency) -> float:
    gpu = run.cluster.gpu
    return (gpu.fp8 if run.training.fp8 and gpu.fp8 else gpu.bf16) * reached.matmul


def step_time(run: Run, reached: Efficiency) -> Quantity:
    """Seconds of one step, with their parts."""
    run = run._replace(cluster=with_links(run.cluster, reached))
    model, layout, cluster, training = run
    one, count = stage_pass(run, reached), layout.micro_batches(training)
    bubble = bubble_passes(layout) / count
    exchanged = _data_s(model, layout, cluster, count) + _gathered_s(model, layout, cluster, count)
    # What is exchanged for each micro-batch hides behind it, what is once a step behind the last backward pass.
    beside = one.whole * (count if layout.sharding > Sharding.OPTIMIZER else 2.0 / 3.0)
    waits = max(0.0, exchanged - (HIDES * beside if layout.overlap else 0.0))
    each = f", x {count} micro-batches"
    rate, memory = _matmul_rate(run, reached), cluster.gpu.memory_rate * reached.memory
    formula, source = bubble_formula(layout)
    again = "6" if layout.recompute is Recompute.FULL else "4"
    parts = [
        ("matmuls", one.matmul * count, f"FLOP of a micro-batch at {rate:.3g} a second{each}", ""),
        ("memory-bound kernels", one.memory * count, f"bytes moved at {memory:.3g} a second{each}", ""),
        ("tensor-parallel collectives", one.tensor * count, f"{again} all-reduces a layer{each}", RING),
        ("context-parallel collectives", one.context * count, f"keys and values gathered{each}", RING),
        ("expert-parallel exchange", one.expert * count, f"tokens to their experts and back{each}", RING),
        ("pipeline hand-over", _pipeline_s(run) * count, f"activations to the next stage and back{each}", RING),
        ("pipeline bubble", one.whole * count * bubble, f"{bubble:.3g} of the time computed: {formula}", source),
        ("data-parallel exchange that shows", waits, f"{exchanged:.3g} s less what computing hides", FSDP),
        ("optimizer", _optimizer_s(run, reached), f"its state moved at {memory:.3g} bytes a second", ""),
    ]
    if cluster.storage:
        parts.append(_loader(run, sum(value for _, value, _, _ in parts)))
    return total("step time", "s", (Quantity(name, value, "s", says, by) for name, value, says, by in parts))


def model_flops_utilization(run: Run, step_s: float) -> float:
    """The share of the GPUs' BF16 rate that a step's useful FLOP are; attention counted in full.

    Source: https://arxiv.org/abs/2204.02311 (appendix B)
    """
    model, layout, cluster, training = run
    done = training.batch * training.sequence * model.flops_per_token(training.sequence)
    return done / (step_s * layout.gpus * cluster.gpu.bf16)


def hardware_flops_utilization(run: Run, step_s: float) -> float:
    """The same with what is computed again counted, as Megatron's formula does: 4 passes in place of 3.

    Source: https://arxiv.org/abs/2104.04473 (appendix)
    """
    times, _ = passes(run.layout, flash=run.training.flash)
    useful = model_flops_utilization(run, step_s)
    return useful * times / 3.0


def _memory_bound_s(run: Run, reached: Efficiency) -> float:
    """Norms, residuals, activation functions and unfused scores of one layer: each reads and writes 16-bit
    numbers.

    Forward: two norms (2 reads or writes each), two residual additions (3), the inner activation, and of scores
    that are not fused five passes over heads x sequence. Backward twice that.
    """
    model, layout, cluster, training = run
    tokens = layout.micro_batch * training.sequence / layout.context
    inner = model.ffn
    if model.experts is not None:
        inner = model.experts.ffn * (model.experts.active + model.experts.shared)
    whole = 10.0 * model.hidden
    shared = (3.0 if model.gated else 2.0) * inner + 4.0 * model.hidden
    if not training.flash:
        shared += 5.0 * model.heads * training.sequence
    moved = whole / (layout.tensor if layout.sequence_parallel else 1) + shared / layout.tensor
    # What norms and activation functions give is made again where it is not kept.
    times = 3.0 if layout.recompute is Recompute.NONE else 4.0
    return times * tokens * moved * 2.0 / (cluster.gpu.memory_rate * reached.memory)


def _tensor_s(run: Run) -> float:
    """Of one layer: two all-reduces forward and two backward, two more when it is computed again."""
    model, layout, cluster, training = run
    reach = reach_of(cluster, layout.tensor, 1)
    if reach.size == 1:
        return 0.0
    bytes_ = 2.0 * layout.micro_batch * training.sequence / layout.context * model.hidden
    shows = 1.0 / TENSOR_PIECES if layout.overlap_tensor else 1.0
    return shows * (6.0 if layout.recompute is Recompute.FULL else 4.0) * reduce_s(bytes_, reach)


def _context_s(run: Run) -> float:
    """Keys and values of the whole sequence, gathered forward, again where all is computed again, and backward;
    and their gradients scattered.
    """
    model, layout, cluster, training = run
    reach = reach_of(cluster, layout.context, layout.tensor)
    if reach.size == 1:
        return 0.0
    heads = model.kv_heads or model.heads
    width = 2 * model.head_width
    if (latent := model.latent) is not None:  # attention takes them as made from their latents, for every head
        heads, width = model.heads, latent.nope + latent.rope + latent.value
    bytes_ = 2.0 * layout.micro_batch * training.sequence * width * max(1.0, heads / layout.tensor)
    return (4.0 if layout.recompute is Recompute.FULL else 3.0) * gather_s(bytes_, reach)


def _expert_s(run: Run) -> float:
    """Tokens to their experts and back, forward and backward, and again where all is computed again: to each
    expert by NVLink, once to each domain by the network. In FP8 they go out in 8 bits and come back in 16.
    """
    model, layout, cluster, training = run
    if layout.expert == 1 or model.experts is None:
        return 0.0
    reach = reach_of(cluster, layout.expert, 1)
    tokens = layout.micro_batch * training.sequence / layout.context / layout.tensor
    domains = model.experts.domains or reach.size // reach.near
    copies = model.experts.active if reach.near >= reach.size else min(model.experts.active, domains)
    width = 1.0 + 2.0 if training.fp8 else 2.0 + 2.0
    times = 3.0 if layout.recompute is Recompute.FULL else 2.0
    return times * exchange_s(tokens * copies * model.hidden * width, reach)


def _pipeline_s(run: Run) -> float:
    """A micro-batch's activations to the next stage and their gradients back, for each chunk."""
    model, layout, cluster, training = run
    if layout.pipeline == 1:
        return 0.0
    within = layout.tensor * layout.context * layout.pipeline <= cluster.domain
    rate = cluster.gpu.nvlink if within else cluster.network
    bytes_ = 2.0 * layout.micro_batch * training.sequence / layout.context * model.hidden / layout.tensor
    return 2.0 * layout.chunks * send_s(bytes_, rate, cluster.latency_s)


def _data_s(model: Model, layout: Layout, cluster: Cluster, count: int) -> float:
    """Gradients of a step, reduced over the replicas, in 16 bits. FSDP scatters them to where they are kept, and
    groups that share parameters each for themselves reduce their shares; a pipeline that keeps them so does for
    each micro-batch, and gathers the weights once.
    """
    return sum(_reduced_s(each, layout.sharding, cluster, count) for each in _shares(model, layout))


def _reduced_s(share: "_Share", sharding: Sharding, cluster: Cluster, count: int) -> float:
    if sharding is Sharding.PARAMETERS:
        scattered = gather_s(share.bytes_, reach_of(cluster, share.shards, share.stride))
        beyond = reach_of(cluster, share.replicas // share.shards, share.stride * share.shards)
        return scattered + reduce_s(share.bytes_ / share.shards, beyond)
    reach = reach_of(cluster, share.replicas, share.stride)
    if sharding is Sharding.GRADIENTS:
        return (count + 1) * gather_s(share.bytes_, reach)
    return reduce_s(share.bytes_, reach)


class _Share(NamedTuple):
    """Parameters of a GPU, in 16 bits: how many replicas have them, how many of those share them out, and how far
    these are apart.
    """

    bytes_: float
    replicas: int
    shards: int
    stride: int


def _shares(model: Model, layout: Layout) -> Iterator[_Share]:
    """What every rank has, and the experts, which expert parallelism leaves fewer replicas of."""
    experts = expert_parameters(model, layout)
    rest = gpu_parameters(model, layout) - experts
    yield _Share(2.0 * rest, layout.data * layout.context, layout.shared_by, layout.tensor)
    if experts:
        yield _Share(2.0 * experts, layout.expert_replicas, layout.experts_shared_by, layout.expert)


def _gathered_s(model: Model, layout: Layout, cluster: Cluster, count: int) -> float:
    """FSDP: the parameters, gathered forward and again backward; with the gradients three times them in a step."""
    if layout.sharding is not Sharding.PARAMETERS:
        return 0.0
    gathered = (
        gather_s(each.bytes_, reach_of(cluster, each.shards, each.stride)) for each in _shares(model, layout)
    )
    return 2.0 * count * sum(gathered)


def _loader(run: Run, busy_s: float) -> tuple[str, float, str, str]:
    """What of reading a step's samples does not fit beside the step before."""
    bytes_ = step_bytes(run.model, run.training)
    took_s = bytes_ / (run.cluster.storage or 1.0)
    says = f"{bytes_:.3g} bytes of a step from storage, less what the rest of the step takes"
    return "loader that shows", max(0.0, took_s - busy_s), says, LOADER


def _optimizer_s(run: Run, reached: Efficiency) -> float:
    """State read and written, gradients read, weights written."""
    model, layout, cluster, training = run
    moved = kept_parameters(model, layout, Sharding.OPTIMIZER) * (
        2.0 * training.optimizer_bytes + training.gradient_bytes + 2.0
    )
    return moved / (cluster.gpu.memory_rate * reached.memory)
