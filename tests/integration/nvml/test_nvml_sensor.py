"""The sensor on scripted machines: the real bindings load a library that answers from the script."""

import subprocess
import sys
import time
from collections.abc import Callable

import pynvml
import pytest
from fake_nvml import RESET_REQUIRED, UNKNOWN_ERROR, FakeNvml
from nvml_observer import Observer
from patience import patient

from holdfast.agent.nvml.devicesettings import record_settings, restore_settings
from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.sensor import NvmlSensor
from holdfast.agent.nvml.topology import Domains, nvlink_domains
from holdfast.agent.reading import Reading
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, Unreadable, XidRaised


def all_are(health: GpuHealth, count: int = 8) -> Callable[[Reading], bool]:
    return lambda reading: [gpu.health for gpu in reading.gpus] == [health] * count


def raised(kind: ConditionKind, uuid: str) -> Callable[[Reading], bool]:
    return lambda reading: any(
        (one.kind, one.gpu, one.state) == (kind, uuid, ConditionState.RAISED) for one in reading.conditions
    )


def test_healthy_gpus_are_told_with_everything_the_driver_knows(machine: FakeNvml, observer: Observer) -> None:
    machine.gpus[2].set(temperature=71, power_mw=651_000, utilization=97, margin=16, throttle=0x4)
    machine.gpus[2].layout.pids[0] = 4242
    machine.gpus[2].event(pynvml.nvmlEventTypeDoubleBitEccError)  # asks what is else asked seldom
    reading = observer.until(lambda reading: any(detail.processes == 1 for detail in reading.details))
    assert (reading.unreadable, reading.conditions) == ((), ())
    sample, detail = reading.gpus[2], reading.details[2]
    assert (sample.uuid, sample.index, sample.temperature_c, sample.margin_c) == (machine.gpus[2].uuid, 2, 71, 16)
    assert (sample.power_w, sample.utilization_ratio, sample.throttle) == (651.0, 0.97, 4)
    assert (detail.model, reading.details[1].processes) == ("NVIDIA H100 80GB HBM3", 0)
    assert (detail.slowdown_c, detail.shutdown_c) == (87, 92)
    assert (detail.pci_bus_id, detail.processes, len(detail.nvlinks)) == ("00000000:30:00.0", 1, 18)
    assert (detail.memory_total_bytes, detail.ecc_uncorrected, detail.recovery_action) == (80 << 30, 0, 0)


def test_an_xid_comes_with_what_the_driver_says_the_gpu_needs(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.gpus[5].xid(48, recovery_action=4)
    observer.until(raised(ConditionKind.RECOVERY_NEEDED, machine.gpus[5].uuid))
    (event,) = observer.events
    assert isinstance(event, XidRaised)
    assert (event.gpu, event.xid, event.recovery_action) == (machine.gpus[5].uuid, 48, 4)


def test_an_xid_does_not_wait_for_a_driver_that_hangs(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.hang("nvmlDeviceGetFieldValues")
    machine.gpus[0].xid(119)
    observer.until(lambda _: bool(observer.events))
    assert [(event.gpu, event.xid, event.recovery_action) for event in observer.events] == [
        (machine.gpus[0].uuid, 119, None)
    ]


def test_a_gpu_that_is_lost_is_told_once_and_the_others_go_on(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.gpus[3].lose()
    reading = observer.until(lambda reading: any(gpu.health is GpuHealth.FAILED for gpu in reading.gpus))
    observer.until(lambda _: machine.calls > 0 and len(reading.details) == 7)
    assert [type(event) for event in observer.events] == [GpuDisappeared]
    assert [one.source for one in reading.unreadable if one.source != "nvml-events"] == [machine.gpus[3].uuid]


def test_a_gpu_the_driver_calls_unavailable_has_disappeared(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.gpus[1].event(pynvml.nvmlEventTypeGpuUnavailableError)
    observer.until(lambda _: bool(observer.events))
    assert [(type(event), event.gpu) for event in observer.events] == [(GpuDisappeared, machine.gpus[1].uuid)]


def test_a_gpu_that_has_to_be_reset_is_failed_and_says_so(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.gpus[6].fail(RESET_REQUIRED)
    reading = observer.until(raised(ConditionKind.RECOVERY_NEEDED, machine.gpus[6].uuid))
    assert {gpu.index for gpu in reading.gpus if gpu.health is GpuHealth.FAILED} == {6}
    machine.gpus[6].fail(0)
    reading = observer.until(all_are(GpuHealth.HEALTHY))
    assert observer.events == []


def test_an_answer_that_makes_no_sense_is_unknown(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.gpus[7].fail(UNKNOWN_ERROR)
    reading = observer.until(lambda reading: any(gpu.health is GpuHealth.UNKNOWN for gpu in reading.gpus))
    assert [(gpu.index, gpu.temperature_c) for gpu in reading.gpus if gpu.health is GpuHealth.UNKNOWN] == [
        (7, None)
    ]
    assert observer.events == []


def test_a_gpu_that_tells_nothing_of_how_it_does_is_unknown(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.gpus[2].set(temperature=None, power_mw=None, utilization=None)
    observer.until(lambda reading: [gpu.index for gpu in reading.gpus if gpu.health is GpuHealth.UNKNOWN] == [2])


def test_a_call_that_hangs_makes_everything_unknown_and_it_recovers(machine: FakeNvml, observer: Observer) -> None:
    machine.gpus[4].set(ecc_uncorrected=2)
    observer.until(raised(ConditionKind.ECC_UNCORRECTED, machine.gpus[4].uuid))
    machine.hang("nvmlDeviceGetTemperature")
    reading = observer.until(all_are(GpuHealth.UNKNOWN))
    (problem,) = reading.unreadable
    assert problem.source == "nvml"
    assert problem.reason.startswith("nvmlDeviceGetTemperature has not returned for ")
    assert (reading.details, {gpu.temperature_c for gpu in reading.gpus}) == ((), {None})
    assert raised(ConditionKind.ECC_UNCORRECTED, machine.gpus[4].uuid)(reading), "Unknown clears nothing"
    machine.release()
    observer.until(all_are(GpuHealth.HEALTHY))


def test_an_event_set_that_hangs_is_told_while_looks_go_on(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.hang("nvmlEventSetWait")
    reading = observer.until(lambda reading: bool(reading.unreadable))
    assert [gpu.health for gpu in reading.gpus] == [GpuHealth.HEALTHY] * 8
    (problem,) = reading.unreadable
    assert problem.source == "nvml-events"
    assert problem.reason.startswith("nvmlEventSetWait_v2 has not returned for ")


def test_a_driver_that_goes_makes_nothing_disappear_and_comes_back(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.unload_driver()
    reading = observer.until(all_are(GpuHealth.UNKNOWN))
    assert [one.source for one in reading.unreadable] == ["nvml"]
    assert "Driver Not Loaded" in reading.unreadable[0].reason
    machine.load_driver()
    observer.until(all_are(GpuHealth.HEALTHY))
    assert observer.events == []
    observer.until_listening()
    machine.gpus[0].xid(79)
    observer.until(lambda _: bool(observer.events))


def test_a_gpu_the_driver_does_not_list_after_it_was_loaded_anew_is_gone(
    machine: FakeNvml, observer: Observer
) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.unload_driver()
    observer.until(all_are(GpuHealth.UNKNOWN))
    machine.layout.count = 7
    machine.load_driver()
    observer.until(lambda reading: {gpu.index for gpu in reading.gpus if gpu.health is GpuHealth.FAILED} == {7})
    assert [(type(event), event.gpu) for event in observer.events] == [(GpuDisappeared, machine.gpus[7].uuid)]


def test_a_gpu_that_gives_no_name_after_the_driver_was_loaded_anew_is_unknown(
    machine: FakeNvml, observer: Observer
) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.unload_driver()
    observer.until(all_are(GpuHealth.UNKNOWN))
    machine.gpus[7].fail(UNKNOWN_ERROR)
    machine.load_driver()
    reading = observer.until(lambda reading: len(reading.details) == 7)
    assert [gpu.index for gpu in reading.gpus if gpu.health is not GpuHealth.HEALTHY] == [7]
    assert reading.gpus[-1].health is GpuHealth.UNKNOWN
    assert {one.source for one in reading.unreadable} == {"nvml", machine.gpus[7].uuid}
    assert observer.events == []


def test_an_old_driver_tells_what_it_knows(machine: FakeNvml, observer: Observer) -> None:
    observer.sensor.close()
    machine.make_old()
    machine.gpus[0].set(temperature=80, throttle=0x40)
    machine.gpus[0].field(75, 3_000_000_000)
    old = Observer(NvmlSensor())
    try:
        reading = old.until(all_are(GpuHealth.HEALTHY))
        assert (reading.unreadable, reading.conditions) == ((), ())
        sample = reading.gpus[0]
        assert (sample.margin_c, sample.throttle, sample.throttled_s) == (7, 0x40, 3.0)
        assert reading.details[0].recovery_action is None
        old.until_listening()
        machine.gpus[0].xid(79)
        old.until(lambda _: bool(old.events))
        assert [(event.xid, event.recovery_action) for event in old.events] == [(79, None)]
    finally:
        old.sensor.close()


def test_a_driver_without_events_is_told_and_its_values_still_count(machine: FakeNvml) -> None:
    for gpu in machine.gpus:
        gpu.set(event_types=None)
    deaf = Observer(NvmlSensor())
    try:
        reading = deaf.until(lambda reading: all_are(GpuHealth.HEALTHY)(reading) and bool(reading.unreadable))
        assert reading.unreadable == (Unreadable("nvml-events", "the driver tells no events"),)
    finally:
        deaf.sensor.close()


@pytest.mark.parametrize(("known", "expected"), [(False, 0), (True, 1)])
def test_without_a_driver_a_machine_without_gpus_is_silent_and_one_with_gpus_is_not(
    machine: FakeNvml, known: bool, expected: int
) -> None:
    machine.unload_driver()
    observer = Observer(NvmlSensor(known=lambda: known))
    try:
        reading = observer.until(lambda reading: all("yet" not in one.reason for one in reading.unreadable))
        assert (len(reading.unreadable), reading.gpus) == (expected, ())
    finally:
        observer.sensor.close()


def test_without_the_library_the_reason_names_it(machine: FakeNvml) -> None:
    program = (
        "import time; from holdfast.agent.nvml.sensor import NvmlSensor; s = NvmlSensor(); reason = 'yet'\n"
        "while 'yet' in reason: time.sleep(0.05); reason = s.read(time.monotonic()).unreadable[0].reason\n"
        "print(reason)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60), check=True
    )
    assert said.stdout.strip() == "nvmlInit: libnvidia-ml.so.1 is not found"


def test_a_process_of_its_own_finds_the_machine_by_its_environment(machine: FakeNvml) -> None:
    program = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())"
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=machine.environment(),
        capture_output=True,
        text=True,
        timeout=patient(60),
        check=True,
    )
    assert said.stdout.strip() == "8"


def test_reading_does_not_ask_the_driver(machine: FakeNvml, observer: Observer) -> None:
    observer.until(all_are(GpuHealth.HEALTHY))
    machine.hang("nvmlDeviceGetTemperature")
    # A read that waited for the driver would never come back.
    for _ in range(1000):
        observer.read()


def test_eight_gpus_on_switches_are_one_nvlink_domain(machine: FakeNvml) -> None:
    domains = nvlink_domains(Driver(time.monotonic))
    assert isinstance(domains, Domains)
    assert (domains.largest(), len(domains.groups)) == (8, 1)


def test_four_pairs_are_four_domains_and_cards_without_links_are_alone(machine: FakeNvml) -> None:
    for gpu in machine.gpus:
        for link in range(18):
            gpu.link(link, active=False)
    assert nvlink_domains(Driver(time.monotonic)) == Domains(tuple((gpu.uuid,) for gpu in machine.gpus))
    for gpu in machine.gpus:
        gpu.connect(4, to=gpu.index ^ 1)
    domains = nvlink_domains(Driver(time.monotonic))
    assert isinstance(domains, Domains)
    assert [len(group) for group in domains.groups] == [2, 2, 2, 2]


def test_domains_are_unknown_while_the_fabric_is_not_set_up_or_the_driver_is_away(machine: FakeNvml) -> None:
    machine.gpus[3].set(fabric_state=2)
    unknown = nvlink_domains(Driver(time.monotonic))
    assert isinstance(unknown, Unreadable)
    assert "is not set up" in unknown.reason
    machine.unload_driver()
    assert isinstance(nvlink_domains(Driver(time.monotonic)), Unreadable)


def test_settings_are_put_back_as_they_were_and_nothing_else_is_touched(machine: FakeNvml) -> None:
    driver = Driver(time.monotonic)
    recorded = record_settings(driver)
    assert not isinstance(recorded, Unreadable)
    machine.gpus[1].set(power_requested_mw=400_000, application_sm_mhz=1200, persistence=0)
    assert restore_settings(driver, recorded) == ()
    assert record_settings(driver) == recorded
    machine.lack("nvmlDeviceSetPowerManagementLimit")
    machine.gpus[1].set(power_requested_mw=400_000)
    (failed,) = restore_settings(driver, recorded)
    assert failed.source == machine.gpus[1].uuid
