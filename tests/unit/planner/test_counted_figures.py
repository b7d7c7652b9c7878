"""Figures of a plan counted by hand, one at a time: nothing else holds each of them to its number."""

import re

import pytest
from msgspec.structs import replace

from holdfast.api.planned import expects_of
from holdfast.api.trainingjob import read_trainingjob
from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.collective import exchange_s, gather_s
from holdfast.planner.gpu import GPUS
from holdfast.planner.jobfile import job_of
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.memory import activation_bytes_per_layer, memory_of
from holdfast.planner.model import Experts, Model
from holdfast.planner.notes import notes_of
from holdfast.planner.plan import Option, Question, judge, plan
from holdfast.planner.reliability import Reliability
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.spot import Spot
from holdfast.planner.stage import fullest_stage, parameters_of
from holdfast.planner.step import passes, step_time
from holdfast.planner.tokens import sampled_per_s

H100 = GPUS["H100-80GB"]
MODEL = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
CLUSTER, TRAINING = Cluster(H100, 16), Training(sequence=8192, batch=64)


def step(layout: Layout, cluster: Cluster = CLUSTER, training: Training = TRAINING) -> dict[str, float]:
    return {each.name: each.value for each in step_time(Run(MODEL, layout, cluster, training), Efficiency()).of}


@pytest.mark.parametrize(("recompute", "times"), [(Recompute.NONE, 3), (Recompute.FULL, 4)])
def test_keys_and_values_are_gathered_again_where_all_is_computed_again(recompute: Recompute, times: int) -> None:
    layout = Layout(context=4, data=4, recompute=recompute)
    bytes_ = 2 * 8192 * 2 * 8 * 128
    once = gather_s(bytes_, reach_of(replace(CLUSTER, gpu=replace(H100, nvlink=0.8 * 450e9)), (4, 1)))
    assert step(layout)["context-parallel collectives"] == pytest.approx(16 * 32 * times * once)


def test_a_pipeline_that_shares_gradients_scatters_each_micro_batch_and_gathers_the_weights_once() -> None:
    layout = Layout(pipeline=2, data=8, sharding=Sharding.GRADIENTS, overlap=False)
    largest = 2.0 * sum(parameters_of(MODEL, layout, fullest_stage(MODEL, layout)))
    near = reach_of(replace(CLUSTER, gpu=replace(H100, nvlink=0.8 * 450e9)), (8, 1))
    expected = (8 + 1) * gather_s(largest, near)
    assert step(layout)["data-parallel exchange that shows"] == pytest.approx(expected)


def test_an_exchange_waits_for_one_message_at_least() -> None:
    assert exchange_s(0.0, reach_of(CLUSTER, (16, 1))) == CLUSTER.latency_s


@pytest.mark.parametrize(
    ("recompute", "flash", "linear", "scores"),
    [
        (Recompute.NONE, True, 3.0, 3.5),
        (Recompute.SELECTIVE, True, 3.0, 3.5),
        (Recompute.SELECTIVE, False, 3.0, 4.0),
        (Recompute.FULL, True, 4.0, 4.5),
        (Recompute.FULL, False, 4.0, 4.0),
    ],
)
def test_what_is_computed_again_is_counted_in_forward_passes(
    recompute: Recompute, flash: bool, linear: float, scores: float
) -> None:
    assert passes(Layout(recompute=recompute), flash=flash) == (linear, scores)


@pytest.mark.parametrize(
    ("recompute", "times"), [(Recompute.NONE, 3), (Recompute.SELECTIVE, 4), (Recompute.FULL, 4)]
)
@pytest.mark.parametrize("flash", [True, False])
def test_norms_activations_and_scores_are_read_and_written_as_often_as_they_are_made(
    recompute: Recompute, times: int, flash: bool
) -> None:
    layout = Layout(tensor=2, data=8, recompute=recompute)
    whole, shared = 10 * 4096, 3 * 14336 + 4 * 4096 + (0 if flash else 5 * 32 * 8192)
    moved = 2 * times * 8192 * (whole + shared) / 2
    expected = 8 * 32 * moved / (0.8 * 3350e9)
    assert step(layout, training=replace(TRAINING, flash=flash))["memory-bound kernels"] == pytest.approx(expected)


def test_the_optimizer_reads_and_writes_its_state_and_reads_gradients() -> None:
    expected = MODEL.parameters / 16 * (2 * 12 + 4 + 2) / (0.8 * 3350e9)
    assert step(Layout(data=16))["optimizer"] == pytest.approx(expected)


def test_layers_of_uneven_stages_are_not_lost() -> None:
    """Of 31 layers in 8 stages the largest has 4, and sets the pace: as of 32."""
    layout = Layout(pipeline=8, data=2, schedule=Schedule.ONE_F_ONE_B)
    few = Run(replace(MODEL, layers=31), layout, CLUSTER, TRAINING)
    assert step_time(few, Efficiency()).of[0].value == pytest.approx(step(layout)["matmuls"], rel=1e-6)


def test_selective_recomputing_keeps_no_scores_where_they_are_written() -> None:
    eager, layout = replace(TRAINING, flash=False), Layout(data=16)
    whole, selective = (
        activation_bytes_per_layer(MODEL, replace(layout, recompute=each), eager)
        for each in (Recompute.NONE, Recompute.SELECTIVE)
    )
    assert whole - selective == 8192 * 5 * 32 * 8192


@pytest.mark.parametrize(("fp8", "width"), [(False, 2), (True, 1)])
def test_a_token_s_copies_are_kept_in_layers_with_experts_as_wide_as_matmuls_take_them(
    fp8: bool, width: int
) -> None:
    mixture = replace(MODEL, experts=Experts(64, 6, 2048, dense_layers=8))
    training, layout = replace(TRAINING, fp8=fp8), Layout(data=16, recompute=Recompute.NONE)
    as_wide = replace(MODEL, ffn=mixture.inner)
    kept = [activation_bytes_per_layer(each, layout, training) for each in (mixture, as_wide)]
    assert kept[0] - kept[1] == pytest.approx(8192 * width * 6 * 4096 * 24 / 32)


def test_the_factors_of_activations_are_those_that_are_told() -> None:
    told = {each.name: each for each in memory_of(MODEL, Layout(tensor=2, pipeline=2, data=4), TRAINING).of}
    layers, tokens, bytes_, held = re.findall(r"\d[\d.e+]*", told["activations"].formula)
    product = float(layers) * float(tokens) * float(bytes_) * float(held)
    assert product == pytest.approx(told["activations"].value, rel=1e-3)


def test_a_sampled_token_waits_for_all_weights_and_all_that_its_sequences_have_cached() -> None:
    cached = 2 * 32 * 2 * 8 * 128
    expected = 64 * 2.68e12 / (2 * MODEL.parameters + 64 * 8192 * cached)
    assert sampled_per_s(MODEL, 8192, 64, 2.68e12) == pytest.approx(expected)


def test_nothing_is_sampled_faster_than_it_is_computed() -> None:
    slow = replace(H100, bf16=1e12, fp8=0.0)
    question = Question(MODEL, Cluster(slow, 16, price=2.0), TRAINING)
    told = {each.name: each.value for each in notes_of(question, plan(question, {"tensor": 1}).options[0])}
    scored = told["price of a million tokens that the model scores"]
    assert told["price of a million tokens that the model samples"] == scored
    computed = 0.56e12 / told["FLOP of a token that the model scores"]
    assert scored == pytest.approx(2.0 / 3600 / computed * 1e6)


def test_a_replica_group_shares_its_state_among_its_own_ranks_only() -> None:
    question = Question(MODEL, Cluster(H100, 128), replace(TRAINING, batch=512))
    found = plan(question, {"tensor": 1, "pipeline": 1, "context": 1})
    best = next(each for each in found.options if each.layout.sharding is Sharding.PARAMETERS)
    (told,) = (each for each in notes_of(question, best) if each.name == "memory per GPU in 16 replica groups")
    more = MODEL.parameters * (12 + 4) * (1 / 8 - 1 / 128)
    assert told.value == pytest.approx(best.memory.value + more)
    few = replace(question, reliability=Reliability(groups=17))
    assert not [each for each in notes_of(few, best) if "replica groups" in each.name], (
        "128 ranks are not 17 groups"
    )


def test_a_job_expects_the_rates_that_are_reached_and_pays_spot_as_spot() -> None:
    small = Model("small", layers=2, hidden=512, heads=8, ffn=2048, vocab=32000)
    cluster = Cluster(H100, 64, per_node=4, nvlink_domain=8, price=3.0)
    question = Question(small, cluster, TRAINING, spot=Spot(price=1.0, interruptions=20.0))
    option = judge(Layout(data=64, sharding=Sharding.PARAMETERS, shards=8), question, 1.0)
    assert isinstance(option, Option)
    job = read_trainingjob(dict(job_of(question, plan(question, {"tensor": 1}), option, "small")))
    expects = expects_of(job.metadata.annotations)
    assert expects is not None
    assert expects.memory_rate == pytest.approx(0.8 * 3350e9)
    assert expects.nvlink_rate == pytest.approx(0.8 * 450e9)
    assert job.spec.cost is not None
    assert [each.gpu_hour for each in job.spec.cost.prices] == [1.0]
    assert job.spec.nodes.min == 2, "groups of 8 fill two nodes of 4"
