"""Long work of one rank: how much time it has, whose fault it is beyond that, and what is learned from it."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest
from hangworld import Worker, World
from signals import policy

from holdfast.api.finding import Confidence
from holdfast.api.longwork import WORK_S_MAX, LongStop, LongWork
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.detectors.detector import WorkKnown
from holdfast.watchdog.detectors.hang import LATE_S_MIN, WORKS_ON, HangDetector, Seen, marks_of

AT_LEAST = 2.0  # reports are a second apart


def regular_expression(world: World) -> None:
    """It holds the interpreter in C code."""
    world.ranks[1].works, world.ranks[1].beats = 1.0, False


def export(world: World) -> None:
    """In Python: other threads have their turn."""
    world.ranks[1].works = 1.0


def tokenizer(world: World) -> None:
    """In threads of its own, on many processors, while the script waits for them."""
    world.ranks[1].works, world.ranks[1].phase = 4.0, Phase.FORWARD


def on_a_loaded_machine(world: World) -> None:
    world.ranks[1].works = 0.05


WORKS: list[Callable[[World], None]] = [regular_expression, export, tokenizer, on_a_loaded_machine]


def standing(*, work: LongWork | None = None, rank: int = 1, **fields: object) -> World:
    """All wait for one rank since its 50th step."""
    world = World(HangDetector(policy(**fields)))
    if work is not None:
        world.detector.observe(WorkKnown(work), 0.0)
    world.trains(50)
    world.all_wait_but(rank)
    for each in world.ranks.values():
        each.works = 0.0
    return world


def found_after(world: World) -> float:
    began_at = world.now
    world.passes(200.0)
    assert world.found_at is not None
    return world.found_at - began_at


def goes_on(world: World) -> World:
    world.trains(1)
    for each in world.ranks.values():
        each.works, each.beats, each.beat_at = 0.0, True, world.now
    return world.trains(20)


@pytest.mark.parametrize("working", WORKS)
@pytest.mark.parametrize("seconds", [10.0, 25.0])
def test_work_that_ends_is_no_hang_and_teaches_how_long_such_work_takes(
    working: Callable[[World], None], seconds: float
) -> None:
    world = standing()
    working(world)
    goes_on(world.passes(seconds))
    assert not world.found
    (ended,) = world.ended
    assert (ended.rank, ended.worked) == (1, True)
    assert ended.took_s == pytest.approx(seconds, abs=AT_LEAST)


@pytest.mark.parametrize("working", WORKS)
def test_work_without_an_end_is_a_hang_of_the_script_and_of_no_node(working: Callable[[World], None]) -> None:
    world = standing()
    working(world)
    took_s = found_after(world)
    assert 30.0 <= took_s <= 30.0 + AT_LEAST
    (finding,) = world.found
    assert (finding.subject.rank, finding.cause, finding.innocent, finding.step) == (1, WORKS_ON, True, 50)


@pytest.mark.parametrize(
    ("known", "allowed_s"),
    [
        (LongWork(worked_s=8.0), 30.0),
        (LongWork(worked_s=20.0), 40.0),
        (LongWork(worked_s=55.0), WORK_S_MAX),
        (LongWork(stops=(LongStop(0, 12, "inc-0001", worked=True),)), WORK_S_MAX),
        (LongWork(stops=(LongStop(1, 50, "inc-0001"),)), WORK_S_MAX),
        (LongWork(waited_s={1: 20.0}), 30.0),
    ],
)
def test_the_time_of_work_grows_to_what_such_work_took_before(known: LongWork, allowed_s: float) -> None:
    world = standing(work=known)
    regular_expression(world)
    assert allowed_s <= found_after(world) <= allowed_s + AT_LEAST


@pytest.mark.parametrize(
    ("known", "allowed_s"),
    [
        (LongWork(), LATE_S_MIN),
        (LongWork(worked_s=20.0), LATE_S_MIN),
        (LongWork(stops=(LongStop(1, 7, "inc-0001"),)), LATE_S_MIN),
        (LongWork(stops=(LongStop(0, 50, "inc-0001"),)), LATE_S_MIN),
        (LongWork(stops=(LongStop(1, 50, "inc-0001"),)), WORK_S_MAX),
        (LongWork(stops=(LongStop(1, 7, "inc-0001", line="a"), LongStop(1, 9, "inc-0002", line="a"))), WORK_S_MAX),
        (LongWork(stops=(LongStop(1, 7, "inc-0001", line="a"), LongStop(1, 9, "inc-0002", line="b"))), LATE_S_MIN),
        (LongWork(waited_s={1: 12.0}), 24.0),
        (LongWork(waited_s={0: 12.0}), LATE_S_MIN),
        (LongWork(waited_s={1: 50.0}), WORK_S_MAX),
    ],
)
@pytest.mark.parametrize("beats", [True, False], ids=["waits", "sleeps with the interpreter held"])
def test_a_stop_without_work_has_more_time_where_it_stood_before_or_ended_by_itself(
    known: LongWork, allowed_s: float, beats: bool
) -> None:
    world = standing(work=known)
    world.ranks[1].beats = beats
    assert allowed_s <= found_after(world) <= allowed_s + AT_LEAST
    (finding,) = world.found
    assert (finding.subject.rank, finding.innocent, finding.step) == (1, False, 50)


@pytest.mark.parametrize("beats", [True, False])
def test_a_stop_without_work_that_ends_by_itself_is_learned_from_where_it_had_the_time(beats: bool) -> None:
    world = standing(work=LongWork(stops=(LongStop(1, 50, "inc-0001"),)))
    world.ranks[1].beats = beats
    goes_on(world.passes(12.0))
    (ended,) = world.ended
    assert (ended.rank, ended.worked, world.found) == (1, False, [])
    assert ended.took_s == pytest.approx(12.0, abs=AT_LEAST)


def test_what_is_known_already_is_not_told_again() -> None:
    world = standing(work=LongWork(worked_s=40.0))
    regular_expression(world)
    goes_on(world.passes(12.0))
    assert not world.ended


@pytest.mark.parametrize("known", [LongWork(), LongWork(50.0, {1: 50.0}, (LongStop(1, 50, "i", worked=True),))])
@pytest.mark.parametrize("step_time_s", [0.02, 0.1, 0.3])
def test_a_stopped_process_is_named_as_soon_as_ever(known: LongWork, step_time_s: float) -> None:
    world = World(step_time_s=step_time_s)
    world.detector.observe(WorkKnown(known), 0.0)
    world.trains(50)
    world.all_wait_but(1)
    world.ranks[1].works = 0.0
    stopped_at = world.stop(1)
    world.passes(10.0)
    assert world.found_at is not None
    assert world.found_at - stopped_at <= max(1.65, 5 * step_time_s)
    assert (world.found[0].innocent, world.found[0].step) == (False, None)


@pytest.mark.parametrize("process", [ProcessState.BLOCKED, ProcessState.UNKNOWN])
def test_what_the_kernel_does_not_run_or_does_not_show_is_no_work(process: ProcessState) -> None:
    world = standing()
    world.ranks[1].process, world.ranks[1].works = process, 1.0
    assert found_after(world) <= LATE_S_MIN + AT_LEAST
    assert not world.found[0].innocent


@pytest.mark.parametrize("known", [LongWork(), LongWork(stops=(LongStop(1, 50, "inc-0001", worked=True),))])
def test_a_process_that_waits_for_a_device_or_a_disk_tells_of_no_script(known: LongWork) -> None:
    world = standing(work=known)
    world.ranks[1].process = ProcessState.BLOCKED
    assert found_after(world) <= LATE_S_MIN + AT_LEAST
    assert (world.found[0].innocent, world.found[0].step) == (False, None)


@pytest.mark.parametrize("of_the_others", [0.0, 1.0], ids=["they sleep", "they spin"])
def test_whoever_spins_in_a_collective_waits_and_gives_nobody_time(of_the_others: float) -> None:
    world = standing()
    for rank in (0, 2, 3):
        world.ranks[rank].works = of_the_others
    assert found_after(world) <= LATE_S_MIN + AT_LEAST
    (finding,) = world.found
    assert (finding.subject.rank, finding.innocent) == (1, False)


def test_where_all_spin_in_one_collective_nobody_works_and_nobody_is_named() -> None:
    world = World().trains(50)
    world.all_wait_but()
    for each in world.ranks.values():
        each.works = 1.0
    assert 30.0 <= found_after(world) <= 30.0 + AT_LEAST
    (finding,) = world.found
    assert (finding.confidence, finding.innocent) == (Confidence.UNKNOWN, False)


def test_a_rank_that_waits_for_a_working_one_in_another_group_does_not_take_its_time() -> None:
    world = standing()
    world.ranks[1].works = 1.0
    world.ranks[3].sequence = world.ranks[1].sequence  # it did not reach the collective of all either
    assert found_after(world) >= 30.0
    (finding,) = world.found
    assert (finding.subject.rank, finding.also, finding.innocent) == (1, (), True)


@pytest.mark.parametrize("timeout_s", [8.0, 120.0])
def test_a_number_in_the_policy_is_taken_as_it_is_and_still_blames_no_node_for_work(timeout_s: float) -> None:
    world = standing(hang_timeout_s=timeout_s)
    regular_expression(world)
    assert timeout_s <= found_after(world) <= timeout_s + AT_LEAST
    assert world.found[0].innocent


@dataclass
class Burst(Worker):
    """It worked for so long after it published, and has slept since."""

    busy_s: float = 0.0

    def sample(self, now: float, number: int) -> RankSample:
        worked_s = min(self.busy_s, now - self.published_at)
        return msgspec.structs.replace(super().sample(now, number), worked_s=worked_s)


def falls_asleep_after(world: World, busy_s: float) -> None:
    world.ranks[1] = Burst(**vars(world.ranks[1]), busy_s=busy_s)


@pytest.mark.parametrize("busy_s", [0.3, 1.0, 2.0, 4.0, 12.0])
@pytest.mark.parametrize("beats", [True, False], ids=["waits", "holds the interpreter"])
def test_a_process_that_fell_asleep_after_work_is_named_as_soon_as_one_without_work(
    busy_s: float, beats: bool
) -> None:
    world = standing()
    falls_asleep_after(world, busy_s)
    world.ranks[1].beats = beats
    assert found_after(world) <= busy_s + LATE_S_MIN + AT_LEAST
    (finding,) = world.found
    assert (finding.subject.rank, finding.innocent) == (1, False)


@pytest.mark.parametrize("pause_s", [1.0, 3.0])
def test_work_with_pauses_is_work(pause_s: float) -> None:
    world = standing()
    for _ in range(4):
        world.ranks[1].works, began_at = 1.0, world.now
        done_s = world.now - world.ranks[1].published_at
        world.passes(2.0)
        assert began_at + 2.0 == pytest.approx(world.now)
        # As the kernel counts: what was used stays, and grows no more while it waits.
        for _ in range(int(pause_s * 10)):
            age_s = world.now + 0.1 - world.ranks[1].published_at
            world.ranks[1].works = (done_s + 2.0) / age_s
            world.passes(0.1)
    assert not world.found


def test_an_agent_that_counts_anew_takes_nothing_from_a_working_process() -> None:
    world = standing()
    world.ranks[1].works = 1.0
    world.passes(8.0)
    world.ranks[1].works = 0.3  # less in all than it told of before
    world.passes(10.0)
    assert not world.found


@pytest.mark.parametrize("of_the_busy", [0.05, 1.0, 4.0])
@pytest.mark.parametrize(
    ("asleep_in", "busy_in"),
    [(Phase.OWN, Phase.OWN), (Phase.DATA, Phase.DATA), (Phase.OWN, Phase.FORWARD), (Phase.DATA, Phase.FORWARD)],
)
def test_of_two_missing_the_one_that_sleeps_is_named_and_both_are_told_of(
    asleep_in: Phase, busy_in: Phase, of_the_busy: float
) -> None:
    world = World().trains(50)
    world.all_wait_but(1, 2)
    world.ranks[1].works, world.ranks[1].phase = of_the_busy, busy_in
    world.ranks[2].works, world.ranks[2].phase = 0.0, asleep_in
    world.passes(70.0)
    (finding,) = world.found
    assert (finding.subject.rank, finding.also, finding.innocent) == (2, (), False)
    missing = [each.says for each in finding.evidence if "did not arrive" in each.says]
    assert [says.partition(" did")[0] for says in missing] == ["rank 2", "rank 1"]


@pytest.mark.parametrize("process", [ProcessState.BLOCKED, ProcessState.STOPPED])
def test_of_two_missing_the_one_that_does_not_run_is_named(process: ProcessState) -> None:
    world = World().trains(50)
    world.all_wait_but(1, 2)
    world.ranks[1].works = 1.0
    world.ranks[2].process, world.ranks[2].works = process, 0.0
    assert found_after(world) <= LATE_S_MIN + AT_LEAST
    assert (world.found[0].subject.rank, world.found[0].also, world.found[0].innocent) == (2, (), False)


@pytest.mark.parametrize("silent_s", [10.0, 24.0, 40.0])
@pytest.mark.parametrize("works", [0.0, 1.0])
def test_what_a_rank_did_while_its_agent_was_silent_is_not_learned(silent_s: float, works: float) -> None:
    world = standing(work=LongWork(stops=(LongStop(1, 50, "inc-0001"),)))
    world.ranks[1].works = works
    world.passes(8.0)
    world.silent = {"n0"}
    goes_on(world).trains(int(silent_s * 10))
    world.silent = set()
    world.trains(20)
    (ended,) = world.ended
    assert ended.took_s == pytest.approx(8.0, abs=AT_LEAST)


@pytest.mark.parametrize("timeout_s", [None, 30.0, 300.0])
@pytest.mark.parametrize("beats", [True, False], ids=["in Python", "with the interpreter held"])
def test_work_in_a_phase_that_is_no_training_has_all_the_time_it_takes(
    timeout_s: float | None, beats: bool
) -> None:
    world = standing(hang_timeout_s=timeout_s)
    world.ranks[1].phase, world.ranks[1].works, world.ranks[1].beats = Phase.IDLE, 1.0, beats
    world.passes(1000.0)
    assert not world.found


@pytest.mark.parametrize("phase", [Phase.IDLE, Phase.CHECKPOINT, Phase.OWN])
@pytest.mark.parametrize("works", [0.0, 1.0])
def test_a_longer_number_in_the_policy_holds_in_every_phase(phase: Phase, works: float) -> None:
    world = standing(hang_timeout_s=300.0)
    world.ranks[1].phase, world.ranks[1].works, world.ranks[1].beats = phase, works, False
    world.passes(290.0)
    assert not world.found


def test_long_steps_give_work_no_less_than_they_give_all() -> None:
    world = World(step_time_s=20.0)
    world.trains(8)
    world.all_wait_but(1)
    regular_expression(world)
    assert found_after(world) >= 80.0


def test_a_look_that_told_nothing_of_the_work_makes_no_work_of_a_sleep() -> None:
    seen: Seen | None = None
    for second in range(1, 30):
        worked_s = None if second == 15 else min(float(second), 10.0)
        sample = RankSample(
            1, 0, ProcessState.RUNNING, Phase.OWN, float(second), 1.0, pid=5, step=9, worked_s=worked_s
        )
        seen = Seen(sample, second, 0.0, marks=marks_of(sample, seen, second))
        assert seen.works is (second < 15)
