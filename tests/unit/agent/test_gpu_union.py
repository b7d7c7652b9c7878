"""One picture of the GPUs from the driver itself and from an exporter beside it."""

from dataclasses import replace

from holdfast.agent.reading import GpuDetail, NvlinkDetail, Reading
from holdfast.agent.union import EXPORTER_ECHO_S, GpuUnion
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, GpuSample, Unreadable, XidRaised

HEALTHY, FAILED, UNKNOWN = GpuHealth.HEALTHY, GpuHealth.FAILED, GpuHealth.UNKNOWN


def test_the_drivers_word_comes_first_and_the_exporter_fills_the_gaps() -> None:
    first = Reading(
        gpus=(GpuSample("A", 0, HEALTHY, temperature_c=60.0),),
        details=(GpuDetail(uuid="A", index=0, temperature_c=60.0, nvlinks=(NvlinkDetail(link=0, active=True),)),),
    )
    filling = Reading(
        gpus=(GpuSample("A", 7, HEALTHY, temperature_c=50.0, power_w=500.0),),
        details=(GpuDetail(uuid="A", index=7, temperature_c=50.0, pcie_replays=3),),
    )
    united = GpuUnion().unite(first, filling, 0.0)
    assert united.gpus == (GpuSample("A", 0, HEALTHY, temperature_c=60.0, power_w=500.0),)
    (detail,) = united.details
    assert (detail.index, detail.temperature_c, detail.pcie_replays, len(detail.nvlinks)) == (0, 60.0, 3, 1)


def test_a_gpu_that_the_driver_cannot_judge_is_judged_by_the_exporter_and_a_failed_one_stays_failed() -> None:
    first = Reading(gpus=(GpuSample("A", 0, UNKNOWN), GpuSample("B", 1, FAILED)))
    filling = Reading(gpus=tuple(GpuSample(uuid, 0, HEALTHY, temperature_c=50.0) for uuid in "ABC"))
    united = GpuUnion().unite(first, filling, 0.0)
    assert [(gpu.uuid, gpu.index, gpu.health) for gpu in united.gpus] == [
        ("A", 0, HEALTHY),
        ("B", 1, FAILED),
        ("C", 0, HEALTHY),
    ]


def test_an_error_of_a_gpu_that_the_driver_speaks_for_is_the_drivers_to_tell() -> None:
    told = Reading(events=(XidRaised("A", 79, 0.0),))
    assert GpuUnion().unite(Reading(gpus=(GpuSample("A", 0, HEALTHY),)), told, 0.0).events == ()
    assert GpuUnion().unite(Reading(gpus=(GpuSample("A", 0, UNKNOWN),)), told, 0.0).events == told.events
    assert GpuUnion().unite(Reading(), told, 0.0).events == told.events


def test_while_the_driver_tells_no_events_the_exporters_errors_are_news_unless_the_kernel_told_them() -> None:
    deaf = Reading(gpus=(GpuSample("A", 0, HEALTHY),), unreadable=(Unreadable("nvml-events", "hangs"),))
    told = Reading(events=(XidRaised("A", 79, 0.0),))
    assert GpuUnion().unite(deaf, told, 0.0).events == told.events
    union = GpuUnion()
    assert union.unite(replace(deaf, events=told.events), Reading(), 0.0).events == told.events
    assert union.unite(deaf, told, 30.0).events == ()


def test_the_echo_of_an_error_that_the_kernel_told_is_dropped() -> None:
    union, told = GpuUnion(), Reading(events=(XidRaised("A", 79, 0.0),))
    assert union.unite(told, Reading(), 0.0).events == told.events
    assert union.unite(Reading(), told, EXPORTER_ECHO_S - 1).events == ()
    assert union.unite(Reading(), told, EXPORTER_ECHO_S + 1).events == told.events


def test_a_condition_that_both_know_is_told_once_and_is_over_when_both_say_so() -> None:
    raised, cleared = ConditionState.RAISED, ConditionState.CLEARED

    def united(first: ConditionState, filling: ConditionState) -> list[ConditionState]:
        readings = [
            Reading(conditions=(Condition(ConditionKind.ROW_REMAP_FAILED, state, 1.0, "", gpu="A"),))
            for state in (first, filling)
        ]
        return [each.state for each in GpuUnion().unite(*readings, 0.0).conditions]

    assert united(raised, cleared) == united(cleared, raised) == united(raised, raised) == [raised]
    assert united(cleared, cleared) == [cleared]


def test_gpus_that_only_one_of_them_knows_are_kept_as_they_are() -> None:
    first = Reading(gpus=(GpuSample("A", 0, HEALTHY),), details=(GpuDetail(uuid="A", index=0),))
    filling = Reading(gpus=(GpuSample("B", 1, HEALTHY),), details=(GpuDetail(uuid="B", index=1),))
    united = GpuUnion().unite(first, filling, 0.0)
    assert united.gpus == first.gpus + filling.gpus
    assert united.details == first.details + filling.details


def test_events_that_are_no_errors_are_told_by_both() -> None:
    lost = Reading(events=(GpuDisappeared("A", 0.0),))
    assert GpuUnion().unite(lost, lost, 0.0).events == lost.events * 2


def test_what_cannot_be_read_of_either_is_said() -> None:
    first, filling = Unreadable("nvml", "no driver"), Unreadable("dcgm-exporter", "no answer")
    united = GpuUnion().unite(Reading(unreadable=(first,)), Reading(unreadable=(filling,)), 0.0)
    assert united.unreadable == (first, filling)
