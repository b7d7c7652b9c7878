"""What a GPU has to hold: parameters, gradients, optimizer state, activations, logits.

Activations of a layer, per token and hidden unit, in bytes of 16-bit numbers, are 34 of a GPT with dropout, and
5 a s / h for attention's scores, which flash attention and selective recomputation do without. Models with a gated
feed-forward part have no dropout, and of grouped queries fewer keys and values. With flash attention selective
recomputation does without what norms and activation functions give; full recomputation keeps the layer's input
(2) only. Tensor parallelism shares what attention and the feed-forward part have inside, with sequence parallelism
all.

Source: https://arxiv.org/abs/2205.05198 (equations 1 to 6, table 2)
"""

from typing import Final

import msgspec

from holdfast.planner.gpu import Gpu
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.model import Model
from holdfast.planner.quantity import Quantity, total

SOURCE: Final = "https://arxiv.org/abs/2205.05198"
ZERO: Final = "https://arxiv.org/abs/1910.02054"
# Kernels' workspaces, communication buffers and what the allocator cannot use: of the GPU's memory.
RESERVED: Final = 0.06


def room_of(gpu: Gpu) -> float:
    """Bytes of a GPU that a run can fill."""
    return gpu.memory * (1.0 - RESERVED)


def gpu_parameters(model: Model, layout: Layout) -> float:
    """Parameters on one GPU, before data-parallel ranks share them out: of the stage that has most."""
    embedding = model.embedding_parameters / layout.tensor
    ends = embedding if layout.pipeline == 1 or model.tied else embedding / 2
    return end_layers(model, layout) * layer_on_gpu(model, layout) + ends


def layer_on_gpu(model: Model, layout: Layout) -> float:
    """Of a layer's parameters those on one GPU: expert parallelism shares the routed experts in place of tensor
    parallelism, and nothing else.
    """
    routed = model.routed_parameters
    whole = (model.layer_parameters(active=False) - routed) / layout.tensor
    return whole + routed / (layout.expert if layout.expert > 1 else layout.tensor)


def expert_parameters(model: Model, layout: Layout) -> float:
    """Of the parameters on one GPU, those of experts that not every rank has: they have fewer replicas."""
    if layout.expert == 1:
        return 0.0
    return end_layers(model, layout) * model.routed_parameters / layout.expert


def kept_parameters(model: Model, layout: Layout, since: Sharding) -> float:
    """Those of which a GPU keeps something that replicas share out since a stage of ZeRO: of experts fewer do."""
    count = gpu_parameters(model, layout)
    if layout.sharding < since:
        return count
    experts = expert_parameters(model, layout)
    return (count - experts) / layout.shared_by + experts / layout.experts_shared_by


def end_layers(model: Model, layout: Layout) -> float:
    """Layers of the first and the last stage; one less than others have where embedding and head count as one."""
    if layout.is_balanced(model):
        return (model.layers + 2) / layout.pipeline - 1.0
    return model.layers / layout.pipeline


def activation_bytes_per_layer(model: Model, layout: Layout, training: Training) -> float:
    """Kept of one micro-batch and layer until its backward pass."""
    tokens = layout.micro_batch * training.sequence / layout.context
    if layout.recompute is Recompute.FULL:
        kept = 2.0 * tokens * model.hidden
        return kept / layout.tensor if layout.sequence_parallel else kept
    again = layout.recompute is Recompute.SELECTIVE and training.flash
    inner = model.ffn
    if model.experts is not None:
        inner = model.experts.ffn * (model.experts.active + model.experts.shared)
    # What only a matmul takes is kept as the matmul takes it.
    width = 0.0 if again else 1.0 if training.fp8 else 2.0
    # Of a feed-forward part the activation's inputs, and what comes of it, which the next matrix takes.
    shared = _attention_bytes(model, again=again) + ((4.0 if model.gated else 2.0) + width) * inner
    # Inputs of two norms and what comes of them, which the matmuls take; with dropout its two masks.
    whole = ((4.0 if model.gated else 6.0) + 2.0 * width) * model.hidden
    if training.flash is False and layout.recompute is Recompute.NONE:
        shared += 5.0 * model.heads * training.sequence
    return tokens * (shared / layout.tensor + (whole / layout.tensor if layout.sequence_parallel else whole))


def _attention_bytes(model: Model, *, again: bool) -> float:
    """Of a token: queries, keys, values and what attention makes of them. Compressed ones are made anew from
    their latents where that is cheap.

    Source: https://arxiv.org/abs/2412.19437 (section 3.2.3: norms and up-projections are computed again)
    """
    if (latent := model.latent) is not None:
        query = latent.query_rank or model.heads * (latent.nope + latent.rope)
        compressed = query + latent.kv_rank + latent.rope
        whole = model.heads * (2 * (latent.nope + latent.rope) + latent.value)
        return 2.0 * (compressed if again else compressed + whole) + 2.0 * model.heads * latent.value
    width = model.heads * model.head_width
    return 2.0 * (2 * width + 2 * (model.kv_heads or model.heads) * model.head_width)


def in_flight(layout: Layout, training: Training) -> float:
    """Micro-batches whose activations the first stage keeps at a time, in whole stages: never more than there are.

    Source: https://arxiv.org/abs/2205.05198 (section 4.2.3: interleaving keeps 1 + (p-1)/(p m) more)
    """
    stages, count = layout.pipeline, layout.micro_batches(training)
    held = float(min(stages, count))
    if layout.schedule is Schedule.INTERLEAVED and layout.chunks > 1:
        held = min(float(count), held * (1.0 + (stages - 1) / (stages * layout.chunks)))
    return held


def in_flight_last(layout: Layout, training: Training) -> float:
    """The same of the last stage: the one at hand; of an interleaved schedule all of its chunks but the last are
    filled before its first backward pass.

    Source: https://arxiv.org/abs/2104.04473 (section 2.2)
    """
    chunks = layout.chunks if layout.schedule is Schedule.INTERLEAVED else 1
    held = (layout.pipeline * (chunks - 1) + 1) / chunks
    return min(held, float(layout.micro_batches(training)))


def memory_of(model: Model, layout: Layout, training: Training) -> Quantity:
    """Bytes on the GPU that holds most, with their parts."""
    count = gpu_parameters(model, layout)
    share = Quantity("parameters of a stage", count, "parameters", "of the stage that has most, over tensor ranks")
    of_layer = layer_on_gpu(model, layout)
    weights = 2.0 * kept_parameters(model, layout, Sharding.PARAMETERS)
    if layout.sharding is Sharding.PARAMETERS:  # the layer at hand, and the next one, are gathered
        weights += 2.0 * 2.0 * of_layer
    gradients = training.gradient_bytes * kept_parameters(model, layout, Sharding.GRADIENTS)
    if layout.sharding >= Sharding.GRADIENTS:  # those of a layer, whole before they are scattered
        gradients += 2.0 * of_layer
    state = training.optimizer_bytes * kept_parameters(model, layout, Sharding.OPTIMIZER)
    says = "a parameter, shared by the replicas from"
    parts = (
        Quantity("weights", weights, "bytes", "2 bytes a parameter, shared by FSDP", ZERO, (share,)),
        Quantity(
            "gradients", gradients, "bytes", f"{training.gradient_bytes} bytes {says} ZeRO-2", ZERO, (share,)
        ),
        Quantity(
            "optimizer state", state, "bytes", f"{training.optimizer_bytes} bytes {says} ZeRO-1", ZERO, (share,)
        ),
        *_activations(model, layout, training),
    )
    return total("memory per GPU", "bytes", parts)


def _activations(model: Model, layout: Layout, training: Training) -> tuple[Quantity, Quantity]:
    """Activations and working memory of the stage that has more of them: the first keeps most micro-batches, the
    last has the logits.
    """
    per_layer = activation_bytes_per_layer(model, layout, training)
    tokens = layout.micro_batch * training.sequence / layout.context
    logits = tokens * model.vocab * training.logit_bytes / layout.tensor
    again = 0.0
    if layout.recompute is Recompute.FULL:
        plain = msgspec.structs.replace(layout, recompute=Recompute.NONE)
        again = activation_bytes_per_layer(model, plain, training)
    layers = end_layers(model, layout)
    ends = [(in_flight_last(layout, training), max(logits, again))]
    if layout.pipeline > 1:
        ends.append((in_flight(layout, training), again))
    held, working = max(ends, key=lambda end: layers * per_layer * end[0] + end[1])
    holds = f"{layers:.4g} layers x {per_layer:.3g} bytes x {held:.3g} micro-batches in flight"
    says = "logits of a micro-batch with their loss, or the layer that is computed again"
    return (
        Quantity("activations", layers * per_layer * held, "bytes", holds, SOURCE),
        Quantity("working memory", working, "bytes", says, SOURCE),
    )
