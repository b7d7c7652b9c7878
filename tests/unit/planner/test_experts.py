"""Mixtures of experts: what of them each GPU has, shares out and sends, and NVLink's rate that is reached."""

import pytest
from msgspec.structs import replace

from holdfast.api.errors import InvalidInput
from holdfast.planner.cluster import Cluster
from holdfast.planner.gpu import GPUS
from holdfast.planner.layout import Layout, Recompute, Sharding, Training, misfits
from holdfast.planner.memory import memory_of
from holdfast.planner.model import Experts, Latent, Model
from holdfast.planner.notes import notes_of
from holdfast.planner.plan import Option, Question, judge
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.stage import fullest_stage, parameters_of
from holdfast.planner.step import step_time

H100 = GPUS["H100-80GB"]
WIDE = Model("16x7B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000)
SPARSE = replace(WIDE, experts=Experts(count=16, active=2, ffn=14336))
SHARED = replace(WIDE, experts=Experts(count=64, active=6, ffn=1408, shared=2, dense_layers=1))
TRAINING = Training(sequence=4096, batch=256)
HIDES = "tokens of a GPU from which on FSDP hides"


def part(run: Run, name: str, reached: Efficiency | None = None) -> float:
    (found,) = (each.value for each in step_time(run, reached or Efficiency()).of if each.name == name)
    return found


@pytest.mark.parametrize("model", [SPARSE, SHARED])
@pytest.mark.parametrize(("tensor", "expert", "shards"), [(1, 1, 0), (1, 16, 0), (4, 2, 0), (8, 16, 0), (1, 4, 8)])
@pytest.mark.parametrize("sharding", [Sharding.OPTIMIZER, Sharding.GRADIENTS, Sharding.PARAMETERS])
def test_all_gpus_together_have_the_state_of_all_parameters(
    model: Model, tensor: int, expert: int, shards: int, sharding: Sharding
) -> None:
    layout = Layout(tensor, expert=expert, data=128 // tensor, sharding=sharding, shards=shards)
    groups = 128 // tensor // layout.shared_by
    state = {each.name: each.value for each in memory_of(model, layout, TRAINING).of}["optimizer state"]
    assert 128 * state == pytest.approx(groups * 12 * model.parameters, rel=1e-6)


def test_expert_parallelism_shares_the_routed_experts_and_nothing_else() -> None:
    routed = (32 - 1) * 64 * 3 * 4096 * 1408
    layouts = (Layout(data=64, expert=expert) for expert in (1, 64))
    one, many = (sum(parameters_of(SHARED, each, fullest_stage(SHARED, each))) for each in layouts)
    assert one == pytest.approx(SHARED.parameters)
    assert one - many == pytest.approx(routed * 63 / 64)


def test_gradients_of_experts_that_one_gpu_has_are_not_exchanged() -> None:
    cluster, bare = Cluster(H100, 64), Layout(data=64, overlap=False)
    shows = "data-parallel exchange that shows"
    all_have, one_has, two_have = (
        part(Run(SHARED, replace(bare, expert=expert), cluster, TRAINING), shows) for expert in (1, 64, 32)
    )
    routed = SHARED.routed_parameters * SHARED.layers
    assert one_has == pytest.approx(all_have * (1 - routed / SHARED.parameters), rel=0.01)
    assert one_has < two_have < all_have


def test_tokens_go_to_each_of_their_experts_by_nvlink_and_once_to_a_domain_by_the_network() -> None:
    layout = Layout(expert=8, data=64)
    exchange = "expert-parallel exchange"
    near = part(Run(SHARED, layout, Cluster(H100, 64), TRAINING), exchange)
    # Out and back, forward and backward: 2 bytes each of 6 copies, 7 of 8 to another GPU, at 0.8 of NVLink.
    bytes_ = 4 * 4096 * 6 * 2 * 4096 * 7 / 8
    assert near == pytest.approx(4 * 31 * bytes_ / (0.8 * 450e9), rel=0.01), "one of 32 layers is dense"
    again = replace(layout, recompute=Recompute.FULL)
    assert part(Run(SHARED, again, Cluster(H100, 64), TRAINING), exchange) == pytest.approx(1.5 * near)
    far = part(Run(SHARED, replace(layout, expert=32), Cluster(H100, 64), TRAINING), exchange)
    assert far == pytest.approx(4 * 31 * 4 * 4096 * 4 * 2 * 4096 * 24 / 32 / 50e9, rel=0.01)
    # Within each domain all 6 copies go on by NVLink: where that is slower it is waited for.
    slow = Cluster(replace(GPUS["H800-80GB"], nvlink=50e9), 64, network=100e9)
    fanned = part(Run(SHARED, replace(layout, expert=32), slow, TRAINING), exchange)
    assert fanned == pytest.approx(4 * 31 * bytes_ / (0.8 * 50e9), rel=0.01)


@pytest.mark.parametrize(
    ("model", "tensor", "numbers"),
    [
        pytest.param(WIDE, 1, 8 * 2 * 128, id="keys and values of 8 heads"),
        pytest.param(WIDE, 4, 2 * 2 * 128, id="2 of them on each of 4 GPUs"),
        pytest.param(replace(WIDE, kv_heads=1), 4, 2 * 128, id="one that 4 GPUs all need"),
        pytest.param(replace(WIDE, latent=Latent(0, 512, 64, 128, 128)), 4, 8 * (192 + 128), id="latent"),
    ],
)
def test_context_parallel_ranks_gather_the_keys_and_values_that_attention_takes(
    model: Model, tensor: int, numbers: int
) -> None:
    run = Run(model, Layout(tensor, context=64 // tensor), Cluster(H100, 64, latency_s=0), TRAINING)
    ranks = 64 // tensor
    # At 50e9 bytes a second of each GPU's port, in both passes, and gradients once.
    moved = 3 * 32 * 256 * 4096 * 2 * numbers * (ranks - 1) / ranks
    near = 8 // tensor
    assert part(run, "context-parallel collectives") == pytest.approx(moved / min(near * 50e9, 0.8 * 450e9))


def test_fsdp_of_experts_hides_behind_as_many_times_the_tokens_as_parameters_are_not_used() -> None:
    found, layout = [], Layout(data=64, sharding=Sharding.PARAMETERS, recompute=Recompute.NONE)
    for model in (WIDE, SPARSE):
        question = Question(model, Cluster(GPUS["H200-141GB"], 64), TRAINING)
        option = judge(layout, question, 1.0)
        assert isinstance(option, Option)
        found.append({each.name: each.value for each in notes_of(question, option)}[HIDES])
    moved = SPARSE.layer_parameters(active=False) / SPARSE.layer_parameters(active=True)
    assert found[1] == pytest.approx(found[0] * moved)


def test_experts_that_their_ranks_do_not_share_evenly_do_not_fit() -> None:
    layout, cluster = Layout(data=96, expert=64), Cluster(H100, 96)
    (found,) = misfits(layout, SHARED, cluster, Training(sequence=4096, batch=96))
    assert found.because == "experts"
    assert "96 ranks of a stage" in found.says


@pytest.mark.parametrize(("wrong", "field"), [({"active": 65}, "active"), ({"dense_layers": 33}, "dense_layers")])
def test_experts_that_no_model_has_are_refused(wrong: dict[str, int], field: str) -> None:
    assert SHARED.experts is not None
    with pytest.raises(InvalidInput, match=rf"model.experts.{field}"):
        replace(SHARED, experts=replace(SHARED.experts, **wrong))


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        (Layout(data=8, sharding=Sharding.PARAMETERS, overlap=False), "data-parallel exchange that shows"),
        (Layout(context=8), "context-parallel collectives"),
        (Layout(tensor=8), "tensor-parallel collectives"),
        (Layout(data=8, expert=8), "expert-parallel exchange"),
        (Layout(pipeline=8), "pipeline hand-over"),
    ],
)
def test_whatever_goes_over_nvlink_goes_at_the_rate_that_is_reached(layout: Layout, name: str) -> None:
    run = Run(SHARED, layout, Cluster(H100, 8, latency_s=0, nvlink_latency_s=0), TRAINING)
    assert part(run, name, Efficiency(links=0.4)) == pytest.approx(2 * part(run, name, Efficiency(links=0.8)))
