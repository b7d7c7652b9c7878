"""What a process takes: what comes again, of which steps prints are worth their time, and what is published."""

import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor
from trainer_builders import assignment

from holdfast.api import rankrecord
from holdfast.api.control import RUN_DIRECTORY_VARIABLE, Assignment, record_file_name
from holdfast.api.errors import InvalidInput
from holdfast.api.rankrecord import BATCHES_KEPT, BatchZone, power_of_two_in
from holdfast.trainer import Run
from holdfast.trainer.batches import EPOCH_STEPS_MIN, FEW, REPEATS, SHARE, Batches, Pace, Taken
from holdfast.trainer.batchprint import print_of
from holdfast.trainer.record import RankRecord, open_record


def batch(number: int) -> Tensor:
    return torch.tensor([[number, each] for each in range(4)])


def value(number: int) -> int:
    told = print_of(batch(number))
    assert told is not None
    return told.value


class Process:
    """One that takes batch after batch, and publishes in `folder`."""

    def __init__(self, folder: Path, clock_ns: Callable[[], int] = lambda: 0) -> None:
        self.batches, self.folder = Batches(clock_ns), folder
        self.record: RankRecord = open_record(folder, 0)
        self.begin(1)

    def begin(self, round: int) -> "Process":
        self.record.begin(assignment(round=round, rank=0, world_size=1, local_rank=0))
        self.batches.forget_open()
        return self

    def train(self, step: int, *numbers: int) -> "Process":
        for number in numbers:
            self.batches.take(step, batch(number), tokens=None)
        self.batches.completed(step, self.record)
        return self

    @property
    def zone(self) -> BatchZone:
        return rankrecord.unpack_batch((self.folder / record_file_name(0)).read_bytes())

    @property
    def again(self) -> tuple[int, int, int]:
        return self.zone.again_step, self.zone.first_step, self.zone.again_count


@pytest.fixture
def process(tmp_path: Path) -> Process:
    return Process(tmp_path)


def test_a_step_is_published_when_it_is_complete(process: Process) -> None:
    process.batches.take(5, batch(1), tokens=None)
    assert process.zone.batches == ()
    process.batches.take(5, batch(2), tokens=None)
    process.batches.completed(5, process.record)
    (told,) = process.zone.batches
    assert (told.step, told.value) == (5, (value(1) + value(2)) % 2**64)
    assert (told.samples, told.tokens) == (8, 16)
    assert not process.batches.is_open


def test_tokens_that_the_script_counts_go_before_those_that_are_seen(process: Process) -> None:
    process.batches.take(1, batch(1), tokens=3)
    process.batches.completed(1, process.record)
    process.batches.take(2, torch.rand(2, 2), tokens=None)
    process.batches.completed(2, process.record)
    assert [each.tokens for each in process.zone.batches] == [3, -1]


def test_a_batch_of_another_step_than_the_one_that_is_complete_is_not_told(process: Process) -> None:
    process.batches.take(5, batch(1), tokens=None)
    process.batches.completed(6, process.record)
    process.batches.take(7, batch(1), tokens=None)
    process.begin(2)
    assert not process.batches.is_open
    assert process.zone.batches == ()


def test_the_newest_of_each_power_of_two_are_kept(process: Process) -> None:
    for step in range(1, 300):
        process.train(step, step)
    told = [each.step for each in process.zone.batches]
    assert told == sorted(told)
    for power in range(BATCHES_KEPT - 1):
        multiples = [step for step in range(1, 300) if step % 2**power == 0]
        assert set(multiples[-2:]) <= set(told), f"of every {2**power}th step the newest two"
    assert max(step for step in told if step % 128 == 0) == 256
    assert [power_of_two_in(step) for step in (1, 2, 12, 128, 1024, 0)] == [0, 1, 2, 7, 7, 7]


def test_a_batch_that_comes_again_is_told_with_both_steps(process: Process) -> None:
    process.train(1, 10).train(2, 11).train(3, 12).train(4, 11)
    assert process.again == (4, 2, 1)
    process.train(5, 13)
    assert process.again == (4, 2, 1)
    process.train(6, 12)
    assert process.again == (6, 3, 2)


def test_a_step_trained_again_may_have_its_batch_again(process: Process) -> None:
    for step in range(1, 10):
        process.train(step, step)
    process.begin(2)
    for step in range(5, 12):
        process.train(step, step)
    assert process.again == (-1, -1, 0)
    process.train(12, 3)
    assert process.again == (12, 3, 1), "what was taken before the restart still counts"


def test_batches_of_a_history_that_was_left_may_come_at_other_steps(process: Process) -> None:
    """As where batches are passed over."""
    for step in range(1, 10):
        process.train(step, step)
    process.begin(2)
    for step in range(5, 9):
        process.train(step, step + 3)
    assert process.again == (-1, -1, 0)


def test_a_further_epoch_may_have_all_batches_again(process: Process) -> None:
    process.batches.epoch(1)
    for step in range(1, 5):
        process.train(step, step)
    process.batches.epoch(1)
    process.train(5, 2)
    assert process.again == (5, 2, 1), "the epoch is the same"
    process.batches.epoch(2)
    process.train(6, 1).train(7, 2)
    assert process.again == (5, 2, 1)


def test_what_comes_again_from_the_first_batch_on_is_an_epoch_that_nobody_told(process: Process) -> None:
    length = EPOCH_STEPS_MIN
    for step in range(3 * length):
        process.train(step + 1, step % length)
    assert process.again == (-1, -1, 0)
    process.train(3 * length + 1, 7)
    assert process.again[0] == 3 * length + 1, "not from the first batch on"


def test_a_loader_that_gives_one_batch_again_and_again_is_no_epoch(process: Process) -> None:
    for step in range(1, 6):
        process.train(step, 1)
    assert process.again == (5, 4, 4)


def test_where_epochs_are_told_none_is_guessed(process: Process) -> None:
    process.batches.epoch(1)
    for step in range(EPOCH_STEPS_MIN + 1):
        process.train(step + 1, step % EPOCH_STEPS_MIN)
    assert process.again == (EPOCH_STEPS_MIN + 1, 1, 1)


class OneByOne(Process):
    """A process whose batches are one sample each, or few."""

    samples = 1

    def train(self, step: int, *numbers: int) -> "Process":
        for number in numbers:
            self.batches.take(step, batch(number)[: self.samples], tokens=None)
        self.batches.completed(step, self.record)
        return self


def test_single_samples_that_come_again_by_chance_are_none(tmp_path: Path) -> None:
    rng = Random(3)
    for name, among in {
        "with replacement": (rng.randrange(500) for _ in range(3000)),
        "in another order in each epoch": (each for _ in range(6) for each in rng.sample(range(500), 500)),
        "one that fills up": (step if step < 500 else -1 for step in range(600)),
    }.items():
        process = OneByOne(tmp_path)
        for step, number in enumerate(among, 1):
            process.train(step, number)
        assert process.again == (-1, -1, 0), name


def test_single_samples_that_come_again_one_after_the_other_are_told(tmp_path: Path) -> None:
    anew = OneByOne(tmp_path)
    for step in range(1, 51):
        anew.train(step, step % 40)
    assert anew.again == (50, 10, 10 - REPEATS + 1)
    alike = OneByOne(tmp_path)
    for step in range(0, 20, 2):
        alike.train(step, step).train(step + 1, step)
    assert alike.again[:2] == (19, 18), "two loader processes that read the same"


def test_so_are_few_samples(tmp_path: Path) -> None:
    process = OneByOne(tmp_path)
    process.samples = FEW
    for step in range(1, 100):
        process.train(step, step if step % 10 else step // 2)
    assert process.again == (-1, -1, 0), "now and then"
    for step in range(100, 101 + REPEATS):
        process.train(step, 7)
    assert process.again[:2] == (100 + REPEATS, 99 + REPEATS), "one and the same again and again"


@pytest.mark.parametrize("length", range(200, 204))
def test_an_epoch_that_nobody_told_is_one_however_few_of_its_steps_are_told_of(
    process: Process, length: int
) -> None:
    """Of the first steps all are, and later, when they take less time, of fewer."""
    for step in range(1, 3 * length):
        process.batches._pace.every = 1 if step < 30 else 4
        process.train(step, *([step % length] if step % process.batches._pace.every == 0 else []))
    assert process.again == (-1, -1, 0)


def test_a_batch_without_samples_is_none_that_comes_again(process: Process) -> None:
    for step in (1, 2):
        process.batches.take(step, torch.zeros(0, 2), tokens=None)
        process.batches.completed(step, process.record)
    assert process.again == (-1, -1, 0)
    assert [each.samples for each in process.zone.batches] == [0, 0]


def test_of_more_than_there_is_room_for_the_oldest_are_forgotten() -> None:
    taken = Taken(8)  # two sets of four
    assert [taken.take(step, 2 * step) for step in range(5)] == [None] * 5
    assert taken.take(5, 2 * 4) == 4
    assert taken.take(6, 2 * 1) == 1
    assert taken.take(7, 0) is None, "the first of five in a set of four"
    assert [taken.take(step, 1) for step in (8, 9)] == [None, 8], "the other set has room"


def test_an_epoch_ends_without_a_look_at_what_is_remembered_of_it() -> None:
    """It may be some megabytes, at the end of each of many short passes."""
    taken = Taken(8)
    for step in range(4):
        taken.take(step, 2 * step)
    before = bytes(taken._content)
    taken.forget()
    assert bytes(taken._content) == before
    assert [taken.take(step, 2 * (step - 4)) for step in range(4, 8)] == [None] * 4
    assert [taken.take(step, 2 * (step - 8)) for step in range(8, 12)] == [4, 5, 6, 7], "there was room for all"
    assert taken.take(6, 2) is None, "what was taken from there on is trained again"


def test_prints_take_a_small_share_of_the_time() -> None:
    pace, now = Pace(), 0
    step_ns, print_ns = 1_000_000, 40_000  # 4 % of a step
    for step in range(20_000):
        now += step_ns
        if step % pace.every == 0:
            pace.spend(print_ns, now)
    assert pace.every == 8
    assert print_ns / (pace.every * step_ns) <= SHARE
    for step in range(20_000, 60_000):
        now += 100 * step_ns
        if step % pace.every == 0:
            pace.spend(print_ns, now)
    assert pace.every == 1, "steps take longer now"


@pytest.mark.parametrize("print_ns", [1_000_000, 100_000_000, 1_000_000_000])
def test_no_print_is_dear_for_long(print_ns: int) -> None:
    pace, now, spent_ns = Pace(), 0, 0
    for step in range(20_000):
        now += 100_000_000
        if step % pace.every == 0:
            now += print_ns
            spent_ns += print_ns
            pace.spend(print_ns, now)
    # Beyond the share, no more than a print each time that there are to be half as many.
    assert spent_ns <= SHARE * now + 14 * max(print_ns, 50_000_000)


def test_a_print_that_costs_too_much_is_taken_of_fewer_steps(tmp_path: Path) -> None:
    clock = iter(range(0, 10**15, 10**6))  # a print takes as long as anything
    process = Process(tmp_path, clock_ns=lambda: next(clock))
    for step in range(1, 2000):
        process.train(step, step)
    told = {each.step for each in process.zone.batches}
    assert not [step for step in told if step > 1000 and step % 2]


@pytest.mark.parametrize(
    ("samples", "says"),
    [(torch.zeros(2, device="meta"), "before it goes to the device"), ("text", "give tensors or lists")],
)
def test_what_has_no_print_is_refused_with_what_to_give(process: Process, samples: object, says: str) -> None:
    with pytest.raises(InvalidInput, match="samples") as refused:
        process.batches.take(1, samples, tokens=None)
    assert says in str(refused.value)


def test_what_nobody_vouches_for_is_given_up_with_one_word(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for step in (1, 2):
        process.batches.take_if_possible(step, "text")
    process.batches.take_if_possible(3, batch(1))
    assert not process.batches.is_open
    assert [record.message for record in caplog.records] == [caplog.records[0].message]
    assert "batches are not compared" in caplog.text


def test_a_step_of_which_a_part_names_no_samples_names_none(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for step, parts in enumerate([[batch(1), (batch(1), torch.ones(9))], [batch(1)[:0], batch(1)]], 1):
        for part in parts:
            process.batches.take_if_possible(step, part)
        process.batches.completed(step, process.record)
    assert [(each.value, each.samples) for each in process.zone.batches] == [(0, 0), (value(1), 4)]
    assert [record.message for record in caplog.records] == [
        "a batch is compared with no other step=1 error=its parts count 4 and 9 samples"
    ]


def test_how_many_processes_load_the_data_is_published(process: Process) -> None:
    def told() -> int:
        return rankrecord.unpack_work((process.folder / record_file_name(0)).read_bytes()).workers

    assert told() == rankrecord.UNKNOWN_INT
    process.record.workers(4)
    process.record.step(1, None, None, 1)
    assert told() == 4
    assert process.begin(2) is process
    assert told() == rankrecord.UNKNOWN_INT, "a round has a loader of its own"


def test_a_loader_of_fewer_than_no_processes_is_refused() -> None:
    with pytest.raises(InvalidInput, match="workers"):
        Run(backend="gloo", environment={}).loader(workers=-1)


def test_a_run_publishes_what_it_is_told_of_with_the_step(tmp_path: Path) -> None:
    run, zones = Run(backend="gloo", environment={RUN_DIRECTORY_VARIABLE: str(tmp_path)}), []

    def train(_: Assignment) -> None:
        run.epoch(1)
        run.batch(1, batch(1))
        run.step(1)
        run.took(2, batch(1))
        run.step(2)
        run.pass_begins()
        run.batch(3, batch(1))
        run.step(3)
        zones.append(rankrecord.unpack_batch((tmp_path / record_file_name(0)).read_bytes()))

    run.enter(train)
    assert {each.value for each in zones[0].batches} == {value(1)}
    assert (zones[0].again_step, zones[0].first_step, zones[0].again_count) == (2, 1, 1)


def test_what_a_script_vouches_for_and_cannot_be_read_is_told_without_samples(process: Process) -> None:
    process.batches.take(1, torch._neg_view(torch.ones(4, 2)), tokens=None)  # type: ignore[no-untyped-call]
    process.batches.completed(1, process.record)
    process.batches.take_if_possible(2, batch(1))
    process.batches.completed(2, process.record)
    assert [each.samples for each in process.zone.batches] == [0, 4], "and others are told all the same"


def test_a_view_that_is_larger_than_its_memory_is_not_read() -> None:
    ids = torch.arange(8).reshape(2, 4)
    mask = torch.ones(1, 4, dtype=torch.bool).expand(2, 4)
    assert print_of({"mask": mask, "ids": ids}) == print_of({"ids": ids})
