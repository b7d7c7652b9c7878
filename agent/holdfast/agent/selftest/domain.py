"""Whether the ranks that must share one NVLink domain can: between domains their links are ten times slower."""

import time
from collections.abc import Sequence

from holdfast.api.selftest import CheckResult, Verdict
from holdfast.api.telemetry import Unreadable


def judge_domains(blank: CheckResult, tensor: int, domains: Sequence[int] | Unreadable) -> CheckResult:
    """`domains` are the sizes of the NVLink domains among the GPUs that are tested. Pure."""
    if isinstance(domains, Unreadable):
        says = f"the NVLink domains are not known: {domains.reason}"
        return CheckResult(blank.check, blank.device, Verdict.UNKNOWN, says, blank.took_s)
    largest = max(domains, default=0)
    says = f"tensor parallel size {tensor} asked of a {largest}-GPU NVLink domain"
    if largest < tensor or largest % tensor:
        return CheckResult(blank.check, blank.device, Verdict.FAILED, says, blank.took_s)
    return CheckResult(blank.check, blank.device, Verdict.PASSED, says, blank.took_s)


def check_topology(tensor: int, tested: Sequence[str], blank: CheckResult) -> CheckResult:
    """Ask NVML for the domains; `tested` are the names of the devices whose ranks are to share one."""
    return judge_domains(blank, tensor, _domains(tested))


def _domains(tested: Sequence[str]) -> tuple[int, ...] | Unreadable:
    try:
        # Only here: a test on the CPU needs no driver and no binding to it.
        from holdfast.agent.nvml.driver import Driver
        from holdfast.agent.nvml.topology import nvlink_domains
    except ImportError as error:
        return Unreadable("nvml", f"{error.name} is not installed")
    domains = nvlink_domains(Driver(time.monotonic))
    if isinstance(domains, Unreadable):
        return domains
    sizes = [sum(uuid in tested for uuid in group) for group in domains.groups]
    return tuple(size for size in sizes if size)
