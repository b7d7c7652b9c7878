import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import pytest
from wireobjects import a_rank, a_status, an_incident

from holdfast.agent.sensors.simulated_gpu import gpu_uuid
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE, NanOutput, request_nan
from holdfast.api.disturbance import Ailment
from holdfast.api.errors import InvalidInput
from holdfast.api.event import (
    CheckpointRecorded,
    ClockTicked,
    ConditionOver,
    Event,
    FindingMade,
    FleetReviewed,
    InterventionRequested,
    JobSubmitted,
    MemberDeparting,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberReady,
    MembersEntered,
    MembersReady,
    MemberTested,
    MemberWarmed,
    NodeChanged,
    NodeDeparting,
    NodeReputed,
    PodChanged,
    ReplicasAgreed,
    RestoreReported,
    RoundBegan,
    RoundProgressed,
    RunRecorded,
    StacksTaken,
    StopEnded,
    StorageListed,
    WatchdogStarted,
)
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident
from holdfast.api.status import JobPhase, JobStatus, RankStatus
from holdfast.cli.commands.run import conclude, demo_faults
from holdfast.cli.embedded import faultscript
from holdfast.cli.embedded.audience import LineAudience, Picture
from holdfast.cli.embedded.faultscript import (
    AILMENTS,
    After,
    Deed,
    check_whom,
    disturbance_of,
    drills_of,
    read_fault_script,
    variables_of,
)
from holdfast.cli.embedded.injector import Injected, Injector, is_due
from holdfast.cli.output import ExitCode


def script(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "faults.yaml"
    file.write_text(text)
    return file


def test_a_script_is_a_list_of_faults_in_order(tmp_path: Path) -> None:
    faults = read_fault_script(
        script(
            tmp_path,
            "- {at: {step: 30}, do: kill-worker, rank: 1}\n"
            "- {at: {step: 60}, after: recovered, do: xid, node: node-2, xid: 79}\n"
            "- {at: {step: 90}, do: kill-watchdog}\n"
            "- {at: {step: 95}, do: flip-bit, rank: 2, bit: 31}\n"
            "- {at: {step: 96}, do: nan, rank: 3, for: 5}\n",
        )
    )
    assert [str(fault) for fault in faults] == [
        "kill-worker of rank 1",
        "xid 79 of node-2",
        "kill-watchdog",
        "flip-bit of rank 2",
        "nan of rank 3",
    ]
    assert faults[1].after is After.RECOVERED


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("{at: {step: 1}, do: explode}", "faults[0].do: 'explode' is not accepted; write one of: "),
        ("{do: kill-worker, rank: 1}", "faults[0].at: (missing) is not accepted; add it"),
        (
            "{at: {step: -1}, do: kill-watchdog}",
            "faults[0].at.step: -1 is not accepted; write a number of at least 0",
        ),
        (
            "{at: {step: 1}, do: kill-worker}",
            "faults[0].rank: (missing) is not accepted; add it; kill-worker needs a",
        ),
        (
            "{at: {step: 1}, do: flip-bit, node: a}",
            "faults[0].node: 'a' is not accepted; remove it; flip-bit does not read it",
        ),
        (
            "{at: {step: 1}, do: flip-bit}",
            "faults[0].rank: (missing) is not accepted; add it; flip-bit needs a",
        ),
        (
            "{at: {step: 1}, do: kill-worker, rank: 1, for: 2}",
            "faults[0].for: 2 is not accepted; remove it; kill-worker does not read it",
        ),
        (
            "{at: {step: 1}, do: flip-bit, rank: 1, bit: 64}",
            "faults[0].bit: 64 is not accepted; write a number of at most 63",
        ),
        (
            "{at: {step: 1}, do: stop-worker, rank: 1, bit: 3}",
            "faults[0].bit: 3 is not accepted; remove it; stop-worker does not read it",
        ),
        (
            "{at: {step: 1}, do: kill-node}",
            "faults[0].node: (missing) is not accepted; kill-node needs either a rank or a node",
        ),
        (
            "{at: {step: 1}, do: kill-node, rank: 1, node: a}",
            "faults[0].node: 'both' is not accepted; kill-node needs either a rank or a node",
        ),
        ("{at: {step: 1}, do: xid, rank: 1}", "faults[0].xid: (missing) is not accepted; add it, such as 79"),
        (
            "{at: {step: 1}, do: gpu-lost, rank: 1, xid: 79}",
            "faults[0].xid: 79 is not accepted; remove it; gpu-lost does not read it",
        ),
        (
            "{at: {step: 0}, do: compute-wrong}",
            "faults[0].node: (missing) is not accepted; add it; compute-wrong needs a",
        ),
        (
            "{at: {step: 0}, do: compute-wrong, rank: 1}",
            "faults[0].rank: 1 is not accepted; remove it; compute-wrong does not read it",
        ),
        (
            "{at: {step: 1}, do: kill-watchdog, rank: 1}",
            "faults[0].rank: 1 is not accepted; remove it; kill-watchdog does not read it",
        ),
        (
            "{at: {step: 1}, do: condition, rank: 1}",
            "faults[0].kind: (missing) is not accepted; add it, such as PcieDegraded",
        ),
        (
            "{at: {step: 1}, do: condition, rank: 1, kind: Rust}",
            "faults[0].kind: 'Rust' is not accepted; write one of: ",
        ),
        (
            "{at: {step: 1}, do: slow, node: a}",
            "faults[0].node: 'a' is not accepted; remove it; slow does not read it",
        ),
        (
            "{at: {step: 1}, do: nan, rank: 1, for: 0}",
            "faults[0].for: 0 is not accepted; write a number of at least 1",
        ),
        (
            "{at: {step: 1}, do: nan, rank: 1, times: 3}",
            "faults[0].times: 3.0 is not accepted; remove it; nan does not read it",
        ),
        (
            "{at: {step: 1}, do: drain, node: a, for: 3}",
            "faults[0].for: 3 is not accepted; remove it; drain does not read it",
        ),
        (
            "{at: {step: 1}, do: partition, rank: 1, seconds: 0}",
            "faults[0].seconds: 0 is not accepted; write a number above 0",
        ),
        (
            "{at: {step: 1}, do: kill-worker, rank: 1, rnk: 2}",
            "faults[0].rnk: 2 is not accepted; there is no such field; did you mean rank?",
        ),
    ],
)
def test_a_bad_fault_is_refused_with_field_value_and_fix(tmp_path: Path, fault: str, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_fault_script(script(tmp_path, f"- {fault}\n"))
    assert str(refused.value).startswith(message)


def test_a_script_that_is_no_list_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="write one list of faults"):
        read_fault_script(script(tmp_path, "at: {step: 1}\n"))


def test_a_fault_waits_for_its_step_and_for_the_one_before_to_be_healed(tmp_path: Path) -> None:
    at_once, patient = read_fault_script(
        script(
            tmp_path,
            "- {at: {step: 30}, do: kill-worker, rank: 0}\n"
            "- {at: {step: 30}, after: recovered, do: kill-worker, rank: 0}\n",
        )
    )
    broken = a_status(step=30, incidents_open=1, phase=JobPhase.RECOVERING)
    assert not is_due(at_once, a_status(step=29))
    assert not is_due(at_once, a_status(step=None))
    assert is_due(at_once, broken)
    assert not is_due(patient, broken)
    assert is_due(patient, a_status(step=30))


@pytest.mark.parametrize(
    ("fault", "round", "kinds", "is_noticed"),
    [
        ("stop-worker, rank: 0", 2, (), False),
        ("stop-worker, rank: 0", 2, (FindingKind.CORRUPTION,), False),  # of the fault before it
        ("stop-worker, rank: 0", 2, (FindingKind.HANG,), True),
        ("stop-worker, rank: 0", 3, (), True),  # it joined an incident that was open
        ("drain, rank: 0", 2, (), False),
        ("drain, rank: 0", 3, (), True),
        ("drain, rank: 0", 2, (FindingKind.CONDITION,), True),  # of a job that is only observed
        ("spike, rank: 0", 2, (), True),  # nothing comes of it
    ],
)
def test_a_fault_is_noticed_by_what_comes_of_it(
    tmp_path: Path, fault: str, round: int, kinds: tuple[FindingKind, ...], is_noticed: bool
) -> None:
    [wanted] = read_fault_script(script(tmp_path, f"- {{at: {{step: 1}}, do: {fault}}}\n"))
    injected = Injected(wanted, round=2, incidents=frozenset({"inc-0001"}))
    before = an_incident(id="inc-0001", kind=FindingKind.HANG)
    fresh = [an_incident(id=f"inc-{number:04}", kind=kind) for number, kind in enumerate(kinds, start=2)]
    assert injected.is_noticed(a_status(round=round), [before, *fresh]) is is_noticed


def test_a_script_that_tells_no_steps_can_be_broken_once_it_runs(tmp_path: Path) -> None:
    at_once, later = read_fault_script(
        script(
            tmp_path,
            "- {at: {step: 0}, do: kill-worker, rank: 0}\n- {at: {step: 1}, do: kill-worker, rank: 0}\n",
        )
    )
    assert not is_due(at_once, a_status(step=None, phase=JobPhase.FORMING))
    assert is_due(at_once, a_status(step=None, phase=JobPhase.RUNNING))
    assert not is_due(later, a_status(step=None, phase=JobPhase.RUNNING))


def test_every_verb_is_described() -> None:
    described = {line.split()[0] for line in (faultscript.__doc__ or "").splitlines() if line.startswith("    ")}
    assert {str(deed) for deed in Deed} <= described
    assert set(AILMENTS.values()) == set(Ailment)


def test_every_kind_of_finding_has_a_verb_that_leads_to_it() -> None:
    # What is stored is nothing that a drill may harm; a spike that lasts is a divergence only where the spec asks.
    of_no_verb = {FindingKind.NOTHING_TO_RESTORE, FindingKind.DIVERGENCE, FindingKind.STRAGGLER}
    assert {kind for deed in Deed for kind in deed.seen_as} | of_no_verb == set(FindingKind)


# What tells the brain of a fault, or of a change that somebody else plans, and which verb brings it about.
BROUGHT_ABOUT_BY: dict[type, tuple[Deed, ...]] = {
    FindingMade: tuple(deed for deed in Deed if deed.seen_as),
    MemberDeparting: (Deed.END_LAUNCHER,),
    MemberLeft: (Deed.END_LAUNCHER, Deed.DRAIN),
    NodeDeparting: (Deed.PREEMPT,),
    NodeChanged: (Deed.DRAIN, Deed.KILL_NODE),
    MemberTested: (Deed.COMPUTE_WRONG,),
    StacksTaken: (Deed.STOP_WORKER,),
    ReplicasAgreed: (Deed.FLIP_BIT,),  # by its absence
    ConditionOver: (Deed.HOT,),  # a temperature that falls again
    NodeReputed: (Deed.XID, Deed.GPU_LOST),
    WatchdogStarted: (Deed.KILL_WATCHDOG,),
    MemberJoined: (Deed.PARTITION, Deed.KILL_NODE),
}
# What every run tells of, and what only a cluster does.
ORDINARY = {
    *(
        JobSubmitted,
        MemberWarmed,
        MemberEntered,
        MembersEntered,
        MemberFinished,
        CheckpointRecorded,
        RestoreReported,
    ),
    *(StorageListed, RunRecorded, RoundProgressed, RoundBegan, InterventionRequested, ClockTicked, PodChanged),
    StopEnded,  # long work of a script, which is no fault
    FleetReviewed,  # takes weeks of many jobs
    MemberReady,  # these follow a fault in a job with replica groups
    MembersReady,
}


def test_every_event_is_brought_about_by_a_verb_or_is_of_every_run() -> None:
    assert BROUGHT_ABOUT_BY.keys() | ORDINARY == set(get_args(Event))
    assert not BROUGHT_ABOUT_BY.keys() & ORDINARY


@pytest.mark.parametrize("deed", sorted(AILMENTS), ids=str)
def test_every_ailment_is_asked_of_its_rank(tmp_path: Path, deed: Deed) -> None:
    [fault] = read_fault_script(script(tmp_path, f"- {{at: {{step: 1}}, do: {deed}, rank: 1}}\n"))
    wanted = disturbance_of(fault)
    assert (wanted.rank, str(wanted.ailment)) == (1, str(deed))
    assert CORRUPTIBLE_VARIABLE in variables_of([fault])


def test_the_demo_breaks_four_things_each_after_the_one_before_was_healed() -> None:
    faults = demo_faults(300)
    assert [fault.do for fault in faults] == [Deed.KILL_WORKER, Deed.KILL_NODE, Deed.STOP_WORKER, Deed.XID]
    assert [fault.at.step for fault in faults] == [50, 100, 150, 200]
    assert {fault.after for fault in faults} == {After.RECOVERED}


def test_a_rank_that_the_job_never_has_is_refused_before_anything_starts(tmp_path: Path) -> None:
    faults = read_fault_script(
        script(
            tmp_path,
            "- {at: {step: 1}, do: kill-worker, rank: 3}\n"
            "- {at: {step: 2}, do: kill-node, node: node-9}\n"
            "- {at: {step: 3}, do: xid, rank: 4, xid: 79}\n",
        )
    )
    with pytest.raises(InvalidInput) as raised:
        check_whom(faults, nodes_max=2, local_size=2)
    assert str(raised.value) == "faults[2].rank: 4 is not accepted; the job has at most 4 ranks, 0 to 3"
    check_whom(faults, nodes_max=5, local_size=1)


def test_a_gpu_that_no_node_has_cannot_compute_wrong(tmp_path: Path) -> None:
    faults = read_fault_script(script(tmp_path, "- {at: {step: 0}, do: compute-wrong, node: node-1, gpu: 2}\n"))
    with pytest.raises(InvalidInput) as raised:
        check_whom(faults, nodes_max=4, local_size=2)
    assert str(raised.value) == "faults[0].gpu: 2 is not accepted; a node has 2 GPUs, 0 to 1"
    check_whom(faults, nodes_max=1, local_size=3)


class RunWithoutNodes:
    """Plays the link, the cluster and the watchdog of a run in which nothing is up."""

    pid = None
    up: Mapping[str, Any] = MappingProxyType({"node-1": None})
    started = frozenset({"node-1"})

    async def status(self) -> JobStatus:
        return a_status()

    async def incidents(self) -> tuple[Incident, ...]:
        return ()

    async def ranks(self) -> tuple[RankStatus, ...]:
        return (a_rank(0), a_rank(1, pid=None))


async def test_a_fault_that_finds_nobody_is_told_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.embedded.injector.WHOM_S", 0.1)
    text = (
        "- {at: {step: 1}, do: kill-worker, rank: 7}\n"
        "- {at: {step: 2}, do: kill-node, node: node-9}\n"
        "- {at: {step: 3}, do: kill-watchdog}\n"
        "- {at: {step: 9999}, do: kill-watchdog}\n"
        "- {at: {step: 0}, do: compute-wrong, node: node-1}\n"
        "- {at: {step: 0}, do: compute-wrong, node: node-9}\n"
    )
    told: list[str] = []
    done = asyncio.Event()

    def say(line: str) -> None:
        told.append(line)
        if line == "injecting: kill-watchdog":
            done.set()

    run: Any = RunWithoutNodes()
    injector = Injector(run, run, run, say)
    injecting = asyncio.create_task(injector.run(read_fault_script(script(tmp_path, text))))
    async with asyncio.timeout(1.5):
        await done.wait()
        await asyncio.sleep(0)  # the fault itself follows what is said of it
    injecting.cancel()
    no_rank = "kill-worker of rank 7: there is no process of that rank; the ranks there are: 0, 1"
    no_node = "kill-node of node-9: that node is not up; the nodes that are: node-1"
    assert [line for line in told if "NOT" in line] == [f"NOT INJECTED: {no_rank}", f"NOT INJECTED: {no_node}"]
    assert injector.missed == (
        no_rank,
        no_node,
        "kill-watchdog: step 9999 came too late for it",
        "compute-wrong of node-9: that node was never started",
    )


class RunOfAnotherScript(RunWithoutNodes):
    """Its script takes no request; the process of rank 0 has ended, which its record does not say."""

    def __init__(self, directory: Path, pid: int) -> None:
        self.run_directory = directory
        self._pid = pid
        self.up = {a_rank(0).node: self}

    async def ranks(self) -> tuple[RankStatus, ...]:
        return (a_rank(0, pid=self._pid),)


async def test_what_a_rank_does_not_take_up_or_is_not_alive_to_suffer_was_not_injected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.embedded.injector.WHOM_S", 0.1)
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    text = (
        "- {at: {step: 1}, do: nan, rank: 0}\n"
        "- {at: {step: 1}, do: flip-bit, rank: 0}\n"
        "- {at: {step: 1}, do: kill-worker, rank: 0}\n"
    )
    run: Any = RunOfAnotherScript(tmp_path, ended.pid)
    injector = Injector(run, run, run, lambda line: None)
    await injector.run(read_fault_script(script(tmp_path, text)))
    refused = "of rank 0: the rank did not take it up within 0 s; its script must use"
    assert injector.missed == (
        f"nan {refused} Run.watch or a Checkpointer, and Run.step",
        f"flip-bit {refused} Run.watch or a Checkpointer, and Run.step",
        "kill-worker of rank 0: there is no process of that rank; the ranks there are: 0",
    )
    assert [each.name for each in tmp_path.iterdir()] == ["faults.yaml"]


async def test_a_nan_of_many_steps_is_injected_when_its_first_step_was_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.cli.embedded.injector.POLL_INTERVAL_S", 0.01)
    monkeypatch.setattr("holdfast.cli.embedded.injector.NOTICE_S", 0.0)
    text = "- {at: {step: 1}, do: nan, rank: 0, for: 100000}\n- {at: {step: 2}, do: kill-watchdog}\n"
    asked, passed_on = asyncio.Event(), asyncio.Event()

    def say(line: str) -> None:
        (asked if line == "injecting: nan of rank 0" else passed_on).set()

    run: Any = RunOfAnotherScript(tmp_path, 1)
    injector = Injector(run, run, run, say)
    injecting = asyncio.create_task(injector.run(read_fault_script(script(tmp_path, text))))
    async with asyncio.timeout(1.5):
        await asked.wait()
        await asyncio.sleep(0)
        assert injector.missed[0] == "nan of rank 0: the run ended before it was done"
        request_nan(tmp_path, NanOutput(rank=0, step=1, steps=99_999))  # as the rank does after each step
        await passed_on.wait()
        await injecting
    assert injector.missed == ()


def test_words_of_a_job_command_no_terminal_while_it_runs_and_when_it_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wild = "ValueError: \x1b]0;owned\x07 \x9b2J"
    incident = an_incident(cause=wild, error=f"Traceback\n{wild}")
    failed = Picture(a_status(phase=JobPhase.FAILED, reason=wild), (incident,))
    LineAudience(lambda: 0.0).look(failed)
    assert conclude(failed, says_how_to_go_on=True) is ExitCode.FAILED
    told = capsys.readouterr().err
    assert told.count("\\x1b]0;owned\\x07") >= 3
    assert not set(told) & {"\x1b", "\x07", "\x9b"}


def test_a_drill_that_did_not_happen_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    succeeded = a_status(phase=JobPhase.SUCCEEDED)
    assert conclude(Picture(succeeded), says_how_to_go_on=True) is ExitCode.OK
    assert conclude(Picture(succeeded, missed=("xid 79: no",)), says_how_to_go_on=True) is ExitCode.FAILED
    assert "NOT INJECTED: xid 79: no\n" in capsys.readouterr().err


def test_a_node_that_computes_wrong_is_started_with_a_drill_for_its_own_gpus(tmp_path: Path) -> None:
    faults = read_fault_script(script(tmp_path, "- {at: {step: 0}, do: compute-wrong, node: node-2, gpu: 1}\n"))
    drills = drills_of(faults, gpus=2)
    assert list(drills) == ["node-2"]
    assert drills["node-2"].devices == (gpu_uuid("node-2", 0), gpu_uuid("node-2", 1))
    assert drills["node-2"].inject == (f"flip:probability=0.02:seed=7:device={gpu_uuid('node-2', 1)}",)


@pytest.mark.parametrize(
    ("fault", "armed"),
    [
        ("{at: {step: 5}, do: flip-bit, rank: 0}", True),
        ("{at: {step: 5}, do: nan, rank: 0}", True),
        ("{at: {step: 0}, do: compute-wrong, node: node-2}", True),
        ("{at: {step: 5}, do: kill-watchdog}", False),
    ],
)
def test_corruption_is_allowed_only_where_the_script_asks_for_it(tmp_path: Path, fault: str, armed: bool) -> None:
    faults = read_fault_script(script(tmp_path, f"- {fault}\n"))
    assert (CORRUPTIBLE_VARIABLE in variables_of(faults)) is armed
