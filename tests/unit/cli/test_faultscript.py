from pathlib import Path

import pytest
from wireobjects import a_status

from holdfast.api.errors import InvalidInput
from holdfast.api.status import JobPhase
from holdfast.cli.embedded.demonstration import demo_faults
from holdfast.cli.embedded.faultscript import After, Deed, read_fault_script
from holdfast.cli.embedded.injector import is_due


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
            "- {at: {step: 90}, do: kill-watchdog}\n",
        )
    )
    assert [str(fault) for fault in faults] == ["kill-worker of rank 1", "xid 79 of node-2", "kill-watchdog"]
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
