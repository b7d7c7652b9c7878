"""One run with a fault policy of its own: what each field says is done, and not what a job gets unasked."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from embeddedrun import family, holdfast, interrupt, job_file, running
from patience import patient

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("own_command_lines")]  # one test reads them

TRAINS = """
import os, signal, time
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run()


def batches():
    number = 0
    while True:
        number += 1
        yield torch.full((4, 8), 0.01 * (number % 7))


def train(part):
    if part.rank == 1 and part.round > 2 and not os.path.exists("died"):
        open("died", "w").close()
        os._exit(7)  # the second restart without progress
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, compares_batches=False)
    for step, batch in checkpointer.steps(batches()):
        loss = model(batch).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.05)
        run.step(step, loss=loss.item())
        if part.rank == 1 and step == 57 and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)  # between a save and the next: what is remembered is newer


run.enter(train)
"""
LOST_S = patient(1.5)
POLICY = f"""  checkpoint: {{interval: 20steps, memory: {{everySteps: 5, replicas: 0}}}}
  faultPolicy:
    heartbeat: {{interval: 500ms, lost: {1000 * LOST_S:.0f}ms}}
    hang: {{timeout: 5s}}
    xid: {{"145": Restart}}
    conditions: {{LinkFlapping: Restart}}
    thermal: {{slowdownMarginC: 15, sustained: 1s, action: Restart}}
    corruption: {{fingerprintEverySteps: 5, selfTestEvery: 5s, action: Restart}}
    preemption: {{source: none}}
    restarts: {{backoff: 2s}}
    budget: {{evictions: 50, per: 1h, clusterFraction: 100%}}
"""
UNASKED_BACKOFF_S = 10.0
REPLACED_AFTER_S = 3.0  # a second more than unasked
VERBS = (
    "kill-worker, rank: 1",
    "stop-worker, rank: 0",
    "kill-node, rank: 1",
    "xid, rank: 0, xid: 145",
    "condition, rank: 1, kind: LinkFlapping",
    "flip-bit, rank: 1",
    "preempt, rank: 0, seconds: 60",
    f"partition, rank: 1, seconds: {LOST_S + 3.5}",
    "hot, rank: 0, celsius: 78",
)


class Ended:
    """What the run said and left. It is stopped when the GPU that got hot was seen."""

    def __init__(self, folder: Path) -> None:
        self.said, self.commands, self.status = "", list[list[str]](), dict[str, Any]()
        self._state = folder / "state"
        job = job_file(
            folder, script=TRAINS, nodes="{min: 2, max: 3, spares: 1}", startup="{preflight: light}", more=POLICY
        )
        first, *others = VERBS
        faults = [
            f"at: {{step: 100}}, do: {first}",
            *(f"at: {{step: 110}}, after: recovered, do: {each}" for each in others),
        ]
        (folder / "faults.yaml").write_text("".join(f"- {{{each}}}\n" for each in faults))
        options = ("--faults", folder / "faults.yaml", "--replace", "--replace-delay", str(REPLACED_AFTER_S))
        with running("run", job, "--state-dir", self._state, *options) as process:
            assert process.stdout is not None
            over = threading.Timer(patient(110), process.kill)  # what it said until then tells what it waited for
            over.daemon = True
            over.start()
            for line in process.stdout:
                self.said += line
                if "injecting: kill-worker" in line:
                    self.status = json.loads(self._told("status"))
                    self.commands = [psutil.Process(each).cmdline() for each in family(process)]
                if re.search(r"inc-\d+: Thermal", line):
                    self.said += interrupt(process)
                    break
            over.cancel()
        assert re.search(r"inc-\d+: Thermal", self.said), self.said
        assert "NOT INJECTED" not in self.said, self.said
        self.incidents: list[dict[str, Any]] = json.loads(self._told("incidents"))
        self.journal = [json.loads(line) for line in self._told("journal").splitlines()]

    def _told(self, what: str) -> str:
        return holdfast(what, "--state-dir", self._state, "-o", "json").stdout

    def incident(self, kind: str) -> dict[str, Any]:
        return next(each for each in self.incidents if each["kind"] == kind)

    def reasons(self, kind: str) -> list[str]:
        return [each["reason"] for each in self.incident(kind).get("actions", ())]

    def says(self, kind: str) -> str:
        return " ".join(each["says"] for each in self.incident(kind)["evidence"])

    def events(self, kind: str) -> Iterator[tuple[float, dict[str, Any]]]:
        """With the time of each."""
        for line in self.journal:
            if line["event"]["type"] == kind:
                yield line["at"], line["event"]

    def seconds_of(self, pattern: str) -> float:
        """When the run said so, counted from its start."""
        found = re.search(rf"^ *([\d.]+)s  .*{pattern}", self.said, re.MULTILINE)
        assert found, self.said
        return float(found[1])


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return Ended(tmp_path_factory.mktemp("policy"))


def test_what_is_saved_is_what_the_policy_says(ended: Ended) -> None:
    assert ended.status["cadence"]["steps"] == 20
    recorded = [event for _, event in ended.events("CheckpointRecorded")]
    saved = [event["step"] for event in recorded if event.get("wanted") is None]  # one is wanted at the end
    assert saved
    assert [step for step in saved if step % 20] == []
    restored = [event for _, event in ended.events("RestoreReported")]
    remembered = [event["step"] for event in restored if event["tier"] == "Memory"]
    assert remembered[0] in (45, 50, 55)  # what comes after depends on where the step was
    assert [step for step in remembered if step % 5] == []
    swapped = ended.incident("MemberLost")["actions"][0]["round"]
    tiers = [event["tier"] for event in restored if event["round"] == swapped]
    assert tiers == ["Checkpoint"], "what the lost node remembered was copied nowhere"


def test_what_is_lost_and_what_hangs_is_what_the_policy_says(ended: Ended) -> None:
    launcher = next(each for each in ended.commands if "holdfast.agent.launch" in each)
    assert launcher[launcher.index("--heartbeat-interval") + 1] == "0.5"
    assert f"silent for {LOST_S:.1f} s" in ended.said
    # The age is as of the rank's newest sample, which may be 0.1 s older than it seems.
    assert re.search(r"rank 0 did not arrive: .* no progress for (4\.9|[5-9]\.\d) s", ended.says("Hang"))
    killed, replaced = ended.seconds_of("injecting: kill-node"), ended.seconds_of("takes the place of")
    assert replaced - killed >= REPLACED_AFTER_S - 0.1  # as rounded


def test_the_second_restart_without_progress_waits_as_long_as_the_policy_says(ended: Ended) -> None:
    died_at = next(at for at, event in ended.events("FindingMade") if event["finding"]["cause"] == "exit code 7")
    restarted_at = next(each["at"] for each in ended.incident("UserCode")["actions"] if each["at"] > died_at)
    assert 2.0 <= restarted_at - died_at < UNASKED_BACKOFF_S


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Xid", "xid 145 asks for a restart on the same node"),
        ("Condition", "LinkFlapping asks for a restart on the same node"),
        ("Thermal", "GPU hot asks for a restart on the same node"),
    ],
)
def test_who_is_restarted_is_what_the_policy_says(ended: Ended, kind: str, reason: str) -> None:
    assert ended.reasons(kind)[0] == reason
    if kind == "Thermal":
        assert "now 78 C, 12.0 C below slowing down" in ended.says(kind)


def test_a_node_that_computes_wrong_stays_where_the_policy_says_so(ended: Ended) -> None:
    assert re.fullmatch(
        r"node node-\d differs from its replicas after step \d+: all go back", ended.reasons("Corruption")[0]
    )


def test_spares_are_tested_as_often_as_the_policy_says(ended: Ended) -> None:
    passed: dict[str, int] = {}
    suspected = set()
    for line in ended.journal:
        event = line["event"]
        if event["type"] == "FindingMade":
            suspected.add(event["finding"]["subject"].get("node"))
        if event["type"] == "MemberTested" and event["verdict"] == "Passed" and event["member"] not in suspected:
            passed[event["member"]] = passed.get(event["member"], 0) + 1
    assert max(passed.values()) >= 2, "once before the first round, and again"


def test_a_notice_is_recorded_and_nothing_is_done_where_the_policy_says_so(ended: Ended) -> None:
    assert list(ended.events("NodeDeparting"))
    assert "is taken away" not in ended.said
