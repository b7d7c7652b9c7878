"""Which conditions a GPU's values prove, and which they prove to be over. Pure; the rules are in api/condition.py.

A value that is Unknown proves nothing: what was raised stays raised, and the time of what must last stands still.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from holdfast.agent.sensors.gpu_detail import GpuDetail, NvlinkDetail
from holdfast.agent.sensors.standing import Held, StandingConditions
from holdfast.api.condition import AllClear, Condition, ConditionKind
from holdfast.api.xid import RecoveryAction

WINDOW_S: Final = 600.0
QUIET_S: Final = 3600.0
QUIET_SHARE: Final = 0.1  # of the growth that raises
_SAMPLE_EVERY_S: Final = 30.0
_GAP_S_MAX: Final = 60.0

# A counter of errors that is judged by how fast it grows.


@dataclass(slots=True)
class Rate:
    """Pure. Too fast is `too_many` in ten minutes, quiet an hour of which each ten minutes had less than a tenth.

    A counter that shrinks was reset and starts again. `grown` and `over_s` say what was judged last.
    """

    too_many: int
    grown: int = 0
    over_s: float = 0.0
    _holds: bool | None = None
    _window: deque[tuple[float, int]] = field(default_factory=deque)
    _quiet_since: float | None = None
    _seen_at: float = float("-inf")

    def observe(self, count: int | None, now: float) -> bool | None:
        """Take in the counter. True: it grows too fast; False: it has been quiet; None: neither yet."""
        if count is None:
            return self._holds
        if now - self._seen_at > _GAP_S_MAX or (self._window and count < self._window[-1][1]):
            self._window.clear()
            self._quiet_since = None
        self._seen_at = now
        while self._window and now - self._window[0][0] > WINDOW_S:
            self._window.popleft()
        if not self._window or now - self._window[-1][0] >= _SAMPLE_EVERY_S:
            self._window.append((now, count))
        began, first = self._window[0]
        self.grown, self.over_s = count - first, now - began
        self._judge(now)
        return self._holds

    def _judge(self, now: float) -> None:
        if self.grown >= self.too_many:
            self._holds = True
        if self.grown >= QUIET_SHARE * self.too_many:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since >= QUIET_S:
            self._holds = False


# Looks come every second. What was not looked at for longer may have changed meanwhile.
GAP_S_MAX: Final = 5.0

# Something that counts only when it lasts, and is over only when its absence lasts.


@dataclass(slots=True)
class Lasting:
    """Pure; times in seconds. It holds after `raise_after_s` of being seen and is over after `clear_after_s`.

    What happened between two looks that are further apart than `gap_s_max` is Unknown.
    """

    raise_after_s: float
    clear_after_s: float
    gap_s_max: float = GAP_S_MAX
    holds: bool | None = None  # None: neither has lasted
    _sees: bool | None = None
    _lasted_s: float = 0.0
    _at: float = 0.0

    def observe(self, sees: bool | None, now: float) -> bool | None:
        """Take in what is seen at `now`; None stops the time. True: it holds; False: it is over; None: Unknown."""
        if sees is None:
            self._at = float("-inf")
            return self.holds
        if sees != self._sees:
            self._sees, self._lasted_s = sees, 0.0
        elif now - self._at <= self.gap_s_max:
            self._lasted_s += now - self._at
        self._at = now
        if self._lasted_s >= (self.raise_after_s if sees else self.clear_after_s):
            self.holds = sees
        return self.holds


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
    down: Lasting
    was_up: bool = False
    errors: Rate = field(default_factory=lambda: Rate(NVLINK_ERROR_STORM))


class _Gpu:
    def __init__(self, gap_s_max: float) -> None:
        self._gap_s_max = gap_s_max
        self.narrow = Lasting(NARROW_S, WELL_S, gap_s_max)
        self.slow = Lasting(SLOW_UNDER_LOAD_S, WELL_S, gap_s_max)
        self.brake = Lasting(BRAKED_S, WELL_S, gap_s_max)
        # It answered nothing before it was to be reset: what an earlier run of the agent saw is not known.
        self.was_mute = True
        self.answers_since: float | None = None
        self.corrected = Rate(CORRECTED_STORM)
        self.replays = Rate(PCIE_REPLAY_STORM)
        self._links: dict[int, _Link] = {}

    def link(self, number: int) -> _Link:
        return self._links.setdefault(number, _Link(Lasting(0.0, WELL_S, self._gap_s_max)))


@dataclass(frozen=True, slots=True)
class _Finding:
    """What one look proves of one condition. `holds` None: nothing."""

    kind: ConditionKind
    holds: bool | None
    says: str
    device: str = ""


class GpuJudgement:
    """Remembers of each GPU what its rules need: some minutes of counters at most.

    What lasts is taken to last over looks that are no further apart than `gap_s_max`.
    """

    def __init__(self, *, gap_s_max: float = GAP_S_MAX) -> None:
        self._gap_s_max = gap_s_max
        self._gpus: dict[str, _Gpu] = {}
        self._standing = StandingConditions()
        self._of_before: set[str] = set()  # GPUs of another boot that were not seen yet

    def take_up(self, held: Iterable[Held], *, rebooted: bool) -> None:
        """What an earlier run of the agent had raised. Called before the first look."""
        before = tuple(held)
        self._standing.take_up(before)
        self._of_before = {each.gpu for each in before if rebooted}

    def observe(self, detail: GpuDetail, now: float) -> None:
        """Judge one look at one GPU, made at `now` (CLOCK_MONOTONIC, seconds)."""
        gpu = self._gpu(detail.uuid)
        if gpu is None:
            return
        self._of_before.discard(detail.uuid)
        for finding in _judged(gpu, detail, now):
            self._tell(finding, detail.uuid, now)

    def reset_required(self, uuid: str, now: float) -> None:
        """The driver answers nothing about this GPU but that it has to be reset."""
        gpu = self._gpu(uuid)
        if gpu is not None:
            gpu.was_mute, gpu.answers_since = True, None
            self._standing.hold(ConditionKind.RECOVERY_NEEDED, "the driver asks for GPU_RESET", now, gpu=uuid)

    def all_answer(self, now: float) -> None:
        """Every GPU of this boot was observed. What held of others is over: the node has booted without them."""
        for each in self._standing.held() if self._of_before else ():
            if each.gpu in self._of_before:
                says = "the node has booted since, and the GPU is in it no more"
                self._standing.clear(each.kind, says, now, gpu=each.gpu, device=each.device)
        self._of_before.clear()

    def conditions(self, now: float) -> tuple[Condition, ...]:
        """As a reading has them."""
        return self._standing.report(now)

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered."""
        return self._standing.held()

    def all_clear(self) -> tuple[AllClear, ...]:
        """As a reading has them, where every GPU answers."""
        return self._standing.all_clear()

    def _tell(self, finding: _Finding, uuid: str, now: float) -> None:
        if finding.holds is None:
            self._standing.doubt(finding.kind, gpu=uuid, device=finding.device)
            return
        tell = self._standing.hold if finding.holds else self._standing.clear
        tell(finding.kind, finding.says, now, gpu=uuid, device=finding.device)

    def _gpu(self, uuid: str) -> _Gpu | None:
        """None where there are too many."""
        if uuid not in self._gpus and len(self._gpus) < _GPUS_MAX:
            self._gpus[uuid] = _Gpu(self._gap_s_max)
        return self._gpus.get(uuid)


def _judged(gpu: _Gpu, detail: GpuDetail, now: float) -> Iterator[_Finding]:
    yield from _memory(detail)
    yield _storm(ConditionKind.ECC_CORRECTED_STORM, gpu.corrected, detail.ecc_corrected, now)
    yield _recovery(gpu, detail, now)
    yield _pcie(gpu, detail, now)
    yield _storm(ConditionKind.PCIE_REPLAYS, gpu.replays, detail.pcie_replays, now)
    braked = None if detail.throttle is None else bool(detail.throttle & POWER_BRAKE_BIT)
    yield _Finding(ConditionKind.POWER_BRAKE, gpu.brake.observe(braked, now), "hardware power brake slowdown")
    for link in detail.nvlinks:
        yield from _nvlink(gpu.link(link.link), link, now)


def _memory(detail: GpuDetail) -> Iterator[_Finding]:
    uncorrected = detail.ecc_uncorrected
    yield _Finding(
        ConditionKind.ECC_UNCORRECTED,
        None if uncorrected is None else uncorrected > 0,
        f"{uncorrected} uncorrectable memory errors since the driver was loaded",
    )
    remapped = f"remapped rows: {detail.remapped_rows_uncorrectable} for uncorrectable errors"
    yield _Finding(ConditionKind.ROW_REMAP_PENDING, detail.row_remap_pending, remapped)
    yield _Finding(ConditionKind.ROW_REMAP_FAILED, detail.row_remap_failed, remapped)
    retired = f"retired pages: {detail.retired_pages_double_bit} for double-bit errors"
    yield _Finding(ConditionKind.PAGE_RETIREMENT_PENDING, detail.page_retirement_pending, retired)


def _recovery(gpu: _Gpu, detail: GpuDetail, now: float) -> _Finding:
    action = detail.recovery_action
    if action is not None:
        gpu.was_mute = False
    elif gpu.was_mute:  # older drivers know of no action: that it answers again is all they tell
        gpu.answers_since = now if gpu.answers_since is None else gpu.answers_since
        if now - gpu.answers_since >= WELL_S:
            gpu.was_mute = False
            says = f"it has answered for {WELL_S:.0f} s"
            return _Finding(ConditionKind.RECOVERY_NEEDED, holds=False, says=says)
    needed = None if action is None else action != RecoveryAction.NONE
    known = action in RecoveryAction._value2member_map_
    name = RecoveryAction(action).name if action is not None and known else f"recovery action {action}"
    return _Finding(ConditionKind.RECOVERY_NEEDED, needed, f"the driver asks for {name}" if needed else name)


def _pcie(gpu: _Gpu, detail: GpuDetail, now: float) -> _Finding:
    """Width counts always, the generation under load only; to be well again both have to be seen under load."""
    loaded = detail.utilization_ratio is not None and detail.utilization_ratio >= LOADED_RATIO
    narrow = _below(detail.pcie_width, detail.pcie_width_max)
    slow = _below(detail.pcie_generation, detail.pcie_generation_max) if loaded else None
    # Without load the time of being well stands still, but being narrow again counts at once.
    is_narrow = gpu.narrow.observe(narrow if loaded or narrow else None, now)
    is_slow = gpu.slow.observe(slow, now)
    # Where the driver does not tell the generation, the width alone decides.
    verdicts = {is_narrow} if detail.pcie_generation is None else {is_narrow, is_slow}
    holds = True if True in verdicts else None if None in verdicts else False
    says = (
        f"PCIe width {detail.pcie_width} of {detail.pcie_width_max},"
        f" generation {detail.pcie_generation} of {detail.pcie_generation_max}"
    )
    return _Finding(ConditionKind.PCIE_DEGRADED, holds, says)


def _storm(kind: ConditionKind, rate: Rate, counter: int | None, now: float, device: str = "") -> _Finding:
    holds = rate.observe(counter, now)
    return _Finding(kind, holds, f"{rate.grown} errors in the last {rate.over_s:.0f} s", device)


def _nvlink(link: _Link, detail: NvlinkDetail, now: float) -> Iterator[_Finding]:
    device = f"nvlink{detail.link}"
    link.was_up = link.was_up or detail.active is True
    # A link that was never up may be one that this machine does not connect.
    down = None if detail.active is None or not link.was_up else not detail.active
    is_down = link.down.observe(down, now)
    yield _Finding(ConditionKind.NVLINK_DOWN, is_down, f"link {detail.link} is {'down' if down else 'up'}", device)
    counters = [count for count in (detail.replays, detail.recoveries, detail.crc_errors) if count is not None]
    yield _storm(ConditionKind.NVLINK_ERRORS, link.errors, sum(counters) if counters else None, now, device)


def _below(value: int | None, full: int | None) -> bool | None:
    return None if value is None or full is None else value < full
