import asyncio
from pathlib import Path
from typing import Any

import pytest
from wireobjects import a_rank, a_status

from holdfast.agent.sensors.simulated_gpu import gpu_uuid
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.errors import InvalidInput
from holdfast.api.status import JobPhase, JobStatus, RankStatus
from holdfast.cli.commands.run import AGAIN, conclude
from holdfast.cli.embedded.demonstration import demo_faults
from holdfast.cli.embedded.drill import drills_of, variables_of
from holdfast.cli.embedded.faultscript import After, Deed, check_whom, read_fault_script
from holdfast.cli.embedded.injector import Injector, is_due
from holdfast.cli.exitcode import ExitCode
from holdfast.cli.view.picture import Picture


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
            "- {at: {step: 95}, do: flip-bit, rank: 2, bit: 31}\n",
        )
    )
    assert [str(fault) for fault in faults] == [
        "kill-worker of rank 1",
        "xid 79 of node-2",
        "kill-watchdog",
        "flip-bit of rank 2",
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

    async def status(self) -> JobStatus:
        return a_status()

    async def ranks(self) -> tuple[RankStatus, ...]:
        return (a_rank(0), a_rank(1, pid=None))

    def node(self, name: str) -> None:
        return None

    def names(self) -> tuple[str, ...]:
        return ("node-1",)

    def ever_started(self) -> frozenset[str]:
        return frozenset({"node-1"})


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


def test_a_drill_that_did_not_happen_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    succeeded = a_status(phase=JobPhase.SUCCEEDED)
    assert conclude(Picture(succeeded), again=AGAIN) is ExitCode.OK
    assert conclude(Picture(succeeded, missed=("xid 79: no",)), again=AGAIN) is ExitCode.FAILED
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
        ("{at: {step: 0}, do: compute-wrong, node: node-2}", True),
        ("{at: {step: 5}, do: kill-watchdog}", False),
    ],
)
def test_corruption_is_allowed_only_where_the_script_asks_for_it(tmp_path: Path, fault: str, armed: bool) -> None:
    faults = read_fault_script(script(tmp_path, f"- {fault}\n"))
    assert (CORRUPTIBLE_VARIABLE in variables_of(faults)) is armed
