"""What is wrong with network ports, judged from their states and counters. Pure.

A port that was never up is not a fault: machines have ports without a cable. Where no source is named the numbers
are our own choice; apart from a port that stays down they only raise what is watched.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.agent.sensors.last_hour import HOUR_S, LastHour
from holdfast.agent.sensors.port_detail import PortCounter, PortDetail, PortState
from holdfast.agent.sensors.standing import Held, StandingConditions
from holdfast.api.condition import AllClear, Condition, ConditionKind

_WRAPS_AT: Final = 1 << 32
# A counter that fell from so near its top has wrapped; from anywhere else it has started again.
_NEAR_TOP: Final = _WRAPS_AT - (1 << 24)

# How a raw counter of errors grew, whatever becomes of its value: it stops at a limit, wraps or starts again.


class ErrorCount:
    """One counter. `stops_at` is the value at which it stops counting, None for one that does not stop.

    Pure: `now` is CLOCK_MONOTONIC in seconds. What it counted before the first look is not counted here.
    """

    def __init__(self, stops_at: int | None = None) -> None:
        self._stops_at = stops_at
        self._value: int | None = None
        self._readable = False
        self._hour = LastHour()

    def observe(self, value: int | None, now: float) -> int:
        """Take in the raw value, None when it cannot be read. Returns by how much it grew, at least."""
        self._readable = value is not None
        if value is None:
            return 0
        grown = 0 if self._value is None else _growth(self._value, value)
        self._value = value
        self._hour.add(grown, now)
        return grown

    def in_the_last_hour(self, now: float) -> int:
        """By how much it grew in the hour up to `now`, at least."""
        return self._hour.total(now)

    @property
    def stopped(self) -> bool:
        """Whether it stands at its limit."""
        return self._stops_at is not None and self._value is not None and self._value >= self._stops_at

    @property
    def known(self) -> bool:
        """Whether it can tell that nothing happened: it was read at the last look, and it still counts."""
        return self._readable and not self.stopped


def _growth(before: int, after: int) -> int:
    if after >= before:
        return after - before
    if _NEAR_TOP <= before < _WRAPS_AT:
        return after + _WRAPS_AT - before
    return after


# Over a shorter break the adapters' own repetition carries the traffic: at NCCL's defaults for some ten seconds.
# Source: NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT, https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
DOWN_FOR_S: Final = 5.0
SLOW_FOR_S: Final = 60.0
WELL_FOR_S: Final = 60.0
FLAPS_PER_HOUR: Final = 3
CLEARING_SHARE: Final = 0.1  # of the limit that raised it
PORTS_MAX: Final = 64  # a node has some dozen

# Errors an hour that raise LINK_ERRORS. A link of 10 Gb/s that keeps the bit error rate asked of InfiniBand links,
# 1e-12, has 36 of them an hour; we wait for some three times as many. Faster links mend errors first. On
# Ethernet with congestion some packets get lost and are repeated, so that only floods of them are told.
ERRORS_PER_HOUR: Final[Mapping[PortCounter, int]] = MappingProxyType(
    {
        PortCounter.SYMBOL_ERROR: 120,
        PortCounter.LINK_ERROR_RECOVERY: 10,
        PortCounter.RECEIVE_ERRORS: 120,
        PortCounter.RECEIVE_REMOTE_PHYSICAL_ERRORS: 120,
        PortCounter.LOCAL_LINK_INTEGRITY: 10,
        PortCounter.BUFFER_OVERRUN: 10,
        PortCounter.BAD_CRC: 120,
        PortCounter.ACK_TIMEOUT: 1_000,
        PortCounter.ADAPTIVE_RETRANSMISSION_TIMEOUT: 1_000,
        PortCounter.ADAPTIVE_RETRANSMISSION: 100_000,
        PortCounter.PACKET_SEQUENCE: 100_000,
        PortCounter.OUT_OF_SEQUENCE: 1_000_000,
    }
)

# The classic counters do not wrap: they stop, and say nothing from then on. Source: the widths in
# https://github.com/torvalds/linux/blob/master/drivers/infiniband/core/sysfs.c (PORT_PMA_ATTR)
STOPS_AT: Final[Mapping[PortCounter, int]] = MappingProxyType(
    {
        PortCounter.SYMBOL_ERROR: 0xFFFF,
        PortCounter.LINK_ERROR_RECOVERY: 0xFF,
        PortCounter.LINK_DOWNED: 0xFF,
        PortCounter.RECEIVE_ERRORS: 0xFFFF,
        PortCounter.RECEIVE_REMOTE_PHYSICAL_ERRORS: 0xFFFF,
        PortCounter.LOCAL_LINK_INTEGRITY: 0xF,
        PortCounter.BUFFER_OVERRUN: 0xF,
    }
)


@dataclass(slots=True)
class _Port:
    """What is remembered of one port since `seen_at`. The `*_since` are None while it is not so."""

    detail: PortDetail
    seen_at: float
    was_up: bool = False
    up_since: float | None = None
    down_since: float | None = None
    slow_since: float | None = None
    full_rate_since: float | None = None
    rate_best: float = 0.0
    counts: dict[PortCounter, ErrorCount] = field(default_factory=dict)
    downs: LastHour = field(default_factory=LastHour)
    downs_total: int = 0


class PortJudge:
    """`now` is CLOCK_MONOTONIC in seconds and never goes back."""

    def __init__(self) -> None:
        self._ports: dict[str, _Port] = {}
        self._standing = StandingConditions()
        self._full_gbps: dict[str, float] = {}  # by port that an earlier run saw slow: its best rate

    def take_up(self, held: Iterable[Held]) -> None:
        """What an earlier run of the agent had raised. Called before the first look."""
        before = tuple(held)
        self._standing.take_up(before)
        self._full_gbps = {each.device: each.measure for each in before if each.measure is not None}

    def observe(self, details: Sequence[PortDetail], now: float) -> tuple[PortDetail, ...]:
        """Take in all ports there are; return them with their downs. One that was there and is not, is down."""
        here = {detail.name: detail for detail in details}
        for name, detail in here.items():
            if name not in self._ports and len(self._ports) < PORTS_MAX:
                self._ports[name] = _Port(detail, now, rate_best=self._full_gbps.get(name, 0.0))
        usual = _usual_rates(details)
        for name, port in self._ports.items():
            detail = here.get(name) or replace(port.detail, state=PortState.DOWN, state_text="gone", counters={})
            self._count_downs(port, detail, now)
            self._judge_state(port, detail, now)
            self._judge_rate(port, detail, usual.get(_kind(detail), 0.0), now)
            self._judge_errors(port, now)
            port.detail = detail
        return tuple(
            replace(detail, downs=self._ports[name].downs_total) if name in self._ports else detail
            for name, detail in here.items()
        )

    def report(self, now: float) -> tuple[Condition, ...]:
        """What holds, and what is over for less than a minute."""
        return self._standing.report(now)

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered; with a slow port, the best rate that is known of it."""
        return tuple(
            msgspec.structs.replace(each, measure=self._best_gbps(each.device))
            if each.kind is ConditionKind.LINK_DEGRADED
            else each
            for each in self._standing.held()
        )

    def all_clear(self) -> tuple[AllClear, ...]:
        """As a reading has them, where every port can be read."""
        return self._standing.all_clear()

    def stopped(self) -> Iterator[tuple[str, PortCounter]]:
        """The counters that stand at their limit, with their ports: what they would tell is Unknown."""
        for name, port in self._ports.items():
            yield from ((name, counter) for counter, count in port.counts.items() if count.stopped)

    def _best_gbps(self, name: str) -> float | None:
        return self._ports[name].rate_best if name in self._ports else self._full_gbps.get(name)

    def _count_downs(self, port: _Port, detail: PortDetail, now: float) -> None:
        for counter in detail.counters:
            port.counts.setdefault(counter, ErrorCount(STOPS_AT.get(counter)))
        grown = {each: count.observe(detail.counters.get(each), now) for each, count in port.counts.items()}
        counting = (each for each in (PortCounter.LINK_DOWNED, PortCounter.CARRIER_DOWN) if _known(port, each))
        source = next(counting, None)
        seen = int(port.detail.state is PortState.UP and detail.state is PortState.DOWN)
        downs = seen if source is None else grown[source]
        port.downs.add(downs, now)
        port.downs_total += downs
        changes = port.downs.total(now)
        if changes >= FLAPS_PER_HOUR:
            self._hold(ConditionKind.LINK_FLAPPING, port, f"it went down {changes} times within an hour", now)
        elif changes == 0 and now - port.seen_at >= HOUR_S:
            self._clear(ConditionKind.LINK_FLAPPING, port, "an hour without a change", now)
        else:
            self._doubt(ConditionKind.LINK_FLAPPING, port)

    def _judge_state(self, port: _Port, detail: PortDetail, now: float) -> None:
        self._doubt(ConditionKind.LINK_DOWN, port)
        if detail.state is PortState.UP:
            port.was_up = True
            port.down_since = None
            port.up_since = now if port.up_since is None else port.up_since
            if now - port.up_since >= WELL_FOR_S:
                self._clear(ConditionKind.LINK_DOWN, port, f"up for {WELL_FOR_S:.0f} s", now)
            return
        port.up_since = None
        if detail.state is PortState.UNKNOWN or not port.was_up:
            return
        port.down_since = now if port.down_since is None else port.down_since
        if now - port.down_since >= DOWN_FOR_S:
            self._hold(ConditionKind.LINK_DOWN, port, f"it was up and is {detail.state_text or 'down'}", now)

    def _judge_rate(self, port: _Port, detail: PortDetail, usual_gbps: float, now: float) -> None:
        self._doubt(ConditionKind.LINK_DEGRADED, port)
        if detail.state is not PortState.UP or detail.rate_gbps is None:
            port.slow_since = port.full_rate_since = None
            return
        port.rate_best = max(port.rate_best, detail.rate_gbps)
        wanted = max(port.rate_best, usual_gbps)
        if detail.rate_gbps >= wanted:
            port.slow_since = None
            port.full_rate_since = now if port.full_rate_since is None else port.full_rate_since
            if now - port.full_rate_since >= WELL_FOR_S:
                self._clear(ConditionKind.LINK_DEGRADED, port, f"full rate for {WELL_FOR_S:.0f} s", now)
            return
        port.full_rate_since = None
        port.slow_since = now if port.slow_since is None else port.slow_since
        if now - port.slow_since >= SLOW_FOR_S:
            compared = "it ran at" if port.rate_best >= usual_gbps else "its siblings run at"
            says = f"{detail.rate_gbps:g} Gb/s, {compared} {wanted:g} Gb/s"
            self._hold(ConditionKind.LINK_DEGRADED, port, says, now)

    def _judge_errors(self, port: _Port, now: float) -> None:
        self._doubt(ConditionKind.LINK_ERRORS, port)
        limited = {each: ERRORS_PER_HOUR[each] for each in port.counts if each in ERRORS_PER_HOUR}
        hour = {each: port.counts[each].in_the_last_hour(now) for each in limited}
        many = [each for each, limit in limited.items() if hour[each] >= limit]
        if many:
            says = ", ".join(f"{hour[each]} {each} within an hour" for each in many)
            self._hold(ConditionKind.LINK_ERRORS, port, says, now)
        elif now - port.seen_at >= HOUR_S and all(
            port.counts[each].known and hour[each] < CLEARING_SHARE * limit for each, limit in limited.items()
        ):
            self._clear(ConditionKind.LINK_ERRORS, port, "an hour below a tenth of what raised it", now)

    def _hold(self, kind: ConditionKind, port: _Port, says: str, now: float) -> None:
        self._standing.hold(kind, f"port {port.detail.name}: {says}", now, device=port.detail.name)

    def _doubt(self, kind: ConditionKind, port: _Port) -> None:
        self._standing.doubt(kind, device=port.detail.name)

    def _clear(self, kind: ConditionKind, port: _Port, says: str, now: float) -> None:
        self._standing.clear(kind, f"port {port.detail.name}: {says}", now, device=port.detail.name)


def _known(port: _Port, counter: PortCounter) -> bool:
    return counter in port.counts and port.counts[counter].known


def _kind(detail: PortDetail) -> tuple[str, str]:
    return detail.model, detail.link_layer


def _usual_rates(details: Sequence[PortDetail]) -> dict[tuple[str, str], float]:
    """The rate that more than half of the ports of a kind run at, where at least three run."""
    rates: dict[tuple[str, str], list[float]] = {}
    for detail in details:
        if detail.state is PortState.UP and detail.rate_gbps is not None and detail.model:
            rates.setdefault(_kind(detail), []).append(detail.rate_gbps)
    usual = {}
    for kind, running in rates.items():
        rate, ports = Counter(running).most_common(1)[0]
        if len(running) >= 3 and 2 * ports > len(running):
            usual[kind] = rate
    return usual
