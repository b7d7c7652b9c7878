"""How a model is split over GPUs, and why a split is not possible."""

from collections.abc import Iterator
from enum import IntEnum, StrEnum

import msgspec

from holdfast.api.errors import InvalidInput
from holdfast.planner.bounds import not_negative, positive
from holdfast.planner.cluster import Cluster
from holdfast.planner.model import Model


class Sharding(IntEnum):
    """What the data-parallel ranks share out: nothing, optimizer state, gradients too, parameters too (FSDP).

    Source: https://arxiv.org/abs/1910.02054 (ZeRO stages 1 to 3)
    """

    NONE = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class Schedule(StrEnum):
    """Of the pipeline: one forward one backward, the same with interleaved stages, or without bubble.

    Sources: https://arxiv.org/abs/2104.04473 (interleaved), https://arxiv.org/abs/2401.10241 (zero bubble)
    """

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"


class Order(StrEnum):
    """Which of two kinds of parallelism has the neighbours that tensor and context parallelism leave: ranks are
    counted from the left.

    Sources: https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py (the first, unless it
    is told otherwise), https://arxiv.org/abs/2407.21783 (section 3.3.2: the second)
    """

    DATA_INSIDE = "tp-cp-dp-pp"
    PIPELINE_INSIDE = "tp-cp-pp-dp"


class Recompute(StrEnum):
    """Which activations are computed again in the backward pass.

    Selective: the attention's scores; where flash attention keeps none, what norms and activation functions give.

    Sources: https://arxiv.org/abs/2205.05198 (scores), https://arxiv.org/abs/2412.19437 (section 3.2.3: norms),
    https://docs.nvidia.com/megatron-core/developer-guide/latest/api-guide/transformer.html (recompute_modules)
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is the same whatever the layout: the batch in sequences, their length, and how the numbers are kept.

    `flash` is attention that never writes its scores to memory. `optimizer_bytes` are of master weights and
    moments, per parameter. `fp8`: matmuls are in FP8. `logit_bytes` are what each logit of a micro-batch takes
    with its loss: 6 where that is fused, 14 in eager PyTorch (16 bits and three times 32), 0 where it is chunked.
    `sample_bytes` is what a loader reads for each sequence, images with it; 0: its tokens.
    `loss` is what is to be reached, in nats a token; 0: it is not known.
    """

    sequence: int
    batch: int
    tokens: float = 0.0
    flash: bool = True
    fp8: bool = False
    gradient_bytes: int = 4
    optimizer_bytes: int = 12
    logit_bytes: float = 6.0
    sample_bytes: float = 0.0
    loss: float = 0.0

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        counts = positive(self, "training", ("sequence", "batch"))
        kept = ("tokens", "gradient_bytes", "optimizer_bytes", "logit_bytes", "sample_bytes", "loss")
        if problems := [*counts, *not_negative(self, "training", kept)]:
            raise InvalidInput(*problems)


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Degrees of parallelism; their product, without `expert`, is the number of GPUs.

    `shards` are the ranks that FSDP shares parameters among (0: all replicas); groups of them are replicas of
    each other. `chunks` are the stages that a pipeline rank has (of an interleaved schedule). `order` is how ranks
    are counted, and so which are neighbours.
    `sequence_parallel` shares what tensor parallelism leaves whole. What hides behind computing: `overlap` the
    data-parallel traffic, `overlap_tensor` the tensor-parallel one as far as it can be cut into pieces,
    `overlap_experts` the exchange with experts.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    data: int = 1
    micro_batch: int = 1
    sharding: Sharding = Sharding.OPTIMIZER
    shards: int = 0
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
    order: Order = Order.DATA_INSIDE
    recompute: Recompute = Recompute.SELECTIVE
    sequence_parallel: bool = True
    overlap: bool = True
    overlap_tensor: bool = False
    overlap_experts: bool = False

    @property
    def gpus(self) -> int:
        """All of them."""
        return self.tensor * self.pipeline * self.context * self.data

    @property
    def shared_by(self) -> int:
        """How many ranks what is sharded is shared by."""
        return self.shards or self.data * self.context

    @property
    def expert_replicas(self) -> int:
        """How many GPUs of a pipeline stage have the same experts."""
        return max(1, self.data * self.context * self.tensor // self.expert)

    @property
    def experts_shared_by(self) -> int:
        """How many of those what is sharded is shared by."""
        return max(1, self.shared_by * self.tensor // self.expert)

    def is_balanced(self, model: Model) -> bool:
        """Whether the first and the last stage have a layer less than the others, for the embedding and the head:
        so where that gives whole layers.

        Sources: https://arxiv.org/abs/2407.21783 (section 3.3.2: one Transformer layer less each),
        https://github.com/bigscience-workshop/bigscience/blob/master/train/tr11-176B-ml (12 stages: 5 layers at
        each end, 6 between)
        """
        return self.pipeline > 1 and (model.layers + 2) % (self.pipeline * self.chunks) == 0

    def stages_most(self, model: Model) -> int:
        """How many stages, chunks of an interleaved schedule counted, the layers can make."""
        return model.layers + 2 if self.is_balanced(model) else model.layers

    def micro_batches(self, training: Training) -> int:
        """How often each pipeline is filled in a step."""
        return training.batch // (self.data * self.micro_batch)

    def __str__(self) -> str:
        parts = [f"TP {self.tensor}", f"PP {self.pipeline}"]
        parts += [f"CP {self.context}"] if self.context > 1 else []
        parts += [f"EP {self.expert}"] if self.expert > 1 else []
        parts += [f"DP {self.data}", f"micro-batch {self.micro_batch}"]
        if self.pipeline > 1:
            chunks = f" x{self.chunks}" if self.chunks > 1 else ""
            parts.append(f"{self.schedule.value}{chunks}")
            parts += [f"ranks {self.order.value}"] if self.order is not Order.DATA_INSIDE else []
        stage = {0: "replicated", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}[self.sharding]
        stage += f" in groups of {self.shards}" if self.shards else ""
        return ", ".join([*parts, stage, f"recompute {self.recompute.value}"])


class Misfit(msgspec.Struct, frozen=True):
    """Why a layout cannot be: `because` in a few words that others share, `says` with this one's numbers."""

    because: str
    says: str


def misfits(layout: Layout, model: Model, cluster: Cluster, training: Training) -> Iterator[Misfit]:
    """Why it cannot be, apart from memory; nothing: it can."""
    degrees = layout.tensor, layout.pipeline, layout.context, layout.expert
    tensor, pipeline, context, expert = degrees
    count = layout.micro_batches(training)
    if layout.gpus != cluster.gpus:
        yield Misfit("GPUs", f"it takes {layout.gpus} GPUs, the cluster has {cluster.gpus}")
    if tensor > cluster.domain:
        says = f"tensor parallelism of {tensor} leaves the NVLink domain of {cluster.domain} GPUs"
        yield Misfit("NVLink domain", f"{says}: each layer would wait for the network four times")
    if model.heads % tensor:
        yield Misfit("heads", f"{model.heads} attention heads cannot be shared by {tensor}")
    if pipeline > model.layers or pipeline * layout.chunks > layout.stages_most(model):
        yield Misfit("layers", f"{model.layers} layers cannot make {pipeline * layout.chunks} stages")
    if training.sequence % context:
        yield Misfit("sequence", f"a sequence of {training.sequence} cannot be shared by {context}")
    if expert > 1 and (model.experts is None or model.experts.count % expert):
        yield Misfit("experts", f"expert parallelism of {expert} does not share the model's experts evenly")
    if (beside := layout.data * context * tensor) % expert:
        yield Misfit(
            "experts", f"expert parallelism of {expert} does not share the {beside} ranks of a stage evenly"
        )
    if layout.order is Order.PIPELINE_INSIDE and (tensor * context) % expert:
        says = (
            f"expert parallelism of {expert} wants neighbours, of which ranks {layout.order.value} leave a stage"
        )
        yield Misfit("experts", f"{says} {tensor * context}")
    if training.batch % (layout.data * layout.micro_batch):
        shares = f"{layout.data} replicas in micro-batches of {layout.micro_batch}"
        yield Misfit("batch", f"a batch of {training.batch} sequences cannot be shared by {shares}")
    elif layout.schedule is Schedule.ZERO_BUBBLE and model.adapter_rank:
        yield Misfit("schedule", "zero bubble fills its gaps with gradients of weights: frozen ones have none")
    elif layout.schedule is Schedule.INTERLEAVED and count % pipeline:
        yield Misfit("schedule", f"interleaving wants micro-batches in multiples of {pipeline}, there are {count}")
    if layout.shards and layout.data * context % layout.shards:
        yield Misfit("sharding", f"{layout.data * context} replicas cannot be grouped by {layout.shards}")
    if layout.sharding is Sharding.PARAMETERS and pipeline > 1:
        says = "sharded parameters with a pipeline are gathered anew for each micro-batch"
        yield Misfit("sharding", says)
