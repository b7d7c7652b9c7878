"""How long one step takes: computing by roofline, collectives by alpha and beta, and what waits for what.

A micro-batch goes through the stages of a pipeline; the slowest stage sets the pace, the others wait in the
bubble. What data-parallel ranks exchange hides behind the backward pass as far as it fits.
"""

from typing import Final, NamedTuple

import msgspec

from holdfast.api.errors import InvalidInput
from holdfast.planner.bounds import positive
from holdfast.planner.bubble import INTERLEAVED, bubble_passes
from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.collective import SOURCE as RING
from holdfast.planner.collective import exchange_s, gather_s, reduce_s, send_s
from holdfast.planner.layout import Layout, Recompute, Sharding, Training
from holdfast.planner.loader import SOURCE as LOADER
from holdfast.planner.loader import step_bytes
from holdfast.planner.memory import end_layers, gpu_parameters
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


def passes(layout: Layout, *, flash: bool) -> tuple[float, float]:
    """How often a layer's matmuls, and its attention's scores, are computed, in forward passes: 3 without
    recomputing.

    Flash attention computes the scores again in any case.
    """
    if layout.recompute is Recompute.FULL:
        return 4.0, 4.0
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
    rate = (cluster.gpu.fp8 if training.fp8 and cluster.gpu.fp8 else cluster.gpu.bf16) * reached.matmul
    plain_rate = cluster.gpu.bf16 * reached.matmul
    scores_rate = cluster.gpu.bf16 * reached.flash if training.flash else plain_rate
    linear = 2.0 * tokens * model.layer_parameters(active=True) / layout.tensor
    scores = tokens * model.attention_flops(training.sequence, causal=training.flash) / layout.tensor
    matmul = layers * (times * linear / rate + score_times * scores / scores_rate)
    if logits:
        matmul += 3.0 * 2.0 * tokens * model.vocab * model.hidden / layout.tensor / plain_rate
    memory = _memory_bound_s(run, reached) * layers
    expert = _expert_s(run) * layers
    if layout.overlap_experts:
        expert = max(0.0, expert - HIDES * (matmul + memory))
    return Pass(
        matmul=matmul,
        memory=memory,
        tensor=_tensor_s(run, reached) * layers,
        context=_context_s(run) * layers,
        expert=expert,
    )


def step_time(run: Run, reached: Efficiency) -> Quantity:
    """Seconds of one step, with their parts."""
    model, layout, cluster, training = run
    one, count = stage_pass(run, reached), layout.micro_batches(training)
    bubble = bubble_passes(layout) / count
    exchanged = _data_s(model, layout, cluster, count) + _gathered_s(model, layout, cluster, count)
    # What is exchanged for each micro-batch hides behind it, what is once a step behind the last backward pass.
    beside = one.whole * (count if layout.sharding > Sharding.OPTIMIZER else 2.0 / 3.0)
    waits = max(0.0, exchanged - (HIDES * beside if layout.overlap else 0.0))
    again = "6" if layout.recompute is Recompute.FULL else "4"
    parts = [
        ("matmuls", one.matmul * count, "FLOP of a micro-batch over the rate reached, x micro-batches", ""),
        ("memory-bound kernels", one.memory * count, "bytes read and written over the memory's rate", ""),
        ("tensor-parallel collectives", one.tensor * count, f"{again} all-reduces a layer", RING),
        ("context-parallel collectives", one.context * count, "keys and values gathered", RING),
        ("expert-parallel exchange", one.expert * count, "tokens to their experts and back", RING),
        ("pipeline hand-over", _pipeline_s(run) * count, "activations to the next stage and back", RING),
        (
            "pipeline bubble",
            one.whole * count * bubble,
            f"{bubble:.3g} of the time computed: (P-1)/M",
            INTERLEAVED,
        ),
        ("data-parallel exchange that shows", waits, f"{exchanged:.3g} s less what computing hides", FSDP),
        ("optimizer", _optimizer_s(run, reached), "its state read and written", ""),
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


def _tensor_s(run: Run, reached: Efficiency) -> float:
    """Of one layer: two all-reduces forward and two backward, two more when it is computed again."""
    model, layout, cluster, training = run
    reach = reach_of(cluster, layout.tensor, 1)
    if reach.size == 1:
        return 0.0
    reach = msgspec.structs.replace(reach, rate=reach.rate * reached.links)
    bytes_ = 2.0 * layout.micro_batch * training.sequence / layout.context * model.hidden
    shows = 1.0 / TENSOR_PIECES if layout.overlap_tensor else 1.0
    return shows * (6.0 if layout.recompute is Recompute.FULL else 4.0) * reduce_s(bytes_, reach)


def _context_s(run: Run) -> float:
    """Keys and values of the whole sequence, gathered forward and again backward, and their gradients
    scattered.
    """
    model, layout, cluster, training = run
    reach = reach_of(cluster, layout.context, layout.tensor)
    if reach.size == 1:
        return 0.0
    width = 2 * (model.kv_heads or model.heads) * model.head_width
    bytes_ = 2.0 * layout.micro_batch * training.sequence * width / layout.tensor
    return 3.0 * gather_s(bytes_, reach)


def _expert_s(run: Run) -> float:
    """Tokens to their experts and back, forward and backward. In FP8 they go out in 8 bits and come back in 16."""
    model, layout, cluster, training = run
    if layout.expert == 1 or model.experts is None:
        return 0.0
    reach = reach_of(cluster, layout.expert, layout.tensor)
    tokens = layout.micro_batch * training.sequence / layout.context / layout.tensor
    domains = model.experts.domains or max(1, reach.size // reach.near)
    copies = min(model.experts.active, domains)
    width = 1.0 + 2.0 if training.fp8 else 2.0 + 2.0
    return 2.0 * exchange_s(tokens * copies * model.hidden * width, reach)


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
    reach = reach_of(cluster, layout.data * layout.context, layout.tensor)
    bytes_ = 2.0 * gpu_parameters(model, layout)
    if layout.sharding is Sharding.PARAMETERS:
        shards = layout.shared_by
        scattered = gather_s(bytes_, reach_of(cluster, shards, layout.tensor))
        beyond = reach_of(cluster, layout.data * layout.context // shards, layout.tensor * shards)
        return scattered + reduce_s(bytes_ / shards, beyond)
    if layout.sharding is Sharding.GRADIENTS:
        return (count + 1) * gather_s(bytes_, reach)
    return reduce_s(bytes_, reach)


def _gathered_s(model: Model, layout: Layout, cluster: Cluster, count: int) -> float:
    """FSDP: the parameters, gathered forward and again backward; with the gradients three times them in a step."""
    if layout.sharding is not Sharding.PARAMETERS:
        return 0.0
    reach = reach_of(cluster, layout.shared_by, layout.tensor)
    return 2.0 * count * gather_s(2.0 * gpu_parameters(model, layout), reach)


def _loader(run: Run, busy_s: float) -> tuple[str, float, str, str]:
    """What of reading a step's samples does not fit beside the step before."""
    bytes_ = step_bytes(run.model, run.training)
    took_s = bytes_ / (run.cluster.storage or 1.0)
    says = f"{bytes_:.3g} bytes of a step from storage, less what the rest of the step takes"
    return "loader that shows", max(0.0, took_s - busy_s), says, LOADER


def _optimizer_s(run: Run, reached: Efficiency) -> float:
    """State read and written, gradients read, weights written."""
    model, layout, cluster, training = run
    count = gpu_parameters(model, layout)
    if layout.sharding >= Sharding.OPTIMIZER:
        count /= layout.shared_by
    moved = count * (2.0 * training.optimizer_bytes + training.gradient_bytes + 2.0)
    return moved / (cluster.gpu.memory_rate * reached.memory)
