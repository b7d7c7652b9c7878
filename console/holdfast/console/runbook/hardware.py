"""Checks of machines: GPUs, links, heat, and what is held against a node."""

from collections import defaultdict
from typing import Final

from holdfast.api.condition import ConditionKind
from holdfast.api.event import MemberTested
from holdfast.api.finding import OF_NODES, FindingKind
from holdfast.api.incident import Incident
from holdfast.api.status import Hearing
from holdfast.console.runbook.answer import Said, Verdict, fine, hint, named, unknown
from holdfast.console.runbook.byincident import ByIncident, sensors_away
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, listed
from holdfast.console.runbook.symptom import Symptom

LOSS, HUNG, SLOW, NAN = Symptom.LOSS_SPIKED, Symptom.HUNG, Symptom.SLOW, Symptom.NAN
NODE, START = Symptom.NODE_SUSPECT, Symptom.WILL_NOT_START
LINKS: Final = frozenset(
    {
        ConditionKind.LINK_DOWN,
        ConditionKind.LINK_FLAPPING,
        ConditionKind.LINK_ERRORS,
        ConditionKind.LINK_DEGRADED,
        ConditionKind.NVLINK_DOWN,
        ConditionKind.NVLINK_ERRORS,
        ConditionKind.PCIE_DEGRADED,
        ConditionKind.PCIE_REPLAYS,
        ConditionKind.NVSWITCH_FAULT,
    }
)
NO_MACHINES: Final = frozenset(
    {
        ConditionKind.DISK_FULL,
        ConditionKind.DISK_READ_ONLY,
        ConditionKind.MEMORY_LOW,
        ConditionKind.CLOCK_UNSYNCHRONISED,
    }
)
"""These have checks of their own, or tell of no broken device."""
WARM_C: Final = 3.0
NODES_OF_SOFTWARE: Final = 3
BLAMED: Final = OF_NODES | {FindingKind.PROCESS_EXIT, FindingKind.HANG}
WHY = ("why {incident}", "nodes")


def _is_link(incident: Incident) -> bool:
    return incident.cause in {each.value for each in LINKS}


def _is_device(incident: Incident) -> bool:
    return incident.kind is not FindingKind.CONDITION or incident.cause not in {
        each.value for each in LINKS | NO_MACHINES
    }


def device(known: Known) -> Said:
    """An XID, a GPU that is gone, a condition of a device: found, or held now."""
    found = _DEVICE(known)
    if found.is_of_now:
        return found
    for node, each in known.raised():
        if each.kind not in LINKS | NO_MACHINES:
            part = f" of GPU {each.gpu}" if each.gpu else ""
            return named(f"{each.kind}{part} holds on {node.node}: {each.says}", node=node.node)
    return found


def link(known: Known) -> Said:
    """A link or port: found, or as it is now."""
    found = _LINK(known)
    if found.is_of_now:
        return found
    for node, each in known.raised():
        if each.kind in LINKS:
            return named(
                f"{each.kind} holds on {node.node} {each.device or each.gpu}: {each.says}", node=node.node
            )
    return found


def heat(known: Known) -> Said:
    """A GPU that is hot, or that slows itself down."""
    found = _HEAT(known)
    if found.is_of_now:
        return found
    told = 0
    for node in known.nodes or ():
        for gpu in node.gpus:
            if gpu.margin_c is None:
                continue
            told += 1
            if gpu.margin_c < WARM_C:
                says = f"GPU {gpu.uuid} on {node.node} is {gpu.margin_c:.0f} C below slowing down"
                return hint(f"{says}, at {gpu.temperature_c or float('nan'):.0f} C", node=node.node)
    if found.verdict is not Verdict.FINE:
        return found
    return (
        fine(f"{told} GPUs are more than {WARM_C:.0f} C below slowing down")
        if told
        else unknown("no GPU tells how hot it is")
    )


def silent(known: Known) -> Said:
    """Agents that are not heard, and sensors that cannot be read."""
    if known.nodes is None:
        return unknown(known.why_unread("nodes"))
    away = [each for each in known.nodes if each.hearing is Hearing.SILENT]
    if away:
        says = f"the agents of {listed([each.node for each in away])} are not heard"
        if known.ranks is not None and not {each.node for each in away} & {each.node for each in known.ranks}:
            return hint(f"{says}, and no rank runs there", node=away[0].node)
        return named(f"{says}: what their GPUs do is unknown", node=away[0].node)
    if known.blind:
        return unknown(known.blind)
    for each in known.nodes:
        if each.unreadable:
            one = each.unreadable[0]
            return hint(f"{each.node} cannot read {one.source}: {one.reason}", node=each.node)
    return fine(f"the agents of {len(known.nodes)} nodes are heard, and read all their sensors")


def again(known: Known) -> Said:
    """One node that was the culprit of several incidents."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    blamed: dict[str, list[Incident]] = defaultdict(list)
    for each in known.recent():
        if each.kind in BLAMED and each.culprit.node is not None and not each.innocent:
            blamed[each.culprit.node].append(each)
    most = max(blamed.items(), key=lambda each: len(each[1]), default=None)
    if most is None or len(most[1]) < 2:
        return fine(f"no node was the culprit twice in {known.span}")
    node, told = most
    kinds = listed([f"{each.id} {each.kind}" for each in told])
    return named(f"{node} was the culprit {len(told)} times in {known.span}: {kinds}", node=node)


def everywhere(known: Known) -> Said:
    """The same fault on several nodes: then it is rarely the machines."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    nodes: dict[str, set[str]] = defaultdict(set)
    for each in known.recent():
        if each.kind in BLAMED and each.culprit.node is not None and not each.innocent:
            nodes[f"{each.kind}, {each.cause}"].add(each.culprit.node)
    cause, most = max(nodes.items(), key=lambda each: len(each[1]), default=("", set()))
    if len(most) < NODES_OF_SOFTWARE:
        return fine(f"no fault was seen on {NODES_OF_SOFTWARE} nodes in {known.span}")
    return named(f"{cause} on {len(most)} nodes ({listed(sorted(most))}): machines do not fail together")


def remembered(known: Known) -> Said:
    """What the job, or all jobs together, hold against a node."""
    if known.nodes is None:
        return unknown(known.why_unread("nodes"))
    for each in known.nodes:
        if each.avoided or each.known:
            return named(f"{each.node} is avoided: {each.avoided or each.known}", node=each.node)
    avoided = known.plan.avoid if known.plan is not None else ()
    if avoided:
        return named(f"{avoided[0].node} is avoided: {avoided[0].reason}", node=avoided[0].node)
    return fine("nothing is held against any node") if known.nodes else unknown(known.blind)


def untested(known: Known) -> str:
    """Why no self-test can have failed: none was made."""
    if known.journal is None:
        return known.why_unread("journal")
    return "" if known.told(MemberTested) else "no node was tested since the journal begins"


def ended_by_others(known: Known) -> Said:
    """Pods that somebody, or their own limit, ended: no fault of their node."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    found = [each for each in known.recent() if each.innocent and not each.is_scripts]
    if not found:
        return fine(f"no pod was ended by somebody or by its own limit in {known.span}")
    one = found[-1]
    says = f"{one.id}, {known.ago(one.detected_at)}: {one.blamed}, {one.cause}: its node had no part in it"
    return named(says, incident=one.id)


_DEVICE: Final = ByIncident(
    frozenset({FindingKind.XID, FindingKind.GPU_LOST, FindingKind.CONDITION}),
    "no XID, lost GPU or condition of a device",
    like=_is_device,
    blind=sensors_away,
)
_LINK: Final = ByIncident(
    frozenset({FindingKind.CONDITION}), "no link or port is in trouble", like=_is_link, blind=sensors_away
)
_HEAT: Final = ByIncident(frozenset({FindingKind.THERMAL}), "no GPU was hot", blind=sensors_away)
LLAMA: Final = "https://arxiv.org/abs/2407.21783, table 5"

CHECKS: Final = (
    Check(
        "device",
        "A device is faulty (XID, ECC, lost GPU, PCIe, host memory)",
        {HUNG: 20, NODE: 50, LOSS: 9, NAN: 8, SLOW: 10, START: 12},
        device,
        WHY,
        f"64 % of unexpected interruptions are of GPUs: {LLAMA}",
    ),
    Check(
        "link",
        "A link, port or switch is down or degraded",
        {HUNG: 16, NODE: 15, SLOW: 12, START: 6},
        link,
        WHY,
        f"10 % of unexpected interruptions are of the network: {LLAMA}",
    ),
    Check(
        "heat",
        "A GPU is near the heat at which it slows itself down, or beyond",
        {NODE: 8, SLOW: 11},
        heat,
        WHY,
        f"1.4 % of unexpected interruptions: {LLAMA}",
    ),
    Check(
        "self-test",
        "A node failed its self-test",
        {NODE: 14, LOSS: 6, START: 10},
        ByIncident(
            frozenset({FindingKind.SELF_TEST}),
            "no self-test failed",
            blind=untested,
        ),
        WHY,
        "docs/self-tests.md",
    ),
    Check(
        "same-node-again",
        "One node is the culprit again and again",
        {NODE: 30},
        again,
        ("self-test {node}", "incidents"),
        "repeated failures mark bad nodes: https://arxiv.org/abs/2410.21680, section on lemon nodes",
    ),
    Check(
        "same-fault-on-many-nodes",
        "The same fault is on many nodes: software, power or a switch, no machine",
        {NODE: 12, START: 8},
        everywhere,
        ("incidents -o wide",),
        "docs/adr/0085-many-losses-are-one-fault.md",
    ),
    Check(
        "agent-silent",
        "Agents are silent, or cannot read a sensor",
        {NODE: 9, HUNG: 7},
        silent,
        ("nodes", "doctor"),
    ),
    Check(
        "node-avoided",
        "Something is held against a node",
        {NODE: 7, START: 9},
        remembered,
        ("nodes",),
    ),
    Check(
        "pod-ended-by-others",
        "A pod was ended by somebody or by its own limit, and no node is to blame",
        {NODE: 10, HUNG: 6},
        ended_by_others,
        ("why {incident}", "incidents"),
        f"10 % of unexpected interruptions are no hardware's and no bug's: {LLAMA}",
    ),
)
