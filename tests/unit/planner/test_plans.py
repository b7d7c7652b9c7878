import math
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace
from published_runs import A100, BLOOM, H100, LLAMA3, PUBLISHED, gpt

from holdfast.api.errors import InvalidInput
from holdfast.api.trainingjob import read_trainingjob
from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.collective import exchange_s, gather_s, reduce_s
from holdfast.planner.jobfile import job_of
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training, misfits
from holdfast.planner.memory import (
    activation_bytes_per_layer,
    in_flight,
    memory_of,
)
from holdfast.planner.model import Model
from holdfast.planner.plan import Option, Question, plan, reasons
from holdfast.planner.questionfile import question_of, read_sections
from holdfast.planner.run import Efficiency, Run, with_links
from holdfast.planner.stage import stages_of
from holdfast.planner.step import step_time

LLAMA_8B = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
TRAINING = Training(sequence=8192, batch=512, tokens=1e12)
QUESTION = Question(LLAMA_8B, Cluster(H100, 64, price=2.0), TRAINING)


def test_what_bloom_planned_first_is_refused_for_its_nvlink_domain() -> None:
    (bloom,) = (each for each in PUBLISHED if each.source == BLOOM)
    wide = replace(bloom.run.layout, tensor=8, pipeline=6)
    (misfit,) = misfits(wide, bloom.run.model, bloom.run.cluster, bloom.run.training)
    assert misfit.because == "NVLink domain"
    assert "tensor parallelism of 8 leaves the NVLink domain of 4 GPUs" in misfit.says


def test_options_are_sorted_by_speed_and_cost_what_their_gpus_cost() -> None:
    found = plan(QUESTION)
    rates = [each.tokens_per_s for each in found.options]
    assert rates == sorted(rates, reverse=True)
    for each in found.options:
        assert each.days is not None
        assert each.money == pytest.approx(each.days * 24 * (64 + 8) * 2.0), "a spare node is paid too"
        assert each.days * 86400 * each.tokens_per_s * found.effective.value == pytest.approx(1e12)
        assert each.memory.value <= H100.memory
        assert each.layout.gpus == 64


def test_every_rejected_layout_says_why_and_the_reasons_count_them() -> None:
    found = plan(QUESTION)
    assert sum(each.count for each in reasons(found.rejected)) == len(found.rejected) > 0
    for each in found.rejected:
        if each.misfit.because == "memory":
            assert memory_of(LLAMA_8B, each.layout, TRAINING).value > 0.9 * H100.memory


def test_pinned_degrees_are_those_of_every_layout() -> None:
    found = plan(QUESTION, {"tensor": 2, "pipeline": 4})
    judged = [each.layout for each in (*found.options, *found.rejected)]
    assert {(each.tensor, each.pipeline) for each in judged} == {(2, 4)}
    with pytest.raises(InvalidInput, match=r"layout.*tensor.*7"):
        plan(QUESTION, {"tensor": 7})


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"tensor": 64, "data": 1}, "NVLink domain"),
        ({"data": 2}, "GPUs"),
        ({"pipeline": 64, "data": 1}, "layers"),
        ({"context": 3, "data": 21}, "GPUs"),
        ({"expert": 8}, "experts"),
        ({"micro_batch": 3}, "batch"),
        ({"pipeline": 2, "data": 32, "sharding": Sharding.PARAMETERS}, "sharding"),
        (
            {"pipeline": 16, "data": 4, "micro_batch": 16, "schedule": Schedule.INTERLEAVED},
            "schedule",
        ),
    ],
)
def test_a_layout_that_cannot_be_is_refused(changed: dict[str, object], because: str) -> None:
    layout = replace(Layout(data=64), **changed)
    assert because in [each.because for each in misfits(layout, LLAMA_8B, QUESTION.cluster, TRAINING)]


def test_each_part_of_a_figure_is_told_with_its_formula_and_they_sum_to_it() -> None:
    (best, *_) = plan(QUESTION).options
    for figure in (best.step, best.memory):
        assert sum(each.value for each in figure.of) == pytest.approx(figure.value)
        assert all(each.formula for each in figure.of)
        assert all(each.value >= 0 for each in figure.of)
        assert len(list(figure.lines())) > len(figure.of)


def run_of(layout: Layout, training: Training = TRAINING, *, gpus: int = 64) -> Run:
    return Run(LLAMA_8B, layout, Cluster(H100, gpus), training)


def part(run: Run, name: str) -> float:
    (found,) = (each.value for each in step_time(run, Efficiency()).of if each.name == name)
    return found


def test_the_bubble_is_stages_less_one_over_micro_batches() -> None:
    layout = Layout(pipeline=4, data=16, micro_batch=1)  # 32 micro-batches
    for schedule, chunks, share in (
        (Schedule.ONE_F_ONE_B, 1, 3 / 32),
        (Schedule.INTERLEAVED, 2, 3 / 64),
        (Schedule.ZERO_BUBBLE, 1, 1 / 32),
    ):
        one = run_of(replace(layout, schedule=schedule, chunks=chunks))
        busy = sum(part(one, name) for name in ("matmuls", "memory-bound kernels"))
        assert part(one, "pipeline bubble") == pytest.approx(share * busy)


def test_fsdp_moves_three_times_the_parameters_and_hides_them_behind_enough_tokens() -> None:
    small, large = Training(sequence=512, batch=64), Training(sequence=8192, batch=512)
    layout = Layout(data=64, sharding=Sharding.PARAMETERS, micro_batch=1)
    shows = "data-parallel exchange that shows"
    slow = Cluster(H100, 64, network=12.5e9)
    assert part(Run(LLAMA_8B, layout, slow, small), shows) > 0
    assert part(Run(LLAMA_8B, layout, slow, large), shows) == 0
    reach = reach_of(slow, (64, 1))
    moved = 3 * gather_s(2.0 * LLAMA_8B.parameters, reach)
    bare = replace(layout, overlap=False)
    assert part(Run(LLAMA_8B, bare, slow, small), shows) == pytest.approx(moved, rel=0.01)


def test_groups_that_share_parameters_gather_near_and_reduce_far() -> None:
    slow, small = Cluster(H100, 64, network=2e9), Training(sequence=512, batch=64)
    whole = Layout(data=64, sharding=Sharding.PARAMETERS, micro_batch=1, overlap=False)
    near = replace(whole, shards=8)
    shows = "data-parallel exchange that shows"
    bytes_ = 2.0 * LLAMA_8B.parameters
    joined = with_links(slow, Efficiency())
    expected = 3 * gather_s(bytes_, reach_of(joined, (8, 1))) + reduce_s(bytes_ / 8, reach_of(slow, (8, 8)))
    assert part(Run(LLAMA_8B, near, slow, small), shows) == pytest.approx(expected, rel=0.01)
    assert part(Run(LLAMA_8B, near, slow, small), shows) < part(Run(LLAMA_8B, whole, slow, small), shows)
    kept = [memory_of(LLAMA_8B, each, small).of[2].value for each in (whole, near)]
    assert kept[1] == pytest.approx(8 * kept[0])
    found = plan(Question(LLAMA_8B, slow, TRAINING), {"tensor": 1, "pipeline": 1, "context": 1})
    assert "FSDP in groups of 8" in str(found.options[0].layout)
    assert [each.because for each in misfits(replace(near, shards=7), LLAMA_8B, slow, small)] == ["sharding"]


def test_recomputing_takes_a_third_more_and_keeps_less() -> None:
    none, full = (Layout(data=64, recompute=each) for each in (Recompute.NONE, Recompute.FULL))
    more = part(run_of(full), "matmuls") / part(run_of(none), "matmuls")
    assert 1.2 < more < 4 / 3
    kept = [memory_of(LLAMA_8B, each, TRAINING).of[3].value for each in (none, full)]
    assert kept[1] < kept[0] / 10


def test_no_stage_keeps_more_micro_batches_than_there_are() -> None:
    few = Training(sequence=8192, batch=64)
    layout = replace(Layout(pipeline=8, data=8), schedule=Schedule.INTERLEAVED, chunks=2)
    assert in_flight(layout, few) == 8
    assert in_flight(layout, TRAINING, before=7) == pytest.approx((8 + 1) / 2)
    assert [in_flight(Layout(pipeline=8, data=8), TRAINING, before) for before in (0, 1, 7)] == [8, 7, 1]


def test_selective_recomputing_keeps_no_norms_and_no_activations() -> None:
    h, ffn, kv = LLAMA_8B.hidden, LLAMA_8B.ffn, LLAMA_8B.hidden // 4
    token = Training(sequence=1, batch=64)
    # Queries and attention's output, keys and values, gate, up and their product; inputs and outputs of norms.
    whole = 2 * (2 * h + 2 * kv) + 6 * ffn + 8 * h
    assert activation_bytes_per_layer(LLAMA_8B, Layout(data=64, recompute=Recompute.NONE), token) == whole
    selective = Layout(data=64, recompute=Recompute.SELECTIVE)
    assert activation_bytes_per_layer(LLAMA_8B, selective, token) == whole - 2 * ffn - 4 * h
    # Source: https://arxiv.org/abs/2205.05198 (34 bytes of a GPT's layer, whose width is 4 h)
    plain = gpt("GPT", 2, 1024, 16)
    assert activation_bytes_per_layer(plain, Layout(data=64, recompute=Recompute.NONE), token) == 34 * 1024


def test_what_fits_is_not_judged_again_with_more_recomputing() -> None:
    found = plan(QUESTION)
    fits = [replace(each.layout, recompute=Recompute.NONE) for each in found.options]
    assert len(set(fits)) == len(fits)


def test_a_pipeline_that_holds_too_much_shares_its_gradients_out() -> None:
    (llama, *_) = (each.run for each in PUBLISHED if each.source == LLAMA3)
    small = replace(llama.cluster, gpu=replace(H100, memory=76e9))
    question = Question(llama.model, small, llama.training)
    found = plan(question, {"tensor": 8, "pipeline": 16, "context": 1, "micro_batch": 1})
    of_eight = [each.layout for each in found.options if each.layout.chunks == 8]
    shared = replace(llama.layout, overlap_tensor=False)
    computed_again = replace(shared, sharding=Sharding.OPTIMIZER, recompute=Recompute.FULL)
    assert of_eight == [shared, computed_again], "which is faster is found by judging both"


def test_embedding_and_head_count_as_a_layer_where_that_gives_whole_stages() -> None:
    (llama, *_) = (each.run for each in PUBLISHED if each.source == LLAMA3)
    assert [each.layers for each in stages_of(llama.model, llama.layout)] == [7, 8, 7]
    (bloom,) = (each.run for each in PUBLISHED if each.source == BLOOM)
    assert [each.layers for each in stages_of(bloom.model, bloom.layout)] == [5, 6, 5]


@pytest.mark.parametrize(
    ("layers", "pipeline", "found"),
    [
        pytest.param(126, 9, [14, 14], id="even"),
        pytest.param(126, 8, [15, 16, 15], id="more between"),
        pytest.param(31, 8, [4, 4], id="too many more"),
        pytest.param(5, 2, [3, 3], id="no stage between"),
    ],
)
def test_layers_that_do_not_go_up_in_stages_make_some_larger(layers: int, pipeline: int, found: list[int]) -> None:
    model = replace(LLAMA_8B, layers=layers)
    assert [each.layers for each in stages_of(model, Layout(pipeline=pipeline))] == found


def test_interleaving_keeps_more_micro_batches_than_there_are_stages() -> None:
    layout = Layout(pipeline=8, data=8)
    assert in_flight(layout, TRAINING) == 8
    interleaved = replace(layout, schedule=Schedule.INTERLEAVED, chunks=2)
    assert in_flight(interleaved, TRAINING) == pytest.approx(8 * (1 + 7 / 16))


def test_a_ring_enters_each_node_once_by_all_its_ports() -> None:
    cluster = Cluster(H100, 64, network=50e9)
    assert reach_of(cluster, (8, 1)).rate == H100.nvlink
    assert reach_of(cluster, (64, 1)).rate == pytest.approx(8 * 50e9)
    assert reach_of(cluster, (8, 8)).rate == 50e9
    assert gather_s(1e9, reach_of(cluster, (1, 1))) == 0.0
    assert reduce_s(8e9, reach_of(cluster, (8, 8))) == pytest.approx(2 * 7 / 8 * 8e9 / 50e9, rel=0.01)
    assert exchange_s(8e9, reach_of(cluster, (64, 1))) == pytest.approx(8e9 * 56 / 64 / 50e9, rel=0.01)


def test_the_job_of_a_plan_is_one_that_is_accepted() -> None:
    found = plan(QUESTION, {"context": 2})
    job = read_trainingjob(dict(job_of(QUESTION, found, found.options[0], "gpt")))
    assert (job.spec.nodes.max, job.spec.processes_per_node) == (8, 8)
    layout = found.options[0].layout
    assert job.spec.parallelism.model_ranks == layout.tensor * 2 * layout.pipeline
    assert (job.spec.parallelism.tensor, job.spec.parallelism.context) == (layout.tensor, 2)
    assert job.spec.nodes.spares == found.spares.value
    thirds = Question(replace(LLAMA_8B, layers=30), Cluster(H100, 48), replace(TRAINING, batch=480))
    found = plan(thirds, {"tensor": 4, "pipeline": 3, "context": 1})
    least = read_trainingjob(dict(job_of(thirds, found, found.options[0], "gpt"))).spec.nodes.min
    assert least * 8 % (4 * 3) == 0, "12 ranks of a model fill 3 nodes of 8"


def test_a_job_shrinks_to_no_fewer_nodes_than_its_state_fits_in() -> None:
    large = Model("70B", layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
    question = Question(large, Cluster(H100, 512), Training(sequence=8192, batch=1024))
    found = plan(question, {"tensor": 1, "pipeline": 1, "context": 8})
    best = found.options[0]
    assert best.layout.sharding is Sharding.PARAMETERS
    least = read_trainingjob(dict(job_of(question, found, best, "gpt"))).spec.nodes.min
    held = [
        memory_of(large, replace(best.layout, data=nodes * 8 // 8), question.training).value / H100.memory
        for nodes in (least - 1, least)
    ]
    assert held[0] > 0.94 >= held[1]
    assert 1 < least < 64


def test_the_job_of_a_toy_has_its_flop_too() -> None:
    toy = Model("toy", layers=1, hidden=2, heads=1, ffn=2, vocab=2)
    question = Question(toy, Cluster(H100, 8), Training(sequence=128, batch=8))
    found = plan(question)
    told = read_trainingjob(dict(job_of(question, found, found.options[0], "toy"))).spec.utilization
    assert told is not None
    assert told.gigaflops_per_token * 1e9 == pytest.approx(toy.flops_per_token(128), rel=1e-5)


def test_a_job_s_annotation_names_no_file_to_be_read(tmp_path: Path) -> None:
    secret, job = tmp_path / "secret.json", tmp_path / "job.yaml"
    secret.write_text("{}")
    plan_text = yaml.safe_dump({"model": {"config": str(secret)}})
    job.write_text(
        yaml.safe_dump({"kind": "TrainingJob", "metadata": {"annotations": {"holdfast.dev/plan": plan_text}}})
    )
    with pytest.raises(InvalidInput, match=r"model\.config"):
        read_sections(job)


def test_a_question_is_read_from_yaml_with_numbers_as_people_write_them(tmp_path: Path) -> None:
    file = tmp_path / "question.yaml"
    file.write_text(
        "model: {layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}\n"
        "cluster: {gpu: h100, gpus: 64, network: 50e9}\n"
        "training: {sequence: 8192, batch: 512, tokens: 1e12}\n"
    )
    question = question_of(read_sections(file), tmp_path)
    assert question.training == replace(TRAINING)
    assert question.cluster.gpu is H100
    own = {"gpu": {"name": "own", "bf16": 1e15, "memory": 1e11, "memory_rate": 3e12, "nvlink": 0}, "gpus": 8}
    assert question_of({**read_sections(file), "cluster": own}, tmp_path).cluster.gpu.balance == pytest.approx(
        333, abs=1
    )


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("model: [1]", "model"),
        ("modell: {}", "modell"),
        ("3", "FILE"),
        ("a: {b", "FILE"),
        ("cluster: {gpu: V100}", "cluster.gpu"),
        ("cluster: {gpus: 8}", "cluster.gpu"),
        ("cluster: {gpu: A100-80GB, gpus: eight}", "cluster.gpus"),
        ("cluster: {gpu: A100-80GB, gpus: 12}", "cluster.gpus"),
        ("cluster: {gpu: A100-80GB, gpus: 8, colour: red}", "cluster"),
        ("training: {sequence: 8}", "training"),
        ("model: {config: x.json, layers: 3}", "model"),
        ("reached: {matmul: 56}", "reached.matmul"),
        ("training: {sequence: 128, batch: 8, fp8: true}", "training.fp8"),
        ("training: {sequence: 2024-13-45, batch: 8}", "FILE"),
        ("training: {sequence: !!bool soon, batch: 8}", "FILE"),
        ("training: {sequence: !!timestamp soon, batch: 8}", "FILE"),
    ],
)
def test_a_question_that_is_wrong_is_refused_by_its_field(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "question.yaml"
    whole = {
        "model": "model: {layers: 2, hidden: 64, heads: 4, ffn: 256, vocab: 1000}",
        "cluster": "cluster: {gpu: A100-80GB, gpus: 8}",
        "training": "training: {sequence: 128, batch: 8}",
    }
    given = {**whole, text.partition(":")[0]: text}
    file.write_text("\n".join(given.values()) if ":" in text else text)
    with pytest.raises(InvalidInput) as refused:
        question_of(read_sections(file), tmp_path)
    assert refused.value.problems[0].field.startswith(field)


@pytest.mark.parametrize(
    ("cluster", "says"),
    [
        ("{gpu: H100, gpus: eight}", r"cluster\.gpus: 'eight' .*expected `int`"),
        ("{gpu: H100, gpus: 8, colour: red}", r"cluster\.colour: 'red' .*give one of gpu, gpus, per_node"),
        ("{gpu: H100}", r"cluster\.gpus: None .*missing"),
        ("{gpu: {name: own, bf16: fast}, gpus: 8}", r"cluster\.gpu\.bf16: 'fast' .*expected `float`"),
        ("{gpu: {name: own, speed: 3}, gpus: 8}", r"cluster\.gpu\.speed: 3 .*known there"),
    ],
)
def test_a_value_that_is_wrong_is_told_alone(tmp_path: Path, cluster: str, says: str) -> None:
    file = tmp_path / "question.yaml"
    file.write_text(
        "model: {layers: 2, hidden: 64, heads: 4, ffn: 256, vocab: 1000}\ntraining: {sequence: 128, batch: 8}\n"
        f"cluster: {cluster}\n"
    )
    with pytest.raises(InvalidInput, match=says):
        question_of(read_sections(file), tmp_path)


@pytest.mark.parametrize(("tokens", "fix"), [(1e40, "at most 1e"), (-1.0, "at least 0"), (math.nan, "at least 0")])
def test_a_number_beyond_its_bounds_is_told_which(tokens: float, fix: str) -> None:
    with pytest.raises(InvalidInput, match=rf"training.tokens.*{fix}"):
        replace(TRAINING, tokens=tokens)


def test_in_fp8_matmuls_reach_less_of_the_rate_unless_the_question_says_otherwise() -> None:
    given: dict[str, dict[str, object]] = {
        "model": {"layers": 2, "hidden": 64, "heads": 4, "ffn": 256, "vocab": 1000},
        "cluster": {"gpu": "H100", "gpus": 8},
        "training": {"sequence": 128, "batch": 8, "fp8": True},
    }
    assert question_of(given, Path()).reached == Efficiency(matmul=0.46)
    assert question_of({**given, "reached": {"matmul": 0.5}}, Path()).reached.matmul == 0.5
    assert question_of({**given, "reached": {"links": 0.7}}, Path()).reached == Efficiency(matmul=0.46, links=0.7)
    given["training"]["fp8"] = False
    assert question_of(given, Path()).reached == Efficiency()


def test_numbers_inside_a_section_are_read_as_people_write_them_too() -> None:
    given = yaml.safe_load(
        "model: {layers: 2, hidden: 64, heads: 4, ffn: 256, vocab: 1e3}\n"
        "cluster: {gpu: {name: own, bf16: 1e15, memory: 8e10, memory_rate: 3e12, nvlink: 4e11}, gpus: 8}\n"
        "training: {sequence: 128, batch: 8}\n"
    )
    question = question_of(given, Path())
    assert (question.cluster.gpu.bf16, question.model.vocab) == (1e15, 1000)


def test_the_machine_balance_is_that_of_the_data_sheet() -> None:
    assert H100.balance == pytest.approx(295, abs=1)
    assert A100.balance == pytest.approx(153, abs=1)


def test_no_layout_is_an_answer_too() -> None:
    huge = Question(gpt("huge", 128, 25600, 160), Cluster(A100, 8), Training(sequence=2048, batch=8))
    found = plan(huge)
    assert found.options == ()
    assert {each.because for each in reasons(found.rejected)} >= {"memory"}
    assert not any(isinstance(each, Option) for each in found.rejected)
