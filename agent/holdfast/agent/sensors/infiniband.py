"""Network adapters that train: InfiniBand and RoCE ports, from sysfs.

Source: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband
"""

import os
import re
from dataclasses import dataclass
from typing import Final

from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.conditions.ports import PortJudge
from holdfast.agent.reading import PortCounter, PortDetail, PortState, Reading
from holdfast.agent.sensors.background import Polled, kernel_value
from holdfast.api.telemetry import Unreadable

ROOT: Final = "/sys/class/infiniband"
_NAME: Final = "infiniband"
_WORD_BYTES: Final = 4  # port_xmit_data and port_rcv_data count words of four bytes


@dataclass(frozen=True, slots=True)
class PortsSeen:
    """All ports at one look, and what of them could not be read."""

    ports: tuple[PortDetail, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


class Infiniband:
    """The sensor. A machine without such adapters reads as nothing.

    Some counters are asked of the adapter's firmware, which takes its time and may hang: so a thread looks. Every
    five seconds is often enough for a link that is given five seconds to come back.
    """

    name = _NAME

    def __init__(
        self, root: str = ROOT, *, interval_s: float = 5.0, memory: ConditionMemory | None = None
    ) -> None:
        self._polled = Polled(lambda: ports_in(root), name=_NAME, interval_s=interval_s, patience_s=30.0)
        self._judge = PortJudge()
        self._judged_at = float("-inf")
        self._ports: tuple[PortDetail, ...] = ()
        self._memory = memory or ConditionMemory()
        self._begun = False

    def read(self, now: float) -> Reading:
        """As in `Sensor`. Conditions stay while the ports cannot be read."""
        if not self._begun:
            self._begun = True
            self._judge.take_up(self._memory.recall(now))
        latest = self._polled.latest(now)
        if latest is None or isinstance(latest, Unreadable):
            unreadable = () if latest is None else (latest,)
            return Reading(unreadable=unreadable, conditions=self._judge.book.report(now))
        if latest.at > self._judged_at:
            self._judged_at = latest.at
            self._ports = self._judge.observe(latest.seen.ports, latest.at)
            self._memory.keep(self._judge.held(), now)
        stopped = tuple(
            Unreadable(f"{_NAME} {port} {counter}", "it stands at its limit and counts no more")
            for port, counter in self._judge.stopped()
        )
        return Reading(
            ports=self._ports,
            conditions=self._judge.book.report(now),
            all_clear=() if latest.seen.unreadable else self._judge.book.all_clear(),
            unreadable=latest.seen.unreadable + stopped,
        )

    def close(self) -> None:
        self._polled.close()


def ports_in(root: str) -> PortsSeen:
    """Every port below `root`. One whose state cannot be read is Unknown. Raises OSError."""
    ports: list[PortDetail] = []
    unreadable: list[Unreadable] = []
    for device in _names(root):
        for number in filter(str.isdecimal, _names(os.path.join(root, device, "ports"))):
            try:
                ports.append(_port(root, device, int(number)))
            except (OSError, ValueError) as error:
                ports.append(PortDetail(device=device, port=int(number), state=PortState.UNKNOWN))
                unreadable.append(Unreadable(f"{_NAME} {device}/{number}", str(error)))
    return PortsSeen(tuple(ports), tuple(unreadable))


def _port(root: str, device: str, number: int) -> PortDetail:
    adapter = os.path.join(root, device)
    port = os.path.join(adapter, "ports", str(number))
    words = []
    for name in ("state", "phys_state"):  # `4: ACTIVE`
        with open(os.path.join(port, name), encoding="ascii", errors="replace") as file:
            text = file.read(256).strip()
        match = re.fullmatch(r"\d+: (\w+)", text)
        if match is None:
            raise ValueError(f"not a state: {text[:40]!r}")
        words.append(match[1])
    # The port's network interface. A GID table's entries name it; the adapter's own list is of its first port.
    interface = kernel_value(os.path.join(port, "gid_attrs", "ndevs"), "0")
    interface = interface or next(iter(_names(os.path.join(adapter, "device", "net"))), "")
    counters: dict[PortCounter, int] = {}
    for counter in PortCounter:
        for folder in ("counters", "hw_counters"):
            value = _number(os.path.join(port, folder), counter)
            if value is not None:
                counters[counter] = value
                break
    if interface:
        # How often it lost its carrier; older kernels count both directions together.
        folder = os.path.join(adapter, "device", "net", interface)
        downs, changes = _number(folder, "carrier_down_count"), _number(folder, "carrier_changes")
        if downs is not None or changes is not None:
            counters[PortCounter.CARRIER_DOWN] = downs if downs is not None else (changes or 0) // 2
    rate = re.match(r"(\d+(?:\.\d+)?) Gb/sec", kernel_value(port, "rate"))  # `400 Gb/sec (4X NDR)`
    sent = _number(os.path.join(port, "counters"), "port_xmit_data")
    received = _number(os.path.join(port, "counters"), "port_rcv_data")
    return PortDetail(
        device=device,
        port=number,
        state=PortState.UP if words == ["ACTIVE", "LinkUp"] else PortState.DOWN,
        state_text=", ".join(words),
        link_layer=kernel_value(port, "link_layer"),
        model=kernel_value(adapter, "hca_type"),
        rate_gbps=float(rate[1]) if rate else None,
        sent_bytes=None if sent is None else sent * _WORD_BYTES,
        received_bytes=None if received is None else received * _WORD_BYTES,
        counters=counters,
    )


def _names(folder: str) -> list[str]:
    """Sorted names in a folder; none where it does not exist."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _number(folder: str, name: str) -> int | None:
    text = kernel_value(folder, name)
    return int(text) if text.isdecimal() else None
