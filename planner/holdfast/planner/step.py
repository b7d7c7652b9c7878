"""How long one step takes: computing by roofline, collectives by alpha and beta, and what waits for what.

A micro-batch goes through the stages of a pipeline; the slowest stage sets the pace, the others wait in the
bubble. What data-parallel ranks exchange hides behind the backward pass as far as it fits.
"""

from typing import Final

import msgspec

from holdfast.planner.bubble import bubble_formula, bubble_passes
from holdfast.planner.collective import SOURCE as RING
from holdfast.planner.layout import Layout, Recompute, Sharding
from holdfast.planner.loader import SOURCE as LOADER
from holdfast.planner.loader import step_bytes
from holdfast.planner.quantity import Quantity, total
from holdfast.planner.run import Efficiency, Run, with_links
from holdfast.planner.stage import Stage, fullest_stage, kept_parameters, stages_of
from holdfast.planner.traffic import HIDES, context_s, expert_s, handover_s, replicas_s, tensor_s

FSDP: Final = "https://arxiv.org/abs/2304.11277"


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
        return 4.0, 4.5 if flash else 4.0
    return 3.0, 4.0 if layout.recompute is Recompute.SELECTIVE and not flash else 3.5


def stage_pass(run: Run, reached: Efficiency) -> Pass:
    """Of the slowest stage: the last one has the logits to do besides its layers, others may have a layer more."""
    each = (_stage_pass(run, reached, stage) for stage in stages_of(run.model, run.layout))
    return max(each, key=lambda one: one.whole)


def _stage_pass(run: Run, reached: Efficiency, stage: Stage) -> Pass:
    model, layout, cluster, training = run
    tokens = layout.micro_batch * training.sequence / layout.context
    times, score_times = passes(layout, flash=training.flash)
    rate = _matmul_rate(run, reached)
    plain_rate = cluster.gpu.bf16 * reached.matmul
    scores_rate = cluster.gpu.bf16 * reached.flash if training.flash else plain_rate
    linear = 2.0 * tokens * model.layer_parameters(active=True) / layout.tensor
    scores = tokens * model.attention_flops(training.sequence, causal=training.flash) / layout.tensor
    matmul = stage.layers * (times * linear / rate + score_times * scores / scores_rate)
    if stage.has_head:
        matmul += 3.0 * 2.0 * tokens * model.vocab * model.hidden / layout.tensor / plain_rate
    memory = _memory_bound_s(run, reached) * stage.layers
    expert = expert_s(run) * stage.layers * model.sparse_share
    if layout.overlap_experts:
        expert = max(0.0, expert - HIDES * (matmul + memory))
    return Pass(
        matmul=matmul,
        memory=memory,
        tensor=tensor_s(run) * stage.layers,
        context=context_s(run) * stage.layers,
        expert=expert,
    )


def _matmul_rate(run: Run, reached: Efficiency) -> float:
    gpu = run.cluster.gpu
    return (gpu.fp8 if run.training.fp8 and gpu.fp8 else gpu.bf16) * reached.matmul


def step_time(run: Run, reached: Efficiency) -> Quantity:
    """Seconds of one step, with their parts."""
    run = run._replace(cluster=with_links(run.cluster, reached))
    layout, cluster = run.layout, run.cluster
    one, count = stage_pass(run, reached), layout.micro_batches(run.training)
    bubble = bubble_passes(layout) / count
    exchanged = replicas_s(run)
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
        ("pipeline hand-over", handover_s(run, one.whole), f"activations to the next stage and back{each}", RING),
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


def _loader(run: Run, busy_s: float) -> tuple[str, float, str, str]:
    """What of reading a step's samples does not fit beside the step before."""
    bytes_ = step_bytes(run.model, run.training)
    took_s = bytes_ / (run.cluster.storage or 1.0)
    says = f"{bytes_:.3g} bytes of a step from storage, less what the rest of the step takes"
    return "loader that shows", max(0.0, took_s - busy_s), says, LOADER


def _optimizer_s(run: Run, reached: Efficiency) -> float:
    """State read and written, gradients read, weights written."""
    model, layout, cluster, training = run
    moved = kept_parameters(model, layout, fullest_stage(model, layout), Sharding.OPTIMIZER) * (
        2.0 * training.optimizer_bytes + training.gradient_bytes + 2.0
    )
    return moved / (cluster.gpu.memory_rate * reached.memory)
