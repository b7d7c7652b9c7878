"""Crash loop: the same job failing again and again without getting anywhere.

A pure function over journaled history rather than a window in memory: a watchdog that restarts in the middle of
a crash loop must not start counting anew.
"""

import re

import msgspec

from holdfast.api.policy import Policy

# The first failure is healed at once; the fourth in a row without a new step is not chance. NVRx stops after three
# cycles without a new checkpoint. Source: NVIDIA/nvidia-resiliency-ext, docs of the no-progress breaker.
FAILURES_THAT_END = 4
BACKOFF_S_MAX = 300.0
BACKOFF_FACTOR = 2.0


class Failure(msgspec.Struct, frozen=True):
    """One failure: when, at which highest step, of what class, with which error text."""

    at: float
    step: int
    cause: str
    error: str = ""


class RestartNow(msgspec.Struct, frozen=True):
    """No loop: heal without delay."""


class Wait(msgspec.Struct, frozen=True):
    """Heal after `seconds`: something may need time to come back."""

    seconds: float


class GiveUp(msgspec.Struct, frozen=True):
    """Healing does not help; a human is needed."""

    reason: str


Verdict = RestartNow | Wait | GiveUp


def crash_loop(failures: tuple[Failure, ...], policy: Policy) -> Verdict:
    """Judge the failures since the job last made progress, the newest one included, oldest first."""
    count = len(failures)
    if failures and _refused_its_arguments(failures[-1]):
        return GiveUp(f"the script refused to start: {failures[-1].cause}")
    if count <= 1:
        return RestartNow()
    newest = failures[-1]
    if count >= FAILURES_THAT_END:
        says = (
            f"crash loop: {count} failures in a row without a new step beyond {newest.step}, last {newest.cause}"
        )
        return GiveUp(says)
    return Wait(min(BACKOFF_S_MAX, policy.restarts.backoff_s * BACKOFF_FACTOR ** (count - 2)))


def _refused_its_arguments(failure: Failure) -> bool:
    """Whether a script ended with a usage error before it ever made a step: starting it again cannot help.

    Source: exit status 2 for command line errors, https://docs.python.org/3/library/argparse.html
    """
    return failure.step == 0 and re.match(r"exit code 2\b", failure.cause) is not None
