"""Snapshots in memory, end to end: real nodes are lost with their memory, and every later loss is bit for bit."""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from embeddedrun import PATIENCE_S, holdfast, is_alive, job_file, running, wait_until
from forked_process import run_together
from gates import Gates

from holdfast.agent.launch.memoryfolder import ROOT, folder_of
from holdfast.api.status import RankStatus
from holdfast.checkpoint.capture.tier import SETTLED_AFTER
from holdfast.checkpoint.memory.sharedbuffer import HeldSnapshot, SharedBuffer
from holdfast.cli.statedirectory import StateDirectory
from holdfast.cli.watchdogclient import DirectLine, WatchdogClient
from holdfast.wire.access import Access, Address, Credential

# The story of the first tests is one run of a minute, of which parts are killed.
pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.usefixtures("own_command_lines")]

STEPS = 40
EVERY = 30
SMALL = ("--batch", "4", "--length", "16", "--layers", "1", "--width", "16", "--heads", "2")
SERVER = "holdfast.checkpoint.memory"
JOB = "default/toy"


def words(losses: Path) -> list[str]:
    return ["--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--losses", str(losses), *SMALL]


def lines(losses: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in losses.read_text().splitlines()]


@dataclass
class Run:
    """A run in the background, and what a test does to it."""

    process: "subprocess.Popen[str]"
    state: Path

    def rank(self, number: int) -> RankStatus:
        """Who runs the rank now, by the watchdog's word."""
        (found,) = [each for each in self._client().ranks() if each.rank == number]
        return found

    def wait_for_commit(self, step: int) -> None:
        """Until the watchdog knows of a checkpoint of `step`: before that it refuses to go back to it."""

        def is_known() -> bool:
            newest = self._client().status().last_checkpoint
            return newest is not None and newest.step == step

        wait_until(is_known, f"the checkpoint of step {step}")

    def _client(self) -> WatchdogClient:
        directory = StateDirectory(self.state)
        at = directory.listening_at()
        assert at is not None
        return WatchdogClient(
            DirectLine(Access(Address(at.host, at.port), Credential(directory.token())), token_of="the test"), JOB
        )

    def memory(self, node: str) -> Path:
        return folder_of(ROOT, job=JOB, member=node, run_dir=self.state / "nodes" / node)

    def family(self, *among: str) -> list[psutil.Process]:
        """Processes of the run whose command line has all of these words."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in found if is_alive(each.pid) and set(among) <= set(each.cmdline())]

    def wait_for_copies(self, step: int, nodes: list[str]) -> None:
        """Until the newest snapshot of these nodes, which is that of `step`, has its copy."""

        def is_copied(node: str) -> bool:
            held = newest(self.memory(node))
            return held is not None and (held.record.step, held.copies) == (step, 1)

        wait_until(lambda: all(map(is_copied, nodes)), f"copies of step {step} on {nodes}")

    def wait_until_copied(self, nodes: list[str]) -> None:
        """Until the newest snapshot of these nodes, whatever its step, has its copy: one may be left out while
        copies are under way, or while memory for spare buffers is made.
        """

        def is_copied(node: str) -> bool:
            held = newest(self.memory(node))
            return held is not None and held.copies == 1

        wait_until(lambda: all(map(is_copied, nodes)), f"the newest copies on {nodes}")

    def wait_for_long_steps(self, since: float, nodes: list[str]) -> None:
        """Until the steps since then are long beside their copies, however slow this machine is: ranks that find
        copies slow agree, after some steps of a round, to have fewer of them.
        """
        wait_until(
            lambda: (
                time.monotonic() - since > 2 * SETTLED_AFTER * max(longest_copy_s(self.memory(n)) for n in nodes)
            ),
            "steps that are long beside their copies",
        )

    def kill_worker(self, rank: int) -> None:
        pid = self.rank(rank).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), f"the end of rank {rank}")

    def kill_nodes(self, *nodes: str) -> None:
        """All of them in one instant."""
        roots = [each for node in nodes for each in self.family("--node", node)]
        doomed = [process for root in roots for process in (root, *root.children(recursive=True))]
        for process in doomed:
            process.kill()
        wait_until(lambda: not any(is_alive(each.pid) for each in doomed), f"the end of {nodes}")


def longest_copy_s(folder: Path) -> float:
    """How long the longest of the last copies of the node's own buffers took."""
    took = []
    for path in folder.glob("*.own"):
        buffer = SharedBuffer.open(path)
        took.append(buffer.copy_s)
        buffer.close()
    return max(took, default=0.0)


def newest(folder: Path) -> HeldSnapshot | None:
    """The newest whole snapshot of the node's own worker."""
    found = []
    for path in folder.glob("*.own"):
        buffer = SharedBuffer.open(path)
        found.append(buffer.read())
        buffer.close()
    return max((held for held in found if held), key=lambda held: held.record.age, default=None)


def started(gates: Gates, folder: Path, *, nodes: str, faults: str = "[]") -> Any:
    # By itself the watchdog asks for a save when a run has lasted a minute, at whatever step that is.
    interval = f"  checkpoint: {{interval: {EVERY}steps}}\n"
    job = job_file(folder, script=gates.script(), words=words(folder / "losses.jsonl"), nodes=nodes, more=interval)
    (folder / "faults.yaml").write_text(faults)
    return running("run", job, "--state-dir", folder / "state", "--faults", folder / "faults.yaml")


def began_after(*incidents: dict[str, Any]) -> list[str]:
    """Where the rounds that healed the incidents began, in the watchdog's words."""
    said = [each["what"] for incident in incidents for each in incident["timeline"]]
    return [re.sub(r"round \d+ begins after ", "", each) for each in said if "begins after" in each]


@dataclass
class Story:
    """What came of the disturbed run, and what a run without any fault gives."""

    losses: list[dict[str, Any]] = field(default_factory=list)
    incidents: list[dict[str, Any]] = field(default_factory=list)
    undisturbed: dict[int, str] = field(default_factory=dict)
    launchers: str = ""
    memory_of_the_lost: Path = Path()
    memories: list[Path] = field(default_factory=list)

    def round_of(self, step: int) -> int:
        """In which round it was trained last."""
        return int([line["round"] for line in self.losses if line["step"] == step][-1])


def undisturbed(gates: Gates, folder: Path) -> dict[int, str]:
    """Losses by step, with no Holdfast around the ranks."""
    script = folder / "alone.py"
    script.write_text(gates.script())
    losses = folder / "alone.jsonl"
    run_together(2, [script, *words(losses)], cwd=folder, within_s=PATIENCE_S)
    return {line["step"]: line["hex"] for line in lines(losses)}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Two nodes and a spare, a snapshot after every step, a checkpoint every 30. Then everything goes wrong."""
    folder, story = tmp_path_factory.mktemp("story"), Story()
    gates = Gates(folder / "gates")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in gates.environment.items():
            patch.setenv(name, value)
        story.undisturbed = undisturbed(gates, folder)
        gates.close(4, 5, 6, 10, 13, 19, 20, 21, 36)
        faults = "- {at: {step: 20}, after: recovered, do: kill-node, rank: 1}\n"
        with started(gates, folder, nodes="{min: 2, max: 2, spares: 1}", faults=faults) as process:
            run = Run(process, folder / "state")
            _disturb(run, gates, story)
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, said
        story.losses = lines(folder / "losses.jsonl")
        story.incidents = json.loads(holdfast("incidents", "--state-dir", run.state, "-o", "json").stdout)
        story.memories = [run.memory(node.name) for node in (run.state / "nodes").iterdir()]
        story.launchers = "".join(log.read_text() for log in (run.state / "logs").glob("*.launcher.log"))
    return story


def _disturb(run: Run, gates: Gates, story: Story) -> None:
    gates.wait(4, ranks=2)
    nodes = [run.rank(number).node for number in range(2)]
    run.wait_until_copied(nodes)
    gates.open(4)
    gates.wait(5, ranks=2)
    run.wait_for_copies(4, nodes)
    gates.open(5)
    gates.wait(6, ranks=2)
    run.kill_worker(1)
    gates.open(6)

    gates.wait(10, ranks=2)
    trained_at = time.monotonic()
    for server in run.family(SERVER):
        server.kill()
    gates.open(10)

    gates.wait(13, ranks=2)
    run.wait_until_copied(nodes)
    run.wait_for_long_steps(trained_at, nodes)
    gates.open(13)
    gates.wait(19, ranks=2)
    run.wait_until_copied(nodes)
    gates.open(19)
    gates.wait(20, ranks=2)
    run.wait_for_copies(19, nodes)
    story.memory_of_the_lost = run.memory(nodes[1])
    gates.open(20)
    wait_until(lambda: not story.memory_of_the_lost.exists(), "the end of the node and its memory")
    gates.open(21)

    gates.wait(36, ranks=2)
    run.wait_for_commit(EVERY)
    gates.close(33)
    asked = holdfast("rewind", str(EVERY), "--no-wait", "--state-dir", run.state)
    assert asked.returncode == 0, asked.stderr
    gates.wait(33, ranks=2)
    gates.open(36)  # Not before: the round that is to end must not come to the end of the training.
    run.kill_worker(0)
    gates.open(33)


def test_a_killed_worker_costs_at_most_one_step(story: Story) -> None:
    first = story.incidents[0]
    assert first["kind"] == "ProcessExit"
    assert began_after(first) == ["step 5, from memory"]
    assert first["lost_steps"] == 0


def test_killed_transfer_servers_come_back_and_training_does_not_notice(story: Story) -> None:
    assert story.launchers.count("the transfer server ended, it is started again status=-9") == 2
    assert story.round_of(9) == story.round_of(10) == story.round_of(19)


def test_a_node_killed_with_its_memory_costs_at_most_one_step(story: Story) -> None:
    second = story.incidents[1]
    assert second["kind"] == "MemberLost"
    assert began_after(second) in (["step 19, from memory"], ["step 20, from memory"])
    assert second["lost_steps"] <= 1


def test_a_rewind_is_not_undone_by_newer_snapshots(story: Story) -> None:
    third = story.incidents[2]
    assert story.round_of(EVERY) < story.round_of(EVERY + 1)
    assert third["kind"] == "ProcessExit"
    newer = [[f"step {step}, from memory"] for step in (EVERY + 1, EVERY + 2)]  # of the round after the rewind
    assert began_after(third) in ([f"step {EVERY}"], *newer)


def test_every_loss_is_the_undisturbed_runs_bit_for_bit(story: Story) -> None:
    assert len(story.incidents) == 3
    assert {line["step"] for line in story.losses} == set(range(1, STEPS + 1))
    assert [line for line in story.losses if line["hex"] != story.undisturbed[line["step"]]] == []


def test_nothing_stays_in_memory_after_the_job(story: Story) -> None:
    assert [folder for folder in story.memories if folder.exists()] == []


def test_a_node_lost_together_with_its_keeper_costs_the_steps_since_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates = Gates(tmp_path / "gates")
    for name, value in gates.environment.items():
        monkeypatch.setenv(name, value)
    gates.close(36)
    with started(gates, tmp_path, nodes="{min: 1, max: 3}") as process:
        run = Run(process, tmp_path / "state")
        gates.wait(36, ranks=3)
        wait_until((run.state / "checkpoints" / f"step-{EVERY:08d}").exists, "the checkpoint")
        run.kill_nodes(*(run.rank(number).node for number in (1, 2)))
        gates.open(36)
        said, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    incidents = json.loads(holdfast("incidents", "--state-dir", run.state, "-o", "json").stdout)
    assert {incident["kind"] for incident in incidents} == {"MemberLost"}
    assert set(began_after(*incidents)) == {f"step {EVERY}"}
    assert {incident["lost_steps"] for incident in incidents} == {35 - EVERY}
    steps = [line["step"] for line in lines(tmp_path / "losses.jsonl")]
    assert steps == [*range(1, 36), *range(EVERY + 1, STEPS + 1)]
