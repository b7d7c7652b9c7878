"""The kernel's log as a sensor: restarts, overruns, ages, files, and what cannot be read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernel_ring import BOOT, OTHER_UUID, UUID, Ring, gpu_tree

from holdfast.agent.conditions.memory import boot_id, read_file
from holdfast.agent.kernel.faults import CALM_S, UNTIL_BOOT
from holdfast.agent.kernel.log import HISTORY_S, LOSS_TOLD_S, RECORDS_PER_LOOK, Bookmark, KernelLog
from holdfast.agent.kernel.slots import GpuNames
from holdfast.agent.kernel.source import DEVICE, KernelDevice, LogFile, source_at
from holdfast.agent.reading import Reading
from holdfast.api.condition import AllClear, ConditionKind, ConditionState
from holdfast.api.telemetry import GpuDisappeared, ProcessKilledForMemory, Unreadable, XidRaised

XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
XID_94 = "NVRM: Xid (PCI:0000:3b:00): 94, pid=7, name=python, Contained"
SXID = "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error"
NOISE = "systemd[1]: Started Session 4 of user root."


def look(sensor: KernelLog, now: float, looks: int = 1) -> Reading:
    """What `looks` looks at one moment gave; the last one's conditions."""
    readings = [sensor.read(now) for _ in range(looks)]
    events = tuple(event for reading in readings for event in reading.events)
    return Reading(events=events, conditions=readings[-1].conditions, unreadable=readings[-1].unreadable)


def xids(reading: Reading) -> list[int]:
    return [event.xid for event in reading.events if isinstance(event, XidRaised)]


@pytest.fixture
def ring() -> Ring:
    return Ring()


def test_an_error_is_told_once_with_its_age_and_the_gpus_uuid(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path, gpus=gpu_tree(tmp_path, bus_3b=UUID))
    ring.say(XID_79, at=99.5)
    assert look(sensor, 100.0).events == (XidRaised(UUID, 79, 0.5, "GPU has fallen off the bus."),)
    assert look(sensor, 100.1).events == ()


def test_a_gpu_that_nobody_can_name_is_named_by_its_slot_until_the_driver_tells(
    ring: Ring, tmp_path: Path
) -> None:
    sensor = ring.sensor(tmp_path)
    ring.say(XID_94, at=100.0)
    assert look(sensor, 100.0).events[0].gpu == "PCI:0000:3b:00"  # type: ignore[union-attr]
    ring.say(f"NVRM: GPU at PCI:0000:3b:00: {OTHER_UUID}", at=101.0)
    ring.say(XID_94, at=101.0)
    assert look(sensor, 101.0).events[0].gpu == OTHER_UUID  # type: ignore[union-attr]


def test_a_driver_that_does_not_know_its_gpu_names_none(tmp_path: Path) -> None:
    gpus = gpu_tree(tmp_path, bus_3b="GPU-????????-????-????-????-????????????", bus_5e=UUID)
    names = GpuNames(gpus)
    assert (names("0000:3b:00"), names("0000:5e:00"), names("0000:99:00")) == ("", UUID, "")


def test_what_a_program_wrote_into_the_log_is_nobodys_fault(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    ring.say(XID_79, at=100.0, facility=1)
    ring.say(XID_79, at=100.0, facility=3)
    assert look(sensor, 100.0).events == ()


def test_the_driver_says_it_in_words_and_a_killing_is_told_once(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    ring.say("NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", at=100.0)
    ring.say("oom-kill:constraint=CONSTRAINT_NONE,mems_allowed=0,global_oom,task=python,pid=77,uid=0", at=100.0)
    ring.say("Out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:1kB", at=100.0)
    lost, killed = look(sensor, 100.0).events
    assert lost == GpuDisappeared("PCI:0000:3b:00", 0.0, "GPU has fallen off the bus")
    assert isinstance(killed, ProcessKilledForMemory)
    assert (killed.pid, killed.name, killed.own_limit) == (77, "python", False)


# Restarts.


def test_a_restart_neither_loses_nor_repeats(ring: Ring, tmp_path: Path) -> None:
    first = ring.sensor(tmp_path)
    ring.say(XID_94, at=100.0)
    assert xids(look(first, 100.0)) == [94]
    first.close()
    ring.say(XID_79, at=101.0)
    second = ring.sensor(tmp_path)
    told = look(second, 5000.0)
    assert xids(told) == [79], "however long the agent was away"
    assert told.events[0].age_s == 4899.0


def test_an_agent_that_was_killed_tells_the_last_seconds_again_and_no_more(ring: Ring, tmp_path: Path) -> None:
    first = ring.sensor(tmp_path)
    ring.say(XID_94, at=100.0)
    look(first, 100.0)
    for now in (106.0, 112.0):
        look(first, now)
    ring.say(XID_79, at=112.5)
    look(first, 113.0)
    second = ring.sensor(tmp_path)
    assert xids(look(second, 114.0)) == [79]


def test_a_condition_survives_a_restart_and_ends_with_the_next_boot(ring: Ring, tmp_path: Path) -> None:
    first = ring.sensor(tmp_path)
    ring.say(SXID, at=100.0)
    (raised,) = look(first, 100.0).conditions
    assert (raised.kind, raised.device, raised.state) == (
        ConditionKind.NVSWITCH_FAULT,
        "nvidia-nvswitch0",
        ConditionState.RAISED,
    )
    assert raised.says == "SXid 24007: Link 30 sourcetrack timeout error"
    first.close()
    second = ring.sensor(tmp_path)
    (still,) = look(second, 200.0).conditions
    assert (still.state, still.age_s) == (ConditionState.RAISED, pytest.approx(100.0))
    second.close()
    (over,) = look(Ring().sensor(tmp_path, boot="another"), 50.0).conditions
    assert (over.kind, over.state) == (ConditionKind.NVSWITCH_FAULT, ConditionState.CLEARED)


def test_after_a_boot_its_own_messages_are_told(ring: Ring, tmp_path: Path) -> None:
    first = ring.sensor(tmp_path)
    for _ in range(20):
        ring.say(NOISE, at=1000.0)
    look(first, 1000.0)
    first.close()
    booted = Ring()
    booted.say(XID_94, at=20.0)
    assert xids(look(booted.sensor(tmp_path, boot="another"), 30.0)) == [94]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"boot":1}', "\0" * 50])
def test_a_damaged_bookmark_is_a_first_start(damage: str, ring: Ring, tmp_path: Path) -> None:
    (tmp_path / "kernel-log.json").write_text(damage)
    ring.say(XID_94, at=100.0)
    assert xids(look(ring.sensor(tmp_path), 101.0)) == [94]


def test_a_bookmark_that_cannot_be_written_stops_nothing_and_is_written_when_it_can(
    ring: Ring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sensor = ring.sensor(tmp_path / "later")
    for now in (100.0, 110.0, 120.0):
        ring.say(XID_94, at=now)
        assert xids(look(sensor, now)) == [94]
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["kernel log's place not kept"]
    (tmp_path / "later").mkdir()
    look(sensor, 130.0)
    assert (tmp_path / "later" / "kernel-log.json").exists()
    sensor.close()


# The first start.


def test_on_the_first_start_old_errors_are_history(ring: Ring, tmp_path: Path) -> None:
    ring.say(XID_94, at=10.0)
    ring.say(XID_94, at=2000.0 - HISTORY_S + 1.0)
    assert [event.age_s for event in look(ring.sensor(tmp_path), 2000.0).events] == [HISTORY_S - 1.0]


def test_on_the_first_start_a_gpu_that_is_lost_since_long_is_told(ring: Ring, tmp_path: Path) -> None:
    ring.say(XID_79, at=10.0)
    ring.say(XID_94.replace("3b", "5e"), at=11.0)
    (event,) = look(ring.sensor(tmp_path), 9000.0).events
    assert isinstance(event, XidRaised)
    assert (event.xid, event.age_s) == (79, 8990.0)


@pytest.mark.parametrize(
    "back",
    [
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x2 (Reboot) to 0x0 (None)",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
    ],
)
def test_on_the_first_start_a_gpu_that_came_back_is_not_told(back: str, ring: Ring, tmp_path: Path) -> None:
    ring.say(XID_79, at=10.0)
    ring.say(back, at=20.0)
    assert look(ring.sensor(tmp_path), 9000.0).events == ()


def test_on_the_first_start_a_gpu_that_was_lost_again_lately_is_told_once(ring: Ring, tmp_path: Path) -> None:
    ring.say(XID_79, at=10.0)
    ring.say(XID_79, at=8999.0)
    assert [event.age_s for event in look(ring.sensor(tmp_path), 9000.0).events] == [1.0]


def test_on_the_first_start_a_condition_is_raised_however_old(ring: Ring, tmp_path: Path) -> None:
    ring.say(SXID, at=10.0)
    (condition,) = look(ring.sensor(tmp_path), 90000.0).conditions
    assert condition.age_s == 89990.0


def test_catching_up_with_a_long_log_takes_several_looks_and_loses_nothing(tmp_path: Path) -> None:
    ring = Ring(size=5000)
    for place in range(5 * RECORDS_PER_LOOK):
        ring.say(XID_94 if place % 100 == 0 else NOISE, at=100.0 + place / 1000)
    sensor = ring.sensor(tmp_path)
    assert xids(look(sensor, 101.0, looks=6)) == [94] * 7
    assert sensor.records_lost == 0


# Ages and losses.


def test_a_log_clock_that_drifts_does_not_make_live_messages_old(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    look(sensor, 100_000.0)
    ring.say(XID_94, at=99_700.0)
    assert look(sensor, 100_000.1).events[0].age_s == pytest.approx(0.1)
    ring.say(XID_94, at=100_500.0)
    assert look(sensor, 100_000.2).events[0].age_s == 0.0


def test_records_that_were_overwritten_unread_are_told_and_counted(tmp_path: Path) -> None:
    ring = Ring(size=10)
    sensor = ring.sensor(tmp_path)
    ring.say(NOISE, at=100.0)
    look(sensor, 100.0)
    for _ in range(25):
        ring.say(NOISE, at=100.1)
    ring.say(XID_79, at=100.1)
    told = look(sensor, 100.2)
    assert xids(told) == [79], "reading goes on"
    says = "16 records so far were overwritten before they could be read"
    assert told.unreadable == (Unreadable("kernel-log", says),)
    assert sensor.records_lost == 16
    assert look(sensor, 100.2 + LOSS_TOLD_S + 1.0).unreadable == ()


def test_records_that_were_overwritten_while_the_agent_was_away_are_counted(tmp_path: Path) -> None:
    ring = Ring(size=10)
    first = ring.sensor(tmp_path)
    ring.say(NOISE, at=100.0)
    look(first, 100.0)
    first.close()
    for _ in range(12):
        ring.say(NOISE, at=101.0)
    second = ring.sensor(tmp_path)
    look(second, 102.0)
    assert second.records_lost == 2


# Network ports.


def flap(ring: Ring, *times: float, port: str = "ens5f0np0") -> None:
    for place, at in enumerate(times):
        ring.say(f"mlx5_core 0000:5c:00.0 {port}: Link {'up' if place % 2 else 'down'}", at=at)


def test_a_port_that_changes_three_times_within_ten_minutes_flaps(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    look(sensor, 100.0)
    flap(ring, 110.0, 120.0)
    assert look(sensor, 130.0).conditions == (), "a cable that is seated anew"
    flap(ring, 600.0)
    (condition,) = look(sensor, 600.0).conditions
    assert (condition.kind, condition.device) == (ConditionKind.LINK_FLAPPING, "ens5f0np0")
    assert condition.state is ConditionState.RAISED


def test_a_port_that_changes_seldom_does_not_flap(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    for hour in range(1, 50):
        flap(ring, hour * 700.0)
        assert look(sensor, hour * 700.0).conditions == ()


def test_a_port_that_flapped_is_well_after_an_hour_without_a_change(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    look(sensor, 100.0)
    flap(ring, 101.0, 102.0, 103.0)
    look(sensor, 103.0)
    flap(ring, 3000.0)
    look(sensor, 3000.0)
    assert look(sensor, 6599.0).conditions[0].state is ConditionState.RAISED
    assert look(sensor, 6601.0).conditions[0].state is ConditionState.CLEARED
    assert look(sensor, 6670.0).conditions == ()


def test_a_port_that_flapped_before_a_restart_is_cleared_by_its_rule(ring: Ring, tmp_path: Path) -> None:
    first = ring.sensor(tmp_path)
    flap(ring, 101.0, 102.0, 103.0)
    look(first, 103.0)
    first.close()
    second = ring.sensor(tmp_path)
    assert look(second, 200.0).conditions[0].state is ConditionState.RAISED
    assert look(second, 3801.0).conditions[0].state is ConditionState.CLEARED


def test_what_is_remembered_of_ports_and_killings_is_bounded(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    look(sensor, 100.0)
    for number in range(100):
        flap(ring, 101.0, 102.0, 103.0, port=f"eth{number}")
        ring.say(f"Out of memory: Killed process {number + 1} (python) total-vm:1kB", at=103.0)
    told = look(sensor, 104.0, looks=5)
    assert len(told.events) == 100
    assert 0 < len(told.conditions) < 100
    ring.say("Out of memory: Killed process 1 (python) total-vm:1kB", at=104.0)
    assert len(look(sensor, 104.0).events) == 1, "the oldest killing is forgotten"


# Real parts.


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A pipe that keeps every write apart, as the device keeps its records."""
    ends = os.pipe2(os.O_DIRECT | os.O_NONBLOCK | os.O_CLOEXEC)
    yield ends
    for end in ends:
        os.close(end)


def test_a_real_descriptor_gives_a_record_a_read_and_nothing_without_waiting(pipe: tuple[int, int]) -> None:
    read_end, write_end = pipe
    sensor = KernelLog(KernelDevice(f"/proc/self/fd/{read_end}"), names=GpuNames("/nowhere"), boot=BOOT)
    assert look(sensor, 100.0).unreadable == ()
    os.write(write_end, b"4,1,100000000,-;" + XID_79.encode() + b"\n SUBSYSTEM=pci\n")
    os.write(write_end, b"not a record at all")
    os.write(write_end, b"4,2,100000000,-;" + XID_94.encode() + b"\n")
    assert xids(look(sensor, 100.1)) == [79, 94]
    sensor.close()


def test_the_machines_own_log_is_read_or_told_unreadable_with_the_fix(tmp_path: Path) -> None:
    state_file = tmp_path / "kernel-log.json"
    sensor = KernelLog(source_at(DEVICE), names=GpuNames(), state_file=str(state_file))
    told = [each.reason for each in look(sensor, 1e9, looks=2000).unreadable]
    sensor.close()
    kept = read_file(str(state_file), Bookmark)
    was_read = kept is not None and kept.boot == boot_id()
    assert was_read is not any(reason.startswith(f"cannot read {DEVICE}: ") for reason in told)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (13, "give the agent CAP_SYSLOG"),
        (1, "kernel.dmesg_restrict=0"),
        (2, "mount the node's /dev/kmsg"),
        (5, ""),
    ],
)
def test_a_log_that_may_not_be_read_says_what_to_do(code: int, fix: str) -> None:
    def read(descriptor: int, size: int) -> bytes:
        raise OSError(code, os.strerror(code))

    sensor = KernelLog(KernelDevice("/dev/null", read=read), names=GpuNames("/nowhere"), boot=BOOT)
    (unreadable,) = look(sensor, 100.0).unreadable
    assert unreadable.source == "kernel-log"
    assert fix in unreadable.reason
    assert look(sensor, 101.0).unreadable == (unreadable,), "it stays so until it is tried again"


def test_a_log_that_is_not_there_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    sensor = KernelLog(source_at(str(path)), names=GpuNames("/nowhere"), boot=BOOT)
    assert look(sensor, 100.0).unreadable != ()
    path.touch()
    assert look(sensor, 105.0).unreadable != ()
    assert look(sensor, 111.0).unreadable == ()


# A log file.


def log_sensor(tmp_path: Path, boot: str = BOOT) -> KernelLog:
    source = LogFile(str(tmp_path / "kern.log"))
    return KernelLog(source, names=GpuNames("/nowhere"), state_file=str(tmp_path / "state.json"), boot=boot)


def append(tmp_path: Path, text: str) -> None:
    with open(tmp_path / "kern.log", "a", encoding="utf-8") as file:
        file.write(text)


def test_a_log_file_is_read_from_its_end_and_line_by_line(tmp_path: Path) -> None:
    append(tmp_path, f"Nov 22 18:00:00 n kernel: {XID_79}\n")
    sensor = log_sensor(tmp_path)
    assert look(sensor, 100.0).events == ()
    append(tmp_path, f"Nov 22 18:29:55 n kernel: {XID_94[:30]}")
    assert look(sensor, 101.0).events == ()
    append(tmp_path, f"{XID_94[30:]}\nNov 22 18:29:56 n python[3]: {XID_79}\n[  101.500000] {XID_79}\n")
    told = look(sensor, 102.0)
    assert xids(told) == [94, 79]
    assert [event.age_s for event in told.events] == [0.0, pytest.approx(0.5)]


def test_a_log_file_that_was_rotated_or_cut_is_followed(tmp_path: Path) -> None:
    append(tmp_path, "x\n" * 50)
    sensor = log_sensor(tmp_path)
    look(sensor, 100.0)
    append(tmp_path, f"[  100.1] {XID_94}\n")
    os.rename(tmp_path / "kern.log", tmp_path / "kern.log.1")
    append(tmp_path, f"[  100.2] {XID_79}\n")
    assert xids(look(sensor, 101.0, looks=3)) == [94, 79]
    os.truncate(tmp_path / "kern.log", 0)
    look(sensor, 102.0, looks=2)
    append(tmp_path, f"[  103.0] {XID_94}\n")
    assert xids(look(sensor, 103.0, looks=2)) == [94]


def test_a_log_file_goes_on_after_a_restart(tmp_path: Path) -> None:
    append(tmp_path, "x\n")
    first = log_sensor(tmp_path)
    look(first, 100.0)
    first.close()
    append(tmp_path, f"[  100.2] {XID_79}\n")
    second = log_sensor(tmp_path)
    assert xids(look(second, 103.0)) == [79]
    second.close()
    append(tmp_path, f"[  100.2] {XID_79}\n")
    assert xids(look(log_sensor(tmp_path, boot="another"), 50.0)) == []


def test_a_line_without_a_stamp_from_when_nobody_looked_may_be_as_old_as_that(tmp_path: Path) -> None:
    append(tmp_path, "x\n")
    first = log_sensor(tmp_path)
    look(first, 100.0, looks=5)
    first.close()
    append(tmp_path, f"Nov 22 18:00:00 n kernel: {XID_94}\n")
    second = log_sensor(tmp_path)
    (event,) = look(second, 7300.0).events
    assert event.age_s == pytest.approx(7200.0, abs=1.0)
    append(tmp_path, f"Nov 22 20:00:00 n kernel: {XID_79}\n")
    (event,) = look(second, 7301.0).events
    assert event.age_s == 0.0


def test_a_quiet_log_is_not_written_down_at_every_look(tmp_path: Path) -> None:
    append(tmp_path, "x\n")
    sensor, written = log_sensor(tmp_path), set()
    for now in range(100, 700):
        look(sensor, float(now))
        if (tmp_path / "state.json").exists():
            written.add((tmp_path / "state.json").read_bytes())
    assert 9 <= len(written) <= 11


def test_a_line_without_an_end_is_dropped_with_all_of_it(tmp_path: Path) -> None:
    append(tmp_path, "x\n")
    sensor = log_sensor(tmp_path)
    look(sensor, 100.0)
    append(tmp_path, "y" * 200_000 + f"[  100.2] {XID_79}\n[  100.3] {XID_94}\n")
    assert xids(look(sensor, 101.0, looks=20)) == [94]


def clear(sensor: KernelLog, now: float) -> set[ConditionKind]:
    return {each.kind for each in sensor.read(now).all_clear if not each.but}


def test_a_log_that_was_read_from_the_boot_on_says_which_faults_this_boot_does_not_have(
    ring: Ring, tmp_path: Path
) -> None:
    ring.say("Linux version 6.8.0", at=0.0)
    sensor = ring.sensor(tmp_path / "nowhere")
    assert clear(sensor, 9000.0) == set(UNTIL_BOOT)
    ring.say(SXID, at=9001.0)
    assert AllClear(ConditionKind.NVSWITCH_FAULT, (("", "nvidia-nvswitch0"),)) in sensor.read(9001.0).all_clear
    assert clear(sensor, 9001.0) == set(UNTIL_BOOT) - {ConditionKind.NVSWITCH_FAULT}


def test_a_log_whose_beginning_is_overwritten_does_not_and_a_loss_ends_it(tmp_path: Path) -> None:
    old = Ring(size=2)
    for _ in range(3):
        old.say(NOISE, at=1.0)
    assert clear(old.sensor(tmp_path), 100.0) == set()
    young = Ring(size=2)
    young.say(NOISE, at=1.0)
    sensor = young.sensor(tmp_path / "young")
    assert clear(sensor, 100.0) == set(UNTIL_BOOT)
    for _ in range(5):
        young.say(NOISE, at=101.0)
    assert clear(sensor, 101.0) == set()


def test_that_the_whole_boot_was_read_is_known_to_the_next_run_of_the_same_boot_only(
    ring: Ring, tmp_path: Path
) -> None:
    ring.say(NOISE, at=0.0)
    first = ring.sensor(tmp_path)
    assert clear(first, 1.0) == set(UNTIL_BOOT)
    first.close()
    assert clear(ring.sensor(tmp_path), 9000.0) == set(UNTIL_BOOT)
    later = Ring(size=1)
    for _ in range(2):
        later.say(NOISE, at=0.0)
    assert clear(later.sensor(tmp_path, boot="another"), 9000.0) == set()


def test_ports_are_calm_after_an_hour_that_was_watched(ring: Ring, tmp_path: Path) -> None:
    ring.say(NOISE, at=0.0)
    sensor = ring.sensor(tmp_path)
    sensor.read(100.0)
    assert ConditionKind.LINK_FLAPPING not in clear(sensor, 99.0 + CALM_S)
    assert ConditionKind.LINK_FLAPPING in clear(sensor, 100.0 + CALM_S)


def test_a_log_file_is_known_as_a_whole_only_if_the_boot_is_young(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("")
    young, old = (KernelLog(LogFile(str(path)), names=GpuNames("/nowhere"), boot=BOOT) for _ in range(2))
    assert clear(young, HISTORY_S) == set(UNTIL_BOOT)
    assert clear(old, HISTORY_S + 1.0) == set()


def test_a_log_that_cannot_be_read_says_nothing_is_clear(tmp_path: Path) -> None:
    sensor = KernelLog(LogFile(str(tmp_path / "absent")), names=GpuNames("/nowhere"), boot=BOOT)
    assert sensor.read(1.0).all_clear == ()


def test_a_killing_for_a_pods_own_limit_is_told_as_such(ring: Ring, tmp_path: Path) -> None:
    sensor = ring.sensor(tmp_path)
    group = "oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c"
    ring.say(f"oom-kill:constraint=CONSTRAINT_MEMCG,mems_allowed=0,{group},task=python,pid=77,uid=0", at=100.0)
    ring.say("Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:1kB", at=100.0)
    (killed,) = look(sensor, 100.0).events
    assert isinstance(killed, ProcessKilledForMemory)
    assert killed.own_limit
