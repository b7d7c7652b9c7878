"""Low-rank adapters beside a frozen model: what has no gradient takes neither FLOP, memory nor exchange for it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.api.errors import InvalidInput
from holdfast.api.trainingjob import read_trainingjob
from holdfast.planner.batch import fsdp_tokens
from holdfast.planner.checkpoint import checkpoint_bytes
from holdfast.planner.cluster import Cluster, reach_of
from holdfast.planner.collective import gather_s
from holdfast.planner.gpu import GPUS
from holdfast.planner.jobfile import job_of
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training, misfits
from holdfast.planner.memory import memory_of
from holdfast.planner.model import Experts, Model
from holdfast.planner.notes import notes_of
from holdfast.planner.outcome import outcome_of
from holdfast.planner.plan import Question, plan
from holdfast.planner.quantity import Quantity
from holdfast.planner.questionfile import question_of
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.step import hardware_flops_utilization, model_flops_utilization, step_time

H100 = GPUS["H100-80GB"]
WHOLE = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
ADAPTED = replace(WHOLE, adapter_rank=16)
CLUSTER, TRAINING = Cluster(H100, 8), Training(sequence=4096, batch=64, tokens=1e9)
LAYOUT = Layout(data=8, recompute=Recompute.NONE)
TRAINED = 41_943_040
"""As PEFT counts them of Llama 3 8B, of rank 16 beside all seven matrices: r (in + out) each.

Source: https://arxiv.org/abs/2106.09685 (section 4.1)
"""


def parts(quantity: Quantity) -> dict[str, float]:
    return {each.name: each.value for each in quantity.of}


def step(model: Model, layout: Layout = LAYOUT, cluster: Cluster = CLUSTER) -> dict[str, float]:
    return parts(step_time(Run(model, layout, cluster, TRAINING), Efficiency()))


def test_the_adapters_of_a_model_are_as_many_as_others_count() -> None:
    assert ADAPTED.trained_parameters == TRAINED
    assert WHOLE.trained_parameters == WHOLE.parameters
    assert ADAPTED.parameters == WHOLE.parameters


def test_a_token_takes_four_flop_of_a_frozen_parameter_and_six_of_an_adapter() -> None:
    attention = WHOLE.flops_per_token(4096) - 6 * WHOLE.matmul_parameters
    assert ADAPTED.flops_per_token(4096) == 4 * WHOLE.matmul_parameters + 6 * TRAINED + attention
    scores = 3.5 * 2 * 4096 * WHOLE.hidden * 32 * 4096 * 8 / (0.5 * H100.bf16)
    linear = step(WHOLE)["matmuls"] - scores
    adapters = 8 * 4096 * 6 * TRAINED / (0.56 * H100.bf16)
    assert step(ADAPTED)["matmuls"] - scores == pytest.approx(linear * 2 / 3 + adapters)
    run = Run(ADAPTED, replace(LAYOUT, recompute=Recompute.FULL), CLUSTER, TRAINING)
    assert hardware_flops_utilization(run, 1.0) == pytest.approx(model_flops_utilization(run, 1.0) * 3 / 2)


@pytest.mark.parametrize("sharding", [Sharding.OPTIMIZER, Sharding.PARAMETERS])
def test_only_adapters_have_gradients_and_state(sharding: Sharding) -> None:
    layout = replace(LAYOUT, sharding=sharding)
    held = parts(memory_of(ADAPTED, layout, TRAINING))
    assert held["optimizer state"] == pytest.approx(12 * TRAINED / 8)
    assert held["gradients"] == pytest.approx(4 * TRAINED / (8 if sharding is Sharding.PARAMETERS else 1))
    whole = parts(memory_of(WHOLE, layout, TRAINING))
    frozen = 2 * WHOLE.parameters / 8 if sharding is Sharding.PARAMETERS else 0.0
    assert held["weights"] == pytest.approx(whole["weights"] + frozen), "nobody has them in 32 bits"
    assert held["activations"] == whole["activations"]
    assert checkpoint_bytes(ADAPTED, TRAINING) == 14 * TRAINED


def test_fsdp_gathers_what_is_frozen_and_scatters_no_gradient_of_it() -> None:
    bare = Layout(data=64, sharding=Sharding.PARAMETERS, micro_batch=1, overlap=False)
    slow = Cluster(H100, 64, network=1e9)
    reach = reach_of(slow, (64, 1))
    moved = 2 * gather_s(2.0 * WHOLE.parameters, reach) + gather_s(2.0 * TRAINED, reach)
    assert step(ADAPTED, bare, slow)["data-parallel exchange that shows"] == pytest.approx(moved, rel=0.01)
    assert fsdp_tokens(1e15, 4e11, 8, passes=2) == fsdp_tokens(1e15, 4e11, 8)
    assert fsdp_tokens(1e15, 4e11, 8, Recompute.FULL, 2) == pytest.approx(fsdp_tokens(1e15, 4e11, 8) * 2 / 3)


def test_a_whole_plan_of_adapters_fits_where_the_model_alone_does_not_and_says_how() -> None:
    one = Question(ADAPTED, Cluster(H100, 1, price=2.0), TRAINING)
    found = plan(one)
    assert not plan(replace(one, model=WHOLE)).options
    told = {
        each.name: each for each in (*outcome_of(one, found, found.options[0]), *notes_of(one, found.options[0]))
    }
    (flops,) = told["MFU"].of
    assert [each.formula.partition(" of")[0] for each in flops.of[:2]] == ["4 x 7.505e+09", "6 x 4.194e+07"]
    assert flops.value == sum(each.value for each in flops.of) == ADAPTED.flops_per_token(4096)
    scored = told["FLOP of a token that the model scores"].value
    assert scored == pytest.approx(WHOLE.flops_per_token(4096, causal=True) / 3)
    assert "batch that trains best" not in told, "that is of models that are trained whole"
    job = read_trainingjob(dict(job_of(one, found, found.options[0], "adapted")))
    assert job.spec.utilization is not None
    assert job.spec.utilization.gigaflops_per_token * 1e9 == pytest.approx(ADAPTED.flops_per_token(4096), rel=1e-5)


def test_zero_bubble_has_nothing_to_fill_its_gaps_with() -> None:
    layout = Layout(pipeline=2, data=4, schedule=Schedule.ZERO_BUBBLE)
    assert [each.because for each in misfits(layout, ADAPTED, CLUSTER, TRAINING)] == ["schedule"]
    assert not [*misfits(layout, WHOLE, CLUSTER, TRAINING)]


def test_adapters_stand_beside_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "num_hidden_layers": 2, '
        '"vocab_size": 1000, "model_type": "llama"}'
    )
    sections: dict[str, dict[str, object]] = {
        "model": {"config": "config.json", "adapter_rank": 8},
        "cluster": {"gpu": "H100", "gpus": 8},
        "training": {"sequence": 128, "batch": 8},
    }
    assert question_of(sections, tmp_path).model.trained_parameters == 2 * 8 * (8 * 64 + 3 * (64 + 256))
    sections["model"]["adapter_rank"] = -1
    with pytest.raises(InvalidInput, match="adapter_rank"):
        question_of(sections, tmp_path)


def test_adapters_of_experts_are_refused() -> None:
    with pytest.raises(InvalidInput, match="adapters of experts"):
        replace(ADAPTED, experts=Experts(8, 2, 512))
