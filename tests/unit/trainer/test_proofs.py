"""What a rank proves of itself: the fixed block, parameters at rest, its own gradient, and what that may cost."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from trainer_builders import assignment

from holdfast.api import rankrecord
from holdfast.api.bitflip import BitFlip
from holdfast.api.drill import Spoiler, parse_injection
from holdfast.api.rankrecord import ProofZone
from holdfast.trainer.block import CHECK, FixedBlock, dtypes_of
from holdfast.trainer.drill import flip_bit
from holdfast.trainer.fingerprint import fingerprint
from holdfast.trainer.pause import Change, Pauses
from holdfast.trainer.proofs import BLOCK_SHARE, LOOK_SHARE, NORM_SHARE, Budget, Proofs, steps_between
from holdfast.trainer.record import RankRecord, open_record

CPU = torch.device("cpu")


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 3))


def update(trained: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step of training, but for what is said after it."""
    trained(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


# The block


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_block_comes_to_the_same_bits_every_time(dtype: torch.dtype) -> None:
    block = FixedBlock(CPU, (dtype,))
    first = block.run()
    assert all(result.isfinite().all() for result in first.values())
    assert {fingerprint(FixedBlock(CPU, (dtype,)).run()) for _ in range(3)} == {fingerprint(first)}


def test_the_block_takes_no_random_number_and_leaves_no_gradient_in_whatever_mode_it_is_called() -> None:
    block, state = FixedBlock(CPU, (torch.float32,)), torch.get_rng_state()
    answer = fingerprint(block.run())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert fingerprint(block.run()) == answer
    with torch.inference_mode():
        assert fingerprint(block.run()) == answer
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_result_may_depend_on_is_in_the_likeness(monkeypatch: pytest.MonkeyPatch) -> None:
    block = FixedBlock(CPU, (torch.float32,))
    known = block.likeness()
    assert 0 <= known < 2**64
    assert FixedBlock(CPU, (torch.bfloat16,)).likeness() != known
    for name in ("CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE", "MKL_CBWR"):
        with monkeypatch.context() as patched:
            patched.setenv(name, ":4096:8")
            assert block.likeness() != known, name
    assert block.likeness() == known
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    assert block.likeness() != known


def test_where_kernels_are_chosen_by_their_speed_no_answer_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    block = FixedBlock(torch.device("cuda"), (torch.float32,))
    monkeypatch.setattr(torch.cuda.tunable, "is_enabled", lambda: True)
    monkeypatch.setattr("holdfast.trainer.block._make_of", lambda device: ())
    with pytest.raises(RuntimeError, match="TunableOp"):
        block.likeness()


def test_a_drill_makes_one_run_in_so_many_come_out_otherwise() -> None:
    wrong = Spoiler([parse_injection("flip:probability=0.2:seed=3:device=GPU-1")], CHECK, "GPU-1")
    block, sound = FixedBlock(CPU, (torch.float32,), spoiler=wrong), FixedBlock(CPU, (torch.float32,))
    right = fingerprint(sound.run())
    answers = [fingerprint(block.run()) for _ in range(40)]
    assert 0 < sum(answer != right for answer in answers) < 20
    assert block.likeness() == sound.likeness()


def test_the_block_is_run_in_the_formats_of_the_training() -> None:
    held = [torch.zeros(1, dtype=torch.bfloat16), torch.zeros(1), torch.zeros(1, dtype=torch.int64)]
    assert dtypes_of(held, CPU) == (torch.float32, torch.bfloat16)
    assert dtypes_of([], CPU) == (torch.float32,)
    assert dtypes_of([torch.zeros(1)], torch.device("cuda")) == (torch.float32, torch.bfloat16)


# Pauses


@pytest.fixture
def watching() -> Iterator[Callable[[nn.Module], Pauses]]:
    made: list[Pauses] = []

    def watch(trained: nn.Module) -> Pauses:
        made.append(Pauses(trained, CPU))
        return made[-1]

    yield watch
    for each in made:
        each.close()


Watching = Callable[[nn.Module], Pauses]


def changed(pauses: Pauses) -> list[tuple[int, bool]]:
    """Which looks there are, and in which of them one bit had flipped."""
    told = [(look.step, Change(int(look.changed.value))) for look in pauses.ended()]
    assert all(change is not Change.MORE for _, change in told)
    return [(step, change is Change.FLIP) for step, change in told]


def test_parameters_that_only_the_optimizer_changes_are_at_rest(watching: Watching) -> None:
    trained = model()
    optimizer, pauses = torch.optim.AdamW(trained.parameters()), watching(trained)
    for step in range(1, 4):
        update(trained, optimizer)
        pauses.begin(step)
    assert changed(pauses) == [(1, False), (2, False)]


@pytest.mark.parametrize("bit", [0, 12, 31])
@pytest.mark.parametrize("parameter", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_a_bit_that_flips_in_a_pause_is_seen_once(watching: Watching, parameter: str, bit: int) -> None:
    trained = model()
    optimizer, pauses = torch.optim.AdamW(trained.parameters()), watching(trained)
    for step in range(1, 5):
        pauses.begin(step)
        if step == 2:
            flip_bit(trained, BitFlip(0, 2, bit, parameter, element=2))
        update(trained, optimizer)
    assert changed(pauses) == [(1, False), (2, True), (3, False), (4, False)]


def test_a_pause_in_which_the_script_writes_to_a_parameter_says_nothing(watching: Watching) -> None:
    trained = model()
    optimizer, pauses = torch.optim.AdamW(trained.parameters()), watching(trained)
    pauses.begin(1)
    with torch.no_grad():
        next(trained.parameters()).clamp_(max=0.0)
    update(trained, optimizer)
    pauses.begin(2)
    for each in trained.parameters():
        each.data = each.data.clone()
    update(trained, optimizer)
    pauses.begin(3)
    update(trained, optimizer)
    assert changed(pauses) == [(3, False)]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda weight: weight.data.clamp_(max=0.0), id="clipped"),
        pytest.param(lambda weight: weight.data.mul_(0.999), id="averaged"),
        pytest.param(lambda weight: weight.data.add_(0.3).sub_(0.3), id="merged and taken apart again"),
    ],
)
def test_what_a_script_writes_where_torch_does_not_count_it_is_told_from_a_bit_that_flips(
    watching: Watching, write: Callable[[torch.Tensor], object]
) -> None:
    trained = model()
    optimizer, pauses = torch.optim.AdamW(trained.parameters()), watching(trained)
    pauses.begin(1)
    write(next(trained.parameters()))
    update(trained, optimizer)
    assert [look.changed.value for look in pauses.ended()] == [Change.MORE]


def test_only_an_optimizer_of_the_model_ends_a_pause(watching: Watching) -> None:
    trained, other = model(), model()
    pauses = watching(trained)
    pauses.begin(1)
    update(other, torch.optim.SGD(other.parameters(), lr=0.1))
    assert pauses.ended() == []
    update(trained, torch.optim.SGD(trained.parameters(), lr=0.1))
    assert changed(pauses) == [(1, False)]
    update(trained, torch.optim.SGD(trained.parameters(), lr=0.1))
    pauses.begin(2)
    pauses.skip()
    update(trained, torch.optim.SGD(trained.parameters(), lr=0.1))
    assert pauses.ended() == []


@pytest.mark.parametrize(
    "parameter",
    [
        pytest.param(torch.ones(8, 4, 3, 3).to(memory_format=torch.channels_last), id="channels last"),
        pytest.param(torch.ones(40)[::2], id="with gaps"),
        pytest.param(torch.ones(7, dtype=torch.bfloat16)[1:], id="odd address"),
        pytest.param(torch.ones(()), id="scalar"),
        pytest.param(torch.ones(5000, 300, dtype=torch.float64), id="large"),
        pytest.param(torch.ones(3, dtype=torch.float8_e4m3fn), id="one byte"),
    ],
)
def test_a_bit_is_seen_however_the_parameter_lies_in_memory(watching: Watching, parameter: torch.Tensor) -> None:
    trained = nn.Module()
    trained.held = nn.Parameter(parameter, requires_grad=False)
    optimizer, pauses = torch.optim.SGD([trained.held], lr=0.1), watching(trained)
    pauses.begin(1)
    optimizer.step()
    pauses.begin(2)
    flip_bit(trained, BitFlip(0, 2, 3, element=parameter.numel() - 1))
    optimizer.step()
    assert changed(pauses) == [(1, False), (2, True)]


# What it may cost


@given(cost_s=st.floats(1e-6, 10.0), step_s=st.floats(1e-4, 100.0), share=st.floats(1e-4, 0.1))
def test_what_is_done_so_rarely_takes_no_more_than_its_share(cost_s: float, step_s: float, share: float) -> None:
    every = steps_between(cost_s, step_s, share)
    assert cost_s <= share * step_s * every * (1 + 1e-9)
    assert every == 1 or cost_s > share * step_s * (every - 1) * (1 - 1e-9)


def test_all_shares_together_are_half_a_percent() -> None:
    assert math.isclose(BLOCK_SHARE + LOOK_SHARE + NORM_SHARE, 0.005)
    assert steps_between(0.0, 1.0, 0.1) == 1
    with pytest.raises(ValueError, match="more than no time"):
        steps_between(1.0, 0.0, 0.1)


@given(st.lists(st.floats(1e-6, 1.0), min_size=2, max_size=20), st.integers(1, 1000))
def test_ranks_that_measure_differently_do_it_at_common_steps(costs: list[float], wanted: int) -> None:
    seldom = []
    for cost in costs:
        budget = Budget(0.002)
        for _ in range(3):
            budget.spent(cost)
            budget.stepped(0.05)
        seldom.append(budget.every(wanted))
        assert budget.every(wanted) >= wanted
        assert cost <= 0.002 * 0.05 * budget.every(wanted) * (1 + 1e-9)
    assert all(max(seldom) % each == 0 for each in seldom)


def test_in_a_drill_nothing_is_made_rarer() -> None:
    budget = Budget(math.inf)
    for _ in range(3):
        budget.spent(100.0)
        budget.stepped(0.001)
    assert (budget.every(1), budget.every(5)) == (1, 5)


def test_one_measure_that_was_held_up_and_the_first_of_all_do_not_count() -> None:
    budget = Budget(0.01)
    budget.spent(50.0)
    assert (budget.share, budget.every(7)) == (None, 7)
    for cost in (0.001, 9.0, 0.001):
        budget.spent(cost)
        budget.stepped(0.1)
    budget.stepped(0.0)
    assert budget.share == pytest.approx(0.01)
    assert budget.every(1) == 1


# All of it, as a run does it


class Rank:
    """One rank that trains; what it proves is in its record."""

    def __init__(self, directory: Path, *, every: int = 2, trained: nn.Module | None = None) -> None:
        self.directory = directory
        self.record: RankRecord = open_record(directory, 0)
        self.record.begin(assignment(round=4, rank=0))
        self.model = model() if trained is None else trained
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.proofs = Proofs(self.model, every=every, record=self.record)
        for budget in self.proofs.budgets.values():
            budget.stepped(1e9)  # whatever it takes here, it is little
        self.step = 0

    def trains(self, steps: int) -> None:
        for _ in range(steps):
            update(self.model, self.optimizer)
            self.step += 1
            self.proofs.completed(self.step)

    @property
    def zone(self) -> ProofZone:
        (file,) = self.directory.iterdir()
        return rankrecord.unpack_proof(file.read_bytes())


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path)
    yield made
    made.proofs.close()


def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Budget, "every", lambda self, wanted: wanted)


def test_the_first_step_and_every_so_many_are_answered(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    generous(monkeypatch)
    rank.trains(4)
    assert (rank.zone.round, rank.zone.rank, rank.zone.changed_step) == (4, 0, -1)
    assert [(answer.step, answer.looks) for answer in rank.zone.answers] == [(1, 0), (2, 1), (4, 3)]
    assert {answer.value for answer in rank.zone.answers} == {fingerprint(FixedBlock(CPU, (torch.float32,)).run())}
    assert rank.zone.device == FixedBlock(CPU, (torch.float32,)).likeness()


def test_a_flip_in_a_pause_is_in_the_record_with_its_step(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    generous(monkeypatch)
    rank.trains(3)
    flip_bit(rank.model, BitFlip(0, 3, 22))
    rank.trains(1)
    assert rank.zone.changed_step == 3
    flip_bit(rank.model, BitFlip(0, 4, 22))
    rank.trains(2)
    assert rank.zone.changed_step == 3, "the first one counts"
    assert rank.zone.is_flip
    assert rank.zone.answers[-1].looks == 3


def test_what_the_script_wrote_is_in_the_record_as_that(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    generous(monkeypatch)
    rank.trains(3)
    for each in rank.model.parameters():
        each.data.mul_(0.5)
    rank.trains(1)
    assert (rank.zone.changed_step, rank.zone.is_flip) == (3, False)


def test_the_norm_of_a_rank_s_own_gradient_is_told(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    generous(monkeypatch)
    rank.trains(2)
    assert math.isnan(rank.zone.local_grad_norm) or rank.zone.local_norm_step == 2
    rank.trains(1)
    held = model()
    held.load_state_dict(rank.model.state_dict())
    rank.trains(2)
    assert rank.zone.local_norm_step == 4
    held(torch.ones(2, 5)).sum().backward()
    norms = torch.stack([each.grad.norm() for each in held.parameters() if each.grad is not None])
    assert rank.zone.local_grad_norm == pytest.approx(float(norms.norm()), rel=1e-5)


class Odd(nn.Linear):
    """A model whose parameters cannot be looked at after a while."""

    is_odd = False

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        if self.is_odd:
            raise RuntimeError("no such storage")
        return super().parameters(recurse)


def test_what_fails_is_given_up_by_name_and_leaves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    generous(monkeypatch)
    trained = Odd(5, 3)
    rank = Rank(tmp_path, trained=trained)
    rank.trains(2)
    trained.is_odd = True
    rank.trains(4)
    rank.proofs.close()
    told = {record.getMessage() for record in caplog.records}
    assert told == {"a proof is given up proof=look step=3", "a proof is given up proof=norm step=4"}
    assert [(answer.step, answer.looks) for answer in rank.zone.answers] == [(2, 1), (4, 0), (6, 0)]


def test_after_a_round_nothing_holds_the_model_or_looks_at_it(rank: Rank) -> None:
    rank.trains(2)
    rank.proofs.close()
    before = rank.zone
    rank.trains(3)
    assert rank.zone.answers == before.answers
    assert not [hook for each in rank.model.modules() for hook in each._forward_pre_hooks]
