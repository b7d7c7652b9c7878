"""Simulated GPUs and their fault script."""

import time
from pathlib import Path

import pytest

from holdfast.agent.sensors.simulated_gpu import FILE_NAME, Fault, SimulatedGpus, gpu_uuid, inject
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, PreemptionNoticed, Unreadable, XidRaised

NOW = 1000.0


@pytest.fixture
def gpus(tmp_path: Path) -> SimulatedGpus:
    return SimulatedGpus(str(tmp_path), node="node-1", count=2)


def script(run_dir: Path, text: str) -> None:
    with (run_dir / FILE_NAME).open("a") as file:
        file.write(text)


def test_a_gpu_has_the_same_uuid_on_every_start_and_no_two_share_one() -> None:
    assert gpu_uuid("node-1", 0) == gpu_uuid("node-1", 0)
    assert len({gpu_uuid(node, index) for node in ("node-1", "node-2") for index in range(8)}) == 16


def test_untouched_gpus_are_healthy_and_plausible(gpus: SimulatedGpus) -> None:
    for now in (0.0, 17.0, 1e6):
        reading = gpus.read(now)
        assert [gpu.index for gpu in reading.gpus] == [0, 1]
        for gpu in reading.gpus:
            assert gpu.health is GpuHealth.HEALTHY
            assert 50 <= (gpu.temperature_c or 0) <= 65
            assert 0 <= (gpu.utilization_ratio or -1) <= 1
        assert reading.events == ()
        assert reading.unreadable == ()


def test_an_xid_is_raised_once(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 1, "xid": 94, "text": "contained", "recovery_action": 1}\n')
    assert gpus.read(NOW).events == (XidRaised(gpu_uuid("node-1", 1), 94, 0.0, "contained", 1),)
    assert gpus.read(NOW).events == ()
    assert {gpu.health for gpu in gpus.read(NOW).gpus} == {GpuHealth.HEALTHY}


@pytest.mark.parametrize(
    "fault", ['{"gpu": 0, "xid": 79}\n', '{"gpu": 0, "lost": true}\n'], ids=["xid 79", "lost"]
)
def test_a_gpu_off_the_bus_is_failed_and_unreadable_from_then_on(
    tmp_path: Path, gpus: SimulatedGpus, fault: str
) -> None:
    script(tmp_path, fault)
    for now in (NOW, NOW + 100):
        reading = gpus.read(now)
        broken, sound = reading.gpus
        assert (broken.health, broken.temperature_c, broken.power_w) == (GpuHealth.FAILED, None, None)
        assert sound.health is GpuHealth.HEALTHY
        assert [problem.source for problem in reading.unreadable] == [gpu_uuid("node-1", 0)]


def test_a_lost_gpu_disappears_once(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 0, "lost": true}\n' * 2)
    (event,) = gpus.read(NOW).events
    assert isinstance(event, GpuDisappeared)


def test_a_held_temperature_stays(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 0, "temperature_c": 95}\n')
    assert [gpus.read(now).gpus[0].temperature_c for now in (NOW, NOW + 50)] == [95, 95]


def test_a_gpu_made_hot_is_one_that_slows_down(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 0, "temperature_c": 95}\n')
    hot, cool = (gpu.margin_c for gpu in gpus.read(NOW).gpus)
    assert hot is not None
    assert hot < 0
    assert cool is not None
    assert cool > 20


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[]",
        '{"gpu": 2, "xid": 79}',
        '{"gpu": -1, "xid": 79}',
        '{"gpu": 0}',
        '{"gpu": 0, "xdi": 79}',
        '{"gpu": 0, "xid": 99999999999999999999}',
        '{"gpu": 0, "lost": true, "at_ns": -1}',
        '{"gpu": "0", "xid": 79}',
        '{"gpu": 0, "text": "' + "x" * 2000 + '", "xid": 79}',
        '{"gpu": 0, "text": "\\ud800", "xid": 79}',
        "\x00\x00",
    ],
)
def test_a_bad_line_is_unreadable_and_the_lines_around_it_count(
    tmp_path: Path, gpus: SimulatedGpus, line: str
) -> None:
    script(tmp_path, f'{{"gpu": 0, "xid": 13}}\n{line}\n{{"gpu": 1, "xid": 31}}\n')
    reading = gpus.read(NOW)
    assert [event.xid for event in reading.events if isinstance(event, XidRaised)] == [13, 31]
    assert [problem.source for problem in reading.unreadable] == [FILE_NAME]
    assert reading.unreadable[0].reason.startswith("1 bad lines, the last: ")


def test_bytes_that_are_no_text_are_unreadable(tmp_path: Path, gpus: SimulatedGpus) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"gpu": 0, "xid": 13, "text": "\xff"}\n')
    assert gpus.read(NOW).unreadable[0].source == FILE_NAME


def test_a_line_still_being_written_waits_for_its_end(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 0, "xi')
    reading = gpus.read(NOW)
    assert reading.events == ()
    assert reading.unreadable == ()
    script(tmp_path, 'd": 48}\n')
    assert [event.gpu for event in gpus.read(NOW).events] == [gpu_uuid("node-1", 0)]


def test_a_line_without_end_is_refused_instead_of_kept(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, "x" * 200_000)
    for _ in range(4):
        gpus.read(NOW)
    assert "bad lines" in gpus.read(NOW).unreadable[0].reason


def test_a_script_that_was_replaced_starts_over(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 0, "xid": 13}\n')
    gpus.read(NOW)
    (tmp_path / "other").write_text('{"gpu": 0, "xid": 31}\n')
    (tmp_path / "other").replace(tmp_path / FILE_NAME)
    assert [event.xid for event in gpus.read(NOW).events if isinstance(event, XidRaised)] == [31]


def test_a_script_that_cannot_be_read_is_unreadable(tmp_path: Path, gpus: SimulatedGpus) -> None:
    (tmp_path / FILE_NAME).mkdir()
    assert gpus.read(NOW).unreadable == (Unreadable(FILE_NAME, "cannot read: Is a directory"),)


def test_an_injected_fault_happens_with_its_age(tmp_path: Path, gpus: SimulatedGpus) -> None:
    inject(str(tmp_path), Fault(gpu=0, xid=79, text="fell off", at_ns=5_000_000_000))
    assert gpus.read(12.0).events == (XidRaised(gpu_uuid("node-1", 0), 79, 7.0, "fell off"),)


def test_an_injected_fault_happens_when_it_is_injected(tmp_path: Path, gpus: SimulatedGpus) -> None:
    before = time.monotonic()
    inject(str(tmp_path), Fault(gpu=1, lost=True))
    (event,) = gpus.read(before + 1000.0).events
    assert 0.0 < event.age_s <= 1000.0


def test_an_error_is_worded_as_the_driver_words_it(tmp_path: Path, gpus: SimulatedGpus) -> None:
    down = "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000)"
    reset = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    for fault in (
        Fault(gpu=0, xid=149, text=down),
        Fault(gpu=0, xid=154, text=reset),
        Fault(gpu=0, xid=154, recovery_action=2),
    ):
        inject(str(tmp_path), fault)
    raised = [event for event in gpus.read(1e9).events if isinstance(event, XidRaised)]
    assert [event.recovery_action for event in raised] == [None, 1, 2]
    assert raised[0].link_fault == LinkFault("NETIR_LINK_EVT", "Fatal", 8, 0x004505C6, 0)


def test_a_condition_holds_until_it_is_over_and_is_told_a_minute_longer(
    tmp_path: Path, gpus: SimulatedGpus
) -> None:
    kind, gpu = ConditionKind.PCIE_DEGRADED, gpu_uuid("node-1", 1)
    script(tmp_path, '{"gpu": 1, "condition": "PcieDegraded", "text": "8 lanes"}\n')
    assert gpus.read(NOW).conditions == (Condition(kind, ConditionState.RAISED, 0.0, "8 lanes", gpu),)
    assert gpus.read(NOW + 500).conditions == (Condition(kind, ConditionState.RAISED, 500.0, "8 lanes", gpu),)
    script(tmp_path, '{"gpu": 1, "condition": "PcieDegraded", "over": true}\n')
    (cleared,) = gpus.read(NOW + 501).conditions
    assert cleared.state is ConditionState.CLEARED
    assert gpus.read(NOW + 562).conditions == ()


@pytest.mark.parametrize(
    ("kind", "device"), [("DiskFull", ""), ("HostMemoryError", ""), ("LinkDown", "simulated-port")]
)
def test_a_condition_that_is_none_of_a_gpu_is_of_its_node(
    tmp_path: Path, gpus: SimulatedGpus, kind: str, device: str
) -> None:
    script(tmp_path, f'{{"gpu": 0, "condition": "{kind}"}}\n')
    (condition,) = gpus.read(NOW).conditions
    assert (condition.gpu, condition.device, condition.says) == ("", device, "injected")


def test_a_notice_is_given_once(tmp_path: Path, gpus: SimulatedGpus) -> None:
    script(tmp_path, '{"gpu": 0, "taken_away_in_s": 120, "text": "spot"}\n')
    assert gpus.read(NOW).events == (PreemptionNoticed("simulated", 120.0, 0.0, "spot"),)
    assert gpus.read(NOW).events == ()
