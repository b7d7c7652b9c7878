"""Whether the ranks that must share one NVLink domain can: between domains their links are ten times slower."""

import time
from collections.abc import Sequence

from holdfast.api.selftest import TOPOLOGY, CheckResult, Verdict
from holdfast.api.telemetry import Unreadable


def judge_domains(blank: CheckResult, tensor: int, largest: int | Unreadable) -> CheckResult:
    """`largest`: how many of the GPUs that are tested share one NVLink domain at most. Pure.

    The result is `TOPOLOGY`'s, whatever the check is called that asks the driver: that one failing is a fault.
    """
    if isinstance(largest, Unreadable):
        says = f"the NVLink domains are not known: {largest.reason}"
        return CheckResult(TOPOLOGY, blank.device, Verdict.UNKNOWN, says, blank.took_s)
    says = f"tensor parallel size {tensor} asked of a {largest}-GPU NVLink domain"
    if largest < tensor or largest % tensor:
        return CheckResult(TOPOLOGY, blank.device, Verdict.FAILED, says, blank.took_s)
    return CheckResult(TOPOLOGY, blank.device, Verdict.PASSED, says, blank.took_s)


def check_topology(tensor: int, tested: Sequence[str], blank: CheckResult) -> CheckResult:
    """Ask NVML for the domains; `tested` are the names of the devices whose ranks are to share one."""
    return judge_domains(blank, tensor, _largest(tested))


def _largest(tested: Sequence[str]) -> int | Unreadable:
    try:
        # Only here: a test on the CPU needs no driver and no binding to it.
        from holdfast.agent.nvml.driver import Driver
        from holdfast.agent.nvml.topology import nvlink_domains
    except ImportError as error:
        return Unreadable("nvml", f"{error.name} is not installed")
    domains = nvlink_domains(Driver(time.monotonic))
    if isinstance(domains, Unreadable):
        return domains
    known = {uuid for group in domains.groups for uuid in group}
    # A GPU that was not reached has told no UUID, and neither a slice of one nor a CPU has links of its own.
    if strange := [name for name in tested if name not in known]:
        return Unreadable("nvml", f"the driver knows no GPU by the name of {', '.join(strange)}")
    return domains.largest(tested)
