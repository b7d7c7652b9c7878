"""Where the members of each group stand: counted rank by rank, and what it means for the time of a step."""

import itertools
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from published_runs import H100, LLAMA3, PUBLISHED, gpt

from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.layout import Layout, Order, Schedule, Sharding, Training, misfits
from holdfast.planner.model import Experts
from holdfast.planner.plan import Option, Question, judge, plan
from holdfast.planner.ranks import (
    Group,
    context_ranks,
    expert_ranks,
    expert_replica_ranks,
    replica_ranks,
    stage_ranks,
    tensor_ranks,
)
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.step import step_time

MODEL = gpt("8B", 32, 4096, 32, positions=0)
TRAINING = Training(sequence=4096, batch=256)
Place = dict[str, int]


def places(layout: Layout) -> list[Place]:
    """Of each rank its place in every dimension, by counting: the first dimension of the order turns fastest."""
    sizes = {"tp": layout.tensor, "cp": layout.context, "dp": layout.data, "pp": layout.pipeline}
    names = layout.order.value.split("-")
    turned = itertools.product(*(range(sizes[name]) for name in reversed(names)))
    return [dict(zip(reversed(names), place, strict=True)) for place in turned]


def counted(layout: Layout, together: Callable[[Place], object], domain: int) -> tuple[int, int]:
    """How many ranks have the same `together` as rank 0, and how many of those are in its NVLink domain."""
    all_ = places(layout)
    members = [rank for rank, place in enumerate(all_) if together(place) == together(all_[0])]
    return len(members), sum(rank < domain for rank in members)


SHAPES = [
    Layout(tensor=2, pipeline=4, context=2, data=4),
    Layout(tensor=1, pipeline=4, context=1, data=16),
    Layout(tensor=4, pipeline=2, context=4, data=2),
    Layout(tensor=8, pipeline=4, context=1, data=2),
    Layout(tensor=2, pipeline=2, context=1, data=16),
]
GROUPS: list[tuple[Callable[[Layout], Group], str, Callable[[Place], object]]] = [
    (tensor_ranks, "tensor", lambda at: (at["cp"], at["dp"], at["pp"])),
    (context_ranks, "context", lambda at: (at["tp"], at["dp"], at["pp"])),
    (stage_ranks, "stages", lambda at: (at["tp"], at["cp"], at["dp"])),
    (replica_ranks, "replicas", lambda at: (at["tp"], at["pp"])),
]


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("group", [pytest.param(each, id=each[1]) for each in GROUPS])
def test_a_group_has_as_many_neighbours_as_are_counted(
    group: tuple[Callable[[Layout], Group], str, Callable[[Place], object]], shape: Layout, order: Order
) -> None:
    ranks_of, _, together = group
    layout, domain = replace(shape, order=order), 8
    reach = reach_of(Cluster(H100, layout.gpus), *ranks_of(layout))
    assert (reach.size, reach.near) == counted(layout, together, domain)


def test_experts_are_shared_by_neighbours_of_a_stage_and_the_rest_are_their_replicas() -> None:
    layout = Layout(tensor=2, pipeline=4, context=2, data=4, expert=4)
    assert expert_ranks(layout) == ((4, 1),)
    assert expert_replica_ranks(layout) == ((4, 4),)
    inside = replace(layout, order=Order.PIPELINE_INSIDE)
    assert expert_replica_ranks(inside) == ((1, 4), (4, 16))
    sparse = replace(MODEL, experts=Experts(count=8, active=2, ffn=4096))
    wide = replace(inside, expert=8)
    (misfit,) = misfits(wide, sparse, Cluster(H100, 64), TRAINING)
    assert "wants neighbours" in misfit.says
    assert list(misfits(replace(wide, order=Order.DATA_INSIDE), sparse, Cluster(H100, 64), TRAINING)) == []


def test_an_nvlink_domain_holds_the_pipeline_or_the_replicas_and_not_both() -> None:
    layout = Layout(tensor=2, pipeline=4, data=8)
    cluster = Cluster(H100, 64)
    near = {
        order: [
            reach_of(cluster, *ranks(replace(layout, order=order))).near for ranks in (stage_ranks, replica_ranks)
        ]
        for order in Order
    }
    assert near == {Order.DATA_INSIDE: [1, 4], Order.PIPELINE_INSIDE: [4, 1]}


def parts(run: Run) -> dict[str, float]:
    return {each.name: each.value for each in step_time(run, Efficiency()).of}


def test_stages_in_a_node_hand_over_by_nvlink_and_their_replicas_exchange_by_the_network() -> None:
    base = Layout(tensor=2, pipeline=4, data=8, overlap=False)
    data, pipeline = (
        parts(Run(MODEL, replace(base, order=order), Cluster(H100, 64), TRAINING)) for order in Order
    )
    over, exchange = "pipeline hand-over", "data-parallel exchange that shows"
    assert pipeline[over] < data[over] / 5
    assert data[exchange] < pipeline[exchange] / 3


def test_a_schedule_with_other_work_hides_its_messages_but_not_those_that_fill_it() -> None:
    over = "pipeline hand-over"
    layout = Layout(tensor=8, pipeline=4, data=2, chunks=2, schedule=Schedule.INTERLEAVED)
    hidden, bare = (
        parts(Run(MODEL, replace(layout, overlap=overlap), Cluster(H100, 64), TRAINING))[over]
        for overlap in (True, False)
    )
    # 128 micro-batches, 2 chunks each, beside 3 messages there and 3 back to fill the pipeline and drain it.
    assert bare / hidden == pytest.approx((128 * 2 + 3) / 3)
    waits = replace(layout, chunks=1, schedule=Schedule.ONE_F_ONE_B)
    assert parts(Run(MODEL, waits, Cluster(H100, 64), TRAINING))[over] == pytest.approx(hidden * (128 + 3) / 3)


def test_fsdp_scatters_the_gradients_of_each_micro_batch() -> None:
    shows = "data-parallel exchange that shows"
    layout = Layout(data=64, sharding=Sharding.PARAMETERS, overlap=False)
    once, twice = (
        parts(Run(MODEL, layout, Cluster(H100, 64), replace(TRAINING, batch=batch)))[shows] for batch in (64, 128)
    )
    assert twice == pytest.approx(2 * once)


def test_the_faster_order_is_shown_where_they_differ() -> None:
    question = Question(MODEL, Cluster(H100, 64), TRAINING)
    pinned = {"tensor": 2, "pipeline": 4, "context": 1}
    shown = {each.layout: each for each in plan(question, pinned).options}
    orders = {layout.order for layout in shown}
    assert orders == set(Order), "with few micro-batches the exchange of gradients counts for more"
    for layout, option in shown.items():
        for order in Order:
            other = judge(replace(layout, order=order), question, effective=1.0)
            assert isinstance(other, Option)
            assert other.step.value >= option.step.value
        assert ("ranks tp-cp-pp-dp" in str(layout)) is (layout.order is Order.PIPELINE_INSIDE)
    wide = plan(question, {**pinned, "tensor": 8})
    assert {each.layout.order for each in (*wide.options, *wide.rejected)} == {Order.DATA_INSIDE}


def test_where_pods_have_less_network_between_them_the_order_is_that_of_llama_3() -> None:
    # Source: https://arxiv.org/abs/2407.21783 (section 3.3.2: TP, CP, PP, DP; section 3.3.1: pods of 3,072)
    (llama, *_) = (each.run for each in PUBLISHED if each.source == LLAMA3)
    pinned = {"tensor": 8, "pipeline": 16, "context": 1, "micro_batch": 1}
    for cluster, order in (
        (llama.cluster, Order.PIPELINE_INSIDE),
        (replace(llama.cluster, pod=0), Order.DATA_INSIDE),
    ):
        (best, *_) = plan(Question(llama.model, cluster, llama.training), pinned).options
        assert best.layout.order is order
