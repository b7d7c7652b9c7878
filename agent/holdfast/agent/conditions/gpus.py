"""Which conditions a GPU's values prove, and which they prove to be over. Pure; what they mean: api/condition.py.

A value that is Unknown proves nothing: what was raised stays raised, and the time of what must last stands still.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.agent.conditions.book import ConditionBook, Debounce, Held, Rule
from holdfast.agent.conditions.counting import Rate
from holdfast.agent.reading import GpuDetail, NvlinkDetail
from holdfast.api.condition import ConditionKind
from holdfast.api.xid import RecoveryAction

# Looks come every second. What was not looked at for longer may have changed meanwhile.
GAP_S_MAX: Final = 5.0
# Source: nvmlClocksEventReasonHwPowerBrakeSlowdown,
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
POWER_BRAKE_BIT: Final = 0x80
# A GPU that has nothing to do lowers its link's generation to save power, and raises it when work comes.
LOADED_RATIO: Final = 0.5
SLOW_UNDER_LOAD_S: Final = 10.0
NARROW_S: Final = 3.0  # a link that trains anew is narrow for a moment
BRAKED_S: Final = 5.0
WELL_S: Final = 60.0
# Corrected errors cost nothing each; one a second for ten minutes is a part that is about to fail.
CORRECTED_STORM: Final = 600
# Eight a minute is where NVIDIA's own health check warns. Source: "PCIe replay",
# https://docs.nvidia.com/datacenter/dcgm/latest/user-guide/feature-overview.html
PCIE_REPLAY_STORM: Final = 80
NVLINK_ERROR_STORM: Final = 100
_GPUS_MAX: Final = 64


@dataclass(slots=True)
class _Link:
    """One NVLink, and what its rules need to remember."""

    detail: NvlinkDetail
    was_up: bool = False
    errors: Rate = field(default_factory=lambda: Rate(NVLINK_ERROR_STORM))

    def take(self, detail: NvlinkDetail, now: float) -> None:
        self.detail = detail
        self.was_up = self.was_up or detail.active is True
        counters = [each for each in (detail.replays, detail.recoveries, detail.crc_errors) if each is not None]
        self.errors.observe(sum(counters) if counters else None, now)


class _Gpu:
    """One GPU, and what its rules need to remember."""

    detail: GpuDetail  # set by the first look, before any rule is asked

    def __init__(self, gap_s_max: float) -> None:
        self.links: dict[int, _Link] = {}
        self.corrected = Rate(CORRECTED_STORM)
        self.replays = Rate(PCIE_REPLAY_STORM)
        self.narrow = Debounce(NARROW_S, WELL_S, gap_s_max)
        self.slow = Debounce(SLOW_UNDER_LOAD_S, WELL_S, gap_s_max)
        # It answered nothing before it was to be reset: what an earlier run of the agent saw is not known.
        self.was_mute = True
        self.answers_since: float | None = None
        self.answered_s = 0.0

    def take(self, detail: GpuDetail, now: float) -> None:
        self.detail = detail
        self.corrected.observe(detail.ecc_corrected, now)
        self.replays.observe(detail.pcie_replays, now)
        loaded = detail.utilization_ratio is not None and detail.utilization_ratio >= LOADED_RATIO
        narrow = _below(detail.pcie_width, detail.pcie_width_max)
        # Without load the time of being well stands still, but being narrow again counts at once.
        self.narrow.observe(narrow if loaded or narrow else None, now)
        self.slow.observe(_below(detail.pcie_generation, detail.pcie_generation_max) if loaded else None, now)
        if detail.recovery_action is not None:
            self.was_mute = False
        elif self.was_mute:
            self.answers_since = now if self.answers_since is None else self.answers_since
            self.answered_s = now - self.answers_since


def _below(value: int | None, full: int | None) -> bool | None:
    return None if value is None or full is None else value < full


def _needs_recovery(gpu: _Gpu) -> bool | None:
    """Older drivers know of no action: that a GPU which was to be reset answers again is all they tell."""
    if gpu.detail.recovery_action is not None:
        return gpu.detail.recovery_action != RecoveryAction.NONE
    return False if gpu.was_mute and gpu.answered_s >= WELL_S else None


def _memory(gpu: _Gpu, says: str) -> str:
    """`says`, unless the driver has words of its own for its memory errors."""
    return gpu.detail.words or says


def _action(gpu: _Gpu) -> str:
    action = gpu.detail.recovery_action
    known = action in RecoveryAction._value2member_map_
    return RecoveryAction(action).name if action is not None and known else f"recovery action {action}"


def _pcie_degraded(gpu: _Gpu) -> bool | None:
    """Width counts always, the generation under load only; to be well again both have to be seen under load."""
    # Where the driver does not tell the generation, the width alone decides.
    holds = {gpu.narrow.holds} if gpu.detail.pcie_generation is None else {gpu.narrow.holds, gpu.slow.holds}
    return True if True in holds else None if None in holds else False


GPU_RULES: Final = (
    Rule[_Gpu](
        kind=ConditionKind.ECC_UNCORRECTED,
        raise_if=lambda gpu: None if gpu.detail.ecc_uncorrected is None else gpu.detail.ecc_uncorrected > 0,
        says=lambda gpu: _memory(
            gpu, f"{gpu.detail.ecc_uncorrected} uncorrectable memory errors since the driver was loaded"
        ),
    ),
    Rule[_Gpu](
        kind=ConditionKind.ROW_REMAP_PENDING,
        raise_if=lambda gpu: gpu.detail.row_remap_pending,
        says=lambda gpu: f"remapped rows: {gpu.detail.remapped_rows_uncorrectable} for uncorrectable errors",
    ),
    Rule[_Gpu](
        kind=ConditionKind.ROW_REMAP_FAILED,
        raise_if=lambda gpu: gpu.detail.row_remap_failed,
        says=lambda gpu: _memory(
            gpu, f"remapped rows: {gpu.detail.remapped_rows_uncorrectable} for uncorrectable errors"
        ),
    ),
    Rule[_Gpu](
        kind=ConditionKind.PAGE_RETIREMENT_PENDING,
        raise_if=lambda gpu: gpu.detail.page_retirement_pending,
        says=lambda gpu: _memory(
            gpu, f"retired pages: {gpu.detail.retired_pages_double_bit} for double-bit errors"
        ),
    ),
    Rule[_Gpu](
        kind=ConditionKind.ECC_CORRECTED_STORM,
        raise_if=lambda gpu: gpu.corrected.holds,
        says=lambda gpu: f"{gpu.corrected.grown} errors in the last {gpu.corrected.over_s:.0f} s",
    ),
    Rule[_Gpu](
        kind=ConditionKind.RECOVERY_NEEDED,
        raise_if=_needs_recovery,
        says=lambda gpu: f"the driver asks for {_action(gpu)}",
        over=lambda gpu: f"it has answered for {WELL_S:.0f} s" if gpu.was_mute else _action(gpu),
    ),
    Rule[_Gpu](
        kind=ConditionKind.PCIE_DEGRADED,
        raise_if=_pcie_degraded,
        says=lambda gpu: (
            f"PCIe width {gpu.detail.pcie_width} of {gpu.detail.pcie_width_max},"
            f" generation {gpu.detail.pcie_generation} of {gpu.detail.pcie_generation_max}"
        ),
    ),
    Rule[_Gpu](
        kind=ConditionKind.PCIE_REPLAYS,
        raise_if=lambda gpu: gpu.replays.holds,
        says=lambda gpu: f"{gpu.replays.grown} errors in the last {gpu.replays.over_s:.0f} s",
    ),
    Rule[_Gpu](
        kind=ConditionKind.POWER_BRAKE,
        raise_if=lambda gpu: None if gpu.detail.throttle is None else bool(gpu.detail.throttle & POWER_BRAKE_BIT),
        says=lambda gpu: "hardware power brake slowdown",
        raise_after_s=BRAKED_S,
        clear_after_s=WELL_S,
    ),
)
LINK_RULES: Final = (
    Rule[_Link](
        kind=ConditionKind.NVLINK_DOWN,
        # A link that was never up may be one that this machine does not connect.
        raise_if=lambda link: not link.detail.active if link.was_up and link.detail.active is not None else None,
        says=lambda link: f"link {link.detail.link} is {'up' if link.detail.active else 'down'}",
        clear_after_s=WELL_S,
    ),
    Rule[_Link](
        kind=ConditionKind.NVLINK_ERRORS,
        raise_if=lambda link: link.errors.holds,
        says=lambda link: f"{link.errors.grown} errors in the last {link.errors.over_s:.0f} s",
    ),
)
GPU_KINDS: Final = frozenset(rule.kind for rule in (*GPU_RULES, *LINK_RULES))
AMD_KINDS: Final = GPU_KINDS - {
    ConditionKind.ROW_REMAP_PENDING,
    ConditionKind.RECOVERY_NEEDED,
    ConditionKind.POWER_BRAKE,
}
"""What AMD's driver tells enough of to say that all is clear."""


class GpuJudge:
    """Remembers of each GPU what its rules need: some minutes of counters at most. `book` has what was raised.

    What lasts is taken to last over looks that are no further apart than `gap_s_max`.
    """

    def __init__(self, *, gap_s_max: float = GAP_S_MAX) -> None:
        self.book = ConditionBook(gap_s_max=gap_s_max)
        self._gap_s_max = gap_s_max
        self._gpus: dict[str, _Gpu] = {}
        self._of_before: set[str] = set()  # GPUs of another boot that were not seen yet

    def take_up(self, held: Iterable[Held], *, rebooted: bool) -> None:
        """What an earlier run of the agent had raised. Called before the first look."""
        before = tuple(held)
        self.book.take_up(before)
        self._of_before = {each.gpu for each in before if rebooted}

    def observe(self, detail: GpuDetail, now: float) -> None:
        """Judge one look at one GPU, made at `now` (CLOCK_MONOTONIC, seconds)."""
        gpu = self._gpu(detail.uuid)
        if gpu is None:
            return
        self._of_before.discard(detail.uuid)
        gpu.take(detail, now)
        for rule in GPU_RULES:
            self.book.judge(rule, gpu, now, gpu=detail.uuid)
        for each in detail.nvlinks:
            link = gpu.links.get(each.link)
            if link is None:
                link = gpu.links[each.link] = _Link(each)
            link.take(each, now)
            for link_rule in LINK_RULES:
                self.book.judge(link_rule, link, now, gpu=detail.uuid, device=f"{each.fabric}{each.link}")

    def reset_required(self, uuid: str, now: float) -> None:
        """The driver answers nothing about this GPU but that it has to be reset."""
        gpu = self._gpu(uuid)
        if gpu is not None:
            gpu.was_mute, gpu.answers_since, gpu.answered_s = True, None, 0.0
            self.book.hold(ConditionKind.RECOVERY_NEEDED, "the driver asks for GPU_RESET", now, gpu=uuid)

    def all_answer(self, now: float) -> None:
        """Every GPU of this boot was observed. What held of others is over: the node has booted without them."""
        for each in self.book.held() if self._of_before else ():
            if each.gpu in self._of_before:
                says = "the node has booted since, and the GPU is in it no more"
                self.book.clear(each.kind, says, now, gpu=each.gpu, device=each.device)
        self._of_before.clear()

    def _gpu(self, uuid: str) -> _Gpu | None:
        """None where there are too many."""
        if uuid not in self._gpus and len(self._gpus) < _GPUS_MAX:
            self._gpus[uuid] = _Gpu(self._gap_s_max)
        return self._gpus.get(uuid)
