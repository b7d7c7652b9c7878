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

from holdfast.agent.conditions.book import ConditionBook, Held, Rule, Unknown
from holdfast.agent.conditions.counting import HOUR_S, ErrorCount, LastHour
from holdfast.agent.reading import PortCounter, PortDetail, PortState
from holdfast.api.condition import ConditionKind

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
    """What is known of one port since `seen_at`, as of its last look at `now`.

    `usual_gbps` is the rate of most ports of its kind, `best_gbps` the best it ever ran at; 0: Unknown.
    """

    detail: PortDetail
    seen_at: float
    best_gbps: float = 0.0
    now: float = 0.0
    usual_gbps: float = 0.0
    was_up: bool = False
    counts: dict[PortCounter, ErrorCount] = field(default_factory=dict)
    downs: LastHour = field(default_factory=LastHour)
    downs_total: int = 0

    def take(self, detail: PortDetail, usual_gbps: float, now: float) -> None:
        for counter in detail.counters:
            self.counts.setdefault(counter, ErrorCount(STOPS_AT.get(counter)))
        grown = {each: count.observe(detail.counters.get(each), now) for each, count in self.counts.items()}
        # A counter also counts what happened between two looks; without one, what was seen has to do.
        downs = int(self.detail.state is PortState.UP and detail.state is PortState.DOWN)
        for counter in (PortCounter.LINK_DOWNED, PortCounter.CARRIER_DOWN):
            if counter in self.counts and self.counts[counter].known:
                downs = grown[counter]
                break
        self.downs.add(downs, now)
        self.downs_total += downs
        if detail.state is PortState.UP:
            self.was_up = True
            self.best_gbps = max(self.best_gbps, detail.rate_gbps or 0.0)
        self.detail, self.usual_gbps, self.now = detail, usual_gbps, now

    def errors(self) -> dict[PortCounter, int]:
        """How many there were in the last hour, by the counters that have a limit."""
        counts = self.counts.items()
        return {each: count.in_the_last_hour(self.now) for each, count in counts if each in ERRORS_PER_HOUR}


def _down(port: _Port) -> bool | None:
    if port.detail.state is PortState.UNKNOWN or not port.was_up:
        return None
    return port.detail.state is PortState.DOWN


def _slow(port: _Port) -> bool | None:
    if port.detail.state is not PortState.UP or port.detail.rate_gbps is None:
        return None
    return port.detail.rate_gbps < max(port.best_gbps, port.usual_gbps)


def _slow_says(port: _Port) -> str:
    compared = "it ran at" if port.best_gbps >= port.usual_gbps else "its siblings run at"
    wanted = max(port.best_gbps, port.usual_gbps)
    return f"port {port.detail.name}: {port.detail.rate_gbps:g} Gb/s, {compared} {wanted:g} Gb/s"


def _flapping(port: _Port) -> bool | None:
    downs = port.downs.total(port.now)
    if downs >= FLAPS_PER_HOUR:
        return True
    return False if downs == 0 and port.now - port.seen_at >= HOUR_S else None


def _erring(port: _Port) -> bool | None:
    errors = port.errors()
    if any(count >= ERRORS_PER_HOUR[each] for each, count in errors.items()):
        return True
    quiet = all(
        port.counts[each].known and count < CLEARING_SHARE * ERRORS_PER_HOUR[each]
        for each, count in errors.items()
    )
    return False if quiet and port.now - port.seen_at >= HOUR_S else None


def _erring_says(port: _Port) -> str:
    many = [(each, count) for each, count in port.errors().items() if count >= ERRORS_PER_HOUR[each]]
    return f"port {port.detail.name}: " + ", ".join(f"{count} {each} within an hour" for each, count in many)


PORT_RULES: Final = (
    Rule[_Port](
        kind=ConditionKind.LINK_FLAPPING,
        raise_if=_flapping,
        says=lambda port: (
            f"port {port.detail.name}: it went down {port.downs.total(port.now)} times within an hour"
        ),
        over=lambda port: f"port {port.detail.name}: an hour without a change",
    ),
    Rule[_Port](
        kind=ConditionKind.LINK_DOWN,
        raise_if=_down,
        says=lambda port: f"port {port.detail.name}: it was up and is {port.detail.state_text or 'down'}",
        over=lambda port: f"port {port.detail.name}: up for {WELL_FOR_S:.0f} s",
        raise_after_s=DOWN_FOR_S,
        clear_after_s=WELL_FOR_S,
        unknown=Unknown.RESTARTS_CLEARING,
    ),
    Rule[_Port](
        kind=ConditionKind.LINK_DEGRADED,
        raise_if=_slow,
        says=_slow_says,
        over=lambda port: f"port {port.detail.name}: full rate for {WELL_FOR_S:.0f} s",
        raise_after_s=SLOW_FOR_S,
        clear_after_s=WELL_FOR_S,
        unknown=Unknown.RESTARTS,
    ),
    Rule[_Port](
        kind=ConditionKind.LINK_ERRORS,
        raise_if=_erring,
        says=_erring_says,
        over=lambda port: f"port {port.detail.name}: an hour below a tenth of what raised it",
    ),
)
PORT_KINDS: Final = frozenset(rule.kind for rule in PORT_RULES)


class PortJudge:
    """`now` is CLOCK_MONOTONIC in seconds and never goes back. `book` has what was raised."""

    def __init__(self) -> None:
        self.book = ConditionBook()
        self._ports: dict[str, _Port] = {}
        self._full_gbps: dict[str, float] = {}  # by port that an earlier run saw slow: its best rate

    def take_up(self, held: Iterable[Held]) -> None:
        """What an earlier run of the agent had raised. Called before the first look."""
        before = tuple(held)
        self.book.take_up(before)
        self._full_gbps = {each.device: each.measure for each in before if each.measure is not None}

    def observe(self, details: Sequence[PortDetail], now: float) -> tuple[PortDetail, ...]:
        """Take in all ports there are; return them with their downs. One that was there and is not, is down."""
        here = {detail.name: detail for detail in details}
        for name, detail in here.items():
            if name not in self._ports and len(self._ports) < PORTS_MAX:
                self._ports[name] = _Port(detail, now, best_gbps=self._full_gbps.get(name, 0.0))
        usual = _usual_rates(details)
        for name, port in self._ports.items():
            detail = here.get(name) or replace(port.detail, state=PortState.DOWN, state_text="gone", counters={})
            port.take(detail, usual.get((detail.model, detail.link_layer), 0.0), now)
            for rule in PORT_RULES:
                self.book.judge(rule, port, now, device=name)
        return tuple(
            replace(detail, downs=self._ports[name].downs_total) if name in self._ports else detail
            for name, detail in here.items()
        )

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered; with a slow port, the best rate that is known of it."""
        best = self._full_gbps | {name: port.best_gbps for name, port in self._ports.items()}
        return tuple(
            msgspec.structs.replace(each, measure=best.get(each.device))
            if each.kind is ConditionKind.LINK_DEGRADED
            else each
            for each in self.book.held()
        )

    def stopped(self) -> Iterator[tuple[str, PortCounter]]:
        """The counters that stand at their limit, with their ports: what they would tell is Unknown."""
        for name, port in self._ports.items():
            yield from ((name, counter) for counter, count in port.counts.items() if count.stopped)


def _usual_rates(details: Sequence[PortDetail]) -> dict[tuple[str, str], float]:
    """The rate that more than half of the ports of a model and link layer run at, where at least three run."""
    rates: dict[tuple[str, str], list[float]] = {}
    for detail in details:
        if detail.state is PortState.UP and detail.rate_gbps is not None and detail.model:
            rates.setdefault((detail.model, detail.link_layer), []).append(detail.rate_gbps)
    usual = {}
    for kind, running in rates.items():
        rate, ports = Counter(running).most_common(1)[0]
        if len(running) >= 3 and 2 * ports > len(running):
            usual[kind] = rate
    return usual
