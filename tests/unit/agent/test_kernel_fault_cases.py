"""From a line in a kernel's log to what is done about it: sensor, report, detectors, brain, incident."""

import random
from dataclasses import dataclass
from pathlib import Path

import pytest
from kernel_job import KernelJob
from kernel_ring import OTHER_UUID, UUID

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Rung
from holdfast.api.policy import XidAction

EVICT, RESTART, NOTHING = "evict", "restart", "nothing"
XID = "NVRM: Xid (PCI:0000:3b:00): "
OTHER_XID = "NVRM: Xid (PCI:0000:5e:00): "
RECOVERY = XID + "154, GPU recovery action changed from 0x0 (None) to "
OFF = "79, GPU has fallen off the bus."
LINK_5 = " XC0 i0 Link 08 "


@dataclass(frozen=True)
class Case:
    """`lines` are said 0.2 s apart on node-0. `kind`, `cause` and `gpu` are the first incident's."""

    lines: tuple[str, ...]
    does: str
    kind: FindingKind | None = None
    cause: str = ""
    gpu: str | None = UUID
    incidents: int = 1


def xid(number: int, does: str, rest: str = "pid=7, name=python, Ch 00000008") -> Case:
    return Case((f"{XID}{number}, {rest}",), does, FindingKind.XID, f"xid {number}")


CASES = {
    "fallen off the bus": Case((XID + OFF,), EVICT, FindingKind.XID, "xid 79"),
    "fallen off the bus, in words only": Case(
        ("NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.",),
        EVICT,
        FindingKind.GPU_LOST,
        "GPU lost",
        OTHER_UUID,
    ),
    "fallen off the bus, all that the driver says of it": Case(
        (
            f"NVRM: GPU at PCI:0000:3b:00: {UUID}",
            "NVRM: GPU Board Serial Number: 1653723052734",
            XID + OFF,
            "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
            "NVRM: GPU 0000:3b:00.0: GPU serial number is 1653723052734.",
            RECOVERY + "0x2 (Node Reboot Required)",
        ),
        EVICT,
        FindingKind.XID,
        "xid 79",
    ),
    "double bit": xid(48, EVICT, "pid='<unknown>', name=<unknown>, An uncorrectable double bit error"),
    "double bit with what follows": Case(
        (XID + "48, DBE", XID + "171, DRAM", XID + "63, Row Remapper", XID + "94, Contained", XID + "45, Ch 8"),
        EVICT,
        FindingKind.XID,
        "xid 48",
    ),
    "row remap recorded": xid(63, NOTHING),
    "row remap failed": xid(64, EVICT),
    "contained": xid(94, RESTART),
    "contained, then uncontained": Case((XID + "94, a", XID + "95, b"), EVICT, FindingKind.XID, ""),
    "uncontained": xid(95, EVICT),
    "shader exception": xid(13, EVICT),
    "page fault": xid(31, EVICT),
    "copy engine": xid(39, RESTART),
    "copy engine of a new GPU": xid(133, RESTART),
    "application stopped": xid(43, RESTART),
    "cleanup alone": xid(45, NOTHING),
    "system processor": xid(119, EVICT),
    "old NVLink": xid(74, EVICT),
    "fatal PCIe time-out": xid(167, EVICT),
    "unused number": xid(87, NOTHING),
    "unknown number": xid(199, NOTHING),
    "unknown number, twice": Case(
        (f"{XID}199, x", *["noise"] * 30, f"{XID}199, x"), EVICT, FindingKind.XID, "xid 199"
    ),
    "test message": xid(106, NOTHING),
    "recovery: reset": Case((RECOVERY + "0x1 (GPU Reset Required)",), EVICT, FindingKind.XID, "xid 154"),
    "recovery: drain": Case((RECOVERY + "0x3 (Drain P2P)",), EVICT, FindingKind.XID, "xid 154"),
    "recovery: none": Case(
        (XID + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",), NOTHING
    ),
    "recovery makes a restart an eviction": Case(
        (XID + "94, Contained", RECOVERY + "0x1 (GPU Reset Required)"), EVICT, FindingKind.XID, ""
    ),
    "NVLink 5, link down": Case(
        (f"{XID}149, NETIR_LINK_EVT Fatal{LINK_5}(0x004505c6 0x00000000 0x00000000)",),
        EVICT,
        FindingKind.XID,
        "xid 149",
    ),
    "NVLink 5, bit errors": Case(
        (f"{XID}149, NETIR_BER_EVENT Nonfatal{LINK_5}(0x00000013 0x00000001 0x00000000)",) * 40, NOTHING
    ),
    "NVLink 5, fatal bit": Case(
        (f"{XID}145, RLW_REMAP Fatal{LINK_5}(0x00000004 0x00000040)",), EVICT, FindingKind.XID, "xid 145"
    ),
    "NVLink 5, wait for the driver": Case(
        (f"{XID}145, RLW_REMAP Nonfatal{LINK_5}(0x00000004 0x00000001)",), NOTHING
    ),
    "NVLink 5, the driver answers": Case(
        (
            f"{XID}145, RLW_REMAP Nonfatal{LINK_5}(0x00000004 0x00000001)",
            RECOVERY + "0x4 (Drain and Reset)",
        ),
        EVICT,
        FindingKind.XID,
        "xid 154",
    ),
    "switch, fatal": Case(
        ("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 24007, Fatal, Link 30 sourcetrack timeout error",),
        EVICT,
        FindingKind.CONDITION,
        ConditionKind.NVSWITCH_FAULT,
        None,
    ),
    "switch, not fatal": Case(
        ("nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 12028, Non-fatal, Link 32 egress PRIV error",), NOTHING
    ),
    "the node's memory": Case(
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",),
        EVICT,
        FindingKind.CONDITION,
        ConditionKind.HOST_MEMORY_ERROR,
        None,
    ),
    "the node's memory, corrected": Case(
        ("EDAC MC0: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",) * 20, NOTHING
    ),
    "a port flaps": Case(
        tuple(f"mlx5_core 0000:5c:00.0 ens5f0np0: Link {state}" for state in ("down", "up", "down", "up")), NOTHING
    ),
    "PCIe, fatal and survived": Case(
        ("pcieport 0000:00:01.1: AER: Uncorrected (Fatal) error received: 0000:c4:00.0",), NOTHING
    ),
    "somebody else was killed for memory": Case(
        ("Out of memory: Killed process 4321 (python) total-vm:1kB, anon-rss:1kB",), NOTHING
    ),
    "a program quotes an error": Case(("python[7]: " + XID + OFF,) * 5, NOTHING),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_line_leads_to_its_action(case: Case, tmp_path: Path) -> None:
    job = KernelJob(tmp_path)
    before = job.round
    job.say(*case.lines)
    job.wait(6.0)  # what is held back is judged by now
    if case.does == NOTHING:
        assert job.incidents == ()
        assert job.round == before
        return
    incident = job.incidents[0]
    assert len(job.incidents) == case.incidents
    assert incident.kind is case.kind
    assert case.cause in incident.cause
    assert (incident.culprit.node, incident.culprit.gpu) == ("node-0", case.gpu)
    assert incident.evidence
    assert job.round.number > before.number
    assert job.evicted == (["node-0"] if case.does == EVICT else [])
    assert (Rung.SWAP in {action.rung for action in incident.actions}) is (case.does == EVICT)
    members = [share.node for share in job.round.ranks]
    assert ("node-0" in members) is (case.does == RESTART)


def test_the_jobs_word_about_a_number_is_followed(tmp_path: Path) -> None:
    job = KernelJob(tmp_path, xid_actions={79: XidAction.IGNORE, 63: XidAction.EVICT})
    job.say(XID + OFF)
    assert job.incidents == ()
    job.say(XID + "63, Row Remapper")
    assert job.evicted == ["node-0"]


def test_an_error_on_every_gpu_of_a_node_is_one_eviction(tmp_path: Path) -> None:
    job = KernelJob(tmp_path)
    job.say(XID + OFF, OTHER_XID + OFF, XID + OFF)
    assert job.evicted == ["node-0"]
    assert len(job.incidents) == 1


@pytest.mark.parametrize("killed_first", [True, False], ids=["kernel first", "launcher first"])
def test_a_worker_that_was_killed_for_memory_is_one_incident_that_says_so(
    killed_first: bool, tmp_path: Path
) -> None:
    job = KernelJob(tmp_path)
    number = job.round.number
    line = "Memory cgroup out of memory: Killed process 4321 (python) total-vm:1kB, anon-rss:1kB"
    if killed_first:
        job.say(line)
    job.dies(0, signal=9)
    if not killed_first:
        job.say(line)
    job.wait(3.0)
    (incident,) = job.incidents
    assert incident.kind is FindingKind.PROCESS_EXIT
    assert incident.cause == "out of memory"
    assert any("killed by the kernel for memory" in each.says for each in incident.evidence)
    assert job.round.number == number + 1, "one death is healed once"
    assert job.evicted == []


HARMLESS = (
    "docker0: port 6(veth63d8774) entered blocking state",
    "audit: type=1400 audit(1700000000.1:9): apparmor=ALLOWED operation=open profile=x",
    "usb 1-4: new high-speed USB device number 5 using xhci_hcd",
    "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
    "mce: [Hardware Error]: Machine check events logged",
    "pcieport 0000:80:01.0: AER: Corrected error received: 0000:3b:00.0",
    "nvidia-nvswitch0: SXid (PCI:0000:c3:00.0): 20009, Non-fatal, Link 28 RX Short Error Rate",
    "python[7]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.86.15",
    "NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python, Ch 00000008",
    "NVRM: Xid (PCI:0000:3b:00): 63, Row Remapper: New row marked for remapping",
    "NVRM: Xid (PCI:0000:3b:00): 92, High single-bit error rate",
    "NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)",
    "nfs: server 10.0.0.1 not responding, still trying",
    "oom_reaper: reaped process 19289 (python), now anon-rss:0kB",
    "Out of memory: Killed process 99 (chrome) total-vm:1kB, anon-rss:1kB",
    "mlx5_core 0000:5c:00.0 ens5f0np0: Link up",
)


def test_a_thousand_healthy_days_of_noise_find_nothing(tmp_path: Path) -> None:
    seed = 20261122
    chance = random.Random(seed)
    job = KernelJob(tmp_path)
    for _ in range(1000):
        job.now += 86_400.0 - chance.uniform(2.0, 4.0)
        job.say(*chance.choices(HARMLESS, k=chance.randrange(2, 6)), wait_s=0.0)
        job.wait(0.1)
    assert job.findings == 0, f"seed {seed}: {job.incidents}"
    assert job.incidents == ()


def test_the_table_is_as_large_as_it_must_be() -> None:
    assert len(CASES) >= 25
