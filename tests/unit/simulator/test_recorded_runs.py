from collections.abc import Iterator

import msgspec
import pytest
from pastrun import JOB, POLICY, PastRun, past_run
from smallfleet import small_live

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    InterventionRequested,
    JobSubmitted,
    Journaled,
    RoundProgressed,
)
from holdfast.api.finding import FindingKind
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import CheckpointInterval, XidAction
from holdfast.cli.simulation import journal
from holdfast.cli.target import Target
from holdfast.simulator.comparison import Side
from holdfast.simulator.fault import Symptom
from holdfast.simulator.outcome import LostTo
from holdfast.simulator.recorded import recorded
from holdfast.simulator.replayed import brief_of, replayed
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.journal.replay import Replayed
from holdfast.watchdog.store.store import Snapshot


def test_a_journal_tells_what_failed_and_when() -> None:
    xid, killed, spot = recorded(past_run().replayed()).happenings
    assert (xid.fault.symptom, xid.fault.code, xid.fault.infrastructure, xid.node) == (Symptom.XID, 79, 1.0, 0)
    assert xid.at_s == 199 * 10.0  # from the first step on; it was found 5 s later
    assert (killed.fault.symptom, killed.fault.infrastructure) == (Symptom.PROCESS_EXIT, 0.0)
    assert (spot.fault.symptom, spot.node) == (Symptom.PREEMPTION, killed.node)


def test_a_journal_tells_what_became_of_the_run_and_how_long_things_took() -> None:
    """By hand: ten steps and a minute for each of two faults, and two saves."""
    found = recorded(past_run().replayed())
    really = found.really
    assert (really.evictions, really.incidents, really.pages) == (1, 2, 0)
    assert really.lost_s[LostTo.REPLAY] == 2 * 10 * 10.0
    assert really.lost_s[LostTo.DETECT] == 2 * 5.0
    assert really.lost_s[LostTo.RESTORE] == pytest.approx(2 * 10.0 + 2 * 10.0)  # and each round's first step
    assert really.trained_s == pytest.approx(510 * 10.0 - 3 * 10.0)
    assert really.elapsed_s == pytest.approx(really.trained_s + sum(really.lost_s.values()))
    assert (found.step_s, found.nodes) == (10.0, 4)
    assert (found.times.save_stall_s, found.times.save_took_s) == (3.0, 50.0)
    assert found.script_saves == 200
    assert found.times.load_s == pytest.approx(really.lost_s[LostTo.RESTORE] / 2)
    assert found.scenario(found.policy).policy.memory is None  # it went back to checkpoints


def test_what_was_before_a_compacted_journal_begins_does_not_count() -> None:
    """The second half alone: one fault fewer, and its time alone."""
    run = past_run()
    middle = next(place for place, line in enumerate(run.lines) if line.at > 3500.0)
    state = brain.initial(run.lines[0].event.policy.job)  # type: ignore[union-attr]
    steps = []
    for place, line in enumerate(run.lines):
        step = turn(brain, state, line.event, line.at)
        state = step.state
        if place >= middle:
            steps.append(Replayed(line, step.effects, step.reason, state))
    whole, half = recorded(run.replayed()), recorded(steps)
    assert [each.fault.symptom for each in half.happenings] == [Symptom.PROCESS_EXIT, Symptom.PREEMPTION]
    assert half.happenings[0].at_s == whole.happenings[1].at_s - (run.lines[middle].at - 1070.0)
    assert half.really.evictions == 0
    assert half.really.elapsed_s < whole.really.elapsed_s
    assert half.really.lost_s[LostTo.REPLAY] == 100.0
    assert half.happenings[0].node == whole.happenings[1].node


def test_of_two_jobs_that_had_the_name_the_last_is_lived_through() -> None:
    run = past_run()
    run.now += 500.0
    run.tell(JobSubmitted(msgspec.structs.replace(POLICY, uid="another", generation=1)))
    with pytest.raises(InvalidInput, match="trained no step"):
        recorded(run.replayed())
    run.join(5, 6, 7, 8)
    run.now += 30.0
    run.tell(ClockTicked())
    run.enter(0)
    run.train(1, 100)
    run.now += 5.0
    run.find(FindingKind.XID, run.round.ranks[0].member, "xid 79")
    found = recorded(run.replayed())
    assert [each.at_s for each in found.happenings] == [99 * 10.0]
    assert (found.nodes, found.really.incidents) == (4, 1)


def test_a_script_that_saves_by_itself_does_so_again() -> None:
    """Steps that the policy names are the policy's, and what was asked for is not the script's."""
    run = past_run()
    assert recorded(run.replayed()).scenario(run.state.policy or POLICY).script_saves == 200
    lines = [
        msgspec.structs.replace(line, event=msgspec.structs.replace(line.event, wanted=1))
        if isinstance(line.event, CheckpointRecorded)
        else line
        for line in run.lines
    ]
    run.lines = lines
    assert recorded(run.replayed()).script_saves == 0
    run = past_run()
    run.tell(JobSubmitted(msgspec.structs.replace(POLICY, interval=CheckpointInterval(steps=50))))
    assert recorded(run.replayed()).script_saves == 0


def test_steps_that_a_busy_machine_told_of_all_at_once_say_nothing_of_how_long_one_takes() -> None:
    """All of the first half have one time; those of the second are as long as ever."""
    run = past_run()
    told = [place for place, line in enumerate(run.lines) if isinstance(line.event, RoundProgressed)]
    at_once = told[: len(told) * 3 // 4]
    for place in at_once:
        event = msgspec.structs.replace(run.lines[place].event, completed_at=run.lines[at_once[-1]].at)
        run.lines[place] = msgspec.structs.replace(run.lines[place], event=event)
    assert recorded(run.replayed()).step_s == 10.0


def test_a_run_that_never_trained_is_refused() -> None:
    run = PastRun()
    with pytest.raises(InvalidInput, match="trained no step"):
        recorded(run.replayed())
    run.tell(JobSubmitted(POLICY))
    with pytest.raises(InvalidInput, match="trained no step"):
        recorded(run.replayed())
    run.join(0, 1, 2)
    run.now += 30.0
    run.tell(ClockTicked())
    with pytest.raises(InvalidInput, match="no step"):
        recorded(run.replayed())


def test_a_run_that_is_suspended_now_is_lived_through_all_the_same() -> None:
    run = past_run()
    run.tell(JobSubmitted(msgspec.structs.replace(POLICY, suspend=True, admitted=0)))
    found = recorded(run.replayed())
    assert found.policy.is_kept_out
    assert not found.scenario(found.policy).policy.is_kept_out


def test_what_is_not_lived_through_again_is_counted() -> None:
    run = past_run()
    run.enter(500)
    run.train(511, 520)
    run.tell(
        InterventionRequested(InterventionRequest("i1", POLICY.job, InterventionAction.PAUSE, "anna", "lunch"))
    )
    run.find(FindingKind.DIVERGENCE, None, "loss too high")
    assert recorded(run.replayed()).left_out == {"Divergence": 1, "Intervention": 1}


def test_a_replay_says_by_how_much_the_simulator_is_beside_the_run() -> None:
    """The small fleet loses four minutes for each of three faults; the run lost 6.75 minutes."""
    run = recorded(past_run().replayed())
    old = run.scenario(run.policy)
    assert old.fleet.gpu_hour == 2.0
    side = Side("as it was", old, [small_live(old, seed) for seed in (1, 2)])
    found = replayed(run, side, None, "lost_gpu_hours")
    assert found.comparison is None
    lost = next(each for each in found.reproduced if each.name == "lost_minutes")
    assert lost.simulated.mean == pytest.approx(3 * 4.0)
    assert lost.off == pytest.approx(12.0 - lost.really)
    assert replayed(run, side, None, "goodput").error == lost.off
    assert (found.by, found.error) == ("lost_gpu_hours", abs(found.reproduced[2].off))


@pytest.mark.parametrize(
    ("old_s", "new_s", "says"),
    [(0.0, 120.0, "noise"), (0.0, 1200.0, "worse"), (1200.0, 0.0, "noise"), (60.0, 60.0, "noise")],
)
@pytest.mark.parametrize("by", ["lost_minutes", "goodput", "lost_gpu_hours", "lost_money"])
def test_another_policy_is_worse_only_beyond_noise_and_beyond_the_error(
    old_s: float, new_s: float, says: str, by: str
) -> None:
    """Half an interval more for each of three faults: 3 minutes are less than the small fleet is beside the run,
    30 are more; unless it is as far beside the run as that already.
    """
    run = recorded(past_run().replayed())
    sides = []
    for name, seconds in (("old", old_s), ("new", new_s)):
        policy = msgspec.structs.replace(run.policy, interval=CheckpointInterval(seconds=seconds))
        scenario = run.scenario(policy)
        sides.append(Side(name, scenario, [small_live(scenario, seed) for seed in (1, 2, 3)]))
    found = replayed(run, sides[0], sides[1], by)
    assert found.says == says
    assert found.differs == pytest.approx(found.comparison.of(found.by).change.mean if found.comparison else 0.0)
    assert found.comparison is not None
    assert found.comparison.of("lost_minutes").change.mean == pytest.approx(3 * (new_s - old_s) / 120)


def test_what_no_job_file_says_is_as_the_run_had_it() -> None:
    """Pods are waited for longer than processes of one machine; both policies are lived through in one place."""
    run = recorded(past_run().replayed())
    told = msgspec.structs.replace(
        run.policy, form_grace_s=30.0, save_grace_s=90.0, cluster_xid_actions={79: XidAction.WATCH}
    )
    run = msgspec.structs.replace(run, policy=told)
    lived = run.scenario(msgspec.structs.replace(POLICY, spares=2)).policy
    assert (lived.form_grace_s, lived.save_grace_s, lived.cluster_xid_actions) == (
        30.0,
        90.0,
        {79: XidAction.WATCH},
    )
    assert lived.spares == 2


@pytest.mark.parametrize(
    ("happens", "new_s", "says"), [(True, 1200.0, "worse"), (True, 0.0, "noise"), (False, 1200.0, "not judged")]
)
def test_a_brief_says_what_another_policy_comes_to_where_anything_has_failed(
    happens: bool, new_s: float, says: str
) -> None:
    run = recorded(past_run().replayed())
    if not happens:
        run = msgspec.structs.replace(run, happenings=())
    sides = []
    for name, seconds in (("old", 0.0), ("new", new_s)):
        scenario = run.scenario(msgspec.structs.replace(run.policy, interval=CheckpointInterval(seconds=seconds)))
        sides.append(Side(name, scenario, [small_live(scenario, seed) for seed in (1, 2, 3)]))
    found = brief_of(replayed(run, sides[0], sides[1], "lost_gpu_hours"))
    assert (found.says.value, bool(found.why)) == (says, not happens)
    assert found.faults == len(run.happenings)
    if happens:
        assert found.minutes == pytest.approx(3 * new_s / 120)
        assert found.money == pytest.approx(2.0 * found.gpu_hours)
        assert (found.currency, found.seeds, found.by) == ("USD", 3, "lost_gpu_hours")
    assert len(msgspec.json.encode(found)) < 1000, "a pod's last words"


@pytest.mark.parametrize("by", ["missed", "evictions_wrong", "luck"])
def test_what_a_journal_does_not_tell_judges_no_policy(by: str) -> None:
    """How far the simulator is beside it is not known."""
    run = recorded(past_run().replayed())
    scenario = run.scenario(run.policy)
    side = Side("as it was", scenario, [small_live(scenario, 1)])
    with pytest.raises(InvalidInput, match="its journal tells"):
        replayed(run, side, side, by)


class FarRun:
    """A job at a watchdog whose journal begins behind the line `first`."""

    def __init__(self, run: PastRun, first: int, *, state: bytes | None = None, gap: int = 0) -> None:
        self.job, self._run, self._first, self._state, self._gap = JOB, run, first, state, gap

    def origin(self) -> Snapshot:
        state = brain.initial(JOB)
        for line in self._run.lines[: self._first]:
            state = turn(brain, state, line.event, line.at).state
        return Snapshot(self._first, 0.0, msgspec.msgpack.encode(state) if self._state is None else self._state)

    def journal(self, after: int) -> Iterator[Journaled]:
        return iter(self._run.lines[after + self._gap :])

    def source(self) -> "FarRun":
        return self

    def client(self) -> "FarRun":
        return self


def test_a_run_of_a_watchdog_is_read_from_where_its_journal_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    run = past_run()
    half = len(run.lines) // 2
    for first in (0, half):
        monkeypatch.setattr(journal, "open_site", lambda target, first=first: FarRun(run, first))
        assert list(journal.journal_of(Target())) == list(run.replayed())[first:]


def test_a_journal_that_cannot_be_read_on_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for far, says in (
        (FarRun(past_run(), 5, gap=1), "compacted while it was read"),
        (FarRun(past_run(), 5, state=b"\xc1"), "of another version"),
    ):
        monkeypatch.setattr(journal, "open_site", lambda target, far=far: far)
        with pytest.raises(Unavailable, match=says):
            list(journal.journal_of(Target()))
