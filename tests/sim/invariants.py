"""What must hold after everything that happens, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from held_gpus import gpus_held

from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.ledger import NOTHING, OF_STEPS
from holdfast.api.plan import Plan
from holdfast.api.round import Desired, Round, Tier
from holdfast.api.status import JobPhase
from holdfast.simulator.world.witness import Witness
from holdfast.watchdog import brain
from holdfast.watchdog.brain.ledger import microseconds
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.slowness import OF_THE_NODE
from holdfast.watchdog.brain.state import DepartureCause, SlowStage
from holdfast.watchdog.brain.status import status_of
from holdfast.watchdog.brain.step import FAILED_RULE, turn

if TYPE_CHECKING:
    from smallworld import SmallWorld

    from holdfast.simulator.world.nodememory import Image
    from holdfast.watchdog.brain.state import JobState
    from holdfast.watchdog.brain.step import Effect

USEFUL_SLACK_S = 1.0
STATE_BYTES = 32_768
INCIDENT_BYTES = 8_192


class Broken(AssertionError):
    """A promise was broken; carries what is needed to see it again."""


class Invariants(Witness):
    """Checked by the world after every event."""

    def __init__(self, world: SmallWorld) -> None:
        self.world = world
        self._newest = 0
        self._commits_seen = 0
        self._newest_commit_round = 0
        self._cost = 0.0
        self._held, self._held_us, self._counted_us = 0, 0, 0  # GPUs now, and GPU time until when
        self._state: JobState | None = None  # the one checked last
        self._recovered = 0  # incidents looked at, from the oldest on; there are never more than the state keeps

    def require(self, holds: bool, says: str) -> None:
        if not holds:
            story = "\n".join(self.world.log[-40:])
            raise Broken(f"seed {self.world.seed} at {self.world.now:.3f}: {says}\n{story}")

    def decided(self, effects: tuple[Effect, ...]) -> None:
        self.counted()

    def reached(self, why: str | None) -> None:
        self.require(why is None, f"no number is lost: {why}")

    def leaves(self) -> None:
        self.replay_equals_live()

    def shown(self, desired: Desired) -> None:
        """Desired states only grow; a round's members are distinct, and none is on an avoided node."""
        self.world.note(f"shown {desired}")
        self.require(desired.number > self._newest, f"{desired.number} was shown after {self._newest}")
        self._newest = desired.number
        if isinstance(desired, Round):
            members = [share.member for share in desired.ranks]
            self.require(len(set(members)) == len(members), "a member holds two places")
            avoided = {order.node for order in self.world.job.state.avoided}
            self.require(
                not avoided & {share.node for share in desired.ranks}, "a round was put on an avoided node"
            )
            policy = self.world.job.state.policy
            self.require(policy is None or policy.world_sizes_allow(len(members)), "the world size is not legal")
            if self.world.job.state.desired.number == desired.number:  # else superseded in the same turn
                self._nobody_trains_who_must_not(desired)
                self._a_held_job_has_no_round()
                self._nothing_given_up_is_restored(desired)

    def planned(self, plan: Plan) -> None:
        """Nobody whose ranks train is given up."""
        state = self.world.job.state
        if state.phase is not JobPhase.RUNNING:
            return
        given_up = set(plan.release) & state.ranked()
        self.require(not given_up, f"{sorted(given_up)} were released while they train")
        self.require(plan.members > 0, "a job that trains was given up")

    def went_on(self, round: Round) -> None:
        """Somebody has the state when replica groups go on, and nobody restores what they have."""
        training = self.world.training
        trains = {share.member for share in round.ranks[: round.training]}
        self.require(bool(trains & training.holders), f"nobody has the state in round {round.number}")
        policy = self.world.job.state.policy
        enough = policy is None or round.training >= policy.nodes_min
        self.require(enough, f"{round.training} members train in round {round.number}")
        seats = [seat for seat in map(round.seat_of, round.names) if seat is not None]
        says = {seat.group.count for seat in seats if seat.group is not None}
        self.require(len(says) == 1, f"the groups of round {round.number} count differently: {says}")

    def samples_are_taken_once(self) -> None:
        """Of each step that is kept every share of the batch is in it once, but those of groups that were lost."""
        given = self.world.training.shares.given
        steps = sorted(given)
        self.require(steps == list(range(1, len(steps) + 1)), f"steps are missing: {steps[-5:]} of {len(steps)}")
        for step, each in given.items():
            known = set(each.shares)
            self.require(len(known) == len(each.shares), f"step {step} has a share twice: {each}")
            self.require(known <= set(range(each.count)), f"step {step} has a share that nobody was given: {each}")
            self.require(len(known) == each.count - each.lost, f"step {step} lacks a share: {each}")

    def remembered(self, images: tuple[Image, ...]) -> None:
        """What a rewind gave up is not restored from memory."""
        rewound_by = self.world.training.rewound_by
        old = min(image.round for image in images)
        self.require(
            old >= rewound_by, f"a snapshot of round {old} was restored after round {rewound_by} went back"
        )

    def _nobody_trains_who_must_not(self, round: Round) -> None:
        """Who is to be tested first, or does not suit the job, has no ranks."""
        state = self.world.job.state
        barred = {name for name, trial in state.trials.items() if trial.bars} | set(state.fit.misfits)
        self.require(not barred & round.names, f"{sorted(barred & round.names)} have ranks and must not")

    def _a_held_job_has_no_round(self) -> None:
        """What is paused or suspended does not train; nor does what is over."""
        state = self.world.job.state
        self.require(not state.held, "a job that is paused was given a round")
        over = state.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)
        self.require(not over, f"a job that is {state.phase.value} was given a round")

    def _nothing_given_up_is_restored(self, round: Round) -> None:
        """The round of a rewind does not read memory; until something new is saved none goes beyond it."""
        rewind = self.world.job.state.rewind
        if rewind is None or rewind.round is None:
            return  # found in the same turn in which the round was shown: the next one goes back
        limit, step = rewind.restore.step, round.restore.step
        reads_memory = round.restore.tier is Tier.MEMORY
        self.require(not reads_memory or round.number != rewind.round, "a rewind read memory")
        beyond = limit is not None and not reads_memory and (step is None or step > limit)
        self.require(not beyond, f"round {round.number} may restore step {step} after a rewind to {limit}")

    def check(self) -> None:
        self._at_most_one_round_trains()
        self._fenced_rounds_never_commit()
        disk = self.world.disk
        self.require(not disk.had_healthy or any(disk.there.values()), "no healthy checkpoint is left on disk")
        state = self.world.job.state
        if state is self._state:
            return  # it cannot change: what held of it holds, and its ledger grows with time alone
        self._state = state
        self._money_only_grows()
        self._every_gpu_second_is_in_one_row()
        self._checkpoints_on_record_are_true()
        self._evictions_stay_within_budget()
        self._recovered_means_a_step()
        self._nobody_leaves_for_user_code()
        self._slow_ranks_are_moved_one_at_a_time()
        self._plan_and_round_agree()
        self._status_never_lies()

    def _nobody_leaves_for_user_code(self) -> None:
        """What the script raised costs no node its place, and asks for no node."""
        incidents = self.world.job.state.incidents
        others = [each for each in incidents if each.kind is not FindingKind.USER_CODE]
        for_others = {action.does for each in others for action in each.actions}  # one round heals what is open
        for incident in incidents:
            if incident.kind is FindingKind.USER_CODE:
                swaps = [action.does for action in incident.actions if action.rung in (Rung.SWAP, Rung.SHRINK)]
                swaps = [does for does in swaps if does not in for_others]
                if self.world.policy.replica_nodes:
                    swaps = []  # its replica group is out only for as long as it backs off
                self.require(not swaps, f"{incident.id} is the script's, and {swaps}")
        avoided = [order for order in self.world.job.state.avoided if order.reason == FindingKind.USER_CODE.value]
        self.require(not avoided, f"{avoided} are avoided for what the script raised")

    def _slow_ranks_are_moved_one_at_a_time(self) -> None:
        """And only where another node may help; who leaves for it is to stay as a spare."""
        state = self.world.job.state
        moving = [each for each in state.slow if each.stage in (SlowStage.LEAVING, SlowStage.MOVED)]
        self.require(len(moving) <= 1, f"several are moved at once: {moving}")
        of_the_node = all(each.slow.cause in OF_THE_NODE for each in state.slow if each.tries)
        self.require(of_the_node, f"ranks were moved for what is not of the node: {state.slow}")
        leaving = {each.node for each in state.departures if each.cause is DepartureCause.SLOW}
        known = {each.node for each in state.slow if each.stage is SlowStage.LEAVING}
        self.require(leaving <= known, f"{leaving} are to leave for being slow, {known} are known to be")

    def _plan_and_round_agree(self) -> None:
        """Nodes that the operator is to keep away from have no ranks; a job that trains is asked for."""
        state, plan = self.world.job.state, self.world.job.state.plan
        if plan is None or state.phase is not JobPhase.RUNNING or not isinstance(state.desired, Round):
            return
        cordoned = {order.node for order in plan.cordon} & {share.node for share in state.desired.ranks}
        self.require(not cordoned, f"{sorted(cordoned)} are cordoned and have ranks")
        self.require(plan.members > 0, "a round runs of a job that nothing is asked for")

    def _status_never_lies(self) -> None:
        """The status counts what is there: incidents, evictions, members, and no step that nobody made."""
        world, state = self.world, self.world.job.state
        told = status_of(state, None, world.now)
        still_open = sum(1 for each in state.incidents if each.state is IncidentState.OPEN)
        self.require(
            told.incidents_open == still_open, f"{told.incidents_open} open incidents told of {still_open}"
        )
        self.require(told.members.there + told.members.spares <= len(state.members), "members are told of twice")
        if told.phase is JobPhase.STALLED:
            self.require((told.members.ready, told.ettr) == (0, None), "health is told of, and no step is seen")
        self.require((told.world_size > 0) == isinstance(state.desired, Round), "ranks without a round")
        known = (told.step or 0) <= world.training.highest
        self.require(known, f"step {told.step} is told of, {world.training.highest} was made")
        if told.phase is JobPhase.RUNNING:
            self.require(state.progressed, f"Running is told of, and round {told.round} made no step")
        if told.phase is JobPhase.FAILED:
            self.require(bool(told.reason) and told.ended_at is not None, "it failed and nobody says why and when")

    def _every_gpu_second_is_in_one_row(self) -> None:
        """The rows sum to the GPUs that are held times the time, exactly; so do they by day, incident and node."""
        self.counted()
        ledger = self.world.job.state.ledger
        accounts = ledger.at(self.world.now)
        booked, posted = accounts.total(), sum((each.amount for each in accounts.postings), NOTHING)
        says = f"{booked.gpu_us} us in rows, {posted.gpu_us} us in postings, {self._held_us} us held"
        self.require(booked.gpu_us == self._held_us == posted.gpu_us and booked == posted, says)
        least = min((each.gpu_us for each in accounts.rows.values()), default=0)
        self.require(least >= 0, f"less than nothing: {accounts.rows}")
        kept_us = sum(ledger.accounts.of(row).gpu_us for row in OF_STEPS)
        self.require(kept_us == ledger.kept.gpu_us, f"{kept_us} us in rows of steps, {ledger.kept.gpu_us} us kept")

    def counted(self) -> None:
        """Count the GPU time up to now; from now on there are as many as there are now."""
        now_us = microseconds(self.world.now)
        self._held_us += self._held * (now_us - self._counted_us)
        self._counted_us, self._held = now_us, gpus_held(self.world.job.state)

    def held_us(self) -> int:
        """The GPU time that was held up to now, in microseconds of one GPU."""
        self.counted()
        return self._held_us

    def _money_only_grows(self) -> None:
        """What was spent stays spent; useful time is of steps that are kept."""
        spent = self.world.job.state.ledger.spent(self.world.now)
        if spent is None:
            return
        self.require(spent.cost >= self._cost - 1e-9, f"spent money fell from {self._cost} to {spent.cost}")
        self._cost = spent.cost
        useful_s, kept_s = self.world.job.state.ledger.useful_s, sum(self.world.training.took_s.values())
        # A round that restores is told of a moment later; reports come once a second, and ages travel.
        slack_s = USEFUL_SLACK_S * max(1, len(self.world.training.made))
        if self.world.job.state.restored_step is not None:
            self.require(useful_s <= kept_s + slack_s, f"{useful_s:.2f} s useful, {kept_s:.2f} s of steps kept")

    def _recovered_means_a_step(self) -> None:
        """The script publishes its steps: none of its incidents is recovered before the round has made one."""
        made = self.world.training.made
        for incident in self.world.job.state.incidents[self._recovered :]:
            if incident.state is IncidentState.OPEN:
                return
            self._recovered += 1
            if incident.recovered_at is not None:
                newest = self.world.job.state.round
                healer = incident.recovered_round or (newest.number if newest is not None else 0)
                self.require(healer in made, f"{incident.id} recovered by round {healer} without a step of it")
            if incident.kind is FindingKind.USER_CODE:
                self.require(
                    incident.culprit.node is None, f"{incident.id} blames a node for what the script raised"
                )

    def _at_most_one_round_trains(self) -> None:
        """Once a newer round has begun to step, no older one does (its members left it, or lack members)."""
        rounds = [number for _, number in self.world.training.stepped]
        self.require(rounds == sorted(rounds), f"rounds stepped out of order: {rounds}")

    def _fenced_rounds_never_commit(self) -> None:
        for number, step in self.world.disk.commits[self._commits_seen :]:
            says = f"round {number} committed step {step} after round {self._newest_commit_round} had"
            self.require(number >= self._newest_commit_round, says)
            self._newest_commit_round = number
        self._commits_seen = len(self.world.disk.commits)

    def _checkpoints_on_record_are_true(self) -> None:
        current = self.world.job.state.round
        for checkpoint in self.world.job.state.checkpoints:
            on_disk = (checkpoint.round, checkpoint.step) in self.world.disk.known
            self.require(on_disk, "a checkpoint is on record and not on disk")
            self.require(current is not None and checkpoint.round <= current.number, "a checkpoint of the future")

    def _evictions_stay_within_budget(self) -> None:
        budget = self.world.policy.evictions
        recent = [at for at in self.world.job.state.evictions if at > self.world.now - budget.per_s]
        # What people ask for has no budget.
        asked = sum(1 for each in self.world.asked.values() if each.action is InterventionAction.EVICT)
        self.require(len(recent) <= budget.count + asked, f"{len(recent)} evictions, budget {budget.count}")

    def replay_equals_live(self) -> None:
        """The journal alone gives the state, byte for byte; no event made the brain fail."""
        job = self.world.job
        state = brain.initial(job.name)
        for line in self.world.store.tail(job.name, 0):
            step = turn(brain, state, line.event, line.at)
            self.require(step.reason.rule != FAILED_RULE, step.reason.says)
            state = step.state
        self.require(job.senses is None or not job.senses.failures.total(), "a detector failed")
        same = msgspec.msgpack.encode(state) == msgspec.msgpack.encode(job.state)
        self.require(same, "the journal gives another state than the live one")

    def _every_request_is_answered(self) -> None:
        """Done or refused, with a reason, and the same each time that it is told."""
        state = self.world.job.state
        for id in self.world.asked:
            self.require(id in state.answered, f"{id} has no answer: {self.world.asked[id]}")
            outcomes = self.world.answers.get(id, [])
            self.require(len({each.state for each in outcomes}) <= 1, f"{id} was answered twice: {outcomes}")
            self.require(all(each.outcome for each in outcomes), f"{id} was answered without a word")

    def _the_state_stays_small(self) -> None:
        """What is remembered is bounded by who is there and by what the rules need, not by what happened."""
        state = self.world.job.state
        over = state.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)
        missing = {} if over else state.missing
        for what, kept in (("trials", state.trials), ("misfits", state.fit.misfits), ("missing", missing)):
            gone = [name for name in kept if name not in state.members and name not in self.world.members]
            self.require(not gone, f"{what} of members that are gone: {gone}")
        size = len(msgspec.msgpack.encode(state))
        self.require(size < STATE_BYTES + INCIDENT_BYTES * len(state.incidents), f"the state has {size} bytes")

    def _waits_for_other_nodes(self) -> bool:
        """Whether members that do not suit the job are why it cannot form; a human was told."""
        state = self.world.job.state
        told = any(each.id == state.fit.incident and each.state is IncidentState.PAGED for each in state.incidents)
        return told and bool(state.fit.misfits) and "no ranks for" in state.reason

    def _nobody_is_lost_for_ever(self) -> None:
        """Whoever lives and can speak to the watchdog is a member."""
        state = self.world.job.state
        if state.phase is JobPhase.SUCCEEDED:
            return
        for each in self.world.members.values():
            known = state.member(each.name)
            there = known is not None and known.standing is not MemberState.LOST
            self.require(there or not each.line.in_touch, f"{each.name} lives, is connected and counts as lost")

    def _is_left_alone(self) -> bool:
        """Whether a job that is only observed waits for a process that somebody stopped, which may go on."""
        state = self.world.job.state
        told = {each.kind for each in state.incidents if each.state is IncidentState.OBSERVED}
        return self.world.policy.observe and FindingKind.HANG in told and self.world.training.is_stopped()

    def settled(self) -> None:
        """After a quiet time: every incident ended, every request is answered, and the job trains or is over,
        or waits for nodes that suit it, as a human was told.
        """
        state = self.world.job.state
        self._every_request_is_answered()
        self._the_state_stays_small()
        self._nobody_is_lost_for_ever()
        waits = self._waits_for_other_nodes()
        for incident in state.incidents:
            ended = waits or incident.state in (
                IncidentState.RECOVERED,
                IncidentState.PAGED,
                IncidentState.OBSERVED,
            )
            self.require(ended, f"{incident.id} ({incident.kind.value}) is {incident.state.value}: {state.reason}")
            self.require(
                bool(incident.evidence and incident.cause and incident.timeline), f"{incident.id} explains nothing"
            )
        proved = (each for each in state.incidents if each.confidence is Confidence.CERTAIN)
        blamed = {each.culprit.node for each in proved if each.kind is FindingKind.CORRUPTION}
        innocent = blamed - self.world.training.ever_wrong
        self.require(not innocent, f"{innocent} blamed for what they did not do")
        over = state.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED)
        if state.phase is JobPhase.PENDING and state.fit.incident is not None:
            self.require(waits, f"phase Pending: {state.reason}")
        elif not over and not waits and not self._is_left_alone():
            self.require(state.phase is JobPhase.RUNNING, f"phase {state.phase.value}: {state.reason}")
            newest = self.world.training.stepped[-1]
            self.require(self.world.now - newest[0] < 3.0, f"no step since {newest[0]:.3f}: {state.reason}")
            sick = self.world.training.is_sick and not self.world.policy.observe
            self.require(not sick, "it trains on parameters that are NaN")
        elif (rewind := state.rewind) is not None and rewind.restore.step is not None:
            there = self.world.disk.newest(rewind.restore.step, state.unhealthy_from)
            healthy = [step for step, healthy in self.world.disk.there.items() if healthy]
            found = there is not None and (self.world.disk.there[there] or not healthy)
            self.require(found, "what is to be restored after the page is not healthy")
        self.replay_equals_live()
