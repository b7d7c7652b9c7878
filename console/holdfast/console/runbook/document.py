"""The pages that are written from the table of checks: docs/runbook-checks.md, and a part of each alert's page."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from holdfast.console.runbook.check import Check
from holdfast.console.runbook.symptom import SAYS, Symptom
from holdfast.console.runbook.table import CHECKS, checks_of

_ALERTS: Final[Mapping[Symptom, tuple[str, ...]]] = MappingProxyType(
    {
        Symptom.LOSS_SPIKED: ("LossSpike", "Divergence", "DataWrong"),
        Symptom.NAN: ("LossNotFinite",),
        Symptom.HUNG: (
            "JobStalled",
            "JobNotProgressing",
            "IncidentOpenTooLong",
            "IncidentNeedsHuman",
            "AgentDown",
        ),
        Symptom.SLOW: ("Straggler", "TokensFalling", "MfuFalling", "GpuThrottled", "GpuHot", "RackHot"),
        Symptom.WILL_NOT_START: ("JobFailed", "JobDegraded", "SparesExhausted", "EvictionBudgetNear"),
        Symptom.OUT_OF_MEMORY: ("MemoryKill", "NodeMemoryLow"),
        Symptom.NODE_SUSPECT: (
            "CorruptionFound",
            "EccUncorrected",
            "GpuLost",
            "GpuMemoryWearing",
            "GpuPowerBrake",
            "GpuRecoveryNeeded",
            "GpuTemperatureRising",
            "GpuXid",
            "HostMemoryError",
            "KernelLogLost",
            "LinkDegraded",
            "LinkDown",
            "LinkErrors",
            "FaultsGather",
            "LinkFlapping",
            "NvlinkDown",
            "NvswitchFault",
            "PcieDegraded",
            "PcieFatal",
            "PreemptionNotice",
            "RowRemapFailed",
            "SelfTestFailed",
            "SensorUnreadable",
            "ClockUnsynchronised",
        ),
        Symptom.CHECKPOINT_STALE: ("CheckpointStale", "NodeDiskFull", "DiskReadOnly", "RedundancyLost"),
        Symptom.COST: ("RestartsTooOften", "Budget", "BudgetForecast"),
    }
)
SYMPTOM_OF_ALERT: Final[Mapping[str, Symptom]] = MappingProxyType(
    {f"Holdfast{alert}": symptom for symptom, alerts in _ALERTS.items() for alert in alerts}
)
OF_THE_INSTALLATION: Final = frozenset(
    {
        "HoldfastDetectorFailing",
        "HoldfastEventsDropped",
        "HoldfastNoOperatorLeads",
        "HoldfastNobodyLeads",
        "HoldfastStoreAway",
        "HoldfastWatchdogSlow",
        "HoldfastWatchdogUnreachable",
    }
)
"""Alerts about Holdfast itself: `holdfast doctor` looks at that, and no symptom of a job is meant."""
BEGIN: Final = "<!-- checks: run python tests/unit/repository/test_runbook_document.py -->"
END: Final = "<!-- end of checks -->"
HEAD: Final = """# What the runbook checks

`holdfast runbook SYMPTOM` makes the checks below over what the watchdog knows, and prints the likeliest suspect
first; `kubectl holdfast runbook SYMPTOM` does so in a cluster. Without a symptom it says which the job shows.
`--since 6h` looks further back than two hours; of a job that is over, back from its end.

- **fine**: it was looked at, and is not so. **suspect**: something speaks for it. **unknown**: nobody can tell,
  with the reason; never taken for fine.
- **proved**: what the check names is certain, as a vote of the replicas or the kernel's own word. That the symptom
  comes of it is yours to judge.
- Suspects that are proved come first, then those that a detector or a sensor names, then what merely happened
  before. What is long over is a hint only; so is what was healed more than a minute ago, but for out-of-memory,
  node-suspect, nan and cost. Of equals the likelier one comes first.
- *Of 100* is of a hundred such calls about how many it is. It orders the checks and is no measurement: published
  shares are of other questions than yours, and most checks have none.
- A check looks at what is told. A poisoned batch, a wrong gradient that all ranks took over, and the script's own
  schedule of learning rates are not seen.

Every check is a pure function in [console/runbook](../console/holdfast/console/runbook), and this page is written
from their table. `make bench NAME=runbook` injects faults into jobs and prints what is suspected first.
"""


def page() -> str:
    """docs/runbook-checks.md."""
    parts = [HEAD]
    for symptom in Symptom:
        alerts = ", ".join(
            f"[{alert}](runbooks/{alert}.md)" for alert, of in SYMPTOM_OF_ALERT.items() if of is symptom
        )
        rows = [f"| {check.title} | `{check.id}` | {check.likely[symptom]} |" for check in checks_of(symptom)]
        table = ["| what may be wrong | check | of 100 |", "|---|---|---|", *rows]
        parts.append(
            "\n".join([f"## {symptom}", "", f"{_sentence(SAYS[symptom])} Alerts: {alerts}.", "", *table, ""])
        )
    rows = [f"| `{check.id}` | {' or '.join(_typed(check))} | {check.source} |" for check in CHECKS]
    head = ["## Each check", "", "| check | run next | where the likelihood is from |", "|---|---|---|"]
    return "\n".join([*parts, *head, *rows, ""])


def section(alert: str) -> str:
    """The part of an alert's page between the markers, with them."""
    symptom = SYMPTOM_OF_ALERT[alert]
    lines = [
        BEGIN,
        "",
        f"`kubectl holdfast runbook {symptom} -n NAMESPACE --job JOB` checks all of this, and says what is",
        "suspect, with the command to run next:",
        "",
        *(f"- {check.title}" for check in checks_of(symptom)),
        "",
        f"[What each of them is](../runbook-checks.md#{symptom}).",
        "",
        END,
    ]
    return "\n".join(lines)


def renewed(alert: str, text: str) -> str:
    """An alert's page with its part written anew; one that has none yet gets it behind `## How to check`."""
    if BEGIN in text:
        before, _, rest = text.partition(BEGIN)
        return before + section(alert) + rest.partition(END)[2]
    before, heading, rest = text.partition("## How to check\n")
    return f"{before}{heading}\n{section(alert)}\n{rest}"


def _typed(check: Check) -> Iterator[str]:
    """Its commands, with capital letters for what is filled in."""
    for command in check.next:
        yield f"`holdfast {command.format(incident='INCIDENT', node='NODE', rank='R', step='STEP')}`"


def _sentence(says: str) -> str:
    return f"{says[0].upper()}{says[1:]}."
