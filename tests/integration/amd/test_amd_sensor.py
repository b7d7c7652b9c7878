"""AMD's GPUs through the real bindings, which load a library that answers from a script. Time is the test's."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fake_amdsmi import BUSY, INTERRUPTED, IO_ERROR, NO_FILES, FakeAmdSmi

from holdfast.agent import sensing
from holdfast.agent.amd.driver import AmdDriver
from holdfast.agent.amd.gpu import LOST_AFTER_S, SELDOM_S, AmdSession
from holdfast.agent.amd.sensor import AmdSmiSensor, has_amd_gpus
from holdfast.agent.conditions.gpus import NARROW_S
from holdfast.agent.gpufailure import DriverAbsent
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.reading import Reading
from holdfast.agent.settings import parse_settings
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.telemetry import GpuDisappeared, GpuHealth


class Node:
    """A scripted machine under the sensor's eye, a second at a time."""

    def __init__(self, machine: FakeAmdSmi) -> None:
        self.machine = machine
        self.now = 1000.0
        self.snapshot = GpuSnapshot("amd-smi", clock=lambda: self.now, hang=lambda now, longer_than_s: "")
        self.session = AmdSession(AmdDriver(lambda: self.now), {})

    def look(self, seconds: float = 1.0) -> Reading:
        """Every second of the next ones; the events of all of them are in the reading."""
        events = []
        for _ in range(int(seconds)):
            self.now += 1.0
            self.snapshot.sweep(self.session, self.now)
            reading = self.snapshot.read(self.now)
            events += reading.events
        return Reading(
            gpus=reading.gpus,
            events=tuple(events),
            unreadable=reading.unreadable,
            conditions=reading.conditions,
            all_clear=reading.all_clear,
            details=reading.details,
        )

    def raised(self, seconds: float) -> dict[ConditionKind, tuple[str, str, str]]:
        """What holds after so many seconds: kind to GPU, device and words."""
        conditions = self.look(seconds).conditions
        return {
            each.kind: (each.gpu, each.device, each.says)
            for each in conditions
            if each.state is ConditionState.RAISED
        }


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeAmdSmi:
    monkeypatch.setenv("ROCM_PATH", "")
    monkeypatch.setenv("FAKE_AMDSMI", "")
    machine = FakeAmdSmi(tmp_path)
    machine.load()
    return machine


@pytest.fixture
def node(machine: FakeAmdSmi) -> Iterator[Node]:
    node = Node(machine)
    yield node
    node.session.close()


def test_healthy_gpus_are_told_as_nvidias_are(node: Node) -> None:
    node.machine.gpus[2].set(temperature=71, power_w=610, utilization=97, memory_used_mb=1024)
    reading = node.look()
    assert (reading.unreadable, reading.conditions) == ((), ())
    assert [gpu.health for gpu in reading.gpus] == [GpuHealth.HEALTHY] * 4
    sample, detail = reading.gpus[2], reading.details[2]
    assert (sample.uuid, sample.index) == (node.machine.gpus[2].uuid, 2)
    assert (sample.temperature_c, sample.memory_temperature_c, sample.margin_c) == (71, 41, 29)
    assert (sample.power_w, sample.utilization_ratio, sample.throttle) == (610, 0.97, 0)
    assert (detail.model, detail.pci_bus_id) == ("AMD Instinct MI300X OAM", "0000:30:00.0")
    assert (detail.pcie_generation, detail.pcie_generation_max, detail.pcie_width) == (5, 5, 16)
    assert (detail.memory_used_bytes, detail.power_limit_w) == (1 << 30, 750.0)
    links = [(link.fabric, link.active) for link in detail.nvlinks]
    assert links == [("xgmi", True)] * 7  # the eighth is disabled


Script = Callable[[FakeAmdSmi], None]
SICK = {
    "RAS: an uncorrectable error": (
        lambda machine: machine.gpus[1].set(ecc_uncorrected=2, ecc_deferred=1),
        ConditionKind.ECC_UNCORRECTED,
        "",
        "RAS: UMC 2 uncorrectable, 1 deferred",
    ),
    "a bad page that cannot be reserved": (
        lambda machine: machine.gpus[1].set(pages_unreservable=1),
        ConditionKind.ROW_REMAP_FAILED,
        "",
        "RAS: 1 bad pages UNRESERVABLE",
    ),
    "a bad page that waits for a reset": (
        lambda machine: machine.gpus[1].set(pages_pending=3),
        ConditionKind.PAGE_RETIREMENT_PENDING,
        "",
        "RAS: 3 bad pages PENDING",
    ),
    "half of the PCIe link": (
        lambda machine: machine.gpus[1].set(pcie_width=8),
        ConditionKind.PCIE_DEGRADED,
        "",
        "PCIe width 8 of 16, generation 5 of 5",
    ),
    "an XGMI link that goes down": (
        lambda machine: machine.gpus[1].link(3, up=False),
        ConditionKind.NVLINK_DOWN,
        "xgmi3",
        "link 3 is down",
    ),
}


@pytest.mark.parametrize(("script", "kind", "device", "says"), SICK.values(), ids=SICK)
def test_what_amd_says_becomes_a_condition_in_its_words(
    script: Script, kind: ConditionKind, device: str, says: str, node: Node
) -> None:
    assert node.raised(1.0) == {}
    script(node.machine)
    assert node.raised(SELDOM_S + NARROW_S) == {kind: (node.machine.gpus[1].uuid, device, says)}


THROTTLES = {"prochot": 0x40, "socket_thermal": 0x20, "hbm_thermal": 0x20, "power_violation": 0x4}


@pytest.mark.parametrize(("name", "bit"), THROTTLES.items(), ids=THROTTLES)
def test_a_violation_is_a_reason_for_low_clocks(name: str, bit: int, node: Node) -> None:
    node.machine.gpus[0].set(**{name: 1})
    assert [gpu.throttle for gpu in node.look().gpus] == [bit, 0, 0, 0]


def test_a_gpu_that_cannot_be_reached_is_unknown_and_then_lost_once(node: Node) -> None:
    node.look()
    node.machine.gpus[3].lose()
    first = node.look()
    assert (first.gpus[-1].health, first.events) == (GpuHealth.UNKNOWN, ())
    later = node.look(LOST_AFTER_S + 5.0)
    assert [gpu.health for gpu in later.gpus] == [GpuHealth.HEALTHY] * 3 + [GpuHealth.FAILED]
    (event,) = later.events
    assert isinstance(event, GpuDisappeared)
    assert event.gpu == node.machine.gpus[3].uuid
    assert "AMDSMI_STATUS_NOT_FOUND" in event.text


@pytest.mark.parametrize("code", [NO_FILES, IO_ERROR], ids=["its files are gone", "it does not answer the bus"])
def test_a_gpu_that_answered_and_is_gone_is_lost_by_whatever_word(code: int, node: Node) -> None:
    node.look()
    node.machine.gpus[3].fail(code)
    lost = node.look(LOST_AFTER_S + 5.0)
    assert [gpu.health for gpu in lost.gpus] == [GpuHealth.HEALTHY] * 3 + [GpuHealth.FAILED]
    assert [type(event) for event in lost.events] == [GpuDisappeared]


@pytest.mark.parametrize("code", [NO_FILES, INTERRUPTED], ids=["no permission for a thing", "signals"])
def test_a_gpu_that_never_told_anything_is_not_lost(code: int, node: Node) -> None:
    node.machine.gpus[3].fail(code)
    assert node.look(LOST_AFTER_S + 5.0).events == ()


def test_a_gpu_that_is_reset_is_unknown_and_comes_back(node: Node) -> None:
    node.look()
    node.machine.gpus[3].fail(BUSY)
    during = node.look(LOST_AFTER_S + 5.0)
    assert (during.gpus[-1].health, during.events) == (GpuHealth.UNKNOWN, ())
    node.machine.gpus[3].fail(0)
    assert [gpu.health for gpu in node.look().gpus] == [GpuHealth.HEALTHY] * 4


def test_what_a_gpu_does_not_tell_is_unknown_and_no_fault(node: Node) -> None:
    for gpu in node.machine.gpus:
        gpu.set(ecc_uncorrected=None, prochot=None, pcie_width=None, critical=None)
    reading = node.look(20.0)
    assert (reading.conditions, reading.events) == ((), ())
    assert (reading.gpus[0].throttle, reading.gpus[0].margin_c, reading.details[0].ecc_uncorrected) == (None,) * 3


def test_a_driver_that_goes_away_is_no_lost_gpu(node: Node) -> None:
    node.look()
    node.machine.unload_driver()
    with pytest.raises(DriverAbsent, match="DRIVER_NOT_LOADED"):
        node.look()
    node.snapshot.absent("it is gone", known=lambda: True)
    assert {gpu.health for gpu in node.snapshot.read(node.now).gpus} == {GpuHealth.UNKNOWN}


def test_the_sensor_reads_on_its_own_thread_and_says_which_call_hangs(machine: FakeAmdSmi) -> None:
    sensor = AmdSmiSensor()
    try:
        while not (reading := sensor.read(time.monotonic())).details:
            time.sleep(0.001)
        assert [gpu.health for gpu in reading.gpus] == [GpuHealth.HEALTHY] * 4
        machine.hang("amdsmi_get_gpu_activity")
        sensor._snapshot.poll_now.set()
        while (running := sensor._driver.running()) is None or running.function != "amdsmi_get_gpu_activity":
            time.sleep(0.001)
        hung = sensor.read(running.since + 10.0)
        assert [each.reason for each in hung.unreadable] == ["amdsmi_get_gpu_activity has not returned for 10 s"]
        assert {gpu.health for gpu in hung.gpus} == {GpuHealth.UNKNOWN}
    finally:
        machine.release()
        sensor.close()


CARDS = {
    "an Instinct": ("0x1002", "0x120000", True),
    "a display": ("0x1002", "0x030000", True),
    "an audio device of AMD's": ("0x1002", "0x040300", False),
    "an NVIDIA GPU": ("0x10de", "0x030200", False),
}


@pytest.mark.parametrize(("vendor", "kind", "is_one"), CARDS.values(), ids=CARDS)
def test_the_kernel_says_whether_amd_gpus_are_here(vendor: str, kind: str, is_one: bool, tmp_path: Path) -> None:
    assert not has_amd_gpus(str(tmp_path))
    device = tmp_path / "sys/bus/pci/devices/0000:10:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    assert has_amd_gpus(str(tmp_path)) is is_one


@pytest.mark.parametrize(("flag", "names"), [("auto", ["amd-smi"]), ("off", ["nvml"])])
def test_the_agent_asks_the_driver_of_the_gpus_that_are_here(
    flag: str, names: list[str], machine: FakeAmdSmi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensing, "has_amd_gpus", lambda: True)
    token = tmp_path / "token"
    token.write_text("t")
    off = ["--kernel-log=off", "--infiniband=off", "--node-checks=off", "--preemption=none"]
    given = ["--job=a/b", f"--run-dir={tmp_path}", "--watchdog=w:1", f"--token-file={token}", f"--amd-smi={flag}"]
    sensors = sensing.node_sensors(parse_settings([*given, *off]))
    try:
        assert [each.name for each in sensors.sensors] == names
        assert list(sensors.judges) == names
    finally:
        sensors.close()
