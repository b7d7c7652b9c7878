"""What a message of the kernel means: errors of GPUs, switches, links and memory. Pure, and never raises.

A message counts only as a whole and from its first character, so that no name of a process or file within it can
pass for another message. Forms and facts:

    XID       https://docs.nvidia.com/deploy/xid-errors/working-with-xid-errors.html (old and new drivers,
              `PCI:` or not, MIG instances), https://github.com/NVIDIA/open-gpu-kernel-modules (fallen off the bus)
    SXID      https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/ (errors of an NVSwitch)
    memory    https://docs.kernel.org/mm/ and mm/oom_kill.c (out of memory),
              https://docs.kernel.org/driver-api/edac.html and Intel's manual, volume 3B, chapter 17.3.2.2
              (IA32_MCi_STATUS: bit 63 valid, bit 61 not corrected)
    PCIe      https://docs.kernel.org/PCI/pcieaer-howto.html, section "AER error output"
    links     the messages of mlx5, ice, i40e, ixgbe, bnxt, tg3, e1000e and bonding in https://git.kernel.org
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from holdfast.agent.kernel.slots import PCI_PATTERN, slot_of
from holdfast.api.nvlink5 import LinkFault

_TEXT_CHARACTERS_MAX: Final = 500
_XID_MAX: Final = 9999


@dataclass(frozen=True, slots=True)
class XidLogged:
    """The driver raised an XID. `slot` as in `slots.slot_of`, the rest as in `telemetry.XidRaised`."""

    slot: str
    xid: int
    text: str
    recovery_action: int | None = None
    link_fault: LinkFault | None = None


@dataclass(frozen=True, slots=True)
class FellOffTheBus:
    """The driver says so in words, with no XID or besides one."""

    slot: str
    text: str


@dataclass(frozen=True, slots=True)
class GpuNamed:
    """The driver names the GPU in a slot, as it does before its first XID."""

    slot: str
    uuid: str


@dataclass(frozen=True, slots=True)
class DriverLoaded:
    """The driver was loaded: no GPU is lost from before."""


@dataclass(frozen=True, slots=True)
class SwitchFault:
    """An NVSwitch raised a fatal error. `switch` is its name, "nvidia-nvswitch0"."""

    switch: str
    sxid: int
    text: str


@dataclass(frozen=True, slots=True)
class KilledForMemory:
    """The kernel killed a process for want of memory. It says so in two messages."""

    pid: int
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """A network port went up or down."""

    device: str
    text: str


@dataclass(frozen=True, slots=True)
class PcieFatal:
    """A device had a PCIe error that its link did not survive."""

    slot: str
    text: str


@dataclass(frozen=True, slots=True)
class MemoryFault:
    """The processor or the node's memory had an error that could not be corrected."""

    text: str


KernelMessage = (
    XidLogged
    | FellOffTheBus
    | GpuNamed
    | DriverLoaded
    | SwitchFault
    | KilledForMemory
    | LinkChanged
    | PcieFatal
    | MemoryFault
)


def parse_message(text: str) -> KernelMessage | None:
    """What `text`, one message of the kernel, means; None when it is none of these."""
    for mark, pattern, make in _FORMS:
        if mark in text and (match := pattern.match(text)) is not None:
            return make(match)
    return None


def _xid(match: re.Match[str]) -> KernelMessage | None:
    slot, xid, rest = slot_of(match["pci"]), int(match["xid"]), match["rest"].strip()
    if slot is None or not 0 < xid <= _XID_MAX:
        return None
    action = _RECOVERY.search(rest)
    return XidLogged(
        slot,
        xid,
        _short(rest),
        recovery_action=int(action[1], 16) if action is not None else None,
        link_fault=_link_fault(rest),
    )


def _link_fault(rest: str) -> LinkFault | None:
    match = _LINK_FAULT.search(rest)
    if match is None:
        return None
    interrupt, status = int(match["interrupt"], 16), int(match["status"], 16)
    return LinkFault(match["unit"], match["severity"], int(match["link"]), interrupt, status)


def _fell_off(match: re.Match[str]) -> KernelMessage | None:
    slot = slot_of(match["pci"])
    return None if slot is None else FellOffTheBus(slot, "GPU has fallen off the bus")


def _named(match: re.Match[str]) -> KernelMessage | None:
    slot = slot_of(match["pci"])
    return None if slot is None else GpuNamed(slot, match["uuid"].replace("gpu-", "GPU-"))


def _loaded(match: re.Match[str]) -> KernelMessage:
    return DriverLoaded()


def _switch(match: re.Match[str]) -> KernelMessage:
    return SwitchFault(match["switch"], int(match["sxid"]), _short(match["rest"].strip(" ,")))


def _killed(match: re.Match[str]) -> KernelMessage:
    return KilledForMemory(int(match["pid"]), match["name"], _short(match[0]))


def _link(match: re.Match[str]) -> KernelMessage:
    return LinkChanged(match["device"], _short(match[0]))


def _pcie(match: re.Match[str]) -> KernelMessage | None:
    slot = slot_of(match["pci"])
    return None if slot is None else PcieFatal(slot, _short(match[0]))


def _memory(match: re.Match[str]) -> KernelMessage:
    return MemoryFault(_short(match[0]))


def _bank(match: re.Match[str]) -> KernelMessage | None:
    status = int(match["status"], 16)
    return MemoryFault(_short(match[0])) if status >> 63 & 1 and status >> 61 & 1 else None


def _short(text: str) -> str:
    return text[:_TEXT_CHARACTERS_MAX]


_PCI: Final = rf"(?P<pci>{PCI_PATTERN})"
_RECOVERY: Final = re.compile(
    r"GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]{0,80}\) to 0x([0-9a-fA-F]{1,4})\b"
)
_LINK_FAULT: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{0,40}(?:/[A-Z0-9_]{1,40})?) (?P<severity>Nonfatal|Fatal) XC\d i\d{1,2} "
    r"Link (?P<link>-?\d{1,3}) \((?P<interrupt>0x[0-9a-fA-F]{1,8}) (?P<status>0x[0-9a-fA-F]{1,8})\b"
)
_DEVICE: Final = r"(?P<device>[A-Za-z][\w.@-]{0,31})"
_STATE: Final = r"(?:[Uu]p|[Dd]own|UP|DOWN)\b"
_KILLED: Final = r"[Kk]illed process (?P<pid>\d{1,10}) \((?P<name>.{0,64}?)\),? "
_EDGE: Final = r"(?:AER: |PCIe Bus Error: |DPC: ){0,3}"

# What is looked for first, cheaply, because nearly every message is none of these; the form; what it makes.
_FORMS: Final[tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], KernelMessage | None]], ...]] = tuple(
    (mark, re.compile(pattern, re.DOTALL), make)
    for mark, pattern, make in (
        ("Xid", rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: [^()]{{1,40}})?\): (?P<xid>\d{{1,5}}),(?P<rest>.*)", _xid),
        ("fallen off", rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}:? (?:GPU )?has fallen off the bus", _fell_off),
        ("fallen off", rf"NVRM: The NVIDIA GPU {_PCI}\b.{{0,200}}?fallen off the bus and is not resp", _fell_off),
        (
            "NVRM: GPU at",
            rf"NVRM: GPU at (?:PCI:)?{_PCI}: (?P<uuid>GPU-[0-9a-f]{{8}}(?:-[0-9a-f]{{4,12}}){{4}})",
            _named,
        ),
        ("NVRM: loading", r"NVRM: loading NVIDIA ", _loaded),
        (
            "SXid",
            rf"(?P<switch>nvidia-nvswitch\d{{1,3}}):? SXid \(PCI:{_PCI}\): (?P<sxid>\d{{1,6}}), "
            r"Fatal\b(?P<rest>.*)",
            _switch,
        ),
        ("illed process", rf"(?:(?:Memory cgroup o|O)ut of memory(?: \(\w+\))?: )?{_KILLED}", _killed),
        (
            "oom-kill:",
            r"oom-kill:constraint=\w{1,40},.{0,1500}?,task=(?P<name>.{0,64}?),pid=(?P<pid>\d{1,10}),uid=\d",
            _killed,
        ),
        ("ink ", rf"[\w-]{{1,32}} (?:{PCI_PATTERN}):? {_DEVICE}: (?:NIC )?[Ll]ink (?:is )?{_STATE}", _link),
        ("NIC Link is", rf"[\w-]{{1,32}}: {_DEVICE}:? NIC Link is {_STATE}", _link),
        ("link status", rf"bond[\w.-]{{0,28}}: \(slave {_DEVICE}\): link status definitely {_STATE}", _link),
        (
            "link status",
            rf"(?:bonding: )?bond[\w.-]{{0,28}}: link status definitely {_STATE} for interface {_DEVICE}",
            _link,
        ),
        (
            "(Fatal)",
            rf"[\w-]{{1,32}} {PCI_PATTERN}: {_EDGE}Uncorrect(?:ed|able) \(Fatal\) error (?:message )?received"
            rf"(?: from|:) {_PCI}",
            _pcie,
        ),
        ("(Fatal)", rf"[\w-]{{1,32}} {_PCI}: {_EDGE}severity=Uncorrect(?:ed|able) \(Fatal\)", _pcie),
        # More than a process's name can hold, which a user chooses and the kernel begins some messages with.
        ("EDAC", r"EDAC MC\d{1,3}: \d{1,9} UE (?:[^\[\]():=]{1,100} )?on \S.{0,200}", _memory),
        ("EDAC", r"EDAC MC\d{1,3}: UE (?:page 0x[0-9a-f]{1,16}, |- no information available)[^:]{0,200}", _memory),
        ("ardware memory", r"mce: Uncorrected hardware memory error\b.{0,200}", _memory),
        ("ardware memory", r"MCE: Killing .{1,64}? due to hardware memory corruption\b.{0,100}", _memory),
        ("ardware Error]", r"(?:\{\d+\})?\[Hardware Error\]: +event severity: fatal\b", _memory),
        (
            "ardware Error]",
            r"(?:mce: )?\[Hardware Error\]: CPU:\d+ .{0,80}?MC\d+_STATUS\[[^\]]{0,20}\bUE\b.{0,120}",
            _memory,
        ),
        (
            "Machine Check",
            r"mce: \[Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: [0-9a-f]+ Bank \d+: "
            r"(?P<status>[0-9a-f]{16})\b",
            _bank,
        ),
    )
)
