"""One run with a job file that says much, asked with every command: what each field, command and flag does."""

import json
import re
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest
from embeddedrun import job_file, running, wait_until
from held_gpus import assert_every_gpu_second_is_booked
from patience import patient

from holdfast.agent.metrics.table import AGENT_METRICS
from holdfast.cli.main import answer
from holdfast.cli.statedirectory import StateDirectory
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS

pytestmark = pytest.mark.long

TRAINS = """
import json, os, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run()
folder = Path(sys.argv[1])


def numbers():
    number = 0
    while True:
        number += 1
        yield torch.full((1, 4), float(number))


def stands_still(name):
    "Hang here, once, when the test says so."
    try:
        (folder / name).rename(folder / (name + ".done"))
    except FileNotFoundError:
        return
    time.sleep(3600)


def train(part):
    print("rank", part.rank, "of round", part.round)
    if part.rank == 0:
        stands_still("before-a-step")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, compares_batches=False)
    first = True
    for step, batch in checkpointer.steps(numbers(), until=1_000_000):
        if first and part.rank == 0:
            began = {"round": part.round, "step": step, "batch": batch[0, 0].item(),
                     "rate": optimizer.param_groups[0]["lr"], "world": part.world_size}
            with open(folder / "began.jsonl", "a") as file:
                file.write(json.dumps(began) + "\\n")
        first = False
        loss = model(batch / 1e3).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(0.04)
        run.step(step, loss=float(loss), grad_norm=1.0, tokens=100)


run.enter(train)
"""
SPEC = """
  processesPerNode: 2
  parallelism: {tensor: 2, pipeline: 2}
  cost: {gpuHour: 2.5, currency: EUR, budget: {amount: 1000, alertAt: 40%}}
  utilization: {gigaflopsPerToken: 0.5, peakTeraflopsPerGpu: 0.1}
  checkpoint: {interval: 10m}
  faultPolicy: {corruption: {fingerprintEverySteps: 5}}
"""


class Surface:
    """The run as its user asks it."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.state = folder / "state"
        self._capsys = capsys
        self.metrics: dict[str, list[tuple[str, float]]] = {}

    def asked(self, *words: str | Path) -> tuple[int, str, str]:
        code = answer([str(each) for each in words])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    def here(self, *words: str) -> str:
        """What a command that succeeds says of this run."""
        code, said, remark = self.asked(*words, "--state-dir", self.state)
        assert code == 0, (words, said, remark)
        return said

    def told(self, *words: str) -> Any:
        return json.loads(self.here(*words, "-o", "json"))

    def done(self, *words: str) -> str:
        """What an intervention says that is done, once the job runs again if one before it made a new round."""
        wait_until(lambda: self.told("status")["phase"] in ("Running", "Suspended"), "a job that runs")
        said = self.here(*words, "--timeout", str(patient(60)))
        assert said.startswith("Done: "), said
        return said

    def incident(self, kind: str) -> dict[str, Any] | None:
        found = [each for each in self.told("incidents") if each["kind"] == kind]
        return found[-1] if found else None

    def healed(self, kind: str) -> dict[str, Any]:
        wait_until(lambda: (self.incident(kind) or {}).get("state") == "Recovered", f"the end of {kind}")
        found = self.incident(kind)
        assert found is not None
        return found

    def began(self) -> list[dict[str, Any]]:
        """How each round began."""
        return [json.loads(line) for line in (self.folder / "began.jsonl").read_text().splitlines()]

    def step(self) -> int:
        return int(self.told("status")["step"] or 0)

    def until_step(self, least: int) -> None:
        wait_until(lambda: self.step() >= least, f"step {least}")

    def trains_on(self) -> list[str]:
        """The nodes that have ranks."""
        return sorted({str(each["node"]) for each in self.told("ranks")})

    def scrape(self) -> str:
        directory = StateDirectory(self.state)
        listening = directory.listening_at()
        assert listening is not None
        places = [(listening.host, listening.port)]
        for file in self.state.glob("nodes/*/agent.json"):
            told = json.loads(file.read_text())
            if psutil.pid_exists(told["pid"]):
                places.append((told["host"], told["port"]))
        text = ""
        for host, port in places:
            request = urllib.request.Request(
                f"http://{host}:{port}/metrics", headers={"Authorization": f"Bearer {directory.token()}"}
            )
            with urllib.request.urlopen(request, timeout=patient(10)) as answered:
                text += answered.read().decode()
        self.seen(text)
        return text

    def seen(self, text: str) -> None:
        for name, labels, value in re.findall(r"^(\w+)(\{.*\})? (\S+)", text, re.MULTILINE):
            self.metrics.setdefault(re.sub(r"_(count|sum|bucket)$", "", name), []).append((labels, float(value)))

    def until_scraped(self, pattern: str) -> None:
        wait_until(lambda: re.search(pattern, self.scrape()) is not None, f"{pattern} in a scrape")


READS = ("status", "ranks", "nodes", "incidents", "journal", "replay", "fleet")
FORMS = ("table", "wide", "json", "yaml", "name")
# Only while an incident is open or a rank is slow, of a place or node that is named to all jobs, and of a Redis
# with replicas.
ELSEWHERE = {
    "holdfast_job_incident_age_seconds",
    "holdfast_job_slow_rank_ratio",
    "holdfast_fleet_gathered_faults",
    "holdfast_fleet_node_quarantined",
    "holdfast_watchdog_store_replicas",
}
# What only a fault moves that this run does not meet: seen as 0. The promise table names who sees it moved.
ONLY_ZERO = {
    "holdfast_fleet_quarantined_nodes",
    "holdfast_job_fingerprint_disagreements_total",
    "holdfast_job_incident_cause_seconds",
    "holdfast_job_incidents_open",
    "holdfast_job_lost_steps_total",
    "holdfast_job_nonfinite_ranks",
    "holdfast_job_self_tests_total",
    "holdfast_job_slowed_rank_seconds_total",
    "holdfast_watchdog_bad_messages_total",
    "holdfast_watchdog_dropped_strangers_total",
    "holdfast_watchdog_duplicate_messages_total",
    "holdfast_watchdog_duplicate_reports_total",
    "holdfast_watchdog_fenced_messages_total",
    "holdfast_watchdog_judge_failures_total",
    "holdfast_watchdog_replaced_connections_total",
    "holdfast_watchdog_store_refuses",
}
OF_A_RANK = {each.name for each in AGENT_METRICS if each.name.startswith("holdfast_rank_")}


@pytest.mark.timeout(600)
def test_every_field_command_and_flag_does_what_it_says_to_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    surface = Surface(tmp_path, capsys)
    (tmp_path / "before-a-step").touch()
    job = job_file(
        tmp_path,
        script=TRAINS,
        words=[str(tmp_path)],
        nodes="{min: 2, max: 4, spares: 1}",
        startup=f"{{preflight: none, timeout: {patient(6):.0f}s}}",
        more=SPEC[1:],
    )
    with running("run", job, "--nodes", "2", "--state-dir", surface.state):
        wait_until((tmp_path / "before-a-step.done").exists, "the first round")
        # Only the time-out of a start that the file names is short enough for this to be seen.
        wait_until((tmp_path / "began.jsonl").exists, "a step")
        hung = surface.healed("Hang")
        assert "in startup before its first step" in hung["evidence"][0]["says"]
        surface.until_step(30)
        surface.until_scraped(r"holdfast_job_mfu_ratio\{.*\} [\d.]*[1-9]")
        assert 'currency="EUR"} 2.5' in surface.scrape()
        assert re.search(r"holdfast_job_budget_alert_ratio\{.*\} 0.4\b", surface.scrape())
        assert re.search(r"holdfast_job_checkpoint_interval_seconds\{.*\} 600\b", surface.scrape())
        ranks = surface.told("ranks")
        assert [(each["rank"], each["node"]) for each in ranks] == [
            (rank, ranks[rank // 2 * 2]["node"]) for rank in range(4)
        ]
        assert len(surface.told("nodes")) == 3, "two train, as --nodes says, and one is a spare"
        for read in READS:
            for form in FORMS:
                told = surface.here(read, "-o", form).strip()
                assert told or (read, form) == ("fleet", "name"), (read, form)  # faults gather behind no place
        steered(surface)
        accounted(surface)
        beside_its_plan(surface)
        # Its size is told with a snapshot, every 64 lines: about as many as there are so far.
        while not re.search(r"holdfast_watchdog_journal_bytes\{.*\} [1-9]", surface.scrape()):
            surface.done("checkpoint", "take")
    assert_every_gpu_second_is_booked(surface.state)
    missing = ({each.name for each in WATCHDOG_METRICS} | OF_A_RANK) - set(surface.metrics)
    assert missing - ELSEWHERE == set()
    zero = {name for name, seen in surface.metrics.items() if not any(value for _, value in seen)}
    assert zero & {each.name for each in WATCHDOG_METRICS} - ONLY_ZERO == set(), (
        "seen as 0 only: say who sees more"
    )


def accounted(surface: Surface) -> None:
    """The ledger by each key sums to the same, in every form, and is kept beside the checkpoints."""
    known = surface.told("cost")
    assert surface.told("status")["until_step"] == 1_000_000
    total = known["totals"][0]
    assert total["gpu_hours"] > 0
    assert total["money"] == pytest.approx(2.5 * total["gpu_hours"], rel=1e-6)
    assert {"Productive", "Detecting", "IdleSpare", "Loading"} <= {each["key"] for each in known["lines"]}
    for by in ("phase", "incident", "cause", "node", "day", "team", "job"):
        found = surface.told("cost", "--by", by)
        summed = sum(each["gpu_hours"] for each in found["lines"])
        assert summed == pytest.approx(found["totals"][0]["gpu_hours"], rel=1e-12)
    assert "Hang" in surface.here("cost", "--by", "cause", "-o", "csv")
    assert "gpu_hours" in surface.here("cost", "-o", "yaml")
    assert "total" in surface.here("cost")
    place = surface.folder / "kept"
    surface.here("cost", "--save", str(place))
    code, said, _ = surface.asked("cost", "--file", place, "--by", "job", "-o", "json")
    assert (code, json.loads(said)["lines"][0]["key"]) == (0, surface.told("status")["job"])
    # Checkpoints alone tell what it had cost when the one before the newest of them was committed.
    for _ in range(2):
        surface.done("checkpoint", "take")
    newest = max(surface.state.glob("checkpoints/step-*/ledger.json")).parent
    shutil.copytree(newest, surface.folder / "elsewhere" / newest.name)
    code, said, _ = surface.asked("cost", "--file", surface.folder / "elsewhere", "--by", "job", "-o", "json")
    assert code == 0
    assert 0 < json.loads(said)["lines"][0]["gpu_hours"] < surface.told("cost")["totals"][0]["gpu_hours"]


def beside_its_plan(surface: Surface) -> None:
    """What a plan assumed, and what this run came to: the plan's job has the name of the one that runs."""
    question = surface.folder / "question.yaml"
    question.write_text(
        "model: {layers: 2, hidden: 64, heads: 4, ffn: 256, vocab: 1000}\n"
        "cluster: {gpu: H100, gpus: 4, per_node: 2, nvlink_domain: 2}\n"
        "training: {sequence: 128, batch: 8}\n"
    )
    planned = surface.folder / "planned" / f"{surface.told('status')['job'].partition('/')[2]}.yaml"
    planned.parent.mkdir()
    code, _, said = surface.asked("plan", question, "--layout", "tp=2,pp=2", "--write", planned)
    assert (code, "set its entrypoint" in said) == (0, True), said
    found = {each["what"]: each for each in json.loads(surface.here("doctor", str(planned), "-o", "json"))}
    assert found["step time"]["level"] == found["MFU"]["level"] == "warn", found
    assert (
        "matmuls alone do not explain the step time" in found["share of the GPU's rate that matmuls reach"]["fix"]
    )
    assert "effective share of time" in found


def steered(surface: Surface) -> None:
    """Every intervention, with what each does."""
    assert surface.done("pause", "--reason", "the room is hot").startswith("Done: suspended")
    assert surface.done("resume") == "Done: resumed\n"
    rounds = len(surface.began())
    assert surface.done("restart") == "Done: every worker starts anew\n"
    wait_until(lambda: len(surface.began()) > rounds, "new workers")
    saved = surface.done("checkpoint", "take").split()[4]
    rounds = len(surface.began())
    surface.done("rewind", saved, "--skip-batches", "3", "--learning-rate-scale", "0.5")
    wait_until(lambda: len(surface.began()) > rounds, "the round that goes on from it")
    rewound = surface.began()[rounds]
    assert (rewound["step"], rewound["batch"], rewound["rate"]) == (
        int(saved) + 1,
        int(saved) + 4,
        pytest.approx(5e-7),
    )
    rounds = len(surface.began())
    surface.done("skip-batches", "5")
    wait_until(lambda: len(surface.began()) > rounds, "the round that passes over batches")
    assert surface.began()[rounds]["batch"] == int(saved) + 6, "the batches after the checkpoint that it restores"
    code, _, refused = surface.asked("resize", "3", "--state-dir", surface.state)
    assert (code, "3 x 2 ranks is no multiple of 4" in refused) == (1, True), refused
    assert surface.done("resize", "2") == "Done: resized to 2 nodes\n"
    spare = next(each["node"] for each in surface.told("nodes") if each["node"] not in surface.trains_on())
    assert "self-test of node" in surface.done("self-test", spare)
    gone = surface.trains_on()[0]
    surface.done("evict", gone)
    surface.until_scraped(rf'holdfast_job_node_avoided\{{.*node="{gone}".*\}} 1')
    assert surface.done("return", gone).startswith(f"Done: node {gone} returned")
