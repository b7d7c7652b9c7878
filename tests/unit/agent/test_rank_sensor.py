"""The rank sensor on real, mapped records and real processes."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from record_writer import SECOND_NS, RecordWriter, step_zone, work_zone

from holdfast.agent.sensors.process import parse_state, parse_worked_s
from holdfast.agent.sensors.ranks import RankSensor
from holdfast.api.rankrecord import (
    PULSE_SEQUENCE_OFFSET,
    REPLICA_SEQUENCE_OFFSET,
    SEQUENCE,
    STEP_OFFSET,
    STEP_SEQUENCE_OFFSET,
    BatchPrint,
    BatchZone,
    Fingerprint,
    HealthZone,
    Odd,
    Phase,
    ProofZone,
    PulseZone,
    ReplicaZone,
)
from holdfast.api.telemetry import (
    BatchAgain,
    BatchTaken,
    NonFinite,
    ParametersFingerprinted,
    ProcessState,
    SkippedSteps,
    StepWork,
    Unreadable,
)

NOW = 102.0


@pytest.fixture
def sensor(tmp_path: Path) -> Iterator[RankSensor]:
    sensor = RankSensor(str(tmp_path))
    yield sensor
    sensor.close()


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its input: while it starts, it may wait for the disk, which is another state."""
    command = [sys.executable, "-S", "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_record_becomes_a_sample_with_ages_on_the_nodes_clock(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.pulse(PulseZone(beat_ns=int(101.9 * SECOND_NS), collective_sequence=7))
    (sample,) = sensor.read(NOW).ranks
    assert (sample.round, sample.rank, sample.step, sample.phase) == (3, 5, 41, Phase.FORWARD)
    assert sample.process is ProcessState.RUNNING
    assert sample.pid == os.getpid()
    assert sample.progress_age_s == pytest.approx(2.0)
    assert sample.phase_age_s == pytest.approx(3.0)
    assert sample.pulse_age_s == pytest.approx(0.1)
    assert (sample.step_time_s, sample.loss, sample.grad_norm) == (0.5, 2.5, 0.75)
    assert (sample.tokens, sample.collective_sequence, sample.snapshot_step) == (4096, 7, 40)


def test_what_steps_were_made_of_is_told_with_how_long_the_process_was_found_stopped(
    tmp_path: Path, sensor: RankSensor, sleeper: subprocess.Popen[bytes]
) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone(pid=sleeper.pid))
    writer.work(work_zone(steps=0))
    (sample,) = sensor.read(NOW).ranks
    assert sample.work is None, "of the first step nothing is said"
    writer.work(work_zone(tokens=-1))
    sensor.read(NOW + 1)
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    sensor.read(NOW + 1.5)
    (sample,) = sensor.read(NOW + 2).ranks
    assert sample.work == StepWork(
        4, 2.0, 0.5, 0.25, 0.0, 0.125, 0.75, 0.0, pytest.approx(1.0), None, 512, 2, 0.0625
    )
    (sample,) = sensor.read(NOW + 602).ranks
    assert sample.work is not None
    assert sample.work.stopped_s <= 2.0, "the agent did not look for ten minutes, and knows nothing of them"
    writer.work(work_zone(waited_ns=-1, delayed_ns=-1, round=2))
    (sample,) = sensor.read(NOW + 603).ranks
    assert sample.work is None, "of another round"


def test_about_one_batch_a_second_is_told_and_each_once(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone(step_time_ns=SECOND_NS // 3))
    writer.batch(BatchZone(3, 5, (BatchPrint(1, 7, 8, -1, SECOND_NS),)))
    sensor.read(NOW)
    taken = tuple(BatchPrint(step, 2**64 - step, 8, -1, 101 * SECOND_NS) for step in range(34, 42))
    writer.batch(BatchZone(3, 5, taken, 41, 7, 2))
    reading = sensor.read(NOW)
    told = [BatchTaken(3, 5, step, 2**64 - step, 1.0, 8) for step in (36, 40)]
    assert list(reading.events) == told
    assert reading.ranks[0].again == BatchAgain(41, 7, 2)
    assert sensor.read(NOW).events == ()


def test_of_the_first_steps_of_a_round_all_are_told(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone(step_time_ns=SECOND_NS // 50))
    told = []
    for step in range(101, 301):
        writer.batch(BatchZone(3, 5, (BatchPrint(step, step, 8, -1, SECOND_NS),)))
        told += [each.step for each in sensor.read(NOW).events if isinstance(each, BatchTaken)]
    assert told == [*range(101, 117), 128, 192, 256]
    writer.step(step_zone(step_time_ns=SECOND_NS // 50, round=4))
    writer.batch(BatchZone(4, 5, (BatchPrint(201, 7, 8, -1, SECOND_NS),)))
    assert [each.step for each in sensor.read(NOW).events if isinstance(each, BatchTaken)] == [201]


def test_the_more_ranks_there_are_the_fewer_batches_each_tells(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone(step_time_ns=SECOND_NS, world_size=256))
    writer.batch(BatchZone(3, 5, tuple(BatchPrint(step, step, 8, -1, SECOND_NS) for step in range(1, 17))))
    told = [each.step for each in sensor.read(NOW).events if isinstance(each, BatchTaken)]
    assert told == [8, 12, 16], "of the newest of each power of two those that four divides"


def test_a_record_of_the_version_before_is_read(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    content = b"HFD1\x03\x00\x00\x02" + writer.path.read_bytes()[8:512]
    (tmp_path / "rank-001.record").write_bytes(content)
    reading = sensor.read(NOW)
    assert [(each.step, each.loss, each.work) for each in reading.ranks] == [(41, 2.5, None)] * 2
    assert reading.unreadable == ()


def test_what_was_not_measured_is_none_and_never_zero(tmp_path: Path, sensor: RankSensor) -> None:
    RecordWriter(tmp_path).step(
        step_zone(step=-1, step_time_ns=-1, loss=None, grad_norm=None, tokens=-1, snapshot_step=-1, pid=-1)
    )
    (sample,) = sensor.read(NOW).ranks
    assert sample.process is ProcessState.UNKNOWN
    unknown = (sample.step, sample.step_time_s, sample.loss, sample.grad_norm, sample.tokens, sample.snapshot_step)
    assert unknown == (None,) * 6
    assert (sample.pid, sample.pulse_age_s, sample.collective_sequence) == (None,) * 3


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_is_told_as_it_is(tmp_path: Path, sensor: RankSensor, value: float) -> None:
    RecordWriter(tmp_path).step(step_zone(loss=value, grad_norm=value))
    (sample,) = sensor.read(NOW).ranks
    assert (repr(sample.loss), repr(sample.grad_norm)) == (repr(value), repr(value))


@pytest.mark.parametrize("norm", [math.nan, math.inf, 3.0])
def test_a_ranks_own_gradient_norm_is_told_as_it_is_once_it_was_measured(
    tmp_path: Path, sensor: RankSensor, norm: float
) -> None:
    record = RecordWriter(tmp_path)
    record.step(step_zone())
    record.proof(ProofZone(3, 5, 1, ()))
    (unmeasured,) = sensor.read(NOW).ranks
    assert unmeasured.local_grad_norm is None
    record.proof(ProofZone(3, 5, 1, (), local_norm_step=7, local_grad_norm=norm))
    (sample,) = sensor.read(NOW + 1).ranks
    assert repr(sample.local_grad_norm) == repr(norm)


def test_a_step_that_was_not_finite_is_told_however_seldom_one_looks(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    (sample,) = sensor.read(NOW).ranks
    assert (sample.nonfinite, sample.skipped) == (None, None)
    writer.health(
        HealthZone(3, 5, 38, last=40, at_ns=101 * SECOND_NS, count=2, loss=Odd.NAN, grad_norm=Odd.MINUS_INFINITE)
    )
    (sample,) = sensor.read(NOW).ranks
    assert sample.nonfinite == NonFinite(38, 1.0, 40, 2, "nan", "-inf")
    writer.health(HealthZone(3, 5, 50, last=50, at_ns=101 * SECOND_NS, count=1, parameters=True))
    (sample,) = sensor.read(NOW).ranks
    assert sample.nonfinite == NonFinite(50, 1.0, 50, 1, parameters=True)
    writer.health(HealthZone(3, 5, skipped=41, skipped_count=7, skipped_grad_norm=Odd.INFINITE))
    (sample,) = sensor.read(NOW).ranks
    assert (sample.nonfinite, sample.skipped) == (None, SkippedSteps(41, 7, "", "inf"))


def test_the_health_of_another_round_is_not_told(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.health(HealthZone(2, 5, 38, last=38, at_ns=SECOND_NS, count=1, loss=Odd.NAN))
    (sample,) = sensor.read(NOW).ranks
    assert sample.nonfinite is None


def test_a_record_nobody_has_published_into_says_nothing(tmp_path: Path, sensor: RankSensor) -> None:
    RecordWriter(tmp_path)
    reading = sensor.read(NOW)
    assert reading.ranks == ()
    assert reading.unreadable == ()


def test_a_worker_that_was_given_no_rank_yet_is_no_rank(tmp_path: Path, sensor: RankSensor) -> None:
    RecordWriter(tmp_path).step(step_zone(round=-1, rank=-1))
    assert sensor.read(NOW).ranks == ()


def replica_zone(*steps: int, round: int = 3, value: int = 77) -> ReplicaZone:
    kept = tuple(Fingerprint(step, value + step, 101 * SECOND_NS) for step in steps)
    return ReplicaZone(round, 5, group=9, fingerprints=kept)


def steps_told(sensor: RankSensor) -> list[tuple[int, int]]:
    return [(event.round, event.step) for event in fingerprints_told(sensor)]


def fingerprints_told(sensor: RankSensor) -> list[ParametersFingerprinted]:
    return [event for event in sensor.read(NOW).events if isinstance(event, ParametersFingerprinted)]


def test_a_fingerprint_is_told_with_its_age_and_only_once(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    assert fingerprints_told(sensor) == []
    writer.replica(replica_zone(40))
    (told,) = fingerprints_told(sensor)
    assert told == ParametersFingerprinted(round=3, rank=5, group=9, step=40, value=117, age_s=told.age_s)
    assert told.age_s == pytest.approx(1.0)
    assert fingerprints_told(sensor) == []


@pytest.mark.parametrize("value", [0, 2**64 - 1])
def test_any_64_bits_are_a_fingerprint(tmp_path: Path, sensor: RankSensor, value: int) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.replica(ReplicaZone(3, 5, group=2**64 - 1, fingerprints=(Fingerprint(0, value, SECOND_NS),)))
    (told,) = fingerprints_told(sensor)
    assert (told.step, told.value, told.group) == (0, value, 2**64 - 1)


def test_a_look_that_came_late_still_tells_what_is_kept(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.replica(replica_zone(10))
    assert steps_told(sensor) == [(3, 10)]
    writer.replica(replica_zone(20, 30, 40))
    assert steps_told(sensor) == [(3, 20), (3, 30), (3, 40)]


def test_a_new_round_that_goes_back_tells_its_fingerprints_anew(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.replica(replica_zone(10, 20))
    assert steps_told(sensor) == [(3, 10), (3, 20)]
    writer.replica(replica_zone(10, round=4))
    assert steps_told(sensor) == [(4, 10)]


def test_an_agent_that_starts_again_tells_what_is_kept(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.replica(replica_zone(10, 20, 30))
    sensor.read(NOW)
    again = RankSensor(str(tmp_path))
    assert steps_told(again) == [(3, 10), (3, 20), (3, 30)]
    again.close()


def test_a_run_directory_that_is_not_there_yet_has_no_ranks(tmp_path: Path) -> None:
    reading = RankSensor(str(tmp_path / "later")).read(NOW)
    assert reading.ranks == ()
    assert reading.unreadable == ()


def test_a_run_directory_that_cannot_be_listed_is_unreadable(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (problem,) = RankSensor(str(tmp_path / "file")).read(NOW).unreadable
    assert problem.source == "ranks"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"", "record ends at byte 0, expected 1024", id="empty"),
        pytest.param(b"HFD1\x04\x00\x00\x04" + bytes(92), "record ends at byte 100, expected 1024", id="short"),
        pytest.param(b"XXXX" + bytes(508), "magic is 0x58585858, expected 0x31444648", id="foreign"),
        pytest.param(
            b"HFD1\x09\x00\x00\x02" + bytes(504),
            "record version 9 of 512 bytes, expected version 3 of 512 or version 4 of 1024",
            id="version",
        ),
    ],
)
def test_a_file_that_is_no_record_is_unreadable(
    tmp_path: Path, sensor: RankSensor, content: bytes, reason: str
) -> None:
    (tmp_path / "rank-000.record").write_bytes(content)
    reading = sensor.read(NOW)
    assert reading.ranks == ()
    assert reading.unreadable == (Unreadable("rank-000.record", reason),)


def make_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Path.mkdir, "cannot read: Is a directory"),
        (os.mkfifo, "cannot read: Illegal seek"),
        (make_link, "cannot open: Too many levels of symbolic links"),
    ],
    ids=["folder", "fifo", "link"],
)
def test_what_is_no_file_is_unreadable_and_blocks_nobody(
    tmp_path: Path, sensor: RankSensor, make: Callable[[Path], None], reason: str
) -> None:
    make(tmp_path / "rank-000.record")
    assert sensor.read(NOW).unreadable == (Unreadable("rank-000.record", reason),)


def test_no_number_of_records_costs_more_than_a_node_can_have(tmp_path: Path, sensor: RankSensor) -> None:
    RecordWriter(tmp_path).step(step_zone())
    for number in range(1, 400):
        (tmp_path / f"rank-{number:03d}.record").touch()
    before = len(os.listdir("/proc/self/fd"))
    reading = sensor.read(NOW)
    assert len(reading.ranks) == 1
    assert len(os.listdir("/proc/self/fd")) - before <= 260
    assert reading.unreadable[-1] == Unreadable("ranks", "144 records more than are read in one directory")


def test_other_files_in_the_run_directory_are_left_alone(tmp_path: Path, sensor: RankSensor) -> None:
    for name in ("rank-000.record.fresh", "agent.json", "rank-x.record"):
        (tmp_path / name).write_bytes(b"?")
    assert sensor.read(NOW).unreadable == ()


def test_a_record_locked_before_its_first_content_could_be_read_is_unreadable(
    tmp_path: Path, sensor: RankSensor
) -> None:
    RecordWriter(tmp_path).lock(STEP_SEQUENCE_OFFSET)
    reading = sensor.read(NOW)
    assert reading.ranks == ()
    assert "middle of a publication" in reading.unreadable[0].reason


@pytest.mark.parametrize(
    "zone",
    [STEP_SEQUENCE_OFFSET, REPLICA_SEQUENCE_OFFSET, PULSE_SEQUENCE_OFFSET],
    ids=["step", "replica", "pulse"],
)
def test_a_record_locked_for_ever_still_shows_its_last_good_content(
    tmp_path: Path, sensor: RankSensor, zone: int
) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.replica(replica_zone(40))
    writer.pulse(PulseZone(beat_ns=100 * SECOND_NS, collective_sequence=7))
    sensor.read(NOW)
    writer.lock(zone)
    reading = sensor.read(NOW + 5)
    assert reading.ranks[0].step == 41
    assert reading.ranks[0].pulse_age_s == pytest.approx(7.0)
    assert reading.unreadable[0].source == "rank-000.record"


@pytest.mark.parametrize("zone", [STEP_SEQUENCE_OFFSET, PULSE_SEQUENCE_OFFSET], ids=["step", "pulse"])
def test_a_sequence_cleared_for_a_moment_does_not_unpublish_a_record(
    tmp_path: Path, sensor: RankSensor, zone: int
) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.pulse(PulseZone(beat_ns=100 * SECOND_NS, collective_sequence=7))
    soon = 100.5  # within a step: nothing is told yet of what the process, which is this one, works meanwhile
    before = sensor.read(soon)
    writer.map[zone : zone + SEQUENCE.size] = bytes(SEQUENCE.size)
    assert sensor.read(soon).ranks == before.ranks


def test_a_phase_of_a_later_trainer_is_no_training_that_is_known(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    writer.map[STEP_OFFSET + 32] = 99
    (sample,) = sensor.read(NOW).ranks
    assert sample.phase is Phase.IDLE


def test_a_record_cut_short_while_it_is_read_does_not_kill_the_agent(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone())
    sensor.read(NOW)
    os.truncate(writer.path, 0)
    reading = sensor.read(NOW)
    assert reading.unreadable[0].reason.startswith("record ends at byte")
    assert reading.ranks[0].step == 41


def test_a_replaced_record_is_read_anew(tmp_path: Path, sensor: RankSensor) -> None:
    RecordWriter(tmp_path).step(step_zone(step=41))
    sensor.read(NOW)
    RecordWriter(tmp_path).step(step_zone(round=4, step=42))
    (sample,) = sensor.read(NOW).ranks
    assert (sample.round, sample.step) == (4, 42)


def test_a_removed_record_is_forgotten_and_its_files_are_closed(tmp_path: Path, sensor: RankSensor) -> None:
    open_before = len(os.listdir("/proc/self/fd"))
    for local_rank in range(8):
        RecordWriter(tmp_path, local_rank).step(step_zone(rank=local_rank))
    assert len(sensor.read(NOW).ranks) == 8
    for record in tmp_path.iterdir():
        record.unlink()
    assert sensor.read(NOW).ranks == ()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_record_is_whole_although_its_writer_never_pauses(tmp_path: Path, sensor: RankSensor) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone(step=0, tokens=0))
    writing = os.fork()
    if writing == 0:  # the child only publishes, until it is killed
        for step in range(1 << 40):
            writer.step(step_zone(step=step, tokens=step, snapshot_step=step))
    try:
        samples = [sample for _ in range(2000) for sample in sensor.read(NOW).ranks]
    finally:
        os.kill(writing, signal.SIGKILL)
        os.waitpid(writing, 0)
    torn = [sample for sample in samples if len({sample.step, sample.tokens}) != 1]
    assert torn == []
    assert len({sample.step for sample in samples}) > 1


def test_a_stopped_process_is_stopped_and_a_continued_one_runs(
    tmp_path: Path, sensor: RankSensor, sleeper: subprocess.Popen[bytes]
) -> None:
    RecordWriter(tmp_path).step(step_zone(pid=sleeper.pid))
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    assert sensor.read(NOW).ranks[0].process is ProcessState.STOPPED
    sleeper.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, sleeper.pid, os.WCONTINUED)
    assert sensor.read(NOW).ranks[0].process is ProcessState.RUNNING


@pytest.mark.parametrize("seen_alive", [True, False], ids=["seen alive", "never seen alive"])
def test_a_killed_process_is_gone_as_a_zombie_and_after(
    tmp_path: Path, sensor: RankSensor, sleeper: subprocess.Popen[bytes], seen_alive: bool
) -> None:
    RecordWriter(tmp_path).step(step_zone(pid=sleeper.pid))
    if seen_alive:
        sensor.read(NOW)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert sensor.read(NOW).ranks[0].process is ProcessState.GONE
    sleeper.wait()
    assert sensor.read(NOW).ranks[0].process is ProcessState.GONE
    assert sensor.read(NOW).ranks[0].pid == sleeper.pid


def test_the_process_that_takes_over_a_record_is_the_one_that_is_watched(
    tmp_path: Path, sensor: RankSensor, sleeper: subprocess.Popen[bytes]
) -> None:
    writer = RecordWriter(tmp_path)
    writer.step(step_zone(pid=sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    assert sensor.read(NOW).ranks[0].process is ProcessState.GONE
    writer.step(step_zone(pid=os.getpid()))
    assert sensor.read(NOW).ranks[0].process is ProcessState.RUNNING


@pytest.mark.parametrize(
    ("stat", "state"),
    [
        (b"7 (python) R 1 7 7 0", ProcessState.RUNNING),
        (b"7 (a) D (b) S 1 7", ProcessState.RUNNING),
        (b"7 (python) D 1 7", ProcessState.BLOCKED),
        (b"7 (python) t 1 7", ProcessState.STOPPED),
        (b"7 (python) X 0 7", ProcessState.GONE),
        (b"7 (python) ? 0 7", ProcessState.UNKNOWN),
        (b"R", ProcessState.UNKNOWN),
        (b"", ProcessState.UNKNOWN),
    ],
)
def test_the_state_is_read_from_behind_whatever_name_the_process_chose(stat: bytes, state: ProcessState) -> None:
    assert parse_state(stat) is state


def test_the_time_of_processors_is_told_of_a_rank_that_publishes_nothing(
    tmp_path: Path, sensor: RankSensor
) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            writer = RecordWriter(tmp_path)
            writer.step(step_zone(pid=process.pid))
            assert sensor.read(NOW).ranks[0].worked_s == 0.0
            assert wait_for_work(sensor)
            writer.step(step_zone(pid=process.pid, published_ns=int((NOW - 0.5) * SECOND_NS)))
            assert sensor.read(NOW).ranks[0].worked_s is None, "it has just published"
            assert sensor.read(NOW + 1).ranks[0].worked_s is not None
        finally:
            process.kill()


def test_a_rank_that_stands_has_used_no_time_of_processors(
    tmp_path: Path, sensor: RankSensor, sleeper: subprocess.Popen[bytes]
) -> None:
    sleeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, sleeper.pid, os.WSTOPPED)
    RecordWriter(tmp_path).step(step_zone(pid=sleeper.pid))
    assert [sensor.read(NOW + each).ranks[0].worked_s for each in (0, 60)] == [0.0, 0.0]


def wait_for_work(sensor: RankSensor) -> float | None:
    while not (worked_s := sensor.read(NOW).ranks[0].worked_s):
        time.sleep(0.01)
    return worked_s


@pytest.mark.parametrize(
    ("stat", "worked_s"),
    [
        (b"7 (a b) c) R 1 7 7 0 -1 4194304 100 0 0 0 250 50 3 4 20 0 1 0 99 0 0", 300 / os.sysconf("SC_CLK_TCK")),
        (b"7 (python) R 1 7 7 0 -1 4194304 100 0 0 0 250", None),
        (b"7 (python) R 1 7 7 0 -1 4194304 100 0 0 0 x y", None),
        (b"", None),
    ],
)
def test_what_a_process_worked_is_read_of_all_its_threads(stat: bytes, worked_s: float | None) -> None:
    assert parse_worked_s(stat) == worked_s


@pytest.mark.parametrize("odd", [{"step": 2**60}, {"round": -7}, {"tokens": 2**62}, {"rank": 2**30}])
def test_numbers_that_no_training_reaches_cost_the_record_and_not_the_nodes_report(
    tmp_path: Path, sensor: RankSensor, odd: dict[str, int]
) -> None:
    RecordWriter(tmp_path).step(step_zone(**odd))
    reading = sensor.read(100.5)
    assert reading.ranks == ()
    assert "it tells what no training does" in reading.unreadable[0].reason
