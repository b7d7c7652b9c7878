"""What a GPU does, as its driver tells it, and what is done about it. All between the two is real."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pynvml
import pytest
from fake_nvml import GPU_IS_LOST, NO_PERMISSION, RESET_REQUIRED, UNKNOWN_ERROR, FakeNvml
from nvml_job import NvmlJob

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Rung

EVICT, RESTART, NOTHING = "evict", "restart", "nothing"
SICK = 3  # the GPU that is at fault, the last of four
CONDITION, LOST, THERMAL, XID = FindingKind.CONDITION, FindingKind.GPU_LOST, FindingKind.THERMAL, FindingKind.XID


@dataclass(frozen=True)
class Case:
    """`happens` lets it happen to a job at work. `kind` and `cause` are the first incident's."""

    happens: Callable[[NvmlJob], None]
    does: str
    kind: FindingKind | None = None
    cause: str = ""


def xids(*numbers: int, does: str, action: int | None = None, cause: int | None = None) -> Case:
    def happens(job: NvmlJob) -> None:
        for number in numbers:
            job.xid(SICK, number, recovery_action=action if number == numbers[-1] else None)
        job.wait(8.0)

    return Case(happens, does, XID, f"xid {numbers[0] if cause is None else cause}")


def value(
    does: str, kind: FindingKind | None = None, cause: str = "", *, for_s: float = 15.0, **values: int
) -> Case:
    def happens(job: NvmlJob) -> None:
        job.machine.gpus[SICK].set(**values)
        job.wait(for_s)

    return Case(happens, does, kind, cause)


def fails(code: int, does: str, kind: FindingKind | None = None, cause: str = "") -> Case:
    def happens(job: NvmlJob) -> None:
        job.machine.gpus[SICK].fail(code)
        job.wait(8.0)

    return Case(happens, does, kind, cause)


def unavailable(job: NvmlJob) -> None:
    job.event(SICK, pynvml.nvmlEventTypeGpuUnavailableError)
    job.wait(8.0)


def falls_off_the_bus(job: NvmlJob) -> None:
    job.xid(SICK, 79)
    job.machine.gpus[SICK].lose()
    job.wait(8.0)


def asks_for_a_reset(job: NvmlJob) -> None:
    job.machine.gpus[SICK].field(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 1)
    job.event(SICK, pynvml.nvmlEventTypeGpuRecoveryAction)
    job.wait(8.0)


def asks_for_nothing(job: NvmlJob) -> None:
    job.event(SICK, pynvml.nvmlEventTypeGpuRecoveryAction)
    job.wait(8.0)


def double_bit_by_event(job: NvmlJob) -> None:
    job.machine.gpus[SICK].set(ecc_uncorrected=1)
    job.event(SICK, pynvml.nvmlEventTypeDoubleBitEccError)
    job.wait(3.0)


def contained_error(job: NvmlJob) -> None:
    job.machine.gpus[SICK].set(ecc_uncorrected=1)
    job.xid(SICK, 94)
    job.wait(15.0)


def link_goes_down(job: NvmlJob) -> None:
    job.wait(12.0)
    job.machine.gpus[SICK].link(7, active=False)
    job.wait(15.0)


def link_was_never_up(job: NvmlJob) -> None:
    for gpu in job.machine.gpus:
        gpu.connect(4, first=18)
        for link in range(18, 22):
            gpu.link(link, active=False)
    job.wait(30.0)


def link_replays(job: NvmlJob) -> None:
    job.wait(12.0)
    job.machine.gpus[SICK].link(7, replays=5000)
    job.wait(15.0)


def idles_with_a_slow_link(job: NvmlJob) -> None:
    job.machine.gpus[SICK].set(utilization=3, pcie_generation=1)
    job.wait(60.0)


def works_with_a_slow_link(job: NvmlJob) -> None:
    job.machine.gpus[SICK].set(utilization=97, pcie_generation=3)
    job.wait(20.0)


def link_trains_anew(job: NvmlJob) -> None:
    job.machine.gpus[SICK].set(pcie_width=4)
    job.wait(2.0)
    job.machine.gpus[SICK].set(pcie_width=16)
    job.wait(20.0)


def is_hot_for_a_moment(job: NvmlJob) -> None:
    job.machine.gpus[SICK].set(temperature=86, margin=1, throttle=0x20)
    job.wait(20.0)
    job.machine.gpus[SICK].set(temperature=70, margin=17, throttle=0)
    job.wait(60.0)


def driver_goes(job: NvmlJob) -> None:
    job.machine.unload_driver()
    job.wait(30.0)
    job.machine.load_driver()
    job.wait(10.0)


def driver_comes_back_without_it(job: NvmlJob) -> None:
    job.machine.unload_driver()
    job.wait(5.0)
    job.machine.layout.count = SICK
    job.machine.load_driver()
    job.wait(8.0)


def driver_comes_back_and_it_says(code: int) -> Callable[[NvmlJob], None]:
    def happens(job: NvmlJob) -> None:
        job.machine.unload_driver()
        job.wait(5.0)
        job.machine.gpus[SICK].fail(code)
        job.machine.load_driver()
        job.wait(8.0)

    return happens


def answers_no_sense(job: NvmlJob) -> None:
    job.machine.gpus[SICK].fail(UNKNOWN_ERROR)
    job.wait(120.0)


CASES = {
    "xid 8, stopped processing": xids(8, does=RESTART),
    "xid 13, engine exception": xids(13, does=EVICT),
    "xid 31, page fault": xids(31, does=EVICT),
    "xid 43, application": xids(43, does=RESTART),
    "xid 45, cleanup alone": xids(45, does=NOTHING),
    "xid 46, time-out": xids(46, does=EVICT),
    "xid 48, double bit": xids(48, does=EVICT),
    "xid 48 and what follows it": xids(48, 171, 63, 94, 45, does=EVICT),
    "xid 62, power management": xids(62, does=EVICT),
    "xid 63, remap recorded": xids(63, does=NOTHING),
    "xid 64, remap failed": xids(64, does=EVICT),
    "xid 74, NVLink": xids(74, does=EVICT),
    "xid 79, off the bus": xids(79, does=EVICT),
    "xid 92, single bits": xids(92, does=NOTHING),
    "xid 94, contained": xids(94, does=RESTART),
    "xid 94, but the driver wants a reset": xids(94, does=EVICT, action=1),
    "xid 95, uncontained": xids(95, does=EVICT),
    "xid 109, context switch": xids(109, does=RESTART),
    "xid 109, but the driver wants the node drained": xids(109, does=EVICT, action=4),
    "xid 119, system processor": xids(119, does=EVICT),
    "xid 120, system processor": xids(120, does=EVICT),
    "xid 140, unrecovered": xids(140, does=EVICT),
    "xid 143, initialisation": xids(143, does=EVICT),
    "xid 154, nothing needed": xids(154, does=NOTHING, action=0),
    "xid 154, reset": xids(154, does=EVICT, action=1),
    "xid 154, reboot": xids(154, does=EVICT, action=2),
    "xid 154, drain": xids(154, does=EVICT, action=3),
    "xid 167, fatal PCIe time-out": xids(167, does=EVICT),
    "xid 999, unknown to everybody": xids(999, does=NOTHING),
    "lost": fails(GPU_IS_LOST, EVICT, LOST),
    "lost, with its xid": Case(falls_off_the_bus, EVICT, XID, "xid 79"),
    "unavailable": Case(unavailable, EVICT, LOST),
    "gone after the driver was loaded anew": Case(driver_comes_back_without_it, EVICT, LOST),
    "lost while the driver was loaded anew": Case(driver_comes_back_and_it_says(GPU_IS_LOST), EVICT, LOST),
    "has to be reset after the driver was loaded anew": Case(
        driver_comes_back_and_it_says(RESET_REQUIRED), EVICT, CONDITION, ConditionKind.RECOVERY_NEEDED
    ),
    "makes no sense after the driver was loaded anew": Case(driver_comes_back_and_it_says(UNKNOWN_ERROR), NOTHING),
    "is not to be asked after the driver was loaded anew": Case(
        driver_comes_back_and_it_says(NO_PERMISSION), NOTHING
    ),
    "has to be reset": fails(RESET_REQUIRED, EVICT, CONDITION, ConditionKind.RECOVERY_NEEDED),
    "needs a recovery": Case(asks_for_a_reset, EVICT, CONDITION, ConditionKind.RECOVERY_NEEDED),
    "needs no recovery": Case(asks_for_nothing, NOTHING),
    "uncorrectable errors": value(NOTHING, ecc_uncorrected=1),
    "uncorrectable errors, by event": Case(double_bit_by_event, NOTHING),
    "corrected errors, few": value(NOTHING, ecc_corrected=12),
    "corrected errors, a storm": value(NOTHING, ecc_corrected=90_000),
    "a contained error, which is counted too": Case(contained_error, RESTART, XID, "xid 94"),
    "old uncorrectable errors": value(NOTHING, ecc_uncorrected_aggregate=4),
    "rows remapped long ago": value(NOTHING, remapped_uncorrectable=3, remapped_correctable=1),
    "row remap pending": value(NOTHING, remap_pending=1),
    "row remap failed": value(EVICT, CONDITION, ConditionKind.ROW_REMAP_FAILED, remap_failed=1),
    "half the PCIe width": value(EVICT, CONDITION, ConditionKind.PCIE_DEGRADED, pcie_width=8),
    "a link that trains anew": Case(link_trains_anew, NOTHING),
    "a slow PCIe link at work": Case(works_with_a_slow_link, EVICT, CONDITION, ConditionKind.PCIE_DEGRADED),
    "a slow PCIe link at rest": Case(idles_with_a_slow_link, NOTHING),
    "PCIe replays": value(NOTHING, pcie_replays=4000),
    "NVLink down": Case(link_goes_down, EVICT, CONDITION, ConditionKind.NVLINK_DOWN),
    "NVLink that was never up": Case(link_was_never_up, NOTHING),
    "NVLink replays": Case(link_replays, NOTHING),
    "power brake": value(NOTHING, throttle=0x80),
    "power cap": value(NOTHING, throttle=0x4, for_s=90.0),
    "hot": value(EVICT, THERMAL, temperature=86, margin=1, throttle=0x20, utilization=99, for_s=90.0),
    "warm": value(NOTHING, temperature=78, margin=9, utilization=99, for_s=90.0),
    "hot for a moment": Case(is_hot_for_a_moment, NOTHING),
    "makes no sense": Case(answers_no_sense, NOTHING),
    "the driver goes and comes back": Case(driver_goes, NOTHING),
}


@pytest.fixture
def job(machine: FakeNvml) -> Iterator[NvmlJob]:
    job = NvmlJob(machine)
    yield job
    job.close()


def check(job: NvmlJob, case: Case) -> None:
    before = job.round
    case.happens(job)
    if case.does == NOTHING:
        # What is only to be told may be an incident, which is closed at once and changes nothing.
        assert [incident for incident in job.incidents if incident.closed_at is None] == []
        assert (job.round, job.evicted) == (before, [])
        return
    incident = job.incidents[0]
    assert incident.kind is case.kind
    assert case.cause in incident.cause
    assert (incident.culprit.node, incident.culprit.gpu) == ("node-0", job.machine.gpus[SICK].uuid)
    assert incident.evidence
    assert job.round.number > before.number
    assert job.evicted == (["node-0"] if case.does == EVICT else [])
    assert (Rung.SWAP in {action.rung for action in incident.actions}) is (case.does == EVICT)
    assert ("node-0" in {share.node for share in job.round.ranks}) is (case.does == RESTART)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_a_gpu_does_leads_to_its_action(case: Case, job: NvmlJob) -> None:
    check(job, case)


OLD = {
    "xid 79": xids(79, does=EVICT),
    "xid 94": xids(94, does=RESTART),
    "lost": fails(GPU_IS_LOST, EVICT, LOST),
    "uncorrectable errors": value(NOTHING, ecc_uncorrected=1),
    "hot": value(EVICT, THERMAL, temperature=86, throttle=0x20, utilization=99, for_s=90.0),
    "healthy": value(NOTHING, temperature=70, utilization=99, for_s=60.0),
}


@pytest.mark.parametrize("case", OLD.values(), ids=OLD)
def test_an_old_driver_says_enough(case: Case, machine: FakeNvml) -> None:
    machine.make_old()
    job = NvmlJob(machine)
    try:
        check(job, case)
    finally:
        job.close()


def test_two_lost_gpus_of_a_node_are_one_eviction(job: NvmlJob) -> None:
    job.machine.gpus[0].lose()
    job.machine.gpus[2].lose()
    job.wait(8.0)
    assert job.evicted == ["node-0"]


def test_a_healthy_day_is_no_news(job: NvmlJob) -> None:
    before = job.round
    for hour in range(24):
        for gpu in job.machine.gpus:
            gpu.set(temperature=60 + hour % 9, margin=27 - hour % 9, utilization=90 + hour % 10, throttle=0x4)
            gpu.set(ecc_corrected=hour // 6, pcie_replays=hour // 3)
        job.wait(5.0)
    assert (job.incidents, job.round) == ((), before)
