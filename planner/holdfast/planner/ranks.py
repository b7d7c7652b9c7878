"""Where the ranks of a group stand, and how many of them an NVLink domain joins.

Ranks that follow each other are neighbours: those of a node, then those of the next. Tensor parallelism is counted
innermost, context parallelism next; of pipeline and data parallelism one has what is left of an NVLink domain, the
other none of it (`Order`). Expert parallelism takes neighbours of a stage.

Sources: https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py (tp-cp-ep-dp-pp unless it
is told otherwise),
https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/parallel_dims.py (the mesh pp, dp, cp, tp),
https://arxiv.org/abs/2407.21783 (section 3.3.2: TP, CP, PP, DP)
"""

from holdfast.planner.layout import Layout, Order

Group = tuple[tuple[int, int], ...]
"""Members of a group: so many, every so many ranks; then so many of those, every so many ranks."""


def tensor_ranks(layout: Layout) -> Group:
    """Those that share each matrix."""
    return ((layout.tensor, 1),)


def context_ranks(layout: Layout) -> Group:
    """Those that share each sequence."""
    return ((layout.context, layout.tensor),)


def stage_ranks(layout: Layout) -> Group:
    """One of each stage of a pipeline."""
    beside = layout.tensor * layout.context
    if layout.order is Order.DATA_INSIDE:
        beside *= layout.data
    return ((layout.pipeline, beside),)


def replica_ranks(layout: Layout) -> Group:
    """Those that have the same parameters: data and context parallel ranks."""
    if layout.order is Order.DATA_INSIDE or layout.pipeline == 1:
        return ((layout.data * layout.context, layout.tensor),)
    return (*context_ranks(layout), (layout.data, layout.tensor * layout.context * layout.pipeline))


def shard_ranks(layout: Layout) -> Group:
    """Those of them that share out what is sharded."""
    return ((layout.shards, layout.tensor),) if layout.shards else replica_ranks(layout)


def expert_ranks(layout: Layout) -> Group:
    """Those that share a layer's experts."""
    return ((layout.expert, 1),)


def expert_replica_ranks(layout: Layout) -> Group:
    """Those that have the same experts."""
    if layout.order is Order.DATA_INSIDE or layout.pipeline == 1:
        return ((layout.expert_replicas, layout.expert),)
    beside = layout.tensor * layout.context
    return (beside // layout.expert, layout.expert), (layout.data, beside * layout.pipeline)
