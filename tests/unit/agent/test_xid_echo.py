"""One error that two sources tell of is one."""

import pytest

from holdfast.agent.reading import GpuDetail, Reading, joined
from holdfast.agent.union import ECHO_S, XidEcho
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.telemetry import GpuDisappeared, NodeEvent, PreemptionNoticed, ProcessKilledForMemory, XidRaised

LOG, NVML = "kernel-log", "nvml"


class Agent:
    """Two sources; `told` collects what was left of what they said."""

    def __init__(self, *details: GpuDetail) -> None:
        self.echo = XidEcho()
        self.details = details
        self.told: list[NodeEvent] = []

    def hear(self, now: float, log: tuple[NodeEvent, ...] = (), nvml: tuple[NodeEvent, ...] = ()) -> None:
        readings = [(LOG, Reading(events=log)), (NVML, Reading(events=nvml, details=self.details))]
        self.told.extend(joined(self.echo.once(readings, now)).events)

    @property
    def xids(self) -> list[int]:
        return [event.xid for event in self.told if isinstance(event, XidRaised)]


def raised(xid: int, *, gpu: str = "GPU-0", age_s: float = 0.0, action: int | None = None) -> XidRaised:
    return XidRaised(gpu, xid, age_s, recovery_action=action)


@pytest.mark.parametrize("log_first", [True, False])
@pytest.mark.parametrize("later_s", [0.0, 0.1, ECHO_S])
def test_whoever_tells_first_the_other_ones_word_is_its_echo(log_first: bool, later_s: float) -> None:
    agent = Agent()
    first, second = ((raised(79),), ()) if log_first else ((), (raised(79),))
    agent.hear(10.0, first, second)
    agent.hear(10.0 + later_s, second, first)
    assert agent.xids == [79]


def test_both_words_in_one_look_are_one() -> None:
    agent = Agent()
    agent.hear(10.0, (raised(79, age_s=0.05),), (raised(79),))
    assert agent.xids == [79]


def test_an_error_that_comes_again_is_counted_again() -> None:
    agent = Agent()
    for now in (10.0, 10.5, 11.0):
        agent.hear(now, (raised(94),), (raised(94),))
    assert agent.xids == [94, 94, 94]


def test_several_in_one_breath_are_paired_off() -> None:
    agent = Agent()
    agent.hear(10.0, log=(raised(94),) * 3)
    agent.hear(10.1, nvml=(raised(94),) * 2)
    assert agent.xids == [94] * 3


def test_what_only_one_of_them_tells_counts() -> None:
    agent = Agent()
    agent.hear(10.0, log=(raised(31),))
    agent.hear(11.0, nvml=(raised(48),))
    assert agent.xids == [31, 48]


def test_another_number_another_gpu_and_another_time_are_no_echo() -> None:
    agent = Agent()
    agent.hear(10.0, log=(raised(79),))
    agent.hear(10.1, nvml=(raised(74), raised(79, gpu="GPU-1")))
    agent.hear(10.0 + ECHO_S + 0.1, nvml=(raised(79),))
    assert agent.xids == [79, 74, 79, 79]


def test_the_recovery_that_only_the_second_word_knows_is_kept() -> None:
    agent = Agent()
    agent.hear(10.0, log=(raised(94),))
    agent.hear(10.1, nvml=(raised(94, action=1),))
    assert agent.told == [raised(94), raised(154, action=1)]


@pytest.mark.parametrize("action", [None, 1])
def test_which_fault_of_a_link_it_was_is_kept_when_the_log_tells_it_second(action: int | None) -> None:
    agent = Agent()
    fault = LinkFault("NETIR_LINK_EVT", "Fatal", 8, 0x4505C6, 0)
    from_log = XidRaised("GPU-0", 149, 0.0, "NETIR_LINK_EVT Fatal", link_fault=fault)
    agent.hear(10.0, nvml=(raised(149, action=action),))
    agent.hear(10.1, log=(from_log,))
    agent.hear(20.0, log=(from_log,))
    agent.hear(20.1, nvml=(raised(149),))
    assert agent.told == [raised(149, action=action), from_log, from_log]


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, None), (None, 0)])
def test_a_recovery_that_is_known_or_none_is_nothing_new(first: int | None, second: int | None) -> None:
    agent = Agent()
    agent.hear(10.0, log=(raised(154, action=first),))
    agent.hear(10.1, nvml=(raised(154, action=second),))
    assert agent.told == [raised(154, action=first)]


def test_a_gpu_that_is_lost_is_lost_once() -> None:
    agent = Agent()
    agent.hear(10.0, nvml=(GpuDisappeared("GPU-0", 0.0, "no answer"),))
    agent.hear(12.0, log=(GpuDisappeared("GPU-0", 0.0, "fallen off the bus"), raised(79)))
    assert agent.told == [GpuDisappeared("GPU-0", 0.0, "no answer"), raised(79)]


def test_a_slot_and_a_uuid_are_one_gpu_where_the_driver_says_so() -> None:
    agent = Agent(GpuDetail(uuid="GPU-0", index=0, pci_bus_id="00000000:3B:00.0"))
    agent.hear(10.0, nvml=(raised(79),))
    agent.hear(10.1, log=(raised(79, gpu="PCI:0000:3b:00"),))
    agent.hear(60.0, log=(raised(63, gpu="PCI:0000:3b:00"),))
    assert agent.told == [raised(79), raised(63)]


def test_a_gpu_that_answers_no_more_keeps_its_name() -> None:
    agent = Agent(GpuDetail(uuid="GPU-0", index=0, pci_bus_id="00000000:3B:00.0"))
    agent.hear(10.0)
    agent.details = ()
    agent.hear(11.0, nvml=(GpuDisappeared("GPU-0", 0.0, "no answer"),))
    agent.hear(12.0, log=(raised(79, gpu="PCI:0000:3b:00"), GpuDisappeared("PCI:0000:3b:00", 0.0, "off the bus")))
    assert agent.told == [GpuDisappeared("GPU-0", 0.0, "no answer"), raised(79)]


def test_a_name_may_come_from_elsewhere() -> None:
    agent = Agent()
    agent.echo.learn((GpuDetail(uuid="GPU-0", index=0, pci_bus_id="00000000:3B:00.0"),))
    agent.hear(10.0, log=(raised(79, gpu="PCI:0000:3b:00"),))
    assert agent.told == [raised(79)]


def test_other_events_pass() -> None:
    agent = Agent()
    others = (PreemptionNoticed("spot", 30.0, 0.0), ProcessKilledForMemory(7, "python", 0.0))
    agent.hear(10.0, log=others)
    agent.hear(10.1, log=others)
    assert agent.told == [*others, *others]


def test_what_nobody_echoes_is_forgotten() -> None:
    agent = Agent()
    for now in range(5000):
        agent.hear(float(now), log=(raised(now % 200),))
    assert len(agent.xids) == 5000
    assert len(agent.echo._alone) <= 2 * ECHO_S + 2
    agent.hear(6000.0, log=(raised(31),) * 5000)
    assert sum(map(len, agent.echo._alone.values())) < 1000
