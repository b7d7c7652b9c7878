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
            slot = slot_of(match["pci"]) if "pci" in pattern.groupindex else ""
            return None if slot is None else make(match, slot)
    return None


def _xid(match: re.Match[str], slot: str) -> KernelMessage | None:
    xid, rest = int(match["xid"]), match["rest"].strip()
    if not 0 < xid <= _XID_MAX:
        return None
    action, fault = _RECOVERY.search(rest), _LINK_FAULT.search(rest)
    link_fault = None
    if fault is not None:
        interrupt, status = int(fault["interrupt"], 16), int(fault["status"], 16)
        link_fault = LinkFault(fault["unit"], fault["severity"], int(fault["link"]), interrupt, status)
    return XidLogged(slot, xid, _short(rest), None if action is None else int(action[1], 16), link_fault)


def _fell_off(match: re.Match[str], slot: str) -> KernelMessage:
    return FellOffTheBus(slot, "GPU has fallen off the bus")


def _killed(match: re.Match[str], slot: str) -> KernelMessage:
    return KilledForMemory(int(match["pid"]), match["name"], _short(match[0]))


def _link(match: re.Match[str], slot: str) -> KernelMessage:
    return LinkChanged(match["device"], _short(match[0]))


def _pcie(match: re.Match[str], slot: str) -> KernelMessage:
    return PcieFatal(slot, _short(match[0]))


def _memory(match: re.Match[str], slot: str) -> KernelMessage:
    return MemoryFault(_short(match[0]))


def _bank(match: re.Match[str], slot: str) -> KernelMessage | None:
    status = int(match["status"], 16)
    return MemoryFault(_short(match[0])) if status >> 63 & 1 and status >> 61 & 1 else None


def _short(text: str) -> str:
    return text[:_TEXT_CHARACTERS_MAX]


_Make = Callable[[re.Match[str], str], KernelMessage | None]

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

# What is looked for first, cheaply, because nearly every message is none of these; the form; what it makes, given
# the slot of the form's `pci`.
_FORMS: Final[tuple[tuple[str, re.Pattern[str], _Make], ...]] = tuple(
    (mark, re.compile(pattern, re.DOTALL), make)
    for mark, pattern, make in (
        ("Xid", rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: [^()]{{1,40}})?\): (?P<xid>\d{{1,5}}),(?P<rest>.*)", _xid),
        ("fallen off", rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}:? (?:GPU )?has fallen off the bus", _fell_off),
        ("fallen off", rf"NVRM: The NVIDIA GPU {_PCI}\b.{{0,200}}?fallen off the bus and is not resp", _fell_off),
        (
            "NVRM: GPU at",
            rf"NVRM: GPU at (?:PCI:)?{_PCI}: (?P<uuid>GPU-[0-9a-f]{{8}}(?:-[0-9a-f]{{4,12}}){{4}})",
            lambda match, slot: GpuNamed(slot, match["uuid"].replace("gpu-", "GPU-")),
        ),
        ("NVRM: loading", r"NVRM: loading NVIDIA ", lambda match, slot: DriverLoaded()),
        (
            "SXid",
            rf"(?P<switch>nvidia-nvswitch\d{{1,3}}):? SXid \(PCI:{_PCI}\): (?P<sxid>\d{{1,6}}), "
            r"Fatal\b(?P<rest>.*)",
            lambda match, slot: SwitchFault(
                match["switch"], int(match["sxid"]), _short(match["rest"].strip(" ,"))
            ),
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
