"""More of anything is never slower: layouts of questions drawn at random, with one rate after the other raised."""

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from holdfast.planner.cluster import Cluster
from holdfast.planner.gpu import GPUS
from holdfast.planner.layout import Layout, Order, Schedule, Sharding, Training, misfits
from holdfast.planner.model import Experts, Latent, Model
from holdfast.planner.plan import MEMORY, Plan, Question, layouts, plan
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.step import model_flops_utilization, step_time

SEEDS = range(6)
LAYOUTS = 16
EXACT = 1.0 + 1e-9


def drawn(rng: random.Random) -> Question:
    heads = rng.choice([8, 32, 64])
    experts = Experts(64, rng.choice([1, 8]), 1024, shared=1, dense_layers=1) if rng.random() < 0.4 else None
    model = Model(
        "drawn",
        layers=rng.choice([4, 31, 62]),
        hidden=heads * 128,
        heads=heads,
        ffn=heads * 384,
        vocab=rng.choice([32_000, 128_256]),
        kv_heads=rng.choice([0, 8]),
        experts=experts,
        latent=Latent(1536, 512, 64, 128, 128) if rng.random() < 0.2 else None,
    )
    per_node, pod = rng.choice([4, 8]), rng.choice([0, 32])
    cluster = Cluster(
        rng.choice(list(GPUS.values())),
        per_node * rng.choice([2, 8]),
        per_node,
        network=rng.choice([2e8, 12.5e9, 50e9]),
        price=2.0,
        storage=rng.choice([None, 1e6]),
        pod=pod,
        oversubscription=3.0 if pod else 1.0,
    )
    return Question(model, cluster, Training(rng.choice([1024, 8192]), rng.choice([64, 256]), tokens=1e11))


def sample(question: Question, rng: random.Random) -> Iterator[Layout]:
    fit = [each for each in layouts(question, {}) if not [*misfits(each, *question.asked)]]
    for each in rng.sample(fit, min(LAYOUTS, len(fit))):
        changed = replace(each, order=rng.choice(list(Order)))
        if each.pipeline > 1:
            changed = replace(changed, sharding=rng.choice([Sharding.OPTIMIZER, Sharding.GRADIENTS]))
        yield each if [*misfits(changed, *question.asked)] else changed


def raised(cluster: Cluster) -> dict[str, Cluster]:
    gpu = cluster.gpu
    more = {name: replace(gpu, **{name: getattr(gpu, name) * 1.7}) for name in ("bf16", "memory_rate", "nvlink")}
    return {
        **{name: replace(cluster, gpu=each) for name, each in more.items()},
        "network": replace(cluster, network=cluster.network * 1.7),
        "latency": replace(
            cluster, latency_s=cluster.latency_s / 2, nvlink_latency_s=cluster.nvlink_latency_s / 2
        ),
        "pod": replace(cluster, pod=0, oversubscription=1.0),
        "storage": replace(cluster, storage=None),
    }


@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_is_slower_on_a_better_cluster(seed: int) -> None:
    rng = random.Random(seed)
    question = drawn(rng)
    model, cluster, training = question.asked
    reached = Efficiency()
    for layout in sample(question, rng):
        step = step_time(Run(model, layout, cluster, training), reached)
        assert step.value == pytest.approx(sum(each.value for each in step.of))
        assert all(each.value >= 0.0 for each in step.of)
        assert 0.0 < model_flops_utilization(Run(model, layout, cluster, training), step.value) < 1.0
        for name, better in raised(cluster).items():
            assert step_time(Run(model, layout, better, training), reached).value <= step.value * EXACT, (
                name,
                str(layout),
            )
        for name in reached.__struct_fields__:
            better_reached = replace(reached, **{name: getattr(reached, name) * 1.2})
            assert step_time(Run(model, layout, cluster, training), better_reached).value <= step.value * EXACT, (
                name,
                str(layout),
            )


def too_large(found: Plan) -> int:
    return sum(each.misfit.because == MEMORY for each in found.rejected)


@pytest.mark.parametrize("seed", range(2))
def test_more_memory_rejects_no_more_and_a_dearer_gpu_costs_as_much_more(seed: int) -> None:
    question = drawn(random.Random(seed))
    cluster = question.cluster
    found = plan(question)
    larger = plan(
        replace(question, cluster=replace(cluster, gpu=replace(cluster.gpu, memory=2 * cluster.gpu.memory)))
    )
    assert too_large(larger) <= too_large(found)
    assert not found.options or larger.options[0].tokens_per_s >= found.options[0].tokens_per_s
    dearer = plan(replace(question, cluster=replace(cluster, price=6.0)))
    paid = [sum(each.money or 0.0 for each in every.options) for every in (found, dearer)]
    assert paid[1] == pytest.approx(3.0 * paid[0])


def test_computing_hides_one_message_at_a_time() -> None:
    """What is sent beside computing leaves nothing for the replicas' exchange to hide in."""
    model = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    slow, training = Cluster(GPUS["H100-80GB"], 64, network=2e8), Training(8192, 64)
    layout = Layout(pipeline=8, data=8, sharding=Sharding.GRADIENTS, schedule=Schedule.ZERO_BUBBLE)
    step = {each.name: each.value for each in step_time(Run(model, layout, slow, training), Efficiency()).of}
    alone = step_time(Run(model, replace(layout, overlap=False), slow, training), Efficiency())
    bare = {each.name: each.value for each in alone.of}
    name = "data-parallel exchange that shows"
    assert bare["pipeline hand-over"] > step["pipeline hand-over"] > 0.0
    assert step[name] == pytest.approx(bare[name])
