"""The recovery ladder: which rung a finding calls for, and the guards that hold it back.

    0 skip step   1 re-enter   2 respawn   3 swap   4 shrink   5 rewind   6 page

The lowest rung the evidence allows is taken; repetition climbs. Whether a swap becomes a shrink is seen when
the round is formed, because only then is it known whether a spare is there.
"""

from collections.abc import Callable, Mapping

import msgspec

from holdfast.api.checkpoint import restore_order
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind
from holdfast.api.incident import Rung
from holdfast.api.policy import Policy, XidAction
from holdfast.api.round import Entry, Reentry
from holdfast.watchdog.brain.crashloop import crash_loop, has_been_tried, is_first_rank_alone, is_frozen
from holdfast.watchdog.brain.groups import is_in_groups
from holdfast.watchdog.brain.history import comes_again, is_disputed, is_of_replicas, no_help
from holdfast.watchdog.brain.longwork import ADVICE, is_no_reason_to_leave
from holdfast.watchdog.brain.repetition import elsewhere, repeated, strikes
from holdfast.watchdog.brain.rewinds import known_checkpoints, target
from holdfast.watchdog.brain.rounds import legal_size
from holdfast.watchdog.brain.state import Failure, JobState
from holdfast.watchdog.detectors.device_vote import MEMORY_CHANGE
from holdfast.watchdog.detectors.process_exit import LOADS_NOT
from holdfast.watchdog.detectors.user_code import ALIKE as EARLY_EXIT
from holdfast.watchdog.wording import in_words

# Faults that the job's own code can bring about, again and again. A rack that dies is ten lost members at once
# and still no crash loop.
LOOPING = (
    FindingKind.PROCESS_EXIT,
    FindingKind.USER_CODE,
    FindingKind.COLLECTIVE_FAILED,
    FindingKind.HANG,
    FindingKind.XID,
)

# How often a node has to fail so before the number of its faults can condemn it (repetition.py). The third death
# by signal, or loss, may: two connections that broke may be a network card that flapped. ByteRobust bears as many.
# Source: arXiv:2509.16293.
LOSSES_THAT_CONDEMN = 3
# The second hang on one node does: it costs more and has fewer innocent causes.
HANGS_THAT_CONDEMN = 2
# So does the second time that its ranks cannot load what those of other nodes load.
LOADS_THAT_CONDEMN = 2
# A worker that somebody ended, as the kernel does when memory is short, says nothing of its GPU.
SENT_BY_OTHERS = ("signal 9 ", "signal 15 ")
# Faults that evict by their number alone: each of them may have another reason than the node.
COUNTED = (FindingKind.PROCESS_EXIT, FindingKind.HANG, FindingKind.MEMBER_LOST)
# Two devices that differ, pass their tests and differ again will not be told apart by going back once more.
TIES_THAT_PAGE = 3


class Decision(msgspec.Struct, frozen=True):
    """What to do about a finding. `evict` names a node to keep away from, `exonerate` nodes to take back;
    `amounts_to` is what the finding means in the light of those before it. `rewinds`: the next round restores what
    was verified; `tests` are members whose devices are tested before it. `along` are nodes that leave with
    `evict`, `tests_later` members whose devices are tested when their workers have next left a round.
    `notifies`: a human is to hear of it, while healing goes on; `goes_on`: a human is asked, nothing else.
    """

    rung: Rung
    reason: str
    entry: Entry = Entry.REENTER
    fresh_ranks: tuple[int, ...] = ()
    evict: str | None = None
    exonerate: tuple[str, ...] = ()
    delay_s: float = 0.0
    guards: tuple[str, ...] = ()
    amounts_to: Finding | None = None
    rewinds: bool = False
    along: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    tests_later: tuple[str, ...] = ()
    notifies: bool = False
    goes_on: bool = False


def decide(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision | None:
    """The rung for this finding; None when the catalogue says that it needs no action."""
    if finding.skipped:
        return Decision(Rung.SKIP_STEP, f"{finding.cause} at step {finding.step}: all ranks left the step out")
    wanted = RULES[finding.kind](state, policy, finding, now)
    if wanted is None:
        return None
    if wanted.evict is not None:
        wanted = within_blast_radius(state, policy, _while_it_can_train(state, policy, finding, wanted), now)
    wanted = _within_restart_budget(state, policy, wanted, now)
    wanted = _with_tests(state, policy, finding, wanted, now)
    if wanted.rung is Rung.PAGE or not may_loop(finding, wanted):
        return wanted
    return _without_crash_loop(state, policy, finding, wanted, now)


def may_loop(finding: Finding, wanted: Decision) -> bool:
    """Whether this could be the job's own fault: an evicted node has taken the suspected cause with it."""
    return finding.kind in LOOPING and wanted.evict is None


def failure_of(state: JobState, finding: Finding, now: float) -> Failure:
    """The finding as the crash-loop rule remembers it."""
    step, cause = state.high_step, finding.cause
    marks = (finding.alike, "" if finding.began else finding.trace)
    return Failure(now, step, cause, finding.error, *marks, frozen=is_frozen(finding))


def _process_exit(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    if (again := _deaths(state, finding, now)) is not None:
        return again
    if state.failures:
        return Decision(
            Rung.RESPAWN, f"a worker died again before new progress: {_all(state)} start anew", entry=Entry.RESPAWN
        )
    return Decision(
        Rung.RESPAWN,
        f"rank {finding.subject.rank} died ({finding.cause}): it starts anew, {_the_others(state)}",
        fresh_ranks=_ranks(finding),
    )


def _deaths(state: JobState, finding: Finding, now: float) -> Decision | None:
    """The node leaves where its workers alone die by signal, or cannot load what others load, too often."""
    if finding.cause.startswith("signal"):
        least, does = LOSSES_THAT_CONDEMN, "died by signal"
    elif finding.cause == LOADS_NOT and not is_first_rank_alone(state, finding):
        least, does = LOADS_THAT_CONDEMN, f"failed so ({finding.cause})"
    else:
        return None
    if (again := repeated(state, finding, least, now)) is None:
        return None
    where = f"on node {finding.subject.node} within {again.within}"
    says = f"{again.times} workers {does} {where}, {again.elsewhere} elsewhere"
    return Decision(Rung.SWAP, says, evict=finding.subject.node, guards=(again.guard,))


def _user_code(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    """It may be a batch that is read differently the next time; no node is asked to leave for it."""
    if finding.asks is XidAction.WATCH:
        says = f"{finding.cause}: Holdfast sees and heals none of them; {finding.fix}"
        return Decision(Rung.PAGE, says, goes_on=True)
    if finding.fix and has_been_tried(state, finding):
        says = f"the script cannot start: {finding.cause}; {finding.fix}; then restart the job"
        return Decision(Rung.PAGE, says, guards=("no further try: every rank failed so before its first step",))
    if finding.fix and state.has_trained:
        says = f"{finding.cause}, in a script that has trained: tried once more, as a mount may come back"
        return Decision(Rung.RESPAWN, says, entry=Entry.RESPAWN)
    if state.failures:
        says = "the script failed again before new progress: all workers start anew"
        return Decision(Rung.RESPAWN, says, entry=Entry.RESPAWN)
    if finding.alike == EARLY_EXIT:
        says = f"{finding.cause}, as the script decided: all workers start anew, once"
        return Decision(Rung.RESPAWN, says, entry=Entry.RESPAWN)
    if finding.alike:
        says = f"the script failed on every rank in one way ({finding.cause}): tried once more"
        return Decision(Rung.RESPAWN, says, entry=Entry.RESPAWN)
    who = f"rank {finding.subject.rank} ({finding.cause})"
    says = f"the script failed on {who}: it starts anew, {_the_others(state)}"
    return Decision(Rung.RESPAWN, says, fresh_ranks=_ranks(finding))


def _nothing_to_restore(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    """Trying again would find the same, and to start over may throw months of work away: that is for a human."""
    return Decision(
        Rung.PAGE,
        f"{finding.cause}; a job never starts over unasked: mend one of them and restart it, or restart it with "
        "--fresh",
        guards=("never start over unasked",),
    )


def _collective_failed(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    if state.failures:
        return Decision(Rung.RESPAWN, "re-entering did not help: all workers start anew", entry=Entry.RESPAWN)
    if is_in_groups(state):
        who = "its replica group re-enters" if finding.subject.member is not None else "replica groups meet anew"
        return Decision(Rung.REENTER, f"{finding.cause} with every process alive: {who}")
    return Decision(Rung.REENTER, "a collective failed with every process alive: all re-enter")


def _hang(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    known = finding.confidence is not Confidence.UNKNOWN
    counts = known and not is_no_reason_to_leave(state, finding)
    node, again = finding.subject.node, repeated(state, finding, HANGS_THAT_CONDEMN, now) if counts else None
    if again is not None:
        says = f"node {node} hung again within {again.within}"
        return Decision(Rung.SWAP, says, evict=node, guards=(again.guard,))
    whose = f"; the script works on, and no node has a part in it: {ADVICE}" if finding.innocent else ""
    if state.failures:
        says = f"it hung again before new progress: {_all(state)} start anew{whose}"
        return Decision(Rung.RESPAWN, says, entry=Entry.RESPAWN)
    if not known:
        who = "workers start anew" if _needs_new_processes(state) else "re-enter"
        return Decision(Rung.REENTER, f"the step hangs and no rank stands out: all {who}")
    ranks = _ranks(finding)
    named = ", ".join(map(str, ranks))
    says = f"rank {named} did not arrive: it starts anew, {_the_others(state)}{whose}"
    return Decision(Rung.RESPAWN, says, fresh_ranks=ranks)


def _member_lost(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    if finding.also:
        return Decision(Rung.SWAP, f"{len(finding.also)} members are gone at once: spares take their ranks")
    node = finding.subject.node
    if finding.innocent:
        return Decision(Rung.SWAP, f"{finding.cause}: a spare takes its ranks")
    if (again := repeated(state, finding, LOSSES_THAT_CONDEMN, now)) is not None:
        says = f"node {node} was lost again and again within {again.within}"
        return Decision(Rung.SWAP, says, evict=node, guards=(again.guard,))
    return Decision(Rung.SWAP, f"node {node} is gone ({finding.cause}): a spare takes its ranks")


def _xid(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision | None:
    """What the detector decided that this error asks for.

    A finding of an older journal carries no decision; the node leaves, as for most errors that become findings.
    """
    if finding.asks is XidAction.IGNORE:
        return None
    if finding.asks is XidAction.RESTART:
        return _asked(state, policy, finding, now)
    may_be_software = finding.confidence is Confidence.PROBABLE
    if may_be_software and (others := elsewhere(state, finding, now)):
        return Decision(
            Rung.RESPAWN,
            f"{finding.cause} followed the job from node {', '.join(others)} to {finding.subject.node}: "
            "the software is suspect, the nodes are returned",
            entry=Entry.RESPAWN,
            exonerate=others,
            delay_s=policy.restarts.backoff_s,
            guards=("follow the fault: seen on two nodes",),
        )
    return Decision(Rung.SWAP, f"{finding.cause}: the node leaves the job", evict=finding.subject.node)


def _asked(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision | None:
    """What the detector's catalogue or the job's policy asks for."""
    node = finding.subject.node
    if finding.asks is XidAction.EVICT:
        return Decision(Rung.SWAP, f"{finding.cause}: the node leaves the job", evict=node)
    if finding.asks is XidAction.RESTART:
        return Decision(
            Rung.RESPAWN,
            f"{finding.cause} asks for a restart on the same node",
            fresh_ranks=_ranks(finding) or _ranks_on(state, node),
        )
    return None


def _corruption(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision | None:
    node, at = finding.subject.node, f"after step {finding.step}"
    who, differs = (
        ("replicas", "differs from its replicas") if is_of_replicas(finding) else ("devices", "is wrong")
    )
    if finding.cause == MEMORY_CHANGE:
        differs = "did not keep its parameters"
    if is_disputed(finding) and strikes(state, finding, now) >= TIES_THAT_PAGE - 1:
        return Decision(
            Rung.PAGE, f"{who} differ {at} again, and neither tests nor training again told who is wrong"
        )
    if is_disputed(finding):
        named = {each.node for each in (finding.subject, *finding.also) if each.node is not None}
        suspects = tuple(sorted(each.name for each in state.members.on_nodes(named)))
        tests = suspects if policy.preflight is not None else ()
        told = "they are tested, and what follows the last agreement is trained again" if tests else "all go back"
        return Decision(
            Rung.REWIND, f"{who} differ {at} and nobody can be convicted: {told}", rewinds=True, tests=tests
        )
    if finding.asks is XidAction.RESTART:
        return Decision(Rung.REWIND, f"node {node} {differs} {at}: all go back", rewinds=True)
    others = {each.node for each in finding.also if each.node not in (None, node)}
    culprits = in_words({str(node), *others})
    says = f"{culprits} {differs} {at}: it leaves, the others go back to what was verified"
    return Decision(Rung.REWIND, says, evict=node, rewinds=True, along=tuple(sorted(map(str, others))))


def _non_finite(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    at = f"{finding.cause} at step {finding.step}"
    if (why := no_help(state, finding, now)) is not None:
        why += _of_the_batch(state, finding) if comes_again(state, finding) else ""
        return Decision(Rung.PAGE, f"{at}: {why}", guards=("going back: no progress since the last time",))
    return Decision(
        Rung.REWIND, f"{at}: all go back to the newest checkpoint that was healthy before it", rewinds=True
    )


def _of_the_batch(state: JobState, finding: Finding) -> str:
    """Which batch it is that gave the value twice, and how to go on without it."""
    where = target(state, None)
    whose = "" if finding.subject.rank is None else f" on rank {finding.subject.rank}"
    says = f"; the batch of step {finding.step}{whose} gives it each time: it is the data's or the script's"
    if isinstance(where, str) or finding.step is None:
        return says
    namespace, _, name = state.job.rpartition("/")
    job = f"--job {name}" + (f" --namespace {namespace}" if namespace not in ("", "default") else "")
    return f"{says}. To train without it: holdfast skip-batches {finding.step - where.step} {job}"


def _divergence(state: JobState, policy: Policy, finding: Finding, now: float) -> Decision:
    """As operators of large runs did it by hand; going back asks for a checkpoint of before, and for progress."""
    first, loss = finding.step or 0, policy.loss
    at = f"{finding.cause} since step {first}"
    why = no_help(state, finding, now)
    below = [each for each in known_checkpoints(state) if each.step < first]
    if why is None and not restore_order(below[::-1], state.unhealthy_from):
        why = "no checkpoint of a step before it is there"
    if why is not None:
        return Decision(Rung.PAGE, f"{at}: {why}; training goes on", guards=("going back: it would be no help",))
    says = f"{at}: all go back to the newest checkpoint before it"
    if (rank := finding.subject.rank) is not None:
        # The others' batches are as good as ever: the same steps again are what the run would have been without.
        return Decision(Rung.REWIND, f"{says}, rank {rank} as a new process", rewinds=True, fresh_ranks=(rank,))
    if loss is not None and loss.skip_batches:
        says += f" and pass over the batches up to it and {loss.skip_batches} more"
    if loss is not None and loss.learning_rate_scale != 1.0:
        says += f", with the learning rate times {loss.learning_rate_scale:g}"
    return Decision(Rung.REWIND, says, rewinds=True)


# A STRAGGLER breaks nothing, and has a ladder of its own: stragglers.py.
RULES: Mapping[FindingKind, Callable[[JobState, Policy, Finding, float], Decision | None]] = {
    FindingKind.PROCESS_EXIT: _process_exit,
    FindingKind.USER_CODE: _user_code,
    FindingKind.NOTHING_TO_RESTORE: _nothing_to_restore,
    FindingKind.COLLECTIVE_FAILED: _collective_failed,
    FindingKind.HANG: _hang,
    FindingKind.MEMBER_LOST: _member_lost,
    FindingKind.XID: _xid,
    FindingKind.GPU_LOST: lambda state, policy, finding, now: Decision(
        Rung.SWAP, f"a GPU is lost ({finding.cause}): the node leaves the job", evict=finding.subject.node
    ),
    FindingKind.CRASH_LOOP: lambda state, policy, finding, now: Decision(Rung.PAGE, finding.cause),
    FindingKind.CONDITION: _asked,
    FindingKind.THERMAL: _asked,
    FindingKind.SELF_TEST: _asked,
    FindingKind.CORRUPTION: _corruption,
    FindingKind.NON_FINITE: _non_finite,
    FindingKind.DIVERGENCE: _divergence,
    FindingKind.DATA: _asked,
}


def _while_it_can_train(state: JobState, policy: Policy, finding: Finding, wanted: Decision) -> Decision:
    """Nobody is evicted for failing often when the job could not train without its node: a human hears of it.

    What proves that a node is broken evicts it all the same, and the job waits for another one.
    """
    leaving = (wanted.evict, *wanted.along)
    if legal_size(policy, sum(1 for each in state.eligible() if each.node not in leaving)):
        return wanted
    guard = f"no legal round without {in_words(map(str, leaving))}"
    if finding.kind not in COUNTED:
        return msgspec.structs.replace(wanted, notifies=True, guards=(*wanted.guards, guard))
    says = f"{wanted.reason}; nothing can take its place, so it stays"
    rung = Rung.SWAP if finding.kind is FindingKind.MEMBER_LOST else Rung.RESPAWN
    return Decision(rung, says, entry=Entry.RESPAWN, guards=(*wanted.guards, guard), notifies=True)


def within_blast_radius(state: JobState, policy: Policy, wanted: Decision, now: float) -> Decision:
    """Evictions have a budget, by count in a window and by share of the nodes; beyond it a human decides."""
    if wanted.evict is None:
        return wanted
    budget = policy.evictions
    recent = sum(1 for at in state.evictions if at > now - budget.per_s)
    # What other jobs know of a node is bounded by itself, and must not use up what this job may do for itself.
    avoided = [order.node for order in state.avoided if order.node not in state.reputed]
    nodes = {member.node for member in state.members} | set(avoided)
    share = max(1, int(budget.fraction * len(nodes)))
    counted = f"blast radius: {recent} of {budget.count} evictions in {budget.per_s:.0f} s"
    shared = f"blast radius: {len(avoided)} of {share} nodes avoided"
    share = max(share, 1 + len(wanted.along))
    if recent + len(wanted.along) >= budget.count or len(avoided) + len(wanted.along) >= share:
        return Decision(
            Rung.PAGE,
            f"evicting {wanted.evict} would exceed the eviction budget ({counted}; {shared}); {wanted.reason}",
            guards=(counted, shared),
        )
    return msgspec.structs.replace(wanted, guards=(*wanted.guards, counted, shared))


def _with_tests(state: JobState, policy: Policy, finding: Finding, wanted: Decision, now: float) -> Decision:
    """A node that goes on after a fault of its own is tested when there is time, the second time before it does.

    Only a fault that devices can bring about keeps everybody waiting, and only while no other node shows it.
    """
    suspect = finding.kind is FindingKind.XID or finding.cause.startswith("signal")
    node, before = finding.subject.node, strikes(state, finding, now)
    if policy.preflight is None or node is None or wanted.rung is Rung.PAGE or wanted.evict is not None:
        return wanted
    if not suspect or (finding.kind is not FindingKind.XID and not before) or elsewhere(state, finding, now):
        return wanted
    names = tuple(each.name for each in state.members.on_nodes((node,)))
    if not before or finding.cause.startswith(SENT_BY_OTHERS):
        return msgspec.structs.replace(wanted, tests_later=names)
    guard = f"self-test: {finding.cause} again within an hour, on this node alone"
    return msgspec.structs.replace(wanted, tests=names, guards=(*wanted.guards, guard))


def _without_crash_loop(
    state: JobState, policy: Policy, finding: Finding, wanted: Decision, now: float
) -> Decision:
    """Restarts without progress back off, then end."""
    history = (*state.failures, failure_of(state, finding, now))
    wait_s, no_use = crash_loop(history, policy)
    if no_use:
        loop = msgspec.structs.replace(
            finding,
            kind=FindingKind.CRASH_LOOP,
            cause=no_use,
            evidence=tuple(Evidence("journal", f"failed with {each.cause}", each.at) for each in history),
        )
        # What the script raised says more than that it did so again, and blames nobody.
        meant = None if finding.kind is FindingKind.USER_CODE else loop
        return Decision(Rung.PAGE, no_use, guards=("crash loop",), amounts_to=meant)
    if not wait_s or _may_be_chance(state, finding):
        return wanted
    guard = f"back-off: failure {len(history)} without progress"
    return msgspec.structs.replace(wanted, delay_s=max(wait_s, wanted.delay_s), guards=(*wanted.guards, guard))


def _may_be_chance(state: JobState, finding: Finding) -> bool:
    """Whether the finding, of a process that does not run, is the first such one since the job made progress. A
    script may bring that about by itself, but as a rule does not.
    """
    return is_frozen(finding) and not any(each.frozen for each in state.failures)


def _within_restart_budget(state: JobState, policy: Policy, wanted: Decision, now: float) -> Decision:
    """Whatever the cause, a job that restarts this often needs a human."""
    recent = sum(1 for at in state.restarts if at > now - policy.restarts.per_s)
    if wanted.rung is not Rung.PAGE and recent >= policy.restarts.count:
        says = f"{recent} restarts in {policy.restarts.per_s:.0f} s used up the budget of {policy.restarts.count}"
        return Decision(Rung.PAGE, says, guards=("restart budget",))
    return wanted


def _the_others(state: JobState) -> str:
    """What becomes of the ranks that have no fault."""
    who = "the others of its replica group" if is_in_groups(state) else "the others"
    return f"{who} start anew with it" if _needs_new_processes(state) else f"{who} re-enter"


def _all(state: JobState) -> str:
    return "all of its replica group" if is_in_groups(state) else "all"


def _needs_new_processes(state: JobState) -> bool:
    """Whether workers of the newest round run a script, or a framework, that cannot re-enter."""
    number = state.round.number if state.round is not None else None
    return any(
        each is not None and each.entered_round == number and (not each.reentrant or each.reentry is Reentry.NEVER)
        for each in state.ranked_members()
    )


def _ranks(finding: Finding) -> tuple[int, ...]:
    named = (finding.subject.rank, *(each.rank for each in finding.also))
    return tuple(sorted({rank for rank in named if rank is not None}))


def _ranks_on(state: JobState, node: str | None) -> tuple[int, ...]:
    shares = state.round.ranks if state.round else ()
    return tuple(
        rank
        for share in shares
        if share.node == node
        for rank in range(share.first_rank, share.first_rank + share.local_size)
    )
