"""Crash loop: the same job failing again and again without getting anywhere.

A pure function over journaled history rather than a window in memory: a watchdog that restarts in the middle of
a crash loop must not start counting anew.
"""

import msgspec

from holdfast.api.policy import Policy

# The first failure is healed at once; the fourth in a row without a new step is not chance. NVRx stops after three
# cycles without a new checkpoint. Source: NVIDIA/nvidia-resiliency-ext, docs of the no-progress breaker.
FAILURES_THAT_END = 4
BACKOFF_S_MAX = 300.0
BACKOFF_FACTOR = 2.0


class Failure(msgspec.Struct, frozen=True):
    """One failure: when, at which highest step, of what class, with which error text. `alike` as in `Finding`."""

    at: float
    step: int
    cause: str
    error: str = ""
    alike: str = ""


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
    """Judge the failures since the job last made progress, the newest one included, oldest first.

    A failure that all ranks share is in what they share: the script, its arguments, its environment; so is a rank
    that ends before the others. It is tried again once, in case a file system or a name service was late, and no
    more.
    """
    count = len(failures)
    if count <= 1:
        return RestartNow()
    newest = failures[-1]
    if newest.alike and failures[-2].alike == newest.alike:
        return GiveUp(f"the script failed in one way twice, without a new step in between: {newest.cause}")
    if count >= FAILURES_THAT_END:
        says = (
            f"crash loop: {count} failures in a row without a new step beyond {newest.step}, last {newest.cause}"
        )
        return GiveUp(says)
    return Wait(min(BACKOFF_S_MAX, policy.restarts.backoff_s * BACKOFF_FACTOR ** (count - 2)))
