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
from collections.abc import Mapping
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
    """The kernel killed a process for want of memory. It says so in two messages, of which the first tells whose
    memory it was: `own_limit` where a control group had reached its limit that is not all pods' together.
    """

    pid: int
    name: str
    text: str
    own_limit: bool = False


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
    for mark, pattern, kind in _FORMS:
        if mark in text and (match := pattern.match(text)) is not None:
            return _meaning(kind, match)
    return None


def _meaning(kind: type[KernelMessage], match: re.Match[str]) -> KernelMessage | None:
    said, whole = match.groupdict(), match[0][:_TEXT_CHARACTERS_MAX]
    slot = slot_of(said["pci"]) if "pci" in said else ""
    if slot is None:
        return None
    if kind is XidLogged:
        return _xid(slot, int(said["xid"]), said["rest"].strip())
    if kind is FellOffTheBus:
        return FellOffTheBus(slot, "GPU has fallen off the bus")
    if kind is GpuNamed:
        return GpuNamed(slot, said["uuid"].replace("gpu-", "GPU-"))
    if kind is SwitchFault:
        return SwitchFault(said["switch"], int(said["sxid"]), said["rest"].strip(" ,")[:_TEXT_CHARACTERS_MAX])
    if kind is KilledForMemory:
        group = said.get("group")
        own_limit = group is not None and not _OF_ALL_PODS.fullmatch(group.rpartition("/")[2])
        return KilledForMemory(int(said["pid"]), said["name"], whole, own_limit)
    if kind is LinkChanged:
        return LinkChanged(said["device"], whole)
    if kind is PcieFatal:
        return PcieFatal(slot, whole)
    if kind is MemoryFault:
        status = int(said["status"], 16) if "status" in said else _VALID | _NOT_CORRECTED
        return MemoryFault(whole) if status & _VALID and status & _NOT_CORRECTED else None
    return DriverLoaded()


def _xid(slot: str, xid: int, rest: str) -> XidLogged | None:
    if not 0 < xid <= _XID_MAX:
        return None
    action, fault = _RECOVERY.search(rest), _LINK_FAULT.search(rest)
    link_fault = None
    if fault is not None:
        interrupt, status = int(fault["interrupt"], 16), int(fault["status"], 16)
        link_fault = LinkFault(fault["unit"], fault["severity"], int(fault["link"]), interrupt, status)
    recovery_action = None if action is None else int(action[1], 16)
    return XidLogged(slot, xid, rest[:_TEXT_CHARACTERS_MAX], recovery_action, link_fault)


# Control groups whose limit is no pod's own: when one is reached, the node gives its pods more than it has.
# Source: https://kubernetes.io/docs/tasks/administer-cluster/reserve-compute-resources/#enforcing-node-allocatable
_OF_ALL_PODS: Final = re.compile(
    r"|burstable|besteffort|([^/]+-)?kubepods(-burstable|-besteffort)?(\.slice)?"  # below any kubelet's root
    r"|kubelet(\.slice)?|(system|user|machine)\.slice"
)
_VALID, _NOT_CORRECTED = 1 << 63, 1 << 61
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

# The forms of each kind: what is looked for first, cheaply, as nearly every message is none of these; the form.
_FORMS_OF: Final[Mapping[type[KernelMessage], tuple[tuple[str, str], ...]]] = {
    XidLogged: (("Xid", rf"NVRM: Xid \((?:PCI:)?{_PCI}(?: [^()]{{1,40}})?\): (?P<xid>\d{{1,5}}),(?P<rest>.*)"),),
    FellOffTheBus: (
        ("fallen off", rf"NVRM: GPU (?:at )?(?:PCI:)?{_PCI}:? (?:GPU )?has fallen off the bus"),
        ("fallen off", rf"NVRM: The NVIDIA GPU {_PCI}\b.{{0,200}}?fallen off the bus and is not resp"),
    ),
    GpuNamed: (
        ("NVRM: GPU at", rf"NVRM: GPU at (?:PCI:)?{_PCI}: (?P<uuid>GPU-[0-9a-f]{{8}}(?:-[0-9a-f]{{4,12}}){{4}})"),
    ),
    DriverLoaded: (("NVRM: loading", r"NVRM: loading NVIDIA "),),
    SwitchFault: (
        (
            "SXid",
            rf"(?P<switch>nvidia-nvswitch\d{{1,3}}):? SXid \(PCI:{_PCI}\): (?P<sxid>\d{{1,6}}), "
            r"Fatal\b(?P<rest>.*)",
        ),
    ),
    KilledForMemory: (
        ("illed process", rf"(?:(?:Memory cgroup o|O)ut of memory(?: \(\w+\))?: )?{_KILLED}"),
        (
            "oom-kill:",
            r"oom-kill:constraint=(?:CONSTRAINT_MEMCG,.{0,1500}?,oom_memcg=(?P<group>[^,]{1,1000})|\w{1,40}),"
            r".{0,1500}?,task=(?P<name>.{0,64}?),pid=(?P<pid>\d{1,10}),uid=\d",
        ),
    ),
    LinkChanged: (
        ("ink ", rf"[\w-]{{1,32}} (?:{PCI_PATTERN}):? {_DEVICE}: (?:NIC )?[Ll]ink (?:is )?{_STATE}"),
        ("NIC Link is", rf"[\w-]{{1,32}}: {_DEVICE}:? NIC Link is {_STATE}"),
        ("link status", rf"bond[\w.-]{{0,28}}: \(slave {_DEVICE}\): link status definitely {_STATE}"),
        (
            "link status",
            rf"(?:bonding: )?bond[\w.-]{{0,28}}: link status definitely {_STATE} for interface {_DEVICE}",
        ),
    ),
    PcieFatal: (
        (
            "(Fatal)",
            rf"[\w-]{{1,32}} {PCI_PATTERN}: {_EDGE}Uncorrect(?:ed|able) \(Fatal\) error (?:message )?received"
            rf"(?: from|:) {_PCI}",
        ),
        ("(Fatal)", rf"[\w-]{{1,32}} {_PCI}: {_EDGE}severity=Uncorrect(?:ed|able) \(Fatal\)"),
    ),
    MemoryFault: (
        # More than a process's name can hold, which a user chooses and the kernel begins some messages with.
        ("EDAC", r"EDAC MC\d{1,3}: \d{1,9} UE (?:[^\[\]():=]{1,100} )?on \S.{0,200}"),
        ("EDAC", r"EDAC MC\d{1,3}: UE (?:page 0x[0-9a-f]{1,16}, |- no information available)[^:]{0,200}"),
        ("ardware memory", r"mce: Uncorrected hardware memory error\b.{0,200}"),
        ("ardware memory", r"MCE: Killing .{1,64}? due to hardware memory corruption\b.{0,100}"),
        ("ardware Error]", r"(?:\{\d+\})?\[Hardware Error\]: +event severity: fatal\b"),
        (
            "ardware Error]",
            r"(?:mce: )?\[Hardware Error\]: CPU:\d+ .{0,80}?MC\d+_STATUS\[[^\]]{0,20}\bUE\b.{0,120}",
        ),
        (
            "Machine Check",
            r"mce: \[Hardware Error\]: CPU \d+: Machine Check(?: Exception)?: [0-9a-f]+ Bank \d+: "
            r"(?P<status>[0-9a-f]{16})\b",
        ),
    ),
}
_FORMS: Final = tuple(
    (mark, re.compile(pattern, re.DOTALL), kind) for kind, forms in _FORMS_OF.items() for mark, pattern in forms
)
