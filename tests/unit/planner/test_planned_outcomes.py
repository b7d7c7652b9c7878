"""What an option comes to, with its formula; what is paid and saved; which layouts are asked for and told of."""

import math

import pytest
from msgspec.structs import replace

from holdfast.cli.commands.plan import Answer, plan_text
from holdfast.planner.batch import critical_tokens
from holdfast.planner.bubble import bubble_formula
from holdfast.planner.checkpoint import checkpoint_bytes
from holdfast.planner.cluster import Cluster
from holdfast.planner.fleetrate import Failures
from holdfast.planner.gpu import GPUS
from holdfast.planner.layout import Layout, Schedule, Training
from holdfast.planner.model import Model
from holdfast.planner.notes import notes_of
from holdfast.planner.outcome import outcome_of
from holdfast.planner.plan import Question, interval_of, plan, reasons
from holdfast.planner.reliability import Reliability, effective_share, save_every_s
from holdfast.planner.spot import Spot
from holdfast.planner.truth import Truth, compare

H100 = GPUS["H100-80GB"]
SMALL = Model("8B", layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
TRAINING = Training(sequence=8192, batch=512, tokens=1e12)
QUESTION = Question(SMALL, Cluster(H100, 64, price=2.0), TRAINING)
PINNED = {"tensor": 1, "pipeline": 1, "context": 1}


def test_every_figure_of_a_row_is_made_of_what_it_says() -> None:
    found = plan(QUESTION, PINNED)
    best = found.options[0]
    told = {each.name: each for each in outcome_of(QUESTION, found, best)}
    (flops,) = told["MFU"].of
    assert flops.value == sum(each.value for each in flops.of) == SMALL.flops_per_token(8192)
    assert told["MFU"].value == pytest.approx(told["tokens a second"].value * flops.value / (64 * H100.bf16))
    assert told["tokens a second"].value == pytest.approx(512 * 8192 / best.step.value)
    assert told["money"].value == pytest.approx(told["days"].value * 24 * (64 + found.spare_gpus) * 2.0)
    assert "64 GPUs, and 8 that stand by" in told["money"].formula
    assert all(each.formula for each in told.values())
    bare = replace(QUESTION, training=replace(TRAINING, tokens=0.0))
    assert "days" not in {each.name for each in outcome_of(bare, found, plan(bare, PINNED).options[0])}


def test_no_checkpoint_follows_sooner_than_one_is_written() -> None:
    size = checkpoint_bytes(SMALL, TRAINING)
    best = save_every_s(8, QUESTION.reliability)
    assert interval_of(QUESTION) == best
    quick = replace(QUESTION, cluster=replace(QUESTION.cluster, storage=2 * size / best.value))
    assert interval_of(quick) == best
    slow = replace(QUESTION, cluster=replace(QUESTION.cluster, storage=size / best.value / 4))
    assert interval_of(slow).value == pytest.approx(4 * best.value)
    found = plan(slow, PINNED)
    assert found.interval.value == pytest.approx(4 * best.value)
    assert found.effective == effective_share(8, slow.reliability, 4 * best.value)
    assert "takes to storage" in found.interval.formula


def test_the_critical_batch_is_that_of_the_loss_to_be_reached() -> None:
    names = ("tokens needed, in multiples of the fewest", "steps needed, in multiples of the fewest")
    for loss in (0.0, 2.0, 3.0):
        question = replace(QUESTION, training=replace(TRAINING, loss=loss))
        told = {each.name: each.value for each in notes_of(question, plan(question, PINNED).options[0])}
        tokens, steps = (told[name] for name in names)
        critical = told["critical batch"] if loss else told["batch that trains best"]
        assert ("critical batch" in told) is (loss > 0)
        assert critical == pytest.approx(critical_tokens(loss)) if loss else True
        assert tokens == pytest.approx(1 + 512 * 8192 / critical)
        assert (tokens - 1) * (steps - 1) == pytest.approx(1.0)


def test_money_on_spot_is_that_of_its_hours() -> None:
    spot = Spot(price=1.0, interruptions=50.0)
    question = replace(QUESTION, spot=spot)
    best = plan(question, PINNED).options[0]
    told = {each.name: each.value for each in notes_of(question, best)}
    share = told["effective share of time on spot"]
    assert share < effective_share(8, question.reliability, interval_of(question).value).value
    assert told["money on spot"] == pytest.approx(1e12 / best.tokens_per_s / share / 3600 * 64)


@pytest.mark.parametrize(("storage", "fits"), [(None, True), (1e10, True), (1e8, False)])
def test_a_notice_is_long_enough_where_a_checkpoint_is_written_in_it(storage: float | None, fits: bool) -> None:
    spot = Spot(price=1.0, interruptions=50.0, notice_s=120.0)
    question = replace(QUESTION, cluster=replace(QUESTION.cluster, storage=storage), spot=spot)
    (told,) = (
        each
        for each in notes_of(question, plan(question, PINNED).options[0])
        if each.name == "effective share of time on spot"
    )
    assert ("no checkpoint fits the notice" not in told.formula) is fits


@pytest.mark.parametrize("pinned", [{"micro_batch": 16}, {"context": 32}, {"micro_batch": 3, "data": 32}])
def test_a_layout_that_is_asked_for_is_judged_though_it_is_not_usual(pinned: dict[str, int]) -> None:
    question = replace(QUESTION, training=replace(TRAINING, batch=96 * 16))
    found = plan(question, pinned)
    for each in (*found.options, *found.rejected):
        assert all(getattr(each.layout, name) == value for name, value in pinned.items())
    assert any(each.misfit.because not in ("batch", "NVLink domain") for each in found.rejected) or found.options


def test_degrees_that_share_no_batch_say_so() -> None:
    odd = replace(QUESTION, training=replace(TRAINING, batch=500))
    told = {each.because: each for each in reasons(plan(odd).rejected)}
    assert "a batch of 500 sequences cannot be shared by 64 replicas" in told["batch"].example


def test_a_bubble_is_told_by_the_formula_of_its_schedule() -> None:
    formulas = [
        bubble_formula(Layout(pipeline=4, schedule=schedule, chunks=chunks))[0]
        for schedule, chunks in (
            (Schedule.ONE_F_ONE_B, 1),
            (Schedule.INTERLEAVED, 2),
            (Schedule.ZERO_BUBBLE, 1),
        )
    ]
    assert formulas == ["(P-1)/M", "(P-1)/M over 2 chunks", "(P-1) (F + B - W) / M, of equal thirds"]


def test_where_nothing_fails_no_checkpoint_is_due() -> None:
    text = plan_text(Answer((), 0, (), 0.0, 0, math.inf, 1.0))
    assert "none is due" in text
    assert "inf" not in text
    (best, *_) = plan(QUESTION, PINNED).options
    found = compare(QUESTION, best.layout, Truth(failures=Failures(0.0, 0.0, 0.1)))
    assert "a checkpoint never in place of every" in found[0].becomes


def test_a_run_that_never_ends_costs_no_number() -> None:
    hopeless = replace(QUESTION, reliability=Reliability(rate=1e6))
    found = plan(hopeless, PINNED)
    assert found.options[0].days == math.inf
    row = plan_text(Answer(found.options[:1], 1, (), 1.0, 1, 1.0, 0.0)).splitlines()[1]
    assert row.split()[-2:] == ["never", "never"]
