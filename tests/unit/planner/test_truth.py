"""A plan beside what was measured: what was assumed wrong, by how much, and what the plan becomes."""

from collections.abc import Mapping

import pytest
from msgspec.structs import replace
from test_plans import H100, LLAMA_8B, TRAINING

from holdfast.api.fleet import FleetReport, Rate
from holdfast.api.planned import expects_of
from holdfast.api.trainingjob import read_trainingjob
from holdfast.planner.cluster import Cluster
from holdfast.planner.fleetrate import Failures, failures_of
from holdfast.planner.gpu import GPUS
from holdfast.planner.jobfile import job_of
from holdfast.planner.layout import Layout, Recompute, Sharding
from holdfast.planner.plan import Question, plan
from holdfast.planner.run import Run
from holdfast.planner.step import step_time
from holdfast.planner.truth import Compared, Truth, best_now, compare, with_measured

QUESTION = Question(LLAMA_8B, Cluster(H100, 64), TRAINING)
LAYOUT = Layout(tensor=2, data=32, sharding=Sharding.PARAMETERS, recompute=Recompute.FULL)


def told(truth: Truth, question: Question = QUESTION) -> Mapping[str, Compared]:
    return {each.name: each for each in compare(question, LAYOUT, truth)}


def step_s(question: Question) -> float:
    return step_time(Run(question.model, LAYOUT, question.cluster, question.training), question.reached).value


def test_nothing_measured_is_nothing_to_compare() -> None:
    assert compare(QUESTION, LAYOUT, Truth()) == ()


def test_a_slower_nvlink_is_told_with_the_step_it_leads_to() -> None:
    found = told(Truth(nvlink=180e9))["NVLink's rate"]
    assert found.assumed == pytest.approx(360e9)
    assert found.off == pytest.approx(-0.5)
    assert (found.is_wrong, found.is_worse) == (True, True)
    slower = replace(QUESTION, reached=replace(QUESTION.reached, links=0.4))
    assert f"a step takes {step_s(slower):.3g} s in place of {step_s(QUESTION):.3g} s" in found.becomes
    assert "all tokens" in found.becomes


def test_what_is_within_noise_is_as_assumed_and_what_is_better_is_no_trouble() -> None:
    assert not told(Truth(memory_rate=0.97 * 0.8 * 3350e9))["GPU memory's rate"].is_wrong
    better = told(Truth(memory_rate=3350e9))["GPU memory's rate"]
    assert (better.is_wrong, better.is_worse) == (True, False)


def test_a_test_by_tcp_refutes_no_rdma_and_says_so() -> None:
    slow = told(Truth(tcp=3e9))["network of a node"]
    assert slow.is_worse
    assert "what RDMA reaches a test by TCP does not see" in slow.becomes
    assert not told(Truth(tcp=1e12))["network of a node"].is_wrong


def test_failures_are_wrong_only_where_chance_does_not_explain_them() -> None:
    name = "failures for 1,000 node-days"
    assert not told(Truth(failures=Failures(9.0, 2.0, 16.0)))[name].is_wrong
    more = told(Truth(failures=Failures(90.0, 70.0, 110.0)))[name]
    assert (more.is_wrong, more.is_worse) == (True, True)
    assert "spares in place of" in more.becomes
    fewer = told(Truth(failures=Failures(0.1, 0.0, 1.0)))[name]
    assert (fewer.is_wrong, fewer.is_worse) == (True, False)


def test_a_fleet_s_rates_are_those_of_its_nodes_with_the_kinds_that_there_are_most_of() -> None:
    kinds = tuple(
        Rate(name, count, 1e5, count / 100) for name, count in (("Hang", 2), ("NodeLost", 7), ("Xid", 0))
    )
    report = FleetReport(1.0, all=Rate("all", 9, 1e5, 0.09, 0.04, 0.17), tables={"kind": kinds})
    found = failures_of(report, 8)
    assert found is not None
    assert (found.rate, found.low) == (pytest.approx(0.09 * 192), pytest.approx(0.04 * 192))
    assert [kind for kind, _ in found.kinds] == ["NodeLost", "Hang"], "none of which there was none"
    assert "most NodeLost 13.4, Hang 3.84" in told(Truth(failures=found))["failures for 1,000 node-days"].becomes
    of_four = failures_of(report, 4)
    assert of_four is not None
    assert of_four.rate == pytest.approx(0.09 * 96), "a node of four GPUs fails half as often"
    assert failures_of(FleetReport(1.0), 8) is None
    assert failures_of(FleetReport(1.0, all=Rate("all", 0, 0.0)), 8) is None


def test_a_step_that_takes_longer_is_explained_by_the_rate_its_matmuls_reach() -> None:
    slower = replace(QUESTION, reached=replace(QUESTION.reached, matmul=0.4))
    truth = Truth(step_s=step_s(slower))
    found = told(truth)
    assert found["step time"].is_worse
    assert found["MFU"].is_worse
    assert found["MFU"].measured == pytest.approx(found["MFU"].assumed * step_s(QUESTION) / step_s(slower))
    assert found["share of the GPU's rate that matmuls reach"].measured == pytest.approx(0.4, rel=1e-3)
    assert step_s(with_measured(QUESTION, LAYOUT, truth)) == pytest.approx(truth.step_s, rel=1e-6)


def test_what_the_links_explain_is_not_blamed_on_matmuls() -> None:
    slower = replace(QUESTION, reached=replace(QUESTION.reached, links=0.2))
    found = told(Truth(step_s=step_s(slower), nvlink=0.2 * 450e9))
    assert found["NVLink's rate"].is_worse
    assert found["step time"].is_worse
    assert not found["share of the GPU's rate that matmuls reach"].is_wrong


@pytest.mark.parametrize("step", [1e-9, 1e9])
def test_a_step_that_no_matmul_explains_is_told_as_that(step: float) -> None:
    found = told(Truth(step_s=step))["share of the GPU's rate that matmuls reach"]
    assert "matmuls alone do not explain" in found.becomes


def test_what_checkpoints_cost_and_what_the_time_came_to() -> None:
    found = told(Truth(save_s=20.0, effective=0.8, memory=79e9))
    assert found["stall of a checkpoint"].is_worse
    assert found["effective share of time"].is_worse
    assert found["memory of a GPU"].is_worse
    assert "1 GB of the GPU are left" in found["memory of a GPU"].becomes
    # An H100 of 80 GB has 81,559 MiB, as its driver tells.
    full = told(Truth(memory=83e9))["memory of a GPU"]
    assert "more than the 80 GB of its data sheet" in full.becomes


@pytest.mark.parametrize(
    ("truth", "name", "assumed", "becomes"),
    [
        pytest.param(
            Truth(host=12.5e9), "rate to host memory", 25e9, "copied there in 141 ms in place of 70", id="host"
        ),
        pytest.param(
            Truth(written_s=60.0), "time until a checkpoint is written", 11.2, "a checkpoint every", id="storage"
        ),
        pytest.param(Truth(restart_s=900.0), "restart after a failure", 60.0, "of the time trains", id="restart"),
        pytest.param(Truth(save_s=20.0), "stall of a checkpoint", 1.0, "of the time trains", id="stall"),
    ],
)
def test_each_assumption_that_is_wrong_is_the_one_that_is_named(
    truth: Truth, name: str, assumed: float, becomes: str
) -> None:
    often = replace(QUESTION.reliability, rate=3000.0, save_s=1.0)
    question = replace(QUESTION, cluster=replace(QUESTION.cluster, storage=1e10), reliability=often)
    (found,) = told(truth, question).values()
    assert found.name == name
    assert found.assumed == pytest.approx(assumed, rel=0.01)
    assert (found.is_wrong, found.is_worse) == (True, True)
    assert becomes in found.becomes
    (again,) = told(truth, with_measured(question, LAYOUT, truth)).values()
    assert not again.is_wrong, "what was measured is what is assumed now"


def test_a_neighbour_in_a_mesh_is_reached_by_one_link_of_all() -> None:
    mesh = replace(QUESTION, cluster=Cluster(GPUS["MI300X-192GB"], 64))
    found = told(Truth(nvlink=0.8 * 448e9 / 7), mesh)["NVLink's rate"]
    assert not found.is_wrong
    assert with_measured(mesh, LAYOUT, Truth(nvlink=32e9)).reached.links == pytest.approx(0.5)
    planned = plan(mesh)
    job = read_trainingjob(dict(job_of(mesh, planned, planned.options[0], "mesh")))
    expects = expects_of(job.metadata.annotations)
    assert expects is not None
    assert expects.nvlink_rate == pytest.approx(0.8 * 64e9)


def test_another_layout_is_named_where_it_is_now_better() -> None:
    assert "would take" in best_now(QUESTION, Layout(tensor=8, data=8, recompute=Recompute.FULL))
    best = Layout(data=64, sharding=Sharding.PARAMETERS, recompute=Recompute.NONE)
    assert "still" in best_now(QUESTION, best)
    tiny = replace(QUESTION, cluster=Cluster(replace(H100, memory=1e9), 64))
    assert best_now(tiny, best) == "no layout fits"
