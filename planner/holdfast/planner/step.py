"""How long one step takes: computing by roofline, collectives by alpha and beta, and what waits for what.

A micro-batch goes through the stages of a pipeline; the slowest stage sets the pace, the others wait in the
bubble. What data-parallel ranks exchange hides behind the backward pass as far as it fits.

Source: https://doi.org/10.1145/1498765.1498785 (Williams, Waterman, Patterson: Roofline)
"""

from typing import Final

import msgspec

from holdfast.planner.bubble import bubble_formula, bubble_passes
from holdfast.planner.cluster import Cluster
from holdfast.planner.collective import SOURCE as RING
from holdfast.planner.layout import Layout, Recompute, Sharding
from holdfast.planner.loader import SOURCE as LOADER
from holdfast.planner.loader import step_bytes
from holdfast.planner.quantity import Quantity, Took, shown, total
from holdfast.planner.run import Efficiency, Run, with_links
from holdfast.planner.stage import Stage, fullest_stage, kept_parameters, stages_of
from holdfast.planner.traffic import (
    HIDES,
    context_traffic,
    expert_traffic,
    handover,
    replica_traffic,
    tensor_traffic,
)

FSDP: Final = "https://arxiv.org/abs/2304.11277"
ROOFLINE: Final = "https://doi.org/10.1145/1498765.1498785"


class Pass(msgspec.Struct, frozen=True):
    """One micro-batch's way through one stage, forward and backward."""

    matmul: Took
    memory: Took
    tensor: Took
    context: Took
    expert: Took

    @property
    def whole(self) -> float:
        """Seconds: nothing of it hides behind anything else."""
        return self.matmul.s + self.memory.s + self.tensor.s + self.context.s + self.expert.s


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
    each = (_stage_pass(run, reached, stage) for stage in stages_of(run.model, run.layout))
    return max(each, key=lambda one: one.whole)


def _stage_pass(run: Run, reached: Efficiency, stage: Stage) -> Pass:
    matmul = _matmuls(run, reached, stage)
    memory = _memory_bound(run, reached).times(stage.layers, "layers")
    expert = expert_traffic(run).times(stage.layers * run.model.sparse_share, "layers")
    if run.layout.overlap_experts:
        shows = max(0.0, expert.s - HIDES * (matmul.s + memory.s))
        expert = Took(shows, f"{expert.says}, less what computing hides")
    return Pass(
        matmul=matmul,
        memory=memory,
        tensor=tensor_traffic(run).times(stage.layers, "layers"),
        context=context_traffic(run).times(stage.layers, "layers"),
        expert=expert,
    )


def _matmuls(run: Run, reached: Efficiency, stage: Stage) -> Took:
    """Of layers at the rate of matmuls, of scores at that of fused attention, of the head in 16 bits."""
    model, layout, cluster, training = run
    gpu, tokens = cluster.gpu, layout.micro_batch * training.sequence / layout.context
    times, score_times = passes(layout, flash=training.flash)
    wide = gpu.bf16 * reached.matmul
    adapters = times * stage.layers * 2.0 * tokens * model.adapter_parameters / layout.tensor
    times -= 3 - model.matmul_passes
    linear = times * stage.layers * 2.0 * tokens * model.layer_parameters(active=True) / layout.tensor + adapters
    scores = model.attention_flops(training.sequence, causal=training.flash)
    scores *= score_times * stage.layers * tokens / layout.tensor
    head = (
        model.matmul_passes * 2.0 * tokens * model.vocab * model.hidden / layout.tensor if stage.has_head else 0.0
    )
    took_s, says = 0.0, []
    for flop, rate, what in (
        (linear, gpu.fp8 * reached.matmul if training.fp8 and gpu.fp8 else wide, "of layers"),
        (scores, gpu.bf16 * reached.flash if training.flash else wide, "of attention"),
        (head, wide, "of the head"),
    ):
        took_s += flop / rate
        says += [f"{flop:.3g} FLOP {what} at {rate:.3g} a second"] if flop else []
    return Took(took_s, ", ".join(says))


def step_time(run: Run, reached: Efficiency) -> Quantity:
    """Seconds of one step, with their parts."""
    run = run._replace(cluster=with_links(run.cluster, reached))
    layout, count = run.layout, run.layout.micro_batches(run.training)
    one = stage_pass(run, reached)
    bubble, (formula, source) = bubble_passes(layout) / count, bubble_formula(layout)
    says = f"{bubble:.3g} of {shown(one.whole * count, 's')} computed: {formula}, P {layout.pipeline}, M {count}"
    parts = [
        Quantity(name, took.s * count, "s", f"{took.says}, x {count} micro-batches" if took.s else took.says, by)
        for name, took, by in (
            ("matmuls", one.matmul, ROOFLINE),
            ("memory-bound kernels", one.memory, ROOFLINE),
            ("tensor-parallel collectives", one.tensor, RING),
            ("context-parallel collectives", one.context, RING),
            ("expert-parallel exchange", one.expert, RING),
        )
    ]
    hands, beside_s = handover(run, one.whole)
    waits = _replicas(run, (one.whole - beside_s) * count)
    optimizer = _optimizer(run, reached)
    parts += [
        Quantity("pipeline hand-over", hands.s, "s", hands.says, RING),
        Quantity("pipeline bubble", one.whole * count * bubble, "s", says, source),
        Quantity("data-parallel exchange that shows", waits.s, "s", waits.says, FSDP),
        Quantity("optimizer", optimizer.s, "s", optimizer.says, ROOFLINE),
    ]
    if run.cluster.storage:
        parts.append(_loader(run, sum(each.value for each in parts)))
    return total("step time", "s", parts)


def _replicas(run: Run, computes_s: float) -> Took:
    """What of the replicas' exchange shows: what is exchanged for each micro-batch hides behind it, what is once a
    step behind the last backward pass.
    """
    layout, exchange = run.layout, replica_traffic(run)
    if not exchange.s:
        return exchange
    each = layout.sharding > Sharding.OPTIMIZER
    backward = 1.0 - 1.0 / run.model.matmul_passes
    beside = computes_s if each else backward * computes_s / layout.micro_batches(run.training)
    hides = HIDES * beside if layout.overlap else 0.0
    says = f"{shown(exchange.s, 's')} less {shown(hides, 's')} of computing that hides it: {exchange.says}"
    return Took(max(0.0, exchange.s - hides), says)


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
    frozen = 3.0 - run.model.matmul_passes
    return useful * (times - frozen) / (3.0 - frozen)


def _memory_bound(run: Run, reached: Efficiency) -> Took:
    """Norms, residuals, activation functions and unfused scores of one layer: each reads and writes 16-bit
    numbers.

    Forward: two norms (2 reads or writes each), two residual additions (3), the inner activation, and of scores
    that are not fused five passes over heads x sequence. A token's copies for its experts are sorted by expert and
    back, read and written each. Backward twice that.

    Source: https://arxiv.org/abs/2211.15841 (section 5.2: copies are permuted to groups of an expert, and back)
    """
    model, layout, cluster, training = run
    tokens = layout.micro_batch * training.sequence / layout.context
    whole = 10.0 * model.hidden
    if model.experts is not None:
        whole += 4.0 * model.experts.active * model.hidden * model.sparse_share
    shared = (3.0 if model.gated else 2.0) * model.inner + 4.0 * model.hidden
    if not training.flash:
        shared += 5.0 * model.heads * training.sequence
    moved = whole / (layout.tensor if layout.sequence_parallel else 1) + shared / layout.tensor
    # What norms and activation functions give is made again where it is not kept.
    times = 3.0 if layout.recompute is Recompute.NONE else 4.0
    return _moved(times * tokens * moved * 2.0, cluster, reached)


def _optimizer(run: Run, reached: Efficiency) -> Took:
    """State read and written, gradients read, weights written."""
    model, layout, cluster, training = run
    kept = kept_parameters(model, layout, fullest_stage(model, layout), Sharding.OPTIMIZER)
    return _moved(kept * (2.0 * training.optimizer_bytes + training.gradient_bytes + 2.0), cluster, reached)


def _moved(bytes_: float, cluster: Cluster, reached: Efficiency) -> Took:
    """By the GPU's memory."""
    rate = cluster.gpu.memory_rate * reached.memory
    return Took(bytes_ / rate, f"{shown(bytes_, 'bytes')} moved at {shown(rate, 'bytes/s')}")


def _loader(run: Run, busy_s: float) -> Quantity:
    """What of reading a step's samples does not fit beside the step before."""
    bytes_, rate = step_bytes(run.model, run.training), run.cluster.storage or 1.0
    says = f"{shown(bytes_, 'bytes')} of a step at {shown(rate, 'bytes/s')}, less the rest of the step"
    return Quantity("loader that shows", max(0.0, bytes_ / rate - busy_s), "s", says, LOADER)
