"""Whether the ranks that must share one NVLink domain can: between domains their links are ten times slower."""

from collections.abc import Sequence

from holdfast.api.selftest import CheckResult, Verdict


def judge_domains(blank: CheckResult, tensor: int, domains: Sequence[int]) -> CheckResult:
    """`domains` are the sizes of the NVLink domains of this node's GPUs. Pure."""
    largest = max(domains, default=0)
    asked = f"tensor parallel size {tensor} asked of"
    if largest < tensor:
        verdict, says = Verdict.FAILED, f"{asked} a {largest}-GPU NVLink domain"
    elif largest % tensor:
        verdict, says = Verdict.FAILED, f"{asked} a {largest}-GPU NVLink domain, which it does not divide"
    else:
        verdict, says = Verdict.PASSED, f"{asked} a {largest}-GPU NVLink domain"
    return CheckResult(blank.check, blank.device, verdict, says, blank.took_s)


def check_topology(tensor: int, blank: CheckResult) -> CheckResult:
    """Ask NVML for the domains; without it they are Unknown."""
    return CheckResult(
        blank.check, blank.device, Verdict.UNKNOWN, "the NVLink domains cannot be read here", blank.took_s
    )
