import json
from pathlib import Path

import msgspec
import pytest
from fakewatchdog import FakeWatchdog, fake_watchdog, lay_out
from wireobjects import JOB, an_incident

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import ClockTicked, JobSubmitted, Journaled
from holdfast.api.plan import Plan
from holdfast.api.policy import Policy
from holdfast.api.status import Hearing, NodeStatus
from holdfast.api.telemetry import GpuHealth, GpuSample, Unreadable
from holdfast.cli.incidentview import incidents_wide_text, recorded_incidents_text
from holdfast.cli.main import answer
from holdfast.cli.view import nodes_text, nodes_wide_text
from holdfast.cli.watchdogclient import JournalPage
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import turn
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.watchdog.store.store import Bound, Snapshot

SUBMITTED = JobSubmitted(Policy(job=JOB, nodes_min=1, nodes_max=2))


def with_journal(root: Path) -> list[str]:
    """A run that is over, with a journal of two lines; the flags that name it."""
    directory = lay_out(root, port=1)
    store = SqliteStore(directory.store_file)
    fence = store.claim()
    store.append(JOB, [SUBMITTED], at=100.0, after=0, fence=fence)
    store.append(JOB, [ClockTicked()], at=101.0, after=1, fence=fence)
    store.close()
    return ["--state-dir", str(root)]


def test_a_journal_is_read_after_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = with_journal(tmp_path)
    assert answer(["journal", *flags]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("     1  1970-01-01T00:01:40.000Z  JobSubmitted  policy={")
    assert lines[1] == "     2  1970-01-01T00:01:41.000Z  ClockTicked"
    assert answer(["journal", "--after", "1", "-o", "json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["event"]["type"] == "ClockTicked"
    assert answer(["journal", "-o", "name", *flags]) == 0
    assert capsys.readouterr().out == "event/1\nevent/2\n"


def test_a_journal_without_a_kept_state_is_replayed_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = with_journal(tmp_path)
    assert answer(["replay", "--events", *flags]) == 0
    said = capsys.readouterr().out
    assert "-> Show, Publish: job research/gpt submitted" in said
    assert "2 events of research/gpt were replayed; no state was kept to compare with" in said


def with_compacted_journal(root: Path) -> list[str]:
    """A run that is over, of whose journal lines 4 to 6 are left; the flags that name it."""
    directory = lay_out(root, port=1)
    store = SqliteStore(directory.store_file, Bound(lines=3))
    fence, state = store.claim(), brain.initial(JOB)
    events = [SUBMITTED, *[ClockTicked()] * 5]
    for offset, event in enumerate(events, start=1):
        store.append(JOB, [event], at=100.0 + offset, after=offset - 1, fence=fence)
        state = turn(brain, state, event, 100.0 + offset).state
        store.save(JOB, Snapshot(offset, 100.0 + offset, msgspec.msgpack.encode(state)), fence=fence)
    store.close()
    return ["--state-dir", str(root)]


def test_a_compacted_journal_says_where_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = with_compacted_journal(tmp_path)
    assert answer(["journal", *flags, "-o", "name"]) == 0
    said = capsys.readouterr()
    assert said.out == "event/4\nevent/5\nevent/6\n"
    assert "lines before 4 were compacted at 1970-01-01T00:01:46.000Z; incidents are kept" in said.err
    assert answer(["journal", *flags, "--after", "4", "-o", "name"]) == 0
    assert capsys.readouterr() == ("event/5\nevent/6\n", "")


def test_a_compacted_journal_is_replayed_from_the_state_that_was_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["replay", *with_compacted_journal(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "1 events of research/gpt were replayed from the state kept at event 5 (older events were com" in said
    assert "at event 6 the state is the one that was kept, byte for byte" in said


def test_a_compacted_journal_elsewhere_says_where_it_begins_and_is_not_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_watchdog(tmp_path) as fake:
        flags = by_address(tmp_path, fake, None)
        page = JournalPage((Journaled(4, 100.0, ClockTicked()),), None, 4, 106.0)
        fake.answers["GET journal"] = (200, page)
        assert answer(["journal", *flags, "-o", "name"]) == 0
        said = capsys.readouterr()
        assert said.out == "event/4\n"
        assert "lines before 4 were compacted at 1970-01-01T00:01:46.000Z" in said.err
        assert answer(["replay", *flags]) == 3
        assert (
            "begins at line 4; what the lines before it led to is only in the watchdog's"
            in capsys.readouterr().err
        )


def test_a_directory_without_a_store_has_no_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_out(tmp_path, port=1)
    for command in ("journal", "replay"):
        assert answer([command, "--state-dir", str(tmp_path)]) == 3
        assert f"there is no journal in {tmp_path}" in capsys.readouterr().err


def by_address(root: Path, fake: FakeWatchdog, plan: Plan | None) -> list[str]:
    """A watchdog elsewhere that shows that plan; the flags that name it."""
    state = turn(brain, brain.initial(JOB), SUBMITTED, 100.0).state
    pages = [JournalPage((Journaled(1, 100.0, SUBMITTED),), None), JournalPage((), None)]
    fake.answers["GET journal"] = lambda: (200, pages.pop(0))
    fake.answers["GET round"] = (200, state.desired)
    fake.answers["GET plan"] = (200, plan or state.plan)
    port = json.loads((root / "watchdog.json").read_text())["port"]
    return [JOB, "--watchdog", f"127.0.0.1:{port}", "--token-file", str(root / "token")]


def test_a_watchdog_elsewhere_is_compared_by_what_it_shows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_watchdog(tmp_path) as fake:
        assert answer(["replay", *by_address(tmp_path, fake, None)]) == 0
        assert "they lead to the round and the plan that are shown" in capsys.readouterr().out
        other = Plan(JOB, 99, members=7, spares=0)
        assert answer(["replay", *by_address(tmp_path, fake, other)]) == 1
        assert "plan: the journal gives Plan(" in capsys.readouterr().out


def test_a_journal_elsewhere_is_read_page_by_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fake_watchdog(tmp_path) as fake:
        flags = by_address(tmp_path, fake, None)
        first, second = Journaled(1, 100.0, SUBMITTED), Journaled(2, 101.0, ClockTicked())
        pages = [JournalPage((first,), 1), JournalPage((second,), None)]
        fake.answers["GET journal"] = lambda: (200, pages.pop(0))
        assert answer(["journal", *flags, "-o", "name"]) == 0
    assert capsys.readouterr().out == "event/1\nevent/2\n"


def test_a_run_is_found_by_the_name_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with_journal(tmp_path / ".holdfast" / "research-gpt")
    for name in ("gpt", "research/gpt"):
        assert answer(["journal", name, "-o", "name"]) == 0
    capsys.readouterr()
    assert answer(["journal", "llama"]) == 2
    assert f"the runs under {tmp_path}/.holdfast are: research/gpt" in capsys.readouterr().err
    assert answer(["journal", "llama", "--state-dir", ".holdfast/research-gpt"]) == 2
    assert "research-gpt belongs to research/gpt" in capsys.readouterr().err


def test_nodes_are_one_a_line_and_wide_one_gpu_a_line() -> None:
    hot = GpuSample("GPU-1", 0, GpuHealth.HEALTHY, temperature_c=81.0, power_w=650.0, utilization_ratio=0.5)
    dark = GpuSample("GPU-2", 1, GpuHealth.UNKNOWN)
    nodes = [NodeStatus("n1", 0.5, (hot, dark)), NodeStatus("n2", 2.0)]
    header, first, second = nodes_text(nodes).splitlines()
    assert header.split() == ["NODE", "HEARD", "GPUS", "HEALTH", "HOTTEST", "POWER", "BUSY", "TROUBLE"]
    assert "1 healthy, 1 unknown" in first
    assert first.split()[-6:] == ["81", "C", "650", "W", "50%", "none"]
    assert second.split() == ["n2", "2", "s", "ago", "0", "none", "?", "?", "?", "none"]
    assert [line.split()[:3] for line in nodes_wide_text(nodes).splitlines()[1:]] == [
        ["n1", "0", "GPU-1"],
        ["n1", "1", "GPU-2"],
        ["n2", "none", "?"],
    ]
    assert nodes_text([]) == nodes_wide_text([]) == "no agent has reported"


def test_what_is_wrong_with_a_node_is_said_beside_it() -> None:
    hot = GpuSample("GPU-1", 0, GpuHealth.HEALTHY, temperature_c=95.0, margin_c=-5.0)
    narrow = Condition(ConditionKind.PCIE_DEGRADED, ConditionState.RAISED, 5.0, "8 lanes of 16", "GPU-1")
    over = Condition(ConditionKind.DISK_FULL, ConditionState.CLEARED, 5.0, "half is free")
    sick = NodeStatus(
        "n1", 0.5, (hot,), (narrow, over), (Unreadable("nvml", "hangs"),), "xid 79", "GPU lost in a/b"
    )
    assert (
        nodes_text([sick])
        .splitlines()[1]
        .endswith(
            "avoided: xid 79; PcieDegraded; -5 C below slowing down; cannot read nvml; known for: GPU lost in a/b"
        )
    )


def test_a_self_test_that_a_node_owes_is_said_beside_it() -> None:
    tested = NodeStatus("n1", 0.5, tested="full self-test pending, requested: xid")
    assert nodes_text([tested]).splitlines()[1].endswith(" full self-test pending, requested: xid")


def test_a_node_whose_agent_is_silent_is_said_to_be_so() -> None:
    silent = NodeStatus("n1", 7200.0, (GpuSample("GPU-1", 0, GpuHealth.UNKNOWN),), hearing=Hearing.SILENT)
    row = nodes_text([silent]).splitlines()[1]
    assert row.split() == ["n1", "120", "min", "ago", "1", "1", "unknown", "?", "?", "?", "silent"]


def test_wide_incidents_have_the_whole_cause_and_the_rounds() -> None:
    cause = "a cause that is longer than a table likes to have it in one column"
    assert cause in incidents_wide_text([an_incident(cause=cause)])
    assert incidents_wide_text([an_incident()]).splitlines()[1].endswith("2 to 3")
    assert incidents_wide_text([]) == "no incident"


def test_a_recorded_incident_of_another_version_is_shown_as_far_as_it_is_known() -> None:
    known = {"id": "inc-1", "kind": "Hang", "timeToRecoverSeconds": 2.5, "state": "Recovered", "colour": "red"}
    assert recorded_incidents_text([known]).splitlines()[1].split() == [
        *("inc-1", "Hang", "?", "?", "?", "2.5", "s", "Recovered")
    ]
    slow = {"id": "inc-2", "kind": "Straggler", "cause": "slow", "slowedRankHours": 12.34}
    assert "slow, 12.3 rank-hours" in recorded_incidents_text([slow])
