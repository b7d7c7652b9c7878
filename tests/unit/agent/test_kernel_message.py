"""What lines of the kernel's log mean: one table, as they come, and as they must not be taken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.kernel.message import (
    DriverLoaded,
    FellOffTheBus,
    GpuNamed,
    KernelMessage,
    KilledForMemory,
    LinkChanged,
    MemoryFault,
    PcieFatal,
    SwitchFault,
    XidLogged,
    parse_message,
)
from holdfast.agent.kernel.source import parse_line, parse_record
from holdfast.api.nvlink5 import LinkFault

SLOT = "0000:3b:00"
UUID = "GPU-b6c3b2be-c55b-d076-fa0e-d464e4c7e08b"


def xid(number: int, rest: str, slot: str = SLOT, **more: object) -> XidLogged:
    return XidLogged(slot, number, rest, **more)  # type: ignore[arg-type]


XIDS: dict[str, tuple[str, KernelMessage]] = {
    "old driver without PCI": (
        "NVRM: Xid (0000:04:00): 13, 0005 00000000 0000502d 00000104 00000000 00000100",
        xid(13, "0005 00000000 0000502d 00000104 00000000 00000100", "0000:04:00"),
    ),
    "old driver with a channel": (
        "NVRM: Xid (0000:03:00): 14, Channel 00000001",
        xid(14, "Channel 00000001", "0000:03:00"),
    ),
    "old driver, page fault": (
        "NVRM: Xid (0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000",
        xid(31, "Ch 0000000b, engmask 00000120, intr 10000000", "0000:01:00"),
    ),
    "oldest driver without a domain": (
        "NVRM: Xid (0002:00): 6, PE0001",
        xid(6, "PE0001", "0000:02:00"),
    ),
    "unknown process": (
        "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        xid(79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ),
    "newer driver names no process": (
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        xid(79, "GPU has fallen off the bus."),
    ),
    "process and channel": (
        "NVRM: Xid (PCI:0000:3b:00): 45, pid=2864, name=python, Ch 00000008",
        xid(45, "pid=2864, name=python, Ch 00000008"),
    ),
    "shader exception": (
        "NVRM: Xid (PCI:0000:3b:00): 13, pid=120, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 0)",
        xid(13, "pid=120, name=python3, Graphics SM Warp Exception on (GPC 7, TPC 0)"),
    ),
    "page fault of a process": (
        "NVRM: Xid (PCI:0000:3b:00): 31, pid=77, name=pt_main_thread, Ch 00000008, intr 00000000. MMU Fault",
        xid(31, "pid=77, name=pt_main_thread, Ch 00000008, intr 00000000. MMU Fault"),
    ),
    "row remap": (
        "NVRM: Xid (PCI:0000:3b:00): 63, pid=1896, Row Remapper: New row marked for remapping.",
        xid(63, "pid=1896, Row Remapper: New row marked for remapping."),
    ),
    "double bit": (
        "NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error",
        xid(48, "pid='<unknown>', name=<unknown>, An uncorrectable double bit error"),
    ),
    "contained": (
        "NVRM: Xid (PCI:0000:3b:00): 94, pid=207955, name=python3, Ch 0000002e, Contained: SM (0x1). RST: No",
        xid(94, "pid=207955, name=python3, Ch 0000002e, Contained: SM (0x1). RST: No"),
    ),
    "in an instance of a divided GPU": (
        "NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 95, pid=99, name=python, Ch 00000002",
        xid(95, "pid=99, name=python, Ch 00000002"),
    ),
    "system processor": (
        "NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout waiting for RPC from GSP0! Expected function 76",
        xid(119, "pid=1, name=x, Timeout waiting for RPC from GSP0! Expected function 76"),
    ),
    "another domain": (
        "NVRM: Xid (PCI:0009:01:00): 109, pid=7, name=a, Ch 0000000a, errorString CTX SWITCH TIMEOUT",
        xid(109, "pid=7, name=a, Ch 0000000a, errorString CTX SWITCH TIMEOUT", "0009:01:00"),
    ),
    "wide domain, function, capitals": (
        "NVRM: Xid (PCI:00000009:3B:00.0): 62, 0096(1c54) 00000000 00000000",
        xid(62, "0096(1c54) 00000000 00000000", "0009:3b:00"),
    ),
    "recovery, drain and reset": (
        "NVRM: Xid (PCI:0009:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
        xid(
            154,
            "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)",
            "0009:01:00",
            recovery_action=4,
        ),
    ),
    "recovery, reset": (
        "NVRM: Xid (PCI:0000:3b:00): 154, pid='<unknown>', name=<unknown>, "
        "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
        xid(
            154,
            "pid='<unknown>', name=<unknown>, "
            "GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)",
            recovery_action=1,
        ),
    ),
    "recovery is over": (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
        xid(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", recovery_action=0),
    ),
    "recovery that nobody knows": (
        "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1f (Something New)",
        xid(154, "GPU recovery action changed from 0x0 (None) to 0x1f (Something New)", recovery_action=31),
    ),
    "NVLink 5, link down": (
        "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 "
        "(0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        xid(
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 08 "
            "(0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
            "0018:01:00",
            link_fault=LinkFault("NETIR_LINK_EVT", "Fatal", 8, 0x004505C6, 0),
        ),
    ),
    "NVLink 5 with a process": (
        "NVRM: Xid (PCI:0000:3b:00): 145, pid=5, name=nccl, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x7 0x4)",
        xid(
            145,
            "pid=5, name=nccl, RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 (0x7 0x4)",
            link_fault=LinkFault("RLW_SRC_TRACK", "Nonfatal", -1, 7, 4),
        ),
    ),
    "NVLink 5, status words cut": (
        "NVRM: Xid (PCI:0000:3b:00): 144, SAW_MVB Fatal XC0 i0 Link 00 (0x000",
        xid(144, "SAW_MVB Fatal XC0 i0 Link 00 (0x000"),
    ),
    "a number nobody knows": (
        "NVRM: Xid (PCI:0000:3b:00): 188, something new",
        xid(188, "something new"),
    ),
    "nothing after the number": ("NVRM: Xid (PCI:0000:3b:00): 43, ", xid(43, "")),
}

OTHERS: dict[str, tuple[str, KernelMessage]] = {
    "which GPU it is": (f"NVRM: GPU at PCI:0000:3b:00: {UUID}", GpuNamed(SLOT, UUID)),
    "which GPU it is, old driver": (f"NVRM: GPU at 0000:3b:00: {UUID}", GpuNamed(SLOT, UUID)),
    "driver loaded": (
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build",
        DriverLoaded(),
    ),
    "fallen off without an XID": (
        "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
        FellOffTheBus(SLOT, "GPU has fallen off the bus"),
    ),
    "fallen off, another form": (
        "NVRM: GPU at PCI:0000:3b:00 has fallen off the bus",
        FellOffTheBus(SLOT, "GPU has fallen off the bus"),
    ),
    "fallen off, three lines in one message": (
        "NVRM: The NVIDIA GPU 0000:3b:00.0\n               NVRM: (PCI ID: 10de:2330) installed in this system "
        "has\n               NVRM: fallen off the bus and is not responding to commands.",
        FellOffTheBus(SLOT, "GPU has fallen off the bus"),
    ),
    "switch, fatal": (
        "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error",
        SwitchFault("nvidia-nvswitch0", 24007, "Link 30 sourcetrack timeout error"),
    ),
    "out of memory, whole node": (
        "Out of memory: Killed process 4321 (python) total-vm:79471988kB, anon-rss:5225576kB, file-rss:0kB",
        KilledForMemory(4321, "python", "Out of memory: Killed process 4321 (python) "),
    ),
    "out of memory, one control group": (
        "Memory cgroup out of memory: Killed process 19289 (pt_main_thread) total-vm:2676kB, anon-rss:84kB",
        KilledForMemory(
            19289, "pt_main_thread", "Memory cgroup out of memory: Killed process 19289 (pt_main_thread) "
        ),
    ),
    "out of memory, old kernel": (
        "Killed process 13331 (s1-agent), UID 0, total-vm:1048576kB, anon-rss:1kB, file-rss:0kB",
        KilledForMemory(13331, "s1-agent", "Killed process 13331 (s1-agent), "),
    ),
    "out of memory, context line": (
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/kubepods/pod1,"
        "task_memcg=/kubepods/pod1/c,task=python,pid=19289,uid=0",
        KilledForMemory(
            19289,
            "python",
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,"
            "oom_memcg=/kubepods/pod1,task_memcg=/kubepods/pod1/c,task=python,pid=19289,uid=0",
            own_limit=True,
        ),
    ),
    "mlx5 down": (
        "mlx5_core 0000:5c:00.0 ens5f0np0: Link down",
        LinkChanged("ens5f0np0", "mlx5_core 0000:5c:00.0 ens5f0np0: Link down"),
    ),
    "mlx5 up": (
        "mlx5_core 0000:5c:00.0 ens5f0np0: Link up",
        LinkChanged("ens5f0np0", "mlx5_core 0000:5c:00.0 ens5f0np0: Link up"),
    ),
    "ice down": (
        "ice 0000:5e:00.0 eth2: NIC Link is Down",
        LinkChanged("eth2", "ice 0000:5e:00.0 eth2: NIC Link is Down"),
    ),
    "ixgbe up": (
        "ixgbe 0000:01:00.0: eth0: NIC Link is Up 10 Gbps, Flow Control: RX/TX",
        LinkChanged("eth0", "ixgbe 0000:01:00.0: eth0: NIC Link is Up"),
    ),
    "tg3 down": (
        "tg3 0000:01:00.0 eno1: Link is down",
        LinkChanged("eno1", "tg3 0000:01:00.0 eno1: Link is down"),
    ),
    "e1000e down": (
        "e1000e: eth0 NIC Link is Down",
        LinkChanged("eth0", "e1000e: eth0 NIC Link is Down"),
    ),
    "bond down": (
        "bond0: (slave ens5f0): link status definitely down, disabling slave",
        LinkChanged("ens5f0", "bond0: (slave ens5f0): link status definitely down"),
    ),
    "old bond down": (
        "bonding: bond0: link status definitely down for interface eth1, disabling it",
        LinkChanged("eth1", "bonding: bond0: link status definitely down for interface eth1"),
    ),
    "PCIe fatal, told by the port": (
        "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:3b:00.0",
        PcieFatal(SLOT, "pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:3b:00.0"),
    ),
    "PCIe fatal, newer kernel": (
        "pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from 0000:3b:00.0",
        PcieFatal(
            SLOT, "pcieport 0000:00:01.1: AER: Uncorrectable (Fatal) error message received from 0000:3b:00.0"
        ),
    ),
    "PCIe fatal, the device's own": (
        "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
        PcieFatal(SLOT, "nvidia 0000:3b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)"),
    ),
    "memory controller": (
        "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x7740c0)",
        MemoryFault(
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x7740c0)"
        ),
    ),
    "memory controller that names no error": (
        "EDAC MC0: 1 UE on mc#0csrow#0channel#0 (csrow:0 channel:0 page:0x0 offset:0x0 grain:64)",
        MemoryFault("EDAC MC0: 1 UE on mc#0csrow#0channel#0 (csrow:0 channel:0 page:0x0 offset:0x0 grain:64)"),
    ),
    "memory controller of an old kernel": (
        "EDAC MC0: UE page 0x3f2, offset 0x0, grain 4096, row 1, labels",
        MemoryFault("EDAC MC0: UE page 0x3f2, offset 0x0, grain 4096, row 1, labels"),
    ),
    "machine check in a program": (
        "mce: Uncorrected hardware memory error in user-access at af34214200",
        MemoryFault("mce: Uncorrected hardware memory error in user-access at af34214200"),
    ),
    "machine check kills": (
        "MCE: Killing einj_mem_uc:3600 due to hardware memory corruption fault at 7f3309503400",
        MemoryFault("MCE: Killing einj_mem_uc:3600 due to hardware memory corruption fault at 7f3309503400"),
    ),
    "machine check, bank that was not corrected": (
        "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 1: bc00080001010135",
        MemoryFault("mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 1: bc00080001010135"),
    ),
    "firmware tells of a fatal error": (
        "{1}[Hardware Error]: event severity: fatal",
        MemoryFault("{1}[Hardware Error]: event severity: fatal"),
    ),
    "AMD bank that was not corrected": (
        "[Hardware Error]: CPU:12 (19:21:0) MC5_STATUS[Over|UE|MiscV|AddrV|-|-]: 0xfc",
        MemoryFault("[Hardware Error]: CPU:12 (19:21:0) MC5_STATUS[Over|UE|MiscV|AddrV|-|-]: 0xfc"),
    ),
}

HARMLESS = {
    "quoted by a program's message": "python[4321]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "quoted within a message": "audit: msg='grep NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.'",
    "a process by that name": "Killed something (NVRM: Xid (PCI:0000:3b:00): 79, x)",
    "segfault that quotes": "x[5]: segfault at 0 ip 0 sp 0 error 4 in NVRM: Xid (PCI:0000:3b:00): 79, x",
    "no address": "NVRM: Xid : 32, pid=2280636",
    "no number": "NVRM: Xid (PCI:0000:3b:00): abc, pid=2280636",
    "number cut off": "NVRM: Xid (PCI:0000:3b:00): 7",
    "address cut off": "NVRM: Xid (PCI:0000:3",
    "address of letters": "NVRM: Xid (PCI:gggg:3b:00): 79, GPU has fallen off the bus.",
    "number too large": "NVRM: Xid (PCI:0000:3b:00): 99999, x",
    "number zero": "NVRM: Xid (PCI:0000:3b:00): 0, x",
    "negative number": "NVRM: Xid (PCI:0000:3b:00): -79, x",
    "leading blank": " NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "second line of a message": "comm\nNVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "lower case": "nvrm: xid (pci:0000:3b:00): 79, gpu has fallen off the bus.",
    "unsupported GPU": "NVRM: The NVIDIA GPU 0000:3b:00.0 (PCI ID: 10de:1bb1)\nNVRM: is not supported",
    "serial number": "NVRM: GPU 0000:3b:00.0: GPU serial number is 1653723052734.",
    "GPU not yet known to the driver": "NVRM: GPU at PCI:0000:3b:00: GPU-????????-????-????-????-????????????",
    "switch, not fatal": "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress PRIV error",
    "details of a switch's error": "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Severity 0 Engine 32",
    "switch's data": "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Data {0x00140004, 0x00100000, 0x00140004}",
    "switch without a number": "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
    "somebody asks for memory": "python invoked oom-killer: gfp_mask=0x100cca, order=0, oom_score_adj=986",
    "reaper": "oom_reaper: reaped process 19289 (python), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
    "disk's link": "ata1: SATA link down (SStatus 0 SControl 300)",
    "hot plug": "pcieport 0000:00:1c.0: pciehp: Slot(0): Link Down",
    "container's port": "docker0: port 6(veth63d8774) entered blocking state",
    "link becomes ready": "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "PCIe not fatal": "pcieport 0000:00:01.1: AER: Uncorrected (Non-Fatal) error received: 0000:3b:00.0",
    "PCIe corrected": "pcieport 0000:80:01.0: AER: Corrected error received: 0000:3b:00.0",
    "memory corrected": "EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "machine check logged": "mce: [Hardware Error]: Machine check events logged",
    "machine check, bank corrected": "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 1: 9c00080001010135",
    "AMD bank corrected": "[Hardware Error]: CPU:12 (19:21:0) MC5_STATUS[Over|CE|MiscV|-|-|-|SyndV|UECC|-]: 0x9c",
    "firmware tells of a corrected error": "{1}[Hardware Error]: event severity: corrected",
    "nothing": "",
    "huge": "NVRM: " + "x" * 100_000,
}


@pytest.mark.parametrize(("text", "means"), XIDS.values(), ids=XIDS)
def test_an_xid_is_read_in_every_form_that_drivers_write(text: str, means: KernelMessage) -> None:
    assert parse_message(text) == means


@pytest.mark.parametrize(("text", "means"), OTHERS.values(), ids=OTHERS)
def test_what_else_the_kernel_says_of_the_node_is_read(text: str, means: KernelMessage) -> None:
    assert parse_message(text) == means


@pytest.mark.parametrize("text", HARMLESS.values(), ids=HARMLESS)
def test_what_only_looks_like_it_is_nothing(text: str) -> None:
    assert parse_message(text) is None


NAME_CHARACTERS_MAX = 15  # of a process. Source: prctl(2), PR_SET_NAME
BEGUN_BY_A_NAME = (
    "[4242]: segfault at 0 ip 0000000000401126 sp 00007ffd15 error 4 in {file}[401000+1000]",
    " invoked oom-killer: gfp_mask=0x100cca(GFP_HIGHUSER_MOVABLE), order=0, oom_score_adj=0",
    ": page allocation failure: order:5, mode:0x40cc0(GFP_KERNEL|__GFP_COMP), nodemask=(null),cpuset=on x",
)
NAMES = ("EDAC MC0: 1 UE", "EDAC MC0: 1 UE ", "EDAC MC0: UE ab", "EDAC MC0: UE - ")


@pytest.mark.parametrize("rest", BEGUN_BY_A_NAME)
def test_no_name_of_a_process_makes_another_message_of_the_kernels_words_about_it(rest: str) -> None:
    known = [text for text, _ in (*XIDS.values(), *OTHERS.values())]
    for text in (*known, *NAMES):
        for name in (text[:NAME_CHARACTERS_MAX], text[: NAME_CHARACTERS_MAX - 1]):
            assert parse_message(name + rest.format(file=" on x (page:0x1 offset:0x0 grain:1)")) is None


@given(st.text(max_size=300))
def test_no_text_is_too_odd(text: str) -> None:
    for head in ("", "NVRM: Xid (PCI:0000:3b:00): 154, ", "oom-kill:constraint=A,", "mce: [Hardware Error]: "):
        parse_message(head + text)


def test_what_is_taken_from_a_message_is_bounded() -> None:
    raised = parse_message("NVRM: Xid (PCI:0000:3b:00): 79, " + "x" * 5000)
    assert isinstance(raised, XidLogged)
    assert len(raised.text) == 500


RECORDS = {
    "the kernel's": (
        b"6,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n",
        ("NVRM: Xid (PCI:0000:3b:00): 79, x", 339, 5.1409),
    ),
    "with fields": (
        b"6,339,5140900,-;NVRM: x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
        ("NVRM: x", 339, 5.1409),
    ),
    "with the caller": (b"4,7,1000000,-,caller=T123;NVRM: x\n", ("NVRM: x", 7, 1.0)),
    "begun, to be continued": (b"4,7,1000000,c;NVRM: x\n", ("NVRM: x", 7, 1.0)),
    "several lines, as the device writes them": (
        b"3,7,0,-;NVRM: a\\x0a   NVRM: b\n",
        ("NVRM: a\n   NVRM: b", 7, 0.0),
    ),
    "not UTF-8": (b"4,7,0,-;NVRM: \\xff\\xfe x\n", ("NVRM: \ufffd\ufffd x", 7, 0.0)),
    "bytes that no device writes": (b"4,7,0,-;NVRM: \xff x", ("NVRM: \ufffd x", 7, 0.0)),
    "a program's": (b"12,7,0,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n", ("", 7, 0.0)),
    "a daemon's": (b"30,7,0,-;NVRM: Xid (PCI:0000:3b:00): 79, x\n", ("", 7, 0.0)),
    "a continuation": (b"4,7,0,+;NVRM: Xid (PCI:0000:3b:00): 79, x\n", ("", 7, 0.0)),
}


@pytest.mark.parametrize(("raw", "means"), RECORDS.values(), ids=RECORDS)
def test_a_record_of_the_device_is_taken_apart(raw: bytes, means: tuple[str, int, float]) -> None:
    record = parse_record(raw)
    assert record is not None
    assert (record.text, record.sequence, record.said_at_s) == means


@pytest.mark.parametrize(
    "raw", [b"", b"x", b"4,7;NVRM: x", b"4,7,0,-NVRM", b"\xff" * 100, b"NVRM: Xid", b"4,,0,-;x"]
)
def test_what_is_no_record_is_none(raw: bytes) -> None:
    assert parse_record(raw) is None


@given(st.binary(max_size=200))
def test_no_bytes_are_too_odd(raw: bytes) -> None:
    parse_record(raw)
    parse_record(b"4,7,0,-;" + raw)
    parse_line(raw)


MESSAGE = "NVRM: Xid (PCI:0000:3b:00): 79, x"
LINES = {
    "dmesg": (f"[  966.503025] {MESSAGE}", 966.503025),
    "dmesg with the caller": (f"[    1.000000][ T9955] {MESSAGE}", 1.0),
    "dmesg with the time": (f"[Fri Aug 30 11:11:22 2024] {MESSAGE}", None),
    "syslog with a stamp": (f"Nov 22 18:29:55 hostname kernel: [  966.503025] {MESSAGE}", 966.503025),
    "syslog without": (f"Nov  2 18:29:55 rescue kernel: {MESSAGE}", None),
    "syslog of today": (f"2026-09-27T03:20:00.000412+00:00 web-1 kernel: {MESSAGE}", None),
}


@pytest.mark.parametrize(("line", "said_at_s"), LINES.values(), ids=LINES)
def test_a_line_of_a_log_file_is_taken_apart(line: str, said_at_s: float | None) -> None:
    record = parse_line(line.encode())
    assert record is not None
    assert (record.text, record.said_at_s) == (MESSAGE, said_at_s)


@pytest.mark.parametrize(
    "line",
    [
        MESSAGE,
        f"Nov 22 18:29:55 host python[12]: {MESSAGE}",
        f"Nov 22 18:29:55 host python[12]: kernel: {MESSAGE}",
        f"Nov 22 18:29:55 host app: host kernel: {MESSAGE}",
        f"[  966.50] host python[12]: {MESSAGE}"[9:],
        f"[966] {MESSAGE}",
        "x" * 200_000,
        "",
    ],
)
def test_a_line_that_the_kernel_did_not_say_is_none(line: str) -> None:
    record = parse_line(line.encode())
    assert record is None or parse_message(record.text) is None


def test_the_table_is_as_large_as_it_must_be() -> None:
    assert len(XIDS) + len(OTHERS) + len(HARMLESS) >= 60
    assert len(HARMLESS) >= 15


BURSTABLE = "kubepods-burstable.slice"
POD = f"/kubepods.slice/{BURSTABLE}/kubepods-burstable-pod0b7f.slice"


@pytest.mark.parametrize(
    ("whose", "own_limit"),
    [
        ("constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod1/c", True),
        (f"constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c.scope,mems_allowed=0,oom_memcg={POD}", True),
        ("constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/slurm/uid_7/job_9", True),
        # All pods together reached what their node gives them.
        ("constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods", False),
        ("constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods.slice", False),
        (f"constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,oom_memcg=/kubepods.slice/{BURSTABLE}", False),
        ("constraint=CONSTRAINT_MEMCG,cpuset=/,oom_memcg=/kubelet.slice/kubelet-kubepods.slice", False),
        (f"constraint=CONSTRAINT_MEMCG,cpuset=/,oom_memcg=/kubelet-kubepods.slice/kubelet-{BURSTABLE}", False),
        ("constraint=CONSTRAINT_MEMCG,cpuset=/,oom_memcg=/kubelet/kubepods/burstable", False),
        ("constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/", False),
        ("constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom", False),
        ("constraint=CONSTRAINT_CPUSET,nodemask=(null),cpuset=/x,mems_allowed=0,global_oom", False),
    ],
)
def test_whose_memory_had_run_out_is_told_by_the_group_whose_limit_was_reached(
    whose: str, own_limit: bool
) -> None:
    told = parse_message(f"oom-kill:{whose},task_memcg={POD}/c.scope,task=python,pid=7,uid=0")
    assert isinstance(told, KilledForMemory)
    assert (told.pid, told.name, told.own_limit) == (7, "python", own_limit)
