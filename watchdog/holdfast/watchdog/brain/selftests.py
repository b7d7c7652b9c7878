"""Self-tests of the members: asked for, waited for, compared. A member whose devices compute wrong gets no ranks.

Asked of every member before it is given ranks (preflight), of those that are suspect, of a node that is trusted
again, and of spares now and then, for they have nothing else to do. A test that nobody answers proves nothing: the
member is taken as it is, because a job that waits for ever is worse than one that was not tested.

Devices may be sound and not suit what the job asks for: ranks that must share one NVLink domain. That is no fault
of a node, so nothing is held against it, by this job or by another: the member gets no ranks under this spec, and
a human hears of it once. Another size, or no self-tests at all, lets the job go on.
"""

from collections.abc import Mapping, Set
from itertools import islice, takewhile

import msgspec

from holdfast.api.event import MemberTested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import IncidentState
from holdfast.api.round import Round
from holdfast.api.selftest import TAKES_S_MAX, TOPOLOGY, CheckResult, TestLevel, TestWanted, Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.incidents import brief_incident, paging
from holdfast.watchdog.brain.roster import Member, MemberState
from holdfast.watchdog.brain.saves import in_force
from holdfast.watchdog.brain.state import Fit, JobState, Trial
from holdfast.watchdog.brain.step import Effect, Examine, Notify, Reason, Step, changed, stay
from holdfast.watchdog.wording import NAMED, in_words

# A light test takes less than a minute and a full one less than ten; a cold start of the process is in it. Counted
# from when the member has no workers any more.
PATIENCE_S = {TestLevel.LIGHT: 120.0, TestLevel.FULL: 900.0}
# A round that loads its state has to make a step first, and one that trains to be saved.
TURN_S = 3600.0
# One that bars nobody waits for its chance, which may be the next restart.
UNHURRIED_S = 86400.0
# What a test of links takes beyond its limit: the start of its processes, and their answers.
LINKS_GRACE_S = 20.0
GIVEN_UP = "self-test given up"
KEPT_RESULTS = 256
KEPT_NODES = 16_384
# Two devices that differ prove that one is wrong, not which. Three or more, all but one alike, do.
ALIKE_MIN = 2
REMEDY = (
    "ask for a spec.parallelism.tensor that one domain holds, or place the job on nodes with larger NVLink domains"
)


def barred(state: JobState, name: str) -> bool:
    """Whether the member may have no ranks before it has answered a test, or for what it has answered."""
    trial = state.trials.get(name)
    return name in state.fit.misfits or (trial is not None and trial.bars)


def examine(state: JobState, name: str, now: float) -> Step:
    """A member is there as a new process: test it when the job, or its node's past, asks for that."""
    member = state.member(name)
    level = state.policy.preflight if state.policy is not None else None
    is_unfit = name in state.fit.misfits
    if member is None or level is None or (state.in_round(name) and not is_unfit):
        return stay(state)
    state = without_misfits(state, {name})
    reason = "the node is on probation" if state.is_canary(name) else "before it is given ranks"
    return ask(state, (name,), level, reason, now, bars=True)


def ask(state: JobState, names: tuple[str, ...], level: TestLevel, reason: str, now: float, *, bars: bool) -> Step:
    """Ask members for a test; an older request to one of them is taken back."""
    effects: list[Effect] = []
    for name in names:
        if (member := state.member(name)) is None:
            continue
        # Who may have no ranks before an answer may have none before the answer to another question either.
        bars_too = bars or member.standing is MemberState.TESTING
        began = None if _has_workers(state, name) else now
        trial = Trial(name, state.trial_count + 1, level, reason, now, bars_too, began)
        members = state.members
        if trial.bars and member.standing is MemberState.PRESENT:
            members = members.changed(name, standing=MemberState.TESTING)
        # In the order in which they are given up, so that the first is all that need be looked at.
        trials = {**state.trials}
        trials.pop(name, None)
        trials[name] = trial
        if len(trials) > 1 and _until(trials[next(islice(reversed(trials), 1, None))]) > _until(trial):
            trials = in_order(trials)
        state = changed(state, trials=trials, trial_count=trial.number, members=members)
        effects.append(Examine(name, wanted_of(state, trial)))
    return Step(state, tuple(effects), Reason("self-test", f"{level.value} self-test: {reason}"))


def wanted_of(state: JobState, trial: Trial) -> TestWanted:
    """The request as the member is shown it."""
    tensor = state.policy.tensor if state.policy is not None else 1
    return TestWanted(trial.number, trial.level, trial.reason, tensor, trial.links)


def admitted(state: JobState, name: str, now: float) -> JobState:
    """The state with the member's test over: one that suits may be given ranks, as if it had joined now. Those
    whose links were tested were ready before, all of them.
    """
    trial = state.trials.get(name)
    of_links = trial is not None and trial.links is not None
    state = without_trial(state, name)
    member = state.member(name)
    if member is None or member.standing is not MemberState.TESTING or name in state.fit.misfits:
        return state
    was_ready = of_links or state.in_round(name)
    joined_at = member.joined_at if was_ready else now
    members = state.members.changed(name, standing=MemberState.PRESENT, joined_at=joined_at)
    forming_since = state.forming_since if was_ready else now
    return changed(state, members=members, forming_since=forming_since)


def without_trial(state: JobState, name: str) -> JobState:
    """The state in which no answer of the member is waited for."""
    trials = dict(state.trials)
    trials.pop(name, None)
    return changed(state, trials=trials)


def without_misfits(state: JobState, names: Set[str]) -> JobState:
    """The state in which nothing is known of how these members suit the job."""
    misfits = state.fit.misfits
    if names.isdisjoint(misfits):
        return state
    kept = {name: says for name, says in misfits.items() if name not in names}
    return changed(state, fit=msgspec.structs.replace(state.fit, misfits=kept))


def passed(state: JobState, member: Member, now: float) -> JobState:
    """The state that remembers when the member's node last passed a test."""
    tested_at = {**state.tested_at, member.node: now}
    if len(tested_at) > KEPT_NODES:
        del tested_at[next(iter(tested_at))]
    return changed(state, tested_at=tested_at)


def without_members(state: JobState, gone: Set[str]) -> JobState:
    """The state without members that are gone, and without their tests."""
    trials = state.trials
    if not gone.isdisjoint(trials):
        trials = {name: trial for name, trial in trials.items() if name not in gone}
    return changed(without_misfits(state, gone), members=state.members.without(gone), trials=trials)


def overdue(state: JobState, now: float) -> Step:
    """Wait no longer for tests that nobody answers. Who is to be trusted again and has no ranks is asked anew."""
    late = [trial.member for trial in takewhile(lambda each: now >= _until(each), state.trials.values())]
    if not late:
        return stay(state)
    trusted = [name for name in late if state.in_round(name) or not state.is_canary(name)]
    says = "; ".join(_unanswered(state, state.trials[name]) for name in late[:NAMED])
    says += f"; and {len(late) - NAMED} more" if len(late) > NAMED else ""
    for name in trusted:
        state = admitted(state, name, now)
    step = Step(state, (), Reason(GIVEN_UP, f"{says}; {len(trusted)} taken untested"))
    for name in late:
        if name not in trusted:
            step = step.then(examine, name, now)
    return step


def _unanswered(state: JobState, trial: Trial) -> str:
    """Which test is waited for no longer, and why, in words."""
    waited = f"waited for {turn}" if (turn := waits_for(state, trial)) else "did not answer"
    what = "test of links" if trial.links is not None else f"{trial.level} self-test"
    return f"{trial.member} {waited} for {_until(trial) - (trial.began or trial.at):.0f} s ({what})"


def begin(state: JobState, now: float) -> Step:
    """From now on the answers of those whose workers have just left their round are waited for."""
    begun = {
        name: msgspec.structs.replace(trial, began=now)
        for name, trial in state.trials.items()
        if trial.bars and trial.began is None and not _has_workers(state, name)
    }
    if not begun:
        return stay(state)
    trials = in_order({**state.trials, **begun})
    return Step(changed(state, trials=trials), (), Reason("self-test", f"{in_words(begun)} can be tested now"))


def _has_workers(state: JobState, name: str) -> bool:
    """Whether the member has ranks in the round that is shown."""
    return isinstance(state.desired, Round) and name in state.desired.names


def waits_for(state: JobState, trial: Trial) -> str:
    """What keeps a test that its member is barred for from beginning, in words; empty when nothing does."""
    if not trial.bars or not _has_workers(state, trial.member) or state.round is None:
        return ""
    if not in_force(state):
        return f"round {state.round.number} to train"
    if state.saving is not None and state.saving.saved is None:
        return f"the checkpoint that round {state.saving.round} was asked for"
    return f"its workers to leave round {state.round.number}"


def spares_due(state: JobState, now: float) -> Step:
    """Test the spares that have not been tested for long."""
    # What a roster hands on has no order of its own, and a replay must give each test the same number.
    names = tuple(sorted(name for name, at in _turns(state).items() if at <= now))
    if not names:
        return stay(state)
    return ask(state, names, TestLevel.LIGHT, "spares are tested now and then", now, bars=False)


def next_trial(state: JobState) -> float | None:
    """When a test is next waited for no longer, or is due."""
    oldest = [_until(trial) for trial in islice(state.trials.values(), 1)]
    return min([*oldest, *_turns(state).values()], default=None)


def takes(level: TestLevel) -> str:
    """How long a test takes, in words."""
    return f"at most {TAKES_S_MAX[level]:.0f} s on GPUs"


def waiting_for_tests(state: JobState) -> str | None:
    """What keeps a round from being formed: tests of members that had ranks, in words; None when nothing does.

    A full test keeps nobody waiting for whom others can go on.
    """
    levels = _tested_with_ranks(state)
    if TestLevel.FULL in levels.values() and others_suffice(state):
        levels = {name: level for name, level in levels.items() if level is not TestLevel.FULL}
    return f"waiting for the self-tests of {', '.join(sorted(levels))}" if levels else None


def leaving_for_tests(state: JobState) -> str | None:
    """Why the round in force is to be left for a test, in words; None when for none. No light test is worth it."""
    names = [name for name, level in _tested_with_ranks(state).items() if level is TestLevel.FULL]
    return f"the full self-test of {in_words(names)} was requested" if names else None


def others_suffice(state: JobState) -> bool:
    """Whether members that are not being tested could take all ranks of the newest round at once."""
    return state.round is not None and state.ready_count() >= len(state.round.ranks)


def _tested_with_ranks(state: JobState) -> dict[str, TestLevel]:
    """The members with ranks that may have none again before they have answered a test, and which."""
    ranked, avoided = state.ranked(), state.avoided_nodes
    if not ranked or not state.trials:
        return {}
    there = ((trial, state.member(name)) for name, trial in state.trials.items() if name in ranked)
    return {
        trial.member: trial.level
        for trial, member in there
        if member and member.standing is MemberState.TESTING and member.node not in avoided
    }


def is_anybody_tested(state: JobState) -> bool:
    """Whether a member that is there, or may be, waits for its test before it can be given ranks.

    Who is tested beside its ranks, or is gone, keeps nobody waiting.
    """
    members, avoided = state.members.by_name, state.avoided_nodes
    waiting = (members[trial.member] for trial in state.trials.values() if trial.bars)
    return any(each.standing is not MemberState.LOST and each.node not in avoided for each in waiting)


def being_tested(state: JobState) -> str:
    """Which tests are under way, in words: of those members that were asked first; empty when there is none."""
    told = in_words(islice(state.trials, NAMED))
    rest = len(state.trials) - NAMED
    of_links = {False}
    if state.policy is not None and state.policy.links is not None:  # else there are thousands to look at in vain
        of_links = {each.links is not None for each in state.trials.values()}
    if of_links == {True}:
        what = "the test of the links between"
    else:
        what = "the tests of" if True in of_links else "the self-tests of"
    return f"{what} {told}" if rest <= 0 else f"{what} {told} and {rest} more"


def compared(
    state: JobState, node: str, checks: tuple[CheckResult, ...]
) -> tuple[JobState, list[str], frozenset[str]]:
    """The state that remembers what `node` computed, what speaks against it, and whom that speaks against.

    Most devices that are alike decide, in whatever order they answer: what fewer computed is forgotten, and they
    are to be asked again.
    """
    against: list[str] = []
    doubted: set[str] = set()
    digests = dict(state.digests)
    for check in checks:
        if not check.digest:
            continue
        key = f"{check.check}|{check.like}"
        given = digests.get(key, {})
        others = {digest: tuple(each for each in nodes if each != node) for digest, nodes in given.items()}
        others = {digest: nodes for digest, nodes in others.items() if nodes}
        most = max(others, key=lambda digest: len(others[digest]), default=check.digest)
        if (
            most != check.digest
            and len(others[most]) >= ALIKE_MIN
            and len(others[most]) > len(others.get(check.digest, ()))
        ):
            against.append(f"{check.check} of {check.device}: {len(others[most])} alike nodes compute otherwise")
            continue  # what is wrong is not remembered as a result that others could be like
        if check.verdict is not Verdict.PASSED:
            continue  # neither is what may be
        nodes = (*others.pop(check.digest, ()), node)[-KEPT_RESULTS:]
        if len(nodes) >= ALIKE_MIN:
            fewer = [digest for digest, known in others.items() if len(known) < len(nodes)]
            doubted.update(each for digest in fewer for each in others.pop(digest))
        digests.pop(key, None)
        digests[key] = {**others, check.digest: nodes}
    while len(digests) > KEPT_RESULTS:
        del digests[next(iter(digests))]
    return changed(state, digests=digests), against, frozenset(doubted)


def again(state: JobState, nodes: frozenset[str], now: float) -> Step:
    """Ask the members of nodes once more, as soon as they have time: most like them compute otherwise."""
    names = tuple(each.name for each in state.members.on_nodes(nodes) if each.name not in state.trials)
    return ask(state, names, TestLevel.LIGHT, "most devices like its own compute otherwise", now, bars=False)


def _until(trial: Trial) -> float:
    if trial.links is not None:
        return trial.at + trial.links.limit_s + LINKS_GRACE_S
    if not trial.bars:
        return trial.at + UNHURRIED_S
    return trial.at + TURN_S if trial.began is None else trial.began + PATIENCE_S[trial.level]


def in_order(trials: Mapping[str, Trial]) -> dict[str, Trial]:
    """The tests in the order in which they are given up."""
    return dict(sorted(trials.items(), key=lambda each: _until(each[1])))


def _turns(state: JobState) -> dict[str, float]:
    """When each spare is to be tested. Only while a round runs: otherwise everybody is about to be needed."""
    policy = state.policy
    if policy is None or policy.preflight is None or state.phase is not JobPhase.RUNNING:
        return {}
    every_s, by_name, avoided = policy.corruption.self_test_every_s, state.members.by_name, state.avoided_nodes
    spares = (by_name[name] for name in state.members.beyond(state.ranked()) if name not in state.trials)
    return {
        each.name: max(each.joined_at, state.tested_at.get(each.node, 0.0)) + every_s
        for each in spares
        if each.standing is MemberState.PRESENT and each.node not in avoided
    }


def misfit_of(event: MemberTested) -> str | None:
    """Why the member's devices do not suit the job, in words; None where anything else failed, or nothing did."""
    failed = [check for check in event.checks if check.verdict is Verdict.FAILED]
    if not failed or any(check.check != TOPOLOGY for check in failed):
        return None
    return failed[0].says


def unfit(state: JobState, member: Member, says: str, now: float) -> Step:
    """The member gets no ranks under this spec. The first one is an incident of the job, told to a human."""
    fit = msgspec.structs.replace(state.fit, misfits={**state.fit.misfits, member.name: says})
    members = state.members
    if member.standing is MemberState.PRESENT:
        members = members.changed(member.name, standing=MemberState.TESTING)
    state = changed(without_trial(state, member.name), fit=fit, members=members)
    reason = Reason("self-test", f"{member.name} does not suit the job: {says}")
    if fit.incident is not None:
        return Step(state, (), reason)
    # Without a culprit: neither the node nor anything on it is to blame.
    told = f"{says} ({member.name} on node {member.node}); {REMEDY}"
    finding = Finding(
        kind=FindingKind.SELF_TEST,
        subject=Subject(state.job),
        cause=says,
        evidence=(Evidence(f"self-test of {member.name}", says, now),),
        confidence=Confidence.UNKNOWN,
        began_at=now,
        error=told,
    )
    waits = "its members get no ranks under this spec; nothing is held against their nodes"
    state, incident, effects = brief_incident(state, finding, paging(told, now), IncidentState.PAGED, waits, now)
    state = changed(state, fit=msgspec.structs.replace(state.fit, incident=incident.id))
    return Step(state, (*effects, Notify(incident.id, told)), Reason("page", told))


def refit(state: JobState, now: float) -> Step:
    """The spec says something else: what was tested before tells nothing of it, so who has no ranks is asked."""
    policy, misfits = state.policy, state.fit.misfits
    if policy is None:
        return stay(state)
    if policy.preflight is None and misfits:
        state = changed(state, fit=Fit(policy.tensor))
        for name in misfits:
            state = admitted(state, name, now)
        return Step(state, (), Reason("self-test", f"{in_words(misfits)}: taken untested, as the spec asks"))
    if policy.tensor == state.fit.tensor:
        return stay(state)
    state = changed(state, fit=Fit(policy.tensor))
    idle = (state.member(name) for name in {*misfits, *state.members.beyond(state.ranked())})
    names = tuple(sorted(each.name for each in idle if each is not None and each.standing is not MemberState.LOST))
    if policy.preflight is None or not names:
        return stay(state)
    reason = f"the spec asks for tensor parallel size {policy.tensor} now"
    return ask(state, names, policy.preflight, reason, now, bars=True)


def misfits_in_words(state: JobState) -> str:
    """Who gets no ranks under this spec, why, and what to do; empty when everybody suits."""
    misfits, avoided = state.fit.misfits, state.avoided_nodes
    there = ((name, state.member(name)) for name in misfits)
    out = (
        name for name, each in there if each and each.standing is MemberState.TESTING and each.node not in avoided
    )
    names = list(islice((name for name in out if name not in state.trials), NAMED))
    if not names:
        return ""
    rest = f" and {len(misfits) - NAMED} more" if len(misfits) > len(names) == NAMED else ""
    says = "; ".join(dict.fromkeys(misfits[name] for name in names))
    return f"no ranks for {in_words(names)}{rest}: {says}; {REMEDY}"
