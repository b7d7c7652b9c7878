"""The stages of a pipeline: which layers, and how many parameters, a GPU of each has.

Layers that do not go up in stages make some stages a layer larger, those between the first and the last as far as
there are enough: these have embedding and head besides. The largest sets the pace of all.

Sources: https://arxiv.org/abs/2407.21783 (section 3.3.2: one Transformer layer less each),
https://github.com/pytorch/torchtitan/blob/main/torchtitan/distributed/pipeline_parallel.py (more layers between)
"""

import functools
from typing import NamedTuple

from holdfast.planner.layout import Layout, Sharding
from holdfast.planner.model import Model


class Stage(NamedTuple):
    """One of them: how many come before it, its layers, its parameters in embedding and head before tensor
    parallelism shares them, and whether it makes the logits.
    """

    before: int
    layers: int
    embeddings: int
    has_head: bool


def stages_of(model: Model, layout: Layout) -> tuple[Stage, ...]:
    """The first, the last, and the one after the first where it is larger: of as many layers it has less to hold
    than the first, and less to do than the last.
    """
    pipeline, embedding = layout.pipeline, model.vocab * model.hidden
    if pipeline == 1:
        return (Stage(0, model.layers, model.embedding_parameters, has_head=True),)
    ends, between = _layers(model, layout)
    first = Stage(0, ends, embedding + model.positions * model.hidden, has_head=False)
    last = Stage(pipeline - 1, ends, embedding, has_head=True)
    return (first, Stage(1, between, 0, has_head=False), last) if between > ends else (first, last)


def _layers(model: Model, layout: Layout) -> tuple[int, int]:
    """Of the first and the last stage, and of the largest between them."""
    if layout.is_balanced(model):
        between = (model.layers + 2) // layout.pipeline
        return between - 1, between
    few, left = divmod(model.layers, layout.pipeline)
    return (few if left <= layout.pipeline - 2 else few + 1), few + (left > 0)


def fullest_stage(model: Model, layout: Layout) -> Stage:
    """That with most parameters."""
    return max(stages_of(model, layout), key=lambda each: sum(parameters_of(model, layout, each)))


def layer_on_gpu(model: Model, layout: Layout) -> float:
    """Of a layer's parameters those on one GPU: expert parallelism shares the routed experts in place of tensor
    parallelism, and nothing else.
    """
    whole, routed = _parameters_of_a_layer(model)
    return whole / layout.tensor + routed / (layout.expert if layout.expert > 1 else layout.tensor)


@functools.lru_cache(maxsize=64)
def _parameters_of_a_layer(model: Model) -> tuple[float, float]:
    """Those that tensor parallelism shares, and its routed experts: asked for of each of thousands of layouts."""
    routed = model.routed_parameters
    return model.layer_parameters(active=False) - routed, routed


def parameters_of(model: Model, layout: Layout, stage: Stage) -> tuple[float, float]:
    """On one GPU, before data-parallel ranks share them out: those that every rank has, and those of experts that
    expert parallelism leaves fewer replicas of.
    """
    experts = stage.layers * model.routed_parameters / layout.expert if layout.expert > 1 else 0.0
    return stage.layers * layer_on_gpu(model, layout) + stage.embeddings / layout.tensor - experts, experts


def trained_of(model: Model, layout: Layout, stage: Stage) -> tuple[float, float]:
    """The same of those that train: all, or the adapters beside them."""
    if not model.adapter_rank:
        return parameters_of(model, layout, stage)
    return stage.layers * model.adapter_parameters / layout.tensor, 0.0


def kept_parameters(model: Model, layout: Layout, stage: Stage, since: Sharding) -> float:
    """Those of which a GPU keeps something that replicas share out since a stage of ZeRO: of experts fewer do, and
    of frozen parameters nothing but themselves.
    """
    of = parameters_of if since is Sharding.PARAMETERS else trained_of
    rest, experts = of(model, layout, stage)
    if layout.sharding < since:
        return rest + experts
    return rest / layout.shared_by + experts / layout.experts_shared_by
