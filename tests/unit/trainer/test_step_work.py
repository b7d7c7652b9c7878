"""What a step is made of: the sums of a round, by a clock and a kernel of the test's own."""

import gc
import threading

import pytest

from holdfast.api.rankrecord import UNKNOWN_INT, Phase
from holdfast.trainer.stepwork import StepWork, ThreadTimes, follow_collector

NAMES = (
    "steps",
    "wall",
    "data",
    "checkpoint",
    "idle",
    "waited",
    "delayed",
    "collected",
    "tokens",
    "longest",
    "own",
)


class Kernel(ThreadTimes):
    """Counts what the test says."""

    def __init__(self) -> None:
        self.ran = self.delayed = 0
        self.is_counting = True
        self.ran_ns = lambda: self.ran  # type: ignore[method-assign]

    def delayed_ns(self) -> int | None:
        return self.delayed if self.is_counting else None


class Loop:
    """A training loop in virtual time."""

    def __init__(self, *, is_on_host: bool = True) -> None:
        self.kernel, self.now = Kernel(), 1000
        self.work = StepWork(self.kernel if is_on_host else None, self.now)

    def lives(self, *, ran: int = 0, delayed: int = 0, waited: int = 0) -> None:
        self.kernel.ran += ran
        self.kernel.delayed += delayed
        self.now += ran + delayed + waited

    def phase(self, phase: Phase) -> None:
        self.work.phase(phase, self.now)

    def step(self, tokens: int = 10, longest: int = 5) -> None:
        self.work.step(self.now, tokens, longest)

    @property
    def sums(self) -> dict[str, int]:
        return dict(zip(NAMES, self.work.fields(), strict=True)) | {"collected": 0}


def test_a_step_is_split_by_its_phases_and_the_first_one_is_left_out() -> None:
    loop = Loop()
    for first in (True, False, False):
        loop.phase(Phase.DATA)
        loop.lives(ran=1, waited=6)
        loop.phase(Phase.FORWARD)
        loop.lives(ran=500 if first else 20, delayed=3, waited=4)
        loop.phase(Phase.BACKWARD)
        loop.lives(ran=40, waited=10)
        loop.step()
        loop.phase(Phase.CHECKPOINT)
        loop.lives(ran=2, waited=9)
    assert loop.sums == {
        "steps": 2,
        "wall": 2 * (7 + 27 + 50 + 11),
        "data": 14,
        "checkpoint": 22,
        "idle": 0,
        "waited": 28,
        "delayed": 6,
        "collected": 0,
        "tokens": 20,
        "longest": 10,
        "own": 0,
    }


def test_what_lies_behind_a_step_is_the_scripts_own_work_until_data_are_asked_for() -> None:
    loop = Loop()
    for _ in range(3):
        loop.phase(Phase.DATA)
        loop.lives(waited=3)
        loop.phase(Phase.FORWARD)
        loop.lives(ran=20)
        loop.step()
        loop.lives(ran=40, waited=5)  # an averaged copy, and a metric that the ranks reduce
    loop.phase(Phase.DATA)
    # The first step is in no sum; what lies behind it is.
    assert [loop.sums[name] for name in ("data", "own", "waited")] == [6, 120, 15]


@pytest.mark.parametrize(
    ("behind", "ran"),
    [
        ({"ran": 40, "waited": 500}, 40),  # a collective of its own there, or a log that is sent
        ({"ran": 40, "delayed": 500}, 40),  # something else has its processor
        ({"delayed": 20, "waited": 20}, 0),
    ],
)
@pytest.mark.parametrize("then", [Phase.DATA, Phase.FORWARD, Phase.IDLE])
def test_own_work_is_what_the_thread_ran_and_nothing_that_it_waited_for(
    behind: dict[str, int], ran: int, then: Phase
) -> None:
    loop = Loop()
    for _ in range(3):
        loop.step()
        loop.lives(**behind)
        loop.phase(then)
        loop.phase(Phase.FORWARD)
        loop.lives(ran=20)
    loop.step()
    assert loop.sums["own"] == 3 * ran


@pytest.mark.parametrize(("told", "readings"), [((), 0), ((Phase.DATA, Phase.FORWARD, Phase.BACKWARD), 3)])
def test_a_step_reads_the_threads_clock_where_the_loop_tells_of_phases(
    told: tuple[Phase, ...], readings: int
) -> None:
    read: list[int] = []

    def ran_ns() -> int:
        read.append(1)
        return loop.kernel.ran

    loop = Loop()
    loop.kernel.ran_ns = ran_ns  # type: ignore[method-assign]
    loop.work = StepWork(loop.kernel, loop.now)
    for _ in range(12):
        for phase in told:
            loop.phase(phase)
            loop.lives(ran=5)
        loop.step()
        if loop.work.fields()[0] == 0:
            first = len(read)
    # `fields` reads it once, where the sums are published.
    assert len(read) - first == 11 * (readings + 1)


def test_a_loop_that_tells_of_its_evaluations_alone_has_no_more_own_work_than_time_behind_its_steps() -> None:
    loop = Loop()
    for _ in range(3):
        loop.lives(ran=100)
        loop.step()
    loop.lives(ran=4, waited=3)
    loop.phase(Phase.IDLE)
    loop.phase(Phase.FORWARD)
    loop.step()
    assert 4 <= loop.sums["own"] <= 7


def test_where_the_host_knows_nothing_own_work_is_all_of_its_time() -> None:
    loop = Loop(is_on_host=False)
    loop.step()
    loop.lives(ran=30, waited=7)
    loop.phase(Phase.DATA)
    loop.step()
    assert loop.sums["own"] == 37


def test_a_wait_that_was_told_becomes_no_less_when_the_loader_has_no_processor() -> None:
    loop = Loop()
    loop.step()
    loop.lives(ran=10, waited=50)
    loop.step()
    before = loop.sums
    loop.phase(Phase.DATA)
    loop.lives(delayed=40)
    loop.phase(Phase.FORWARD)
    loop.lives(ran=5)
    loop.step()
    assert all(loop.sums[name] >= before[name] for name in NAMES)


def test_own_work_behind_a_step_that_saves_and_one_that_evaluates() -> None:
    loop = Loop()
    loop.step()
    for rest in (Phase.CHECKPOINT, Phase.IDLE):
        loop.lives(ran=7)
        loop.phase(rest)
        loop.lives(waited=100)
        loop.phase(Phase.FORWARD)
        loop.lives(ran=30)
        loop.step()
    assert [loop.sums[name] for name in ("own", "checkpoint", "idle", "data")] == [14, 100, 100, 0]


def test_a_loop_that_tells_of_no_phase_has_no_own_work() -> None:
    loop = Loop()
    for _ in range(3):
        loop.lives(ran=30, waited=7)
        loop.step()
    assert [loop.sums[name] for name in ("own", "data", "waited")] == [0, 0, 14]


def test_a_loop_that_tells_of_no_phase_trained_all_the_time() -> None:
    loop = Loop()
    for _ in range(3):
        loop.lives(ran=30, delayed=5, waited=7)
        loop.step()
    assert [loop.sums[name] for name in ("wall", "data", "waited", "delayed")] == [84, 0, 14, 10]


def test_evaluation_and_a_wait_in_it_are_no_training() -> None:
    loop = Loop()
    loop.step()
    loop.phase(Phase.FORWARD)
    loop.lives(ran=10)
    loop.phase(Phase.IDLE)
    loop.lives(waited=100)
    loop.phase(Phase.FORWARD)
    loop.lives(ran=10, waited=1)
    loop.step()
    assert [loop.sums[name] for name in ("wall", "idle", "waited")] == [121, 100, 1]


def test_where_the_host_knows_nothing_the_wait_is_unknown() -> None:
    loop = Loop(is_on_host=False)
    for _ in range(3):
        loop.lives(ran=30, waited=7)
        loop.step(longest=UNKNOWN_INT)
    assert [loop.sums[name] for name in ("waited", "delayed", "tokens", "longest")] == [-1, -1, 20, -1]


def test_where_the_kernel_does_not_count_both_are_unknown() -> None:
    loop = Loop()
    loop.step()
    loop.lives(ran=5, waited=5)
    loop.step()
    loop.kernel.is_counting = False
    assert [loop.sums[name] for name in ("steps", "waited", "delayed")] == [1, -1, -1]


def test_the_kernel_counts_what_a_thread_runs_and_is_delayed() -> None:
    times = ThreadTimes()
    assert times.thread == threading.get_native_id()
    ran, delayed = times.ran_ns(), times.delayed_ns()
    assert delayed is not None
    sum(range(200_000))
    assert times.ran_ns() > ran
    assert times.delayed_ns() >= delayed
    times.close()
    assert times.delayed_ns() is None


def test_the_collectors_pauses_are_counted() -> None:
    clock = follow_collector()
    assert follow_collector() is clock
    assert gc.callbacks.count(clock.told) == 1
    before = clock.total_ns
    gc.collect()
    assert clock.total_ns > before
