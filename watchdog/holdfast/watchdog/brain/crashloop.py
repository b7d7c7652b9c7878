"""When another try is of no use: failures in a row without a new step, and mistakes that a script's start shows.

Both ask a human. Whether a script has trained before decides how much it takes: what it could load once is there
to be loaded again, as a rule, and what is away for a while (a mount, a name service) is no mistake of its author.
"""

from holdfast.api.finding import Confidence, Finding, FindingKind
from holdfast.api.policy import Policy
from holdfast.watchdog.brain.state import Failure, JobState

# The first failure is healed at once; the fourth in a row without a new step is not chance. NVRx stops after three
# cycles without a new checkpoint. Source: NVIDIA/nvidia-resiliency-ext, docs of the no-progress breaker.
FAILURES_THAT_END = 4
BACKOFF_S_MAX = 300.0
BACKOFF_FACTOR = 2.0


def crash_loop(failures: tuple[Failure, ...], policy: Policy) -> tuple[float, str]:
    """For how many seconds to wait before healing the newest of the failures since the job last made progress,
    oldest first: something may need time to come back. And why healing does not help, empty where it may.

    A failure that all ranks share is in what they share: the script, its arguments, its environment; so is a rank
    that ends before the others, and one whose exception came from the same lines twice before it trained. It is
    tried again once, in case a file system or a name service was late, and no more. Judged is the journaled
    history: a watchdog that restarts in the middle of a crash loop must not start counting anew.
    """
    count = len(failures)
    if count <= 1:
        return 0.0, ""
    newest, before = failures[-1], failures[-2]
    if newest.alike and before.alike == newest.alike:
        return 0.0, f"the script failed in one way twice, without a new step in between: {newest.cause}"
    if newest.trace and before.trace == newest.trace:
        return 0.0, f"the script raised the same twice, before any step and at the same lines: {newest.cause}"
    if count >= FAILURES_THAT_END:
        row = f"crash loop: {count} failures in a row without a new step"
        return 0.0, f"{row} beyond {newest.step}, last {newest.cause}"
    return min(BACKOFF_S_MAX, policy.restarts.backoff_s * BACKOFF_FACTOR ** (count - 2)), ""


def is_frozen(finding: Finding) -> bool:
    """Whether a process proves by itself that it does not run, though nothing has ended it."""
    return finding.kind is FindingKind.HANG and finding.confidence is Confidence.CERTAIN


def has_been_tried(state: JobState, finding: Finding) -> bool:
    """Whether a mistake is known for one: at once, but of a script that has trained, or that another node could
    try, when it comes again. What a script could load once may be away for a while, on all nodes at once.
    """
    again = any(each.alike == finding.alike for each in state.failures)
    return again or not (state.has_trained or _another_node_could_try(state))


def _another_node_could_try(state: JobState) -> bool:
    """Whether all ranks are on one node while another one waits: what that one would say is not known."""
    tried = {share.node for share in state.round.ranks} if state.round else set()
    return len(tried) == 1 and any(member.node not in tried for member in state.eligible())


def is_first_rank_alone(state: JobState, finding: Finding) -> bool:
    """Whether what rank 0 loads in vain may be what no other rank loads (`if rank == 0: import wandb`): it has its
    node for itself, and the job has never trained.
    """
    share = state.round.share_of(finding.subject.member or "") if state.round is not None else None
    is_alone = share is not None and share.first_rank == 0 and share.local_size == 1
    return is_alone and not state.has_trained
