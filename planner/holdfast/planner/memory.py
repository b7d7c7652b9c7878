"""What a GPU has to hold: parameters, gradients, optimizer state, activations, logits.

Activations of a layer, per token and hidden unit, in bytes of 16-bit numbers:
34 and 5 a s / h for attention's scores, which flash attention and selective recomputation do without; full
recomputation keeps the layer's input (2) only. Tensor parallelism shares all but 10 of the 34, with sequence
parallelism those too.

Source: https://arxiv.org/abs/2205.05198 (equations 1 to 6, table 2)
"""

from typing import Final

import msgspec

from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.model import Model
from holdfast.planner.quantity import Quantity, total

SOURCE: Final = "https://arxiv.org/abs/2205.05198"
ZERO: Final = "https://arxiv.org/abs/1910.02054"
# Kernels' workspaces, communication buffers and what the allocator cannot use: of the GPU's memory.
RESERVED: Final = 0.06


def gpu_parameters(model: Model, layout: Layout) -> float:
    """Parameters on one GPU, before data-parallel ranks share them out: of the stage that has most."""
    dense = model.attention_parameters + 2 * model.hidden
    sparse = model.layer_parameters(active=False) - dense
    of_layer = dense / layout.tensor
    of_layer += sparse / (layout.expert if layout.expert > 1 else layout.tensor)
    embedding = model.embedding_parameters / layout.tensor
    ends = embedding if layout.pipeline == 1 or model.tied else embedding / 2
    return model.layers / layout.pipeline * of_layer + ends


def activation_bytes_per_layer(model: Model, layout: Layout, training: Training) -> float:
    """Kept of one micro-batch and layer until its backward pass."""
    tokens = layout.micro_batch * training.sequence / layout.context
    if layout.recompute is Recompute.FULL:
        kept = 2.0 * tokens * model.hidden
        return kept / layout.tensor if layout.sequence_parallel else kept
    # 34: 11 of attention, 19 of the feed-forward part (of them 16 of its inner width, 4 x hidden), 4 of norms.
    inner = model.ffn
    if model.experts is not None:
        inner = model.experts.ffn * (model.experts.active + model.experts.shared)
    shared = 8.0 * model.hidden + (6.0 if model.gated else 4.0) * inner
    whole = 10.0 * model.hidden
    if training.flash is False and layout.recompute is Recompute.NONE:
        shared += 5.0 * model.heads * training.sequence
    return tokens * (shared / layout.tensor + (whole / layout.tensor if layout.sequence_parallel else whole))


def in_flight(layout: Layout, training: Training) -> float:
    """Micro-batches whose activations the first stage keeps at a time, in whole stages.

    Source: https://arxiv.org/abs/2205.05198 (section 4.2.3: interleaving keeps 1 + (p-1)/(p m) more)
    """
    stages = layout.pipeline
    held = float(min(stages, layout.micro_batches(training)))
    if layout.schedule is Schedule.INTERLEAVED and layout.chunks > 1:
        held *= 1.0 + (stages - 1) / (stages * layout.chunks)
    return held


def memory_of(model: Model, layout: Layout, training: Training) -> Quantity:
    """Bytes on the GPU that holds most, with their parts."""
    count = gpu_parameters(model, layout)
    share = Quantity("parameters of a stage", count, "parameters", "of the stage that has most, over tensor ranks")
    weights = 2.0 * _kept(count, layout, Sharding.PARAMETERS)
    if layout.sharding is Sharding.PARAMETERS:  # the layer at hand, and the next one, are gathered
        weights += 2.0 * 2.0 * model.layer_parameters(active=False) / layout.tensor
    gradients = training.gradient_bytes * _kept(count, layout, Sharding.GRADIENTS)
    state = training.optimizer_bytes * _kept(count, layout, Sharding.OPTIMIZER)
    layers = model.layers / layout.pipeline
    per_layer = activation_bytes_per_layer(model, layout, training)
    held = in_flight(layout, training)
    holds = f"{layers:.4g} layers x {per_layer:.3g} bytes x {held:.3g} micro-batches in flight"
    says = "a parameter, shared by the replicas from"
    parts = (
        Quantity("weights", weights, "bytes", "2 bytes a parameter, shared by FSDP", ZERO, (share,)),
        Quantity(
            "gradients", gradients, "bytes", f"{training.gradient_bytes} bytes {says} ZeRO-2", ZERO, (share,)
        ),
        Quantity(
            "optimizer state", state, "bytes", f"{training.optimizer_bytes} bytes {says} ZeRO-1", ZERO, (share,)
        ),
        Quantity("activations", layers * per_layer * held, "bytes", holds, SOURCE),
        Quantity(
            "working memory",
            _working(model, layout, training),
            "bytes",
            "logits of a micro-batch with their loss, or the layer that is computed again",
            SOURCE,
        ),
    )
    return total("memory per GPU", "bytes", parts)


def _kept(count: float, layout: Layout, since: Sharding) -> float:
    """Of so many parameters, those of which this GPU keeps something that is shared out since a stage of ZeRO."""
    return count / (layout.data * layout.context) if layout.sharding >= since else count


def _working(model: Model, layout: Layout, training: Training) -> float:
    tokens = layout.micro_batch * training.sequence / layout.context
    logits = tokens * model.vocab * 6.0 / layout.tensor  # in 16 bits, and their loss in 32
    if layout.recompute is not Recompute.FULL:
        return logits
    whole = msgspec.structs.replace(layout, recompute=Recompute.SELECTIVE)
    return max(logits, activation_bytes_per_layer(model, whole, training))
