"""The arithmetic of pretraining notes, each against points that somebody published."""

import pytest
from msgspec.structs import replace
from published_runs import A100, H100, H800, LLAMA_405B, PUBLISHED, gpt

from holdfast.api.errors import InvalidInput
from holdfast.planner.batch import best_tokens, critical_tokens, fsdp_tokens, samples_needed, steps_needed
from holdfast.planner.bubble import bubble_passes, bubble_share, waited, zero_bubble_waited
from holdfast.planner.checkpoint import checkpoint_bytes, copied_s, written_s
from holdfast.planner.cluster import Cluster
from holdfast.planner.layout import Layout, Recompute, Schedule, Sharding, Training
from holdfast.planner.loader import loader_rate, step_bytes
from holdfast.planner.model import Model
from holdfast.planner.notes import notes_of
from holdfast.planner.plan import Question, plan
from holdfast.planner.reliability import Reliability
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.spot import (
    Spot,
    breakeven_interruptions,
    breakeven_price,
    on_demand_share,
    spot_share,
)
from holdfast.planner.step import step_time
from holdfast.planner.tokens import cached_bytes, forward_flops, price_of_a_million, sampled_per_s, scored_per_s

DEEPSEEK = next(each.run.model for each in PUBLISHED if each.name == "DeepSeek-V3")
MANY = 10**9


@pytest.mark.parametrize(
    ("flops", "rate", "tokens"),
    [
        pytest.param(990e12, 450e9, 2200, id="H100 in a node"),
        pytest.param(990e12, 400e9, 2475, id="H100 across nodes"),
        pytest.param(990e12, 300e9, 3300, id="H800"),
    ],
)
def test_the_smallest_batch_of_a_gpu_is_that_of_the_scaling_book(flops: float, rate: float, tokens: float) -> None:
    # Source: https://jax-ml.github.io/scaling-book/gpus/
    assert fsdp_tokens(flops, rate, MANY) == pytest.approx(tokens, rel=1e-3)
    assert fsdp_tokens(flops, rate, MANY, Recompute.FULL) == pytest.approx(0.75 * tokens, rel=1e-3)
    assert fsdp_tokens(flops, rate, 2) == pytest.approx(tokens / 2)


def test_llama_3_would_need_40_million_tokens_on_16000_gpus_for_fsdp_alone() -> None:
    # Source: https://jax-ml.github.io/scaling-book/gpus/
    assert 16_000 * fsdp_tokens(990e12, 400e9, 16_000) == pytest.approx(40e6, rel=0.02)


def test_fsdp_hides_from_that_batch_on() -> None:
    model = gpt("8B", 32, 4096, 32, positions=0)
    cluster = Cluster(replace(H100, nvlink=0.0), 64, network=200e9)
    for times, shows in ((0.6, True), (1.4, False)):
        short = round(times * fsdp_tokens(H100.bf16 * 0.56, 200e9, 64) / 128)
        layout = Layout(data=64, micro_batch=short, sharding=Sharding.PARAMETERS, recompute=Recompute.NONE)
        run = Run(model, layout, cluster, Training(sequence=128, batch=64 * short))
        found = {each.name: each.value for each in step_time(run, Efficiency(matmul=0.56)).of}
        assert (found["data-parallel exchange that shows"] > 0) is shows


def test_the_balance_of_fp8_is_twice_that_of_bf16() -> None:
    assert H100.balance == pytest.approx(295, abs=1)
    assert H100.fp8 / H100.memory_rate == pytest.approx(2 * H100.balance, rel=1e-3)


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "ffn", "kv_heads", "batch"),
    [
        pytest.param(30, 4096, 32, 11008, 32, 2304 * 4096, id="7B"),
        pytest.param(95, 8192, 64, 22016, 8, 4608 * 4096, id="67B"),
    ],
)
def test_the_best_batch_is_that_which_deepseek_llm_trained_with(
    layers: int, hidden: int, heads: int, ffn: int, kv_heads: int, batch: int
) -> None:
    # Source: https://arxiv.org/abs/2401.02954 (table 2: 2 x 10^12 tokens in sequences of 4,096)
    model = Model(
        "DeepSeek LLM", layers=layers, hidden=hidden, heads=heads, ffn=ffn, kv_heads=kv_heads, vocab=102400
    )
    assert best_tokens(model, 4096, 2e12) == pytest.approx(batch, rel=0.05)


def test_the_critical_batch_is_that_of_kaplan_and_its_costs_are_those_of_mccandlish() -> None:
    # Sources: https://arxiv.org/abs/2001.08361 (figure 10: 2.1 x 10^8 tokens x L^-4.8),
    # https://arxiv.org/abs/1812.06162 (at the critical batch twice the steps and twice the samples)
    for loss in (3.0, 4.0, 6.0):
        assert critical_tokens(loss) == pytest.approx(2.1e8 * loss**-4.8, rel=0.1)
    assert steps_needed(1e6, 1e6) == samples_needed(1e6, 1e6) == 2.0
    for batch in (1e4, 1e6, 1e8):
        assert (steps_needed(batch, 1e6) - 1) * (samples_needed(batch, 1e6) - 1) == pytest.approx(1.0)


def test_zero_bubble_leaves_a_third_or_nothing() -> None:
    # Source: https://arxiv.org/abs/2401.10241 (table 2)
    assert waited(8) == pytest.approx(7)
    assert zero_bubble_waited(8) == pytest.approx(7 / 3)
    assert zero_bubble_waited(8, doubled=True) == 0
    assert zero_bubble_waited(8, forward=10, inputs=12, weights=8) == pytest.approx(7 * 14)
    assert bubble_passes(Layout(pipeline=8, schedule=Schedule.INTERLEAVED, chunks=4)) == pytest.approx(7 / 4)
    # Source: https://arxiv.org/abs/2104.04473 (section 2.2: (p-1)/m of the ideal time)
    share = bubble_share(bubble_passes(Layout(pipeline=8)), 56)
    assert share / (1 - share) == pytest.approx(7 / 56)


def test_the_checkpoint_of_a_trillion_parameters_is_that_of_megatron() -> None:
    # Source: https://arxiv.org/abs/2104.04473 (section 5.10: 13.8 TB, written with 273 GB/s)
    trillion = gpt("1T", 128, 25600, 160)
    size = checkpoint_bytes(trillion, Training(sequence=2048, batch=1))
    assert size == pytest.approx(13.8e12, rel=0.03)
    assert written_s(size, 273e9) == pytest.approx(51, rel=0.03)


def test_a_gpu_s_share_of_llama_3_s_checkpoint_is_what_its_makers_tell() -> None:
    # Source: https://arxiv.org/abs/2407.21783 (section 3.3.1: 1 MB to 4 GB for each GPU)
    size = checkpoint_bytes(LLAMA_405B, Training(sequence=8192, batch=1))
    assert 1e6 < size / 16384 < 4e9
    assert copied_s(size, 16384, 25e9) == pytest.approx(size / 16384 / 25e9)


def test_a_loader_of_images_gives_what_the_storage_benchmark_asks_for() -> None:
    # Source: https://github.com/mlcommons/storage (storage-conf/workload/resnet50_h100.yaml)
    images = Training(sequence=1, batch=400, sample_bytes=114660.07)
    model = gpt("any", 2, 64, 4)
    assert loader_rate(step_bytes(model, images), 0.224) == pytest.approx(400 * 114660.07 / 0.224)
    assert loader_rate(step_bytes(model, images), 0.224) == pytest.approx(205e6, rel=0.01)


def test_tokens_are_two_bytes_where_the_vocabulary_fits_them() -> None:
    training = Training(sequence=1024, batch=8)
    assert step_bytes(gpt("GPT-2", 2, 64, 4, vocab=50257), training) == 2 * 8 * 1024
    assert step_bytes(gpt("Llama 3", 2, 64, 4, vocab=128256), training) == 4 * 8 * 1024


def test_a_loader_shows_in_a_step_only_where_storage_is_slower() -> None:
    layout, model = Layout(data=8), gpt("it", 4, 512, 8)
    training = Training(sequence=1024, batch=64, sample_bytes=1e6)
    step = step_time(Run(model, layout, Cluster(H100, 8), training), Efficiency())
    quick = step_time(Run(model, layout, Cluster(H100, 8, storage=1e12), training), Efficiency())
    slow = step_time(Run(model, layout, Cluster(H100, 8, storage=1e6), training), Efficiency())
    assert step.value == quick.value
    assert slow.value == pytest.approx(64.0), "as long as its bytes take"
    assert slow.of[-1].name == "loader that shows"


def test_deepseek_s_tokens_cost_what_its_makers_count() -> None:
    # Source: https://github.com/deepseek-ai/open-infra-index (202502OpenSourceWeek/day_6: 226.75 nodes at 2 an
    # hour and GPU cost 87,072 a day; a node samples 14,800 tokens a second)
    assert 226.75 * 8 * 24 * 2.0 == 87_072
    of_a_node = price_of_a_million(14_800 / 8, 2.0)
    assert of_a_node == pytest.approx(0.300, abs=0.001)
    # 168 x 10^9 sampled, 266 x 10^9 read that no cache had: both together are what the nodes did in a day.
    read = price_of_a_million(73_700 / 8, 2.0)
    assert (168e3 * of_a_node + 608e3 * read) == pytest.approx(87_072, rel=0.01)


def test_a_teacher_scores_no_faster_than_its_flop_and_samples_no_faster_than_its_bytes() -> None:
    # 37 x 10^9 parameters are used for each token (https://arxiv.org/abs/2412.19437).
    assert forward_flops(DEEPSEEK, 1) == pytest.approx(2 * 37e9, rel=0.02)
    assert scored_per_s(DEEPSEEK, 4096, H800.fp8) > 73_700 / 8
    assert cached_bytes(DEEPSEEK) == 2 * 61 * (512 + 64)
    # Source: https://github.com/deepseek-ai/open-infra-index: 4,989 tokens in the cache for each sampled one.
    roofline = sampled_per_s(DEEPSEEK, 4989, 144 * 128, H800.memory_rate)
    assert roofline > 14_800 / 8


def test_a_token_of_52_billion_parameters_takes_17_ms_on_four_a100() -> None:
    # Source: https://kipp.ly/transformer-inference-arithmetic/ (2 x 52 x 10^9 bytes over 4 x 1.5 x 10^12)
    model = Model("52B", layers=64, hidden=8192, heads=64, ffn=32768, vocab=50000, gated=False, tied=True)
    each = 1.0 / (4 * sampled_per_s(model, 1, 1, 1.5e12))
    assert each == pytest.approx(17e-3, rel=0.02)


GIVEN = Reliability(rate=4.0, restart_s=60.0, save_s=10.0)
SPOT = Spot(price=1.0, interruptions=50.0, notice_s=120.0)


def test_spot_costs_a_restart_where_its_notice_is_long_enough() -> None:
    alone = on_demand_share(128, GIVEN)
    lost = 128 * 50 / 1000 / 86400 * (60 + 10)
    assert spot_share(128, GIVEN, SPOT) == pytest.approx(alone - lost)
    short = replace(SPOT, notice_s=5.0)
    assert spot_share(128, GIVEN, short) < alone - lost
    both = replace(GIVEN, rate=54.0)
    assert spot_share(128, GIVEN, short) == pytest.approx(on_demand_share(128, both))


def test_at_breakeven_a_token_costs_the_same() -> None:
    even = breakeven_price(128, GIVEN, SPOT, 3.0)
    assert even / spot_share(128, GIVEN, SPOT) == pytest.approx(3.0 / on_demand_share(128, GIVEN))
    often = breakeven_interruptions(128, GIVEN, SPOT, 3.0)
    assert often > SPOT.interruptions
    assert breakeven_price(128, GIVEN, replace(SPOT, interruptions=often), 3.0) == pytest.approx(1.0, rel=1e-6)
    assert breakeven_interruptions(128, GIVEN, replace(SPOT, price=4.0), 3.0) == 0.0
    assert breakeven_price(128, GIVEN, replace(SPOT, interruptions=1e6), 3.0) == 0.0


@pytest.mark.parametrize(
    "wrong", [{"price": 0.0}, {"interruptions": -1.0}, {"notice_s": -1.0}, {"interruptions": 1e9}]
)
def test_a_spot_that_no_cloud_has_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"spot\."):
        Spot(**{"price": 1.0, "interruptions": 1.0, **wrong})


def test_every_note_of_a_plan_has_a_formula() -> None:
    training = Training(sequence=8192, batch=512, tokens=1e12, fp8=True)
    small = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    question = Question(small, Cluster(H100, 64, price=2.0, storage=1e11), training, spot=SPOT)
    (best, *_) = plan(question, {"pipeline": 2}).options
    found = notes_of(question, best)
    assert len({each.name for each in found}) == len(found) == 22
    assert all(each.formula for each in found)
    assert all(each.value >= 0 for each in found)
    bare = Question(small, Cluster(A100, 8), Training(sequence=8192, batch=512))
    (best, *_) = plan(bare, {"data": 8}).options
    names = {each.name for each in notes_of(bare, best)}
    assert "machine balance in FP8" not in names, "an A100 has none"
    assert not any("spot" in each or "price" in each for each in names)
