"""Which conditions a GPU's values prove, in virtual time."""

import random
from dataclasses import replace

import pytest

from holdfast.agent.conditions.counting import QUIET_S, Rate
from holdfast.agent.conditions.gpus import GpuJudge
from holdfast.agent.reading import GpuDetail, NvlinkDetail
from holdfast.api.condition import ConditionKind, ConditionState

HEALTHY = GpuDetail(
    uuid="GPU-a",
    index=0,
    temperature_c=60.0,
    utilization_ratio=0.9,
    throttle=0,
    ecc_corrected=0,
    ecc_uncorrected=0,
    row_remap_pending=False,
    row_remap_failed=False,
    page_retirement_pending=False,
    pcie_generation=5,
    pcie_generation_max=5,
    pcie_width=16,
    pcie_width_max=16,
    pcie_replays=0,
    nvlinks=(NvlinkDetail(link=0, active=True, replays=0, recoveries=0, crc_errors=0),),
    recovery_action=0,
)


class Watched:
    """One GPU that is looked at every second."""

    def __init__(self, **values: object) -> None:
        self.judge = GpuJudge()
        self.now = 1000.0
        self.detail = replace(HEALTHY, **values)  # type: ignore[arg-type]
        self.looks(1)

    def looks(self, count: int, **values: object) -> None:
        self.detail = replace(self.detail, **values)  # type: ignore[arg-type]
        for _ in range(count):
            self.now += 1.0
            self.judge.observe(self.detail, self.now)

    def raised(self) -> set[tuple[ConditionKind, str]]:
        conditions = self.judge.book.report(self.now)
        return {(one.kind, one.device) for one in conditions if one.state is ConditionState.RAISED}

    def cleared(self) -> set[ConditionKind]:
        return {o.kind for o in self.judge.book.report(self.now) if o.state is ConditionState.CLEARED}


def link(**values: object) -> tuple[NvlinkDetail, ...]:
    return (replace(HEALTHY.nvlinks[0], **values),)  # type: ignore[arg-type]


AT_ONCE = {
    "uncorrectable errors": (ConditionKind.ECC_UNCORRECTED, {"ecc_uncorrected": 1}),
    "remap pending": (ConditionKind.ROW_REMAP_PENDING, {"row_remap_pending": True}),
    "remap failed": (ConditionKind.ROW_REMAP_FAILED, {"row_remap_failed": True}),
    "retirement pending": (ConditionKind.PAGE_RETIREMENT_PENDING, {"page_retirement_pending": True}),
    "a reset is needed": (ConditionKind.RECOVERY_NEEDED, {"recovery_action": 1}),
    "an action newer than the table": (ConditionKind.RECOVERY_NEEDED, {"recovery_action": 99}),
}


@pytest.mark.parametrize("case", AT_ONCE)
def test_what_the_driver_says_in_so_many_words_holds_at_once_and_is_over_at_once(case: str) -> None:
    kind, values = AT_ONCE[case]
    gpu = Watched()
    before = {name: getattr(gpu.detail, name) for name in values}
    gpu.looks(1, **values)
    assert gpu.raised() == {(kind, "")}
    gpu.looks(1, **before)
    assert (gpu.raised(), gpu.cleared()) == (set(), {kind})


@pytest.mark.parametrize("case", AT_ONCE)
def test_what_was_raised_stays_raised_while_its_value_is_unknown(case: str) -> None:
    kind, values = AT_ONCE[case]
    gpu = Watched(**values)
    gpu.looks(1200, **dict.fromkeys(values))
    assert gpu.raised() == {(kind, "")}


def test_a_narrow_link_counts_without_load() -> None:
    gpu = Watched(utilization_ratio=0.0)
    gpu.looks(10, pcie_width=8)
    assert gpu.raised() == {(ConditionKind.PCIE_DEGRADED, "")}


def test_a_link_that_trains_anew_is_not_narrow() -> None:
    gpu = Watched()
    gpu.looks(2, pcie_width=8)
    gpu.looks(60, pcie_width=16)
    assert gpu.raised() == set()


def test_an_idle_gpu_may_lower_its_links_generation() -> None:
    gpu = Watched(utilization_ratio=0.0)
    gpu.looks(3600, pcie_generation=1)
    assert gpu.raised() == set()


def test_a_low_generation_under_load_counts_when_it_lasts() -> None:
    gpu = Watched(utilization_ratio=0.0, pcie_generation=1)
    gpu.looks(9, utilization_ratio=0.95)
    assert gpu.raised() == set()
    gpu.looks(5)
    assert gpu.raised() == {(ConditionKind.PCIE_DEGRADED, "")}


def test_a_link_is_well_again_after_a_minute_of_load_at_full_width_and_generation() -> None:
    gpu = Watched(pcie_width=8)
    gpu.looks(10)
    gpu.looks(3600, pcie_width=16, utilization_ratio=0.0)
    assert gpu.raised(), "without load nothing is proven"
    gpu.looks(59, utilization_ratio=0.9)
    assert gpu.raised()
    gpu.looks(3)
    assert (gpu.raised(), gpu.cleared()) == (set(), {ConditionKind.PCIE_DEGRADED})


def test_a_card_made_for_fewer_lanes_is_not_degraded() -> None:
    gpu = Watched(pcie_width=8, pcie_width_max=8, pcie_generation=4, pcie_generation_max=4)
    gpu.looks(600)
    assert gpu.raised() == set()


def test_where_the_generation_is_not_told_the_width_alone_clears() -> None:
    gpu = Watched(pcie_width=8, pcie_generation=None)
    gpu.looks(10)
    assert gpu.raised()
    gpu.looks(70, pcie_width=16)
    assert gpu.raised() == set()


def test_a_link_that_was_up_and_is_down_holds_until_it_was_up_for_a_minute() -> None:
    gpu = Watched()
    gpu.looks(1, nvlinks=link(active=False))
    assert gpu.raised() == {(ConditionKind.NVLINK_DOWN, "nvlink0")}
    gpu.looks(58, nvlinks=link(active=True))
    assert gpu.raised()
    gpu.looks(5)
    assert (gpu.raised(), gpu.cleared()) == (set(), {ConditionKind.NVLINK_DOWN})


def test_a_link_that_was_never_up_is_not_down() -> None:
    gpu = Watched(nvlinks=link(active=False))
    gpu.looks(600)
    assert gpu.raised() == set()


def test_the_power_brake_counts_when_it_lasts_and_other_reasons_do_not() -> None:
    gpu = Watched()
    gpu.looks(600, throttle=0x4 | 0x20 | 0x40)
    assert gpu.raised() == set()
    gpu.looks(4, throttle=0x80)
    gpu.looks(1, throttle=0)
    gpu.looks(4, throttle=0x84)
    assert gpu.raised() == set()
    gpu.looks(3)
    assert gpu.raised() == {(ConditionKind.POWER_BRAKE, "")}
    gpu.looks(65, throttle=0)
    assert gpu.cleared() == {ConditionKind.POWER_BRAKE}


def test_the_time_of_what_has_to_last_stands_still_while_its_value_is_unknown() -> None:
    gpu = Watched()
    gpu.looks(4, throttle=0x80)
    gpu.looks(600, throttle=None)
    assert gpu.raised() == set()
    gpu.looks(3, throttle=0x80)
    assert gpu.raised() == {(ConditionKind.POWER_BRAKE, "")}


STORMS = {
    "corrected memory errors": (ConditionKind.ECC_CORRECTED_STORM, "", "ecc_corrected", 600),
    "replays": (ConditionKind.PCIE_REPLAYS, "", "pcie_replays", 80),
}


@pytest.mark.parametrize("case", STORMS)
def test_a_counter_that_grows_fast_is_a_storm_until_it_was_quiet_for_an_hour(case: str) -> None:
    kind, device, name, many = STORMS[case]
    gpu = Watched(**{name: 1_000_000})
    gpu.looks(60)
    assert gpu.raised() == set(), "what was counted before is no rate"
    gpu.looks(1, **{name: 1_000_000 + many})
    assert gpu.raised() == {(kind, device)}
    gpu.looks(4000)
    assert gpu.raised() == {(kind, device)}
    gpu.looks(240)
    assert (gpu.raised(), gpu.cleared()) == (set(), {kind})


def test_replays_and_recoveries_of_an_nvlink_count_together() -> None:
    gpu = Watched()
    gpu.looks(1, nvlinks=link(replays=60, recoveries=40))
    assert gpu.raised() == {(ConditionKind.NVLINK_ERRORS, "nvlink0")}


def test_a_slow_trickle_is_no_storm() -> None:
    rate = Rate(600)
    verdicts = {rate.observe(count, float(second)) for second, count in enumerate(range(0, 40_000, 4), start=0)}
    assert True in verdicts, "four a second are a storm"
    rate = Rate(600)
    assert {rate.observe(second // 60, float(second)) for second in range(20_000)} == {None, False}


def test_a_counter_that_is_reset_starts_again() -> None:
    rate = Rate(100)
    rate.observe(10_000, 0.0)
    rate.observe(0, 1.0)
    assert rate.observe(99, 2.0) is None
    assert rate.observe(100, 3.0) is True


def test_an_hour_without_a_look_is_not_an_hour_of_quiet() -> None:
    rate = Rate(100)
    rate.observe(0, 0.0)
    assert rate.observe(100, 1.0) is True
    assert rate.observe(100, 2.0 + 2 * QUIET_S) is True


def test_gpus_are_judged_apart_and_their_number_is_bounded() -> None:
    judge = GpuJudge()
    for index in range(100):
        judge.observe(replace(HEALTHY, uuid=f"GPU-{index}", ecc_uncorrected=index % 2), 1.0)
    assert {one.gpu for one in judge.book.report(1.0)} == {f"GPU-{index}" for index in range(1, 64, 2)}


def test_a_healthy_gpu_of_noisy_values_raises_nothing() -> None:
    noise = random.Random(7)
    judge, now = GpuJudge(), 0.0
    corrected = replays = 0
    for _ in range(5_000):
        now += noise.uniform(0.9, 6.0)
        loaded = noise.random() < 0.7
        corrected += noise.random() < 0.01
        replays += noise.random() < 0.01
        detail = replace(
            HEALTHY,
            utilization_ratio=noise.uniform(0.5, 1.0) if loaded else 0.0,
            pcie_generation=5 if loaded else noise.choice((1, 2, 5)),
            throttle=noise.choice((0, 0x1, 0x4, 0x24)),
            ecc_corrected=None if noise.random() < 0.05 else corrected,
            pcie_replays=None if noise.random() < 0.05 else replays,
        )
        judge.observe(detail, now)
    assert judge.book.report(now) == ()


def test_a_gpu_that_had_to_be_reset_is_well_when_it_answers_a_minute_also_where_no_action_is_told() -> None:
    gpu = Watched(recovery_action=None)
    gpu.judge.reset_required("GPU-a", gpu.now)
    gpu.looks(59)
    gpu.judge.reset_required("GPU-a", gpu.now)
    gpu.looks(60)
    assert gpu.raised() == {(ConditionKind.RECOVERY_NEEDED, "")}
    gpu.looks(1)
    assert (gpu.raised(), gpu.cleared()) == (set(), {ConditionKind.RECOVERY_NEEDED})


def test_where_an_action_was_told_silence_about_it_ends_nothing() -> None:
    gpu = Watched()
    gpu.judge.reset_required("GPU-a", gpu.now)
    gpu.looks(1, recovery_action=1)
    gpu.looks(3600, recovery_action=None)
    assert gpu.raised() == {(ConditionKind.RECOVERY_NEEDED, "")}


SELDOM_S = 45.0


def test_what_lasts_is_judged_from_looks_that_are_seldom_too() -> None:
    judge = GpuJudge(gap_s_max=60.0)
    ill = replace(HEALTHY, pcie_width=8, throttle=0x80)
    for number in range(2):
        judge.observe(ill, 1000.0 + number * SELDOM_S)
    assert {each.kind for each in judge.book.report(1045.0)} == {
        ConditionKind.PCIE_DEGRADED,
        ConditionKind.POWER_BRAKE,
    }
    for number in range(2, 5):
        judge.observe(HEALTHY, 1000.0 + number * SELDOM_S)
    assert {each.state for each in judge.book.report(1180.0)} == {ConditionState.CLEARED}
