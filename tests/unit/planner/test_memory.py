"""What a GPU holds, part by part, beside what the parts come to by hand."""

import pytest
from msgspec.structs import replace

from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.memory import activation_bytes_per_layer, in_flight, layer_at_hand, memory_of
from holdfast.planner.model import Model

LLAMA_8B = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
TRAINING = Training(sequence=8192, batch=512)
LAYER = 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096
EMBEDDING = 128256 * 4096
H, FFN, TOKENS = 4096, 14336, 8192


def parts(layout: Layout, training: Training = TRAINING, model: Model = LLAMA_8B) -> dict[str, float]:
    return {each.name: each.value for each in memory_of(model, layout, training).of}


def test_fsdp_shares_16_bytes_a_parameter_and_has_two_layers_and_both_embeddings_at_hand() -> None:
    held = parts(Layout(data=64, sharding=Sharding.PARAMETERS))
    count = 32 * LAYER + 2 * EMBEDDING
    assert held["optimizer state"] == pytest.approx(12 * count / 64)
    assert held["weights"] == pytest.approx(2 * (2 * LAYER + 2 * EMBEDDING))
    # 4 bytes of each that are kept, and of a layer 2 as they come and 4 as they are scattered.
    assert held["gradients"] == pytest.approx(4 * count / 64 + 6 * LAYER)


def test_replicas_that_share_the_optimizer_only_have_all_weights_and_gradients() -> None:
    held = parts(Layout(data=64, sharding=Sharding.OPTIMIZER))
    count = 32 * LAYER + 2 * EMBEDDING
    assert (held["weights"], held["gradients"]) == (pytest.approx(2 * count), pytest.approx(4 * count))
    assert held["optimizer state"] == pytest.approx(12 * count / 64)


def test_the_layer_at_hand_has_gathered_inputs_and_gradients_besides() -> None:
    alone = Layout(data=64, recompute=Recompute.NONE)
    assert layer_at_hand(LLAMA_8B, alone, TRAINING) == 6 * FFN * TOKENS
    split = replace(alone, tensor=8, data=8)
    # Inputs of both parts and the gradients of them, whole.
    assert layer_at_hand(LLAMA_8B, split, TRAINING) == (6 * FFN / 8 + 4 * 2 * H) * TOKENS
    full = replace(split, recompute=Recompute.FULL)
    again = activation_bytes_per_layer(LLAMA_8B, split, TRAINING) - 2 * H / 8 * TOKENS
    assert layer_at_hand(LLAMA_8B, full, TRAINING) == pytest.approx(
        again + layer_at_hand(LLAMA_8B, split, TRAINING)
    )
    # Keys and values of 8 heads, of all tokens, and their gradients.
    shared = replace(alone, context=4, data=16)
    assert layer_at_hand(LLAMA_8B, shared, TRAINING) == 6 * FFN * TOKENS / 4 + 2 * 2 * 2 * 8 * 128 * TOKENS


def test_the_stage_that_holds_most_is_that_which_is_told() -> None:
    layout = Layout(pipeline=4, data=16, recompute=Recompute.FULL)
    says = memory_of(LLAMA_8B, layout, TRAINING).of[0].of[0].formula
    assert "3 before it" in says, "its logits are more than the inputs of 4 micro-batches"
    chunked = replace(TRAINING, logit_bytes=0.0)
    assert "0 before it" in memory_of(LLAMA_8B, layout, chunked).of[0].of[0].formula
    uneven = replace(LLAMA_8B, layers=126, vocab=1000)
    says = memory_of(uneven, replace(layout, pipeline=8, data=8), chunked).of[0].of[0].formula
    assert "16 layers of the stage with 1 before it" in says


def test_a_pipeline_keeps_one_message_that_goes_and_one_that_comes_each_way() -> None:
    layout = Layout(tensor=2, pipeline=4, data=8)
    assert parts(layout)["messages of the pipeline"] == 4 * 2 * H * TOKENS / 2
    assert parts(replace(layout, sequence_parallel=False))["messages of the pipeline"] == 4 * 2 * H * TOKENS
    assert "messages of the pipeline" not in parts(Layout(data=64))


@pytest.mark.parametrize("before", range(8))
def test_an_interleaved_stage_holds_what_its_warm_up_fills(before: int) -> None:
    # Source: https://arxiv.org/abs/2104.04473 (figure 4: 2 (p-r-1) + (v-1) p chunks before the first goes back)
    layout = Layout(pipeline=8, data=8, schedule=Schedule.INTERLEAVED, chunks=4)
    chunks = 2 * (8 - before - 1) + 3 * 8 + 1
    assert in_flight(layout, TRAINING, before) == chunks / 4
