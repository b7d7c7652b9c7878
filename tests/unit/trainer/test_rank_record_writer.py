import mmap
import os
from pathlib import Path

import pytest
from trainer_builders import assignment

from holdfast.api import rankrecord
from holdfast.api.control import record_file_name
from holdfast.api.rankrecord import UNKNOWN_INT, HealthZone, Odd, Phase, PulseZone, ReplicaZone, StepZone
from holdfast.trainer import record as record_module
from holdfast.trainer.record import RankRecord, open_record


def raw(directory: Path, local_rank: int = 0) -> bytes:
    return (directory / record_file_name(local_rank)).read_bytes()


def step_zone(directory: Path) -> StepZone:
    return rankrecord.unpack_step(raw(directory))


def replica_zone(directory: Path) -> ReplicaZone:
    return rankrecord.unpack_replica(raw(directory))


def health_zone(directory: Path) -> HealthZone:
    return rankrecord.unpack_health(raw(directory))


def mapped(descriptor: int) -> mmap.mmap:
    return mmap.mmap(descriptor, rankrecord.SIZE, access=mmap.ACCESS_READ)


def begun(directory: Path) -> RankRecord:
    record = open_record(directory, 0)
    record.begin(assignment(round=7, rank=0, world_size=4))
    return record


def test_a_new_record_is_one_of_this_version_and_knows_nothing(tmp_path: Path) -> None:
    open_record(tmp_path, 0)
    assert rankrecord.check_header(raw(tmp_path)) is None
    assert step_zone(tmp_path).round == UNKNOWN_INT
    assert rankrecord.unpack_pulse(raw(tmp_path)).collective_sequence == UNKNOWN_INT


def test_a_round_begins_with_nothing_measured(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(3, 0.5, 1.0, 100)
    record.fingerprint(3, 2**64 - 1, 12)
    record.begin(assignment(round=8, rank=1, world_size=2, local_rank=0))
    zone = step_zone(tmp_path)
    assert (zone.round, zone.rank, zone.local_rank, zone.world_size) == (8, 1, 0, 2)
    assert (zone.pid, zone.step, zone.phase) == (os.getpid(), UNKNOWN_INT, Phase.STARTUP)
    assert (zone.loss, zone.grad_norm) == (None, None)
    assert (zone.step_time_ns, zone.tokens, zone.snapshot_step) == (UNKNOWN_INT, UNKNOWN_INT, UNKNOWN_INT)
    assert replica_zone(tmp_path) == ReplicaZone(round=8, rank=1, group=0, fingerprints=())
    assert record.last_step is None


def test_a_completed_step_is_published_with_what_was_measured(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(1, 3.5, 0.25, 4096)
    zone = step_zone(tmp_path)
    assert (zone.step, zone.loss, zone.grad_norm, zone.tokens) == (1, 3.5, 0.25, 4096)
    assert zone.phase is Phase.OWN
    assert zone.step_time_ns == UNKNOWN_INT  # The first step of a round contains its start-up.
    record.step(2, 3.25, 0.25, 4096)
    assert step_zone(tmp_path).step_time_ns == step_zone(tmp_path).published_ns - zone.published_ns
    assert record.last_step == 2


def test_a_phase_moves_the_publication_but_not_the_step(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(1, 3.5, 0.25, 4096)
    before = step_zone(tmp_path)
    record.phase(Phase.BACKWARD)
    after = step_zone(tmp_path)
    assert (after.step, after.phase) == (1, Phase.BACKWARD)
    assert after.phase_started_ns == after.published_ns > before.published_ns


def test_what_steps_are_made_of_is_published_but_not_of_each_short_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = lambda: rankrecord.unpack_work(raw(tmp_path))  # noqa: E731
    record = begun(tmp_path)
    assert (work().round, work().rank, work().steps) == (7, 0, 0)
    for step in range(1, 4):
        record.step(step, 3.5, 0.25, 4096, 512)
    assert work().steps == 0, "within a twentieth of a second"
    monkeypatch.setattr(record_module, "PUBLISHED_EVERY_NS", 0)
    record = begun(tmp_path)
    for step in range(1, 4):
        record.phase(Phase.FORWARD)
        record.step(step, 3.5, 0.25, 4096, 512)
    zone = work()
    assert (zone.steps, zone.tokens, zone.longest) == (2, 8192, 1024)
    assert zone.wall_ns >= zone.own_ns > 0
    assert (zone.waited_ns, zone.delayed_ns) == (UNKNOWN_INT, UNKNOWN_INT), "nobody said that it waits on the host"
    record.begin(assignment(round=8, rank=1, world_size=2, local_rank=0), waits_on_host=True)
    record.step(1, 3.5, 0.25, 4096)
    record.step(2, 3.5, 0.25, 4096)
    zone = work()
    assert (zone.round, zone.steps, zone.tokens, zone.longest) == (8, 1, 4096, UNKNOWN_INT)
    assert zone.waited_ns >= 0
    assert zone.delayed_ns >= 0


def test_a_snapshot_is_published_until_the_round_ends(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(3, 0.5, 1.0, 100)
    record.snapshotted(3)
    record.step(4, 0.5, 1.0, 100)
    assert (step_zone(tmp_path).step, step_zone(tmp_path).snapshot_step) == (4, 3)
    record.begin(assignment(round=8, rank=1, world_size=2, local_rank=0))
    assert step_zone(tmp_path).snapshot_step == UNKNOWN_INT


def test_the_newest_fingerprints_are_kept_oldest_first(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(40, 3.5, 0.25, 4096)
    before = step_zone(tmp_path)
    for step in (10, 20, 30, 40):
        record.fingerprint(step, 2**64 - step, 2**63)
    zone = replica_zone(tmp_path)
    assert (zone.round, zone.rank, zone.group) == (7, 0, 2**63)
    assert [(one.step, 2**64 - one.value) for one in zone.fingerprints] == [(20, 20), (30, 30), (40, 40)]
    assert zone.fingerprints[0].at_ns <= zone.fingerprints[-1].at_ns
    assert step_zone(tmp_path) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 0.0])
def test_what_was_measured_is_published_as_what_it_is(tmp_path: Path, value: float) -> None:
    record = begun(tmp_path)
    record.step(1, value, None, 1)
    assert (repr(step_zone(tmp_path).loss), step_zone(tmp_path).grad_norm) == (repr(value), None)
    record.step(2, None, value, 1)
    assert (step_zone(tmp_path).loss, repr(step_zone(tmp_path).grad_norm)) == (None, repr(value))


def test_the_first_step_that_was_not_finite_stays_until_the_round_ends(tmp_path: Path) -> None:
    record = begun(tmp_path)
    assert health_zone(tmp_path) == HealthZone(round=7, rank=0)
    record.not_finite(5, loss=Odd.NAN)
    record.not_finite(5, grad_norm=Odd.INFINITE)
    record.not_finite(9, loss=Odd.MINUS_INFINITE)
    record.not_finite(9, grad_norm=Odd.NAN)
    zone = health_zone(tmp_path)
    assert (zone.step, zone.last, zone.count, zone.loss, zone.grad_norm) == (5, 9, 2, Odd.NAN, Odd.INFINITE)
    assert zone.at_ns > 0
    record.begin(assignment(round=8, rank=1, world_size=2))
    assert health_zone(tmp_path) == HealthZone(round=8, rank=1)


def test_parameters_that_are_not_finite_are_told_unless_a_value_of_their_step_is(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.not_finite(5, parameters=True)
    assert (health_zone(tmp_path).step, health_zone(tmp_path).parameters) == (5, True)
    known = record.nonfinite()
    assert known is not None
    assert (known.step, known.parameters) == (5, True)
    record.not_finite(5, grad_norm=Odd.NAN)
    assert (health_zone(tmp_path).count, health_zone(tmp_path).parameters) == (1, False)


def test_a_value_that_a_device_tells_late_may_make_an_earlier_step_the_first(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.not_finite(6, loss=Odd.NAN)
    record.not_finite(5, grad_norm=Odd.NAN)
    zone = health_zone(tmp_path)
    assert (zone.step, zone.last, zone.count, zone.loss, zone.grad_norm) == (5, 6, 2, Odd.FINITE, Odd.NAN)


def test_a_beat_leaves_the_step_zone_alone(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(1, 3.5, 0.25, 4096)
    record.fingerprint(1, 7, 0)
    fingerprints = replica_zone(tmp_path)
    before, beat_before = step_zone(tmp_path), rankrecord.unpack_pulse(raw(tmp_path)).beat_ns
    record.beat(41)
    pulse = rankrecord.unpack_pulse(raw(tmp_path))
    assert pulse == PulseZone(beat_ns=pulse.beat_ns, collective_sequence=41)
    assert pulse.beat_ns > beat_before
    assert step_zone(tmp_path) == before
    assert replica_zone(tmp_path) == fingerprints


@pytest.mark.parametrize(
    "offset",
    [
        rankrecord.STEP_SEQUENCE_OFFSET,
        rankrecord.REPLICA_SEQUENCE_OFFSET,
        rankrecord.PULSE_SEQUENCE_OFFSET,
        rankrecord.HEALTH_SEQUENCE_OFFSET,
    ],
)
def test_a_lock_that_a_dead_writer_held_is_released(tmp_path: Path, offset: int) -> None:
    begun(tmp_path)
    held = bytearray(raw(tmp_path))
    rankrecord.SEQUENCE.pack_into(held, offset, 77)
    (tmp_path / record_file_name(0)).write_bytes(held)
    open_record(tmp_path, 0)
    (sequence,) = rankrecord.SEQUENCE.unpack_from(raw(tmp_path), offset)
    assert sequence % 2 == 0
    assert sequence > 77


def test_a_record_taken_over_is_seen_through_an_old_mapping(tmp_path: Path) -> None:
    begun(tmp_path)
    inode = (tmp_path / record_file_name(0)).stat().st_ino
    begun(tmp_path).step(5, 1.0, 1.0, 1)
    assert (tmp_path / record_file_name(0)).stat().st_ino == inode
    assert step_zone(tmp_path).step == 5


def test_training_goes_on_where_the_record_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = open_record(tmp_path / "missing", 0)
    record.begin(assignment())
    record.step(1, 1.0, 1.0, 1)
    assert record.last_step == 1
    assert "rank record is not published" in caplog.text


def test_a_reader_in_another_process_never_takes_a_torn_zone_for_a_whole_one(tmp_path: Path) -> None:
    record = begun(tmp_path)
    record.step(0, 0.0, 0.0, 0)
    writer = os.fork()
    if writer == 0:
        for step in range(1, 30_000):
            record.step(step, float(step), float(step), step)
        os._exit(0)
    steps_seen = set()
    with (tmp_path / record_file_name(0)).open("rb") as file, mapped(file.fileno()) as mapping:
        while os.waitpid(writer, os.WNOHANG) == (0, 0):
            (before,) = rankrecord.SEQUENCE.unpack_from(mapping, rankrecord.STEP_SEQUENCE_OFFSET)
            copy = mapping[:]
            (after,) = rankrecord.SEQUENCE.unpack_from(mapping, rankrecord.STEP_SEQUENCE_OFFSET)
            # Zero is what a store of several instructions shows for a moment: it never counts as unlocked.
            if before == after != 0 and before % 2 == 0:
                zone = rankrecord.unpack_step(copy)
                assert zone.loss == zone.grad_norm == zone.tokens == zone.step
                steps_seen.add(zone.step)
    assert step_zone(tmp_path).step == 29_999
    assert steps_seen
