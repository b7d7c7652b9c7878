"""Checks of memory that ran out: of a GPU, of a host, of a pod, of what is shared."""

from collections import Counter
from typing import Final

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident
from holdfast.console.runbook.answer import Said, fine, hint, named, unknown
from holdfast.console.runbook.byincident import ByIncident, agents_away, sensors_away
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.symptom import Symptom

MEMORY: Final = Symptom.OUT_OF_MEMORY
KILLED: Final = "out of memory"
OWN_LIMIT: Final = (
    "out of memory: the pod's own limit",
    "the pod was ended for its own limit of memory or storage",
)
GPU_WORDS: Final = ("OutOfMemoryError", "CUDA out of memory", "HIP out of memory")
WHY = ("why {incident}", "incidents")


def of_gpu(incident: Incident) -> bool:
    return any(words in f"{incident.cause} {incident.error}" for words in GPU_WORDS)


def is_any(incident: Incident) -> bool:
    """Whether memory ran out in one way or another."""
    return incident.cause in (KILLED, *OWN_LIMIT) or of_gpu(incident)


def low(known: Known) -> Said:
    """A node whose memory is nearly used up: found, or as it is now."""
    found = _LOW(known)
    if found.is_of_now:
        return found
    for node, each in known.raised():
        if each.kind is ConditionKind.MEMORY_LOW:
            return named(f"{each.kind} holds on {node.node}: {each.says}", node=node.node)
    return found


def comes_again(known: Known) -> Said:
    """Memory that ran out on several nodes: then the job needs more than it has, and no node is to blame."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    found = [each for each in known.recent() if is_any(each)]
    if len(found) < 2:
        return fine(f"memory ran out {len(found)} times in {known.span}: once is no pattern")
    nodes = Counter(each.culprit.node for each in found)
    ranks = Counter(each.culprit.rank for each in found)
    if len(nodes) > 1:
        who = f"rank {ranks.most_common(1)[0][0]} most often" if len(ranks) < len(found) else "of several ranks"
        return named(
            f"memory ran out {len(found)} times on {len(nodes)} nodes, {who}: the job needs more than it has",
            incident=found[-1].id,
        )
    return fine(f"it ran out on one node only, {len(found)} times")


def one_node(known: Known) -> Said:
    """The same node each time: something else on it takes memory."""
    if known.incidents is None:
        return unknown(known.why_unread("incidents"))
    found = [each for each in known.recent() if is_any(each) and not of_gpu(each)]
    nodes = Counter(each.culprit.node for each in found if each.culprit.node is not None)
    if len(found) >= 2 and len(nodes) == 1:
        node = next(iter(nodes))
        return named(
            f"each of {len(found)} times it was {node}: something else on it may take the memory", node=node
        )
    if not found:
        return fine(f"no process was killed for memory in {known.span}")
    return fine(f"{len(found)} times on {len(nodes)} nodes: no node stands out")


def snapshots(known: Known) -> Said:
    """Snapshots in memory take a copy of a node's state, and one of each node it keeps for."""
    if known.policy is None:
        return unknown("the job's spec is not known here")
    memory = known.policy.memory
    if memory is None:
        return fine("no snapshots are kept in memory (checkpoint.memory is not set)")
    many = f"{1 + memory.replicas} copies of a node's state after every {memory.every_steps} steps"
    if any(each.cause in (KILLED, *OWN_LIMIT) for each in known.recent()):
        return hint(f"checkpoint.memory keeps {many} in host memory")
    return fine(f"checkpoint.memory keeps {many}, and no host memory ran out")


_LOW: Final = ByIncident(
    frozenset({FindingKind.CONDITION}),
    "no node's memory is nearly used up",
    like=lambda each: each.cause == ConditionKind.MEMORY_LOW.value,
    blind=agents_away,
)

CHECKS: Final = (
    Check(
        "gpu-memory",
        "A GPU had no more memory for the script",
        {MEMORY: 45},
        ByIncident(
            frozenset({FindingKind.USER_CODE, FindingKind.PROCESS_EXIT, FindingKind.CRASH_LOOP}),
            "no process ended for a GPU's memory",
            like=of_gpu,
        ),
        ("why {incident}", "logs --tail 100"),
        "docs/detectors.md, user code",
    ),
    Check(
        "killed-by-the-kernel",
        "The kernel killed a worker, as the node's memory had run out",
        {MEMORY: 40},
        ByIncident(
            frozenset({FindingKind.PROCESS_EXIT}),
            "the kernel killed no worker for memory",
            like=lambda each: each.cause == KILLED,
            blind=sensors_away,
        ),
        ("why {incident}", "nodes"),
        "10.1 % of incidents: https://arxiv.org/abs/2509.16293, table 1",
    ),
    Check(
        "own-limit",
        "The pod reached its own limit of memory: raise it, no node is to blame",
        {MEMORY: 38},
        ByIncident(
            frozenset({FindingKind.PROCESS_EXIT, FindingKind.MEMBER_LOST}),
            "no pod reached its own limit",
            like=lambda each: each.cause in OWN_LIMIT,
        ),
        WHY,
    ),
    Check(
        "node-memory-low",
        "A node's memory is nearly used up",
        {MEMORY: 25, Symptom.SLOW: 4},
        low,
        ("why {incident}", "nodes"),
    ),
    Check("needs-more", "The job needs more memory than it has, on every node", {MEMORY: 30}, comes_again, WHY),
    Check("one-node", "One node has less memory to give than others", {MEMORY: 18}, one_node, ("nodes",)),
    Check(
        "shared-memory",
        "Shared memory (/dev/shm) is full: loaders die of SIGBUS",
        {MEMORY: 15},
        ByIncident(
            frozenset({FindingKind.PROCESS_EXIT, FindingKind.USER_CODE, FindingKind.CRASH_LOOP}),
            "no process ended by SIGBUS, and no loader by a bus error",
            like=lambda each: "SIGBUS" in each.cause or "Bus error" in each.error or "shared memory" in each.error,
            proves=False,  # that it ended so is certain; a file that was cut off or faulty memory does the same
        ),
        WHY,
        "https://docs.pytorch.org/docs/stable/multiprocessing.html",
    ),
    Check("snapshots", "Snapshots in host memory take too much of it", {MEMORY: 14}, snapshots, ("status",)),
)
