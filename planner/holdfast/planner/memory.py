"""What a GPU has to hold: parameters, gradients, optimizer state, activations, logits.

Activations of a layer, per token and hidden unit, in bytes of 16-bit numbers, are 34 of a GPT with dropout, and
5 a s / h for attention's scores, which flash attention and selective recomputation do without. Models with a gated
feed-forward part have no dropout, and of grouped queries fewer keys and values. With flash attention selective
recomputation does without what norms and activation functions give; full recomputation keeps the layer's input
(2) only. Tensor parallelism shares what attention and the feed-forward part have inside, with sequence parallelism
all.

Source: https://arxiv.org/abs/2205.05198 (equations 1 to 6, table 2)
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from holdfast.planner.gpu import Gpu
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.model import Model
from holdfast.planner.quantity import Quantity, total
from holdfast.planner.stage import Stage, kept_parameters, layer_on_gpu, parameters_of, stages_of, trained_of

SOURCE: Final = "https://arxiv.org/abs/2205.05198"
ZERO: Final = "https://arxiv.org/abs/1910.02054"
LORA: Final = "https://arxiv.org/abs/2106.09685"
FSDP: Final = "https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html"
STAGES: Final = "https://arxiv.org/abs/2104.04473"
MASTER_BYTES: Final = 12
"""Of an optimizer with weights in 32 bits and two moments; one with less is taken to have none."""
# Kernels' workspaces, communication buffers and what the allocator cannot use: of the GPU's memory.
RESERVED: Final = 0.06


def room_of(gpu: Gpu) -> float:
    """Bytes of a GPU that a run can fill."""
    return gpu.memory * (1.0 - RESERVED)


def activation_bytes_per_layer(model: Model, layout: Layout, training: Training) -> float:
    """Kept of one micro-batch and layer until its backward pass."""
    tokens = _tokens(layout, training)
    if layout.recompute is Recompute.FULL:
        kept = 2.0 * tokens * model.hidden
        return kept / layout.tensor if layout.sequence_parallel else kept
    again = layout.recompute is Recompute.SELECTIVE and training.flash
    # What only a matmul takes is kept as the matmul takes it.
    width = 0.0 if again else 1.0 if training.fp8 else 2.0
    # Of a feed-forward part the activation's inputs, and what comes of it, which the next matrix takes.
    shared = _attention_bytes(model, again=again) + ((4.0 if model.gated else 2.0) + width) * model.inner
    # Inputs of two norms and what comes of them, which the matmuls take; with dropout its two masks.
    whole = ((4.0 if model.gated else 6.0) + 2.0 * width) * model.hidden
    if model.experts is not None:  # a copy of the token for each of its experts, which only they take
        whole += (1.0 if training.fp8 else 2.0) * model.experts.active * model.hidden * model.sparse_share
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


def in_flight(layout: Layout, training: Training, before: int = 0) -> float:
    """Micro-batches whose activations a stage keeps at a time, in whole stages, of that with so many `before` it:
    never more than there are.

    Sources: https://arxiv.org/abs/2104.04473 (section 2.2), https://arxiv.org/abs/2205.05198 (section 4.2.3:
    interleaving keeps 1 + (p-1)/(p m) times as much on the first stage)
    """
    held = float(layout.pipeline - before)
    if layout.schedule is Schedule.INTERLEAVED and layout.chunks > 1:
        behind = layout.pipeline - 1 - before
        held = (2.0 * behind + layout.pipeline * (layout.chunks - 1) + 1.0) / layout.chunks
    return min(held, float(layout.micro_batches(training)))


def memory_of(model: Model, layout: Layout, training: Training) -> Quantity:
    """Bytes on the GPU that holds most, with their parts."""
    kept = activation_bytes_per_layer(model, layout, training)
    layer = _Layer(kept, layer_at_hand(model, layout, training))
    stages = (_memory_of(model, layout, training, each, layer) for each in stages_of(model, layout))
    return max(stages, key=lambda each: each.value)


class _Layer(NamedTuple):
    """Bytes of a micro-batch and layer: what is kept of it, and what it takes besides when it is at hand."""

    kept: float
    at_hand: float


def _memory_of(model: Model, layout: Layout, training: Training, stage: Stage, layer: _Layer) -> Quantity:
    where = f"{stage.layers} layers"
    if layout.pipeline > 1:
        where += f" of the stage with {stage.before} before it"
    count = sum(parameters_of(model, layout, stage))
    share = Quantity("parameters of a stage", count, "parameters", f"{where}, over tensor ranks")
    parts = (*_state(model, layout, training, stage, share), *_activations(model, layout, training, stage, layer))
    return total("memory per GPU", "bytes", parts)


def _state(model: Model, layout: Layout, training: Training, stage: Stage, share: Quantity) -> Iterator[Quantity]:
    """Weights, gradients and the optimizer's state, which has the weights that FSDP shares out, in 32 bits.

    Source: https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html (parameters are gathered in
    16 bits, gradients copied to be scattered in 32; the root's are not freed between the passes)
    """
    of_layer = layer_on_gpu(model, layout)
    if layout.sharding is Sharding.PARAMETERS:
        weights = 2.0 * (2.0 * of_layer + stage.embeddings / layout.tensor)
        says = "2 bytes of each in the layer at hand, the next one, embedding and head, which FSDP has gathered"
        if training.optimizer_bytes < MASTER_BYTES or model.adapter_rank:
            weights += 2.0 * kept_parameters(model, layout, stage, Sharding.PARAMETERS)
            says += ", and 2 of its share: the optimizer has none of it in 32 bits"
        yield Quantity("weights", weights, "bytes", says, FSDP, (share,))
    else:
        yield Quantity("weights", 2.0 * share.value, "bytes", "2 bytes a parameter", ZERO, (share,))
    if model.adapter_rank:
        says = f"of rank {model.adapter_rank} beside each matrix of {stage.layers} layers, over tensor ranks"
        count = sum(trained_of(model, layout, stage))
        share = Quantity("parameters of adapters", count, "parameters", says, LORA)
    gradients = training.gradient_bytes * kept_parameters(model, layout, stage, Sharding.GRADIENTS)
    says = f"{training.gradient_bytes} bytes a parameter, shared by the replicas from ZeRO-2"
    if layout.sharding >= Sharding.GRADIENTS and not model.adapter_rank:
        gradients += (2.0 + training.gradient_bytes) * of_layer
        says += ", and those of a layer until they are scattered"
    yield Quantity("gradients", gradients, "bytes", says, ZERO, (share,))
    state = training.optimizer_bytes * kept_parameters(model, layout, stage, Sharding.OPTIMIZER)
    says = f"{training.optimizer_bytes} bytes a parameter, shared by the replicas from ZeRO-1"
    yield Quantity("optimizer state", state, "bytes", says, ZERO, (share,))


def _activations(
    model: Model, layout: Layout, training: Training, stage: Stage, layer: _Layer
) -> Iterator[Quantity]:
    """What is kept of the micro-batches in flight, and what the layer at hand or the loss takes besides."""
    held, tokens = in_flight(layout, training, stage.before), _tokens(layout, training)
    says = f"{stage.layers} layers x {tokens:g} tokens x {layer.kept / tokens:.6g} bytes"
    says += f" x {held:.3g} micro-batches in flight"
    yield Quantity("activations", stage.layers * layer.kept * held, "bytes", says, SOURCE)
    if layout.pipeline > 1:
        passed = 2.0 * tokens * model.hidden / (layout.tensor if layout.sequence_parallel else 1)
        says = "one that goes and one that comes, each way"
        yield Quantity("messages of the pipeline", 4.0 * passed, "bytes", says, STAGES)
    logits = tokens * model.vocab * training.logit_bytes / layout.tensor + _gathered(model, layout, tokens)
    working = layer.at_hand
    says = "the layer at hand: what is computed again, inputs that tensor parallelism gathers, and gradients"
    if stage.has_head and logits > working:
        each = f"{training.logit_bytes:g} bytes over {layout.tensor} GPUs"
        working, says = logits, f"{tokens:g} tokens x {model.vocab} logits x {each}"
    yield Quantity("working memory", working, "bytes", says, SOURCE)


def _tokens(layout: Layout, training: Training) -> float:
    """Of a micro-batch, those of one GPU."""
    return layout.micro_batch * training.sequence / layout.context


def _gathered(model: Model, layout: Layout, tokens: float) -> float:
    """Bytes of an input that sequence parallelism shares out and tensor parallelism has gathered."""
    return 2.0 * tokens * model.hidden if layout.tensor > 1 and layout.sequence_parallel else 0.0


def layer_at_hand(model: Model, layout: Layout, training: Training) -> float:
    """Bytes that the backward pass of a layer takes besides what is kept of it: what is computed again, inputs of
    attention and feed-forward part and their gradients whole where tensor parallelism has gathered them, gradients
    of the feed-forward part, keys and values of the whole sequence with theirs where context parallelism has.

    Source: https://arxiv.org/abs/2205.05198 (section 4.2.2: g and its conjugate gather what sequence parallelism
    shares out)
    """
    tokens = _tokens(layout, training)
    plain = msgspec.structs.replace(layout, recompute=Recompute.NONE)
    again = activation_bytes_per_layer(model, plain, training)
    again -= activation_bytes_per_layer(model, layout, training)
    gathered = 2.0 * 2.0 * _gathered(model, layout, tokens)
    inner = 2.0 * (3.0 if model.gated else 2.0) * model.inner * tokens / layout.tensor
    keys = 2.0 * 2.0 * layout.micro_batch * training.sequence * model.gathered_width(layout.tensor)
    return again + gathered + inner + (keys if layout.context > 1 else 0.0)
