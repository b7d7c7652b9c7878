"""The map of conditions that others set on nodes: which of them count, as what, and which are heeded by default.

A rule names conditions by type, by reason and by the status at which something is wrong; the first that fits
decides. An installation's own rules come before the defaults, so that any of those can be changed or switched off.

    NPD        https://github.com/kubernetes/node-problem-detector/tree/master/config
    NVSENTINEL https://github.com/NVIDIA/NVSentinel (health monitors set a node condition for each fatal check)
    AKS        https://learn.microsoft.com/azure/aks/node-problem-detector
    EKS        https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html
    KUBELET    https://kubernetes.io/docs/reference/node/node-status/#condition
"""

import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Final

import msgspec

from holdfast.api.bounds import NAME_LENGTH_MAX
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.jobstatus import Condition
from holdfast.api.nodecondition import FaultPart, Meaning, NodeCondition

NPD = "https://github.com/kubernetes/node-problem-detector/tree/master/config"
NVSENTINEL = "https://github.com/NVIDIA/NVSentinel"
AKS = "https://learn.microsoft.com/azure/aks/node-problem-detector"
EKS = "https://docs.aws.amazon.com/eks/latest/userguide/node-health-nma.html"
KUBELET = "https://kubernetes.io/docs/reference/node/node-status/#condition"

FLAG: Final = "--node-conditions"
OURS: Final = "HoldfastHealthy"
"""The type of the condition that Holdfast sets itself: it is no evidence to itself."""
STATUSES: Final = ("True", "False", "Unknown")
TOLD_MAX: Final = 32
SAYS_LENGTH_MAX: Final = 500
REMEMBERED_MAX: Final = 4096
NODES_REMEMBERED: Final = 65_536


class Rule(msgspec.Struct, frozen=True, dict=True, omit_defaults=True, forbid_unknown_fields=True):
    """`type` and `reason` are regular expressions for the whole word; `status` is the one that means trouble."""

    type: str
    means: Meaning
    part: FaultPart = FaultPart.KERNEL
    reason: str = ".*"
    status: str = "True"
    source: str = ""

    @cached_property
    def _fits(self) -> tuple[re.Pattern[str], re.Pattern[str]]:
        return re.compile(self.type), re.compile(self.reason)

    def fits(self, condition: Condition) -> bool:
        """Whether it is about this condition, as it is now."""
        type_, reason = self._fits
        return (
            condition.status == self.status
            and type_.fullmatch(condition.type) is not None
            and reason.fullmatch(condition.reason) is not None
        )


def _rows(source: str, *rows: tuple[str, Meaning, FaultPart]) -> tuple[Rule, ...]:
    return tuple(Rule(type_, means, part, source=source) for type_, means, part in rows)


_EVIDENCE, _SUSPECT, _EVICT = Meaning.EVIDENCE, Meaning.SUSPECT, Meaning.EVICT
_GPU, _LINK, _MEMORY, _DISK = FaultPart.GPU, FaultPart.LINK, FaultPart.MEMORY, FaultPart.DISK
_KERNEL, _RUNTIME, _MAINTENANCE = FaultPart.KERNEL, FaultPart.RUNTIME, FaultPart.MAINTENANCE
_SCHEDULED = "(Preempt|Terminate|Redeploy|Reboot)Scheduled"

DEFAULTS: Final[tuple[Rule, ...]] = (
    *_rows(
        NPD,
        ("KernelDeadlock", _EVICT, _KERNEL),
        ("ReadonlyFilesystem", _SUSPECT, _DISK),
        ("XfsShutdown", _SUSPECT, _DISK),
        ("KubeletUnhealthy|ContainerRuntimeUnhealthy", _SUSPECT, _RUNTIME),
        # A runtime that restarts lets containers live: beside a fault it explains something, alone it is none.
        ("Frequent(Kubelet|Docker|Containerd)Restart", _EVIDENCE, _RUNTIME),
        ("FrequentUnregisterNetDevice|CorruptDockerOverlay2", _EVIDENCE, _RUNTIME),
    ),
    *_rows(
        NVSENTINEL,
        ("GpuMemWatch|GpuInforomWatch", _EVICT, _MEMORY),
        ("GpuPcieWatch|GpuDriverWatch|SysLogsGPUFallenOff", _EVICT, _GPU),
        ("GpuNv[Ll]inkWatch|GpuNvswitch.*Watch|SysLogsSXIDError", _EVICT, _LINK),
        # An XID may be the job's own: the agent, which reads the number, judges it by the catalogue.
        ("SysLogsXIDError|GpuXid.*|GpuThermalWatch|GpuPowerWatch|GpuSmWatch", _SUSPECT, _GPU),
        ("GpuDcgmConnectivityFailure", _EVIDENCE, _GPU),
    ),
    *_rows(
        AKS,
        ("GPUMissing", _EVICT, _GPU),
        ("NVLinkStatusInactive", _EVICT, _LINK),
        ("XIDErrors|UnhealthyNvidiaDevicePlugin", _SUSPECT, _GPU),
        ("IBLinkFlapping", _SUSPECT, _LINK),
        ("GPUClockThrottling", _EVIDENCE, _GPU),
        ("FilesystemCorruptionProblem", _SUSPECT, _DISK),
        ("KubeletProblem|ContainerRuntimeProblem", _SUSPECT, _RUNTIME),
        (_SCHEDULED, _EVICT, _MAINTENANCE),
    ),
    Rule("VMEventScheduled", _EVICT, _MAINTENANCE, reason=_SCHEDULED, source=AKS),
    Rule("VMEventScheduled", _EVIDENCE, _MAINTENANCE, source=AKS),  # a freeze of some seconds, as a rule
    Rule("AcceleratedHardwareReady", _EVICT, _GPU, status="False", source=EKS),
    Rule("KernelReady", _SUSPECT, _KERNEL, status="False", source=EKS),
    Rule("StorageReady", _SUSPECT, _DISK, status="False", source=EKS),
    Rule("NetworkingReady", _SUSPECT, _LINK, status="False", source=EKS),
    Rule("ContainerRuntimeReady", _SUSPECT, _RUNTIME, status="False", source=EKS),
    *_rows(
        KUBELET,
        # A job's own pods can bring these about.
        ("MemoryPressure|PIDPressure", _EVIDENCE, _KERNEL),
        ("DiskPressure", _EVIDENCE, _DISK),
        ("NetworkUnavailable", _EVIDENCE, _LINK),
    ),
)


class ConditionMap:
    """Rules, of which the first that fits decides. What was looked up is remembered: nodes say the same in each
    look.
    """

    def __init__(self, rules: Sequence[Rule] = DEFAULTS) -> None:
        self._rules = tuple(rules)
        self._known: dict[tuple[str, str, str], Rule | None] = {}
        self._leaving: dict[str, tuple[Sequence[Condition], bool]] = {}

    def told(self, conditions: Iterable[Condition]) -> tuple[NodeCondition, ...]:
        """Those that mean something, sorted by type."""
        found = []
        for condition in conditions:
            rule = self._rule_of(condition)
            if rule is None or rule.means is Meaning.IGNORE or condition.type == OURS:
                continue
            told = NodeCondition(
                type=condition.type[:NAME_LENGTH_MAX],
                means=rule.means,
                part=rule.part,
                reason=condition.reason[:NAME_LENGTH_MAX],
                says=condition.message[:SAYS_LENGTH_MAX],
                since=(condition.last_transition_time or "")[:NAME_LENGTH_MAX],
            )
            found.append(told)
        return tuple(sorted(found, key=lambda each: each.type)[:TOLD_MAX])

    def asks_to_leave(self, node: str, conditions: Sequence[Condition]) -> bool:
        """Whether the node of that name is to be left in good order. Cheap for conditions seen before."""
        known = self._leaving.get(node)
        if known is None or known[0] is not conditions:
            if len(self._leaving) >= NODES_REMEMBERED:
                self._leaving.clear()
            known = self._leaving[node] = conditions, bool(departure(self.told(conditions)))
        return known[1]

    def _rule_of(self, condition: Condition) -> Rule | None:
        key = (condition.type, condition.status, condition.reason)
        if key not in self._known:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[key] = next((each for each in self._rules if each.fits(condition)), None)
        return self._known[key]


def read_rules(text: str) -> ConditionMap:
    """An installation's own rules, as a JSON list, before the defaults. Raises InvalidInput, which names each."""
    if not text.strip():
        return ConditionMap()
    try:
        given = msgspec.json.decode(text, type=list[msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise InvalidInput(Problem(FLAG, text, f"give a JSON list of rules ({error})")) from error
    rules, problems = [], []
    for place, raw in enumerate(given):
        field = f"{FLAG}[{place}]"
        try:
            rule = msgspec.json.decode(raw, type=Rule)
        except msgspec.MsgspecError as error:
            problems.append(Problem(field, bytes(raw).decode(), f"mend it: {error}"))
            continue
        rules.append(rule)
        problems += _problems_of(rule, field)
    if problems:
        raise InvalidInput(*problems)
    return ConditionMap((*rules, *DEFAULTS))


def _problems_of(rule: Rule, field: str) -> list[Problem]:
    problems = []
    for name, pattern in (("type", rule.type), ("reason", rule.reason)):
        try:
            compiled = re.compile(pattern)
        except re.error as error:
            problems.append(Problem(f"{field}.{name}", pattern, f"give a regular expression ({error})"))
            continue
        if name == "type" and compiled.fullmatch("Ready"):
            fix = "leave out Ready: a node that is not ready is seen anyway, and is no fault by itself"
            problems.append(Problem(f"{field}.type", pattern, fix))
        if name == "type" and pattern == OURS:
            fix = "leave it out: Holdfast sets it itself, and takes its own word for no evidence"
            problems.append(Problem(f"{field}.type", pattern, fix))
        if name == "type" and not pattern:
            fix = "give a regular expression for the whole word, such as Gpu.*; empty fits nothing"
            problems.append(Problem(f"{field}.type", pattern, fix))
    if rule.status not in STATUSES:
        problems.append(Problem(f"{field}.status", rule.status, f"say {', '.join(STATUSES)}"))
    if rule.part is FaultPart.MAINTENANCE and rule.means is Meaning.SUSPECT:
        fix = "say evict, which leaves the node in good order, or evidence: nobody is to blame for maintenance"
        problems.append(Problem(f"{field}.means", rule.means.value, fix))
    return problems


def departure(conditions: Iterable[NodeCondition]) -> str:
    """Why the node is to be left in good order, empty when none of them asks for it."""
    for each in conditions:
        if each.part is FaultPart.MAINTENANCE and each.means is Meaning.EVICT:
            return f"condition {each.type}: {each.says or each.reason}"
    return ""
