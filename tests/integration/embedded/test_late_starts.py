"""A worker that hangs before the first step of a new round, in real processes: it is named and healed soon."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import PATIENCE_S, holdfast, job_file, running, wait_until

from holdfast.watchdog.detectors.late_start import LATE_S_MIN

pytestmark = pytest.mark.long

STARTUP_S = 600.0  # what would name it otherwise

HANGS_ONCE = """
import gc, os, signal, sys, time
from pathlib import Path

def hang_once():
    # The first that comes here hangs; whoever comes in its place does not.
    try:
        file = os.open(Path(sys.argv[1], "hung"), os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.write(file, f"{os.getpid()} {time.monotonic()}".encode())
    os.close(file)
    if sys.argv[2] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(60.0)

def trained(step, ranks):
    with Path(sys.argv[1], f"steps-{os.getpid()}").open("a") as lines:
        print(os.environ["HOLDFAST_ROUND"], ranks, time.monotonic(), file=lines)
    if step == 10:
        Path(sys.argv[1], "trains").touch()

def has_ended():
    return Path(sys.argv[1], "end").exists()

if sys.argv[3] == "imports" and Path(sys.argv[1], "trains").exists():
    Path(sys.argv[1], f"anew-{os.getpid()}").touch()
    if len(list(Path(sys.argv[1]).glob("anew-*"))) == int(sys.argv[4]):
        hang_once()
"""

PLAIN = (
    HANGS_ONCE
    + """
import torch, torch.distributed as dist
from holdfast.trainer import Run

run = Run()

def between_rounds(phase, about):
    # What `Run` collects when it has left a round: nothing of the next one is published yet.
    if sys._getframe(1).f_code.co_name == "_attend" and os.environ["RANK"] == "1":
        hang_once()

if sys.argv[3] == "between":
    gc.callbacks.append(between_rounds)

def train(part):
    step, ends = 0, torch.zeros(1)
    while not ends:
        step += 1
        ends[0] = has_ended()
        dist.all_reduce(ends)
        time.sleep(0.05)
        run.step(step, loss=1.0 / step)
        trained(step, part.world_size)

run.enter(train)
"""
)

GROUPS = (
    HANGS_ONCE
    + """
import torch, torch.distributed as dist
from holdfast.trainer import Replicas, Run

run = Run()

def train(part):
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Replicas(run, model=model, optimizer=optimizer) as replicas:
        while replicas.step < 100_000 and not has_ended():
            if sys.argv[3] == "goes-on" and run.assignment.rank == 0 and run.stay.later and replicas.step > 10:
                hang_once()
            optimizer.zero_grad()
            loss = model(torch.ones(8)).sum()
            if dist.get_world_size() > 1:
                dist.all_reduce(torch.ones(1))
            loss.backward()
            time.sleep(0.05)
            if not replicas.average():
                continue
            optimizer.step()
            run.step(replicas.step, loss=loss.detach())
            trained(replicas.step, replicas.count * dist.get_world_size())

run.enter(train)
"""
)


@dataclass(frozen=True, slots=True)
class Healed:
    """What a hang came to: seconds from it until it was named, until all train again, and its incident."""

    named_s: float
    trains_s: float
    incident: dict[str, Any]


def lives_through(
    folder: Path,
    *,
    group: int,
    how: str,
    where: str,
    startup_s: float = STARTUP_S,
    within_s: float = PATIENCE_S,
) -> Healed:
    """A job whose worker dies at step 20, and in the round after that another one, or its successor, hangs. A
    successor that runs does so the second time: the first tells how long a new worker takes.

    `group`: so many nodes are a replica group; 0: there are none.
    """
    nodes, deaths = 4 if group > 1 else 3, 2 if where == "imports" and how == "running" else 1
    more = f"  parallelism: {{replicaGroupNodes: {group}}}\n" if group else ""
    startup = f"{{preflight: none, timeout: {startup_s:.0f}s}}"
    job = job_file(
        folder,
        script=GROUPS if group else PLAIN,
        words=[str(folder), how, where, str(deaths)],
        nodes=f"{{min: {group or nodes}, max: {nodes}}}",
        startup=startup,
        more=f"{more}  faultPolicy: {{restarts: {{backoff: 1s}}}}\n",
    )
    faults, state, hung = folder / "faults.yaml", folder / "state", folder / "hung"
    again = f", do: kill-worker, rank: {nodes - 1 if group else 0}}}\n"
    faults.write_text(
        f"- {{at: {{step: 20}}{again}" + f"- {{at: {{step: 25}}, after: recovered{again}" * (deaths - 1)
    )

    def incident() -> dict[str, Any] | None:
        told = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout or "[]")
        # Before the round has trained it is no other incident than the one that is being healed.
        return next((each for each in told if each["kind"] == "Hang" or "hung again" in json.dumps(each)), None)

    def hung_at() -> float:
        return float(hung.read_text().split()[1])

    def again_at() -> float | None:
        """When as many ranks as there are to be had made a step after the hang, in one round."""
        steps: dict[str, dict[str, float]] = {}
        for each in folder.glob("steps-*"):
            for line in each.read_text().splitlines():
                number, world, at = line.split()
                if float(at) > hung_at() and world == str(nodes):
                    steps.setdefault(number, {}).setdefault(each.name, float(at))
        return min((max(of.values()) for of in steps.values() if len(of) == nodes), default=None)

    with running("run", job, "--state-dir", state, "--faults", faults) as process:
        wait_until(lambda: hung.exists() and " " in hung.read_text(), "a worker that hangs")
        wait_until(lambda: incident() is not None, "the hang to be named", within_s)
        named_s = time.monotonic() - hung_at()
        wait_until(lambda: again_at() is not None, "all to train again", within_s)
        trains_s = (again_at() or 0.0) - hung_at()
        found = incident()
        (folder / "end").touch()
        process.communicate(timeout=PATIENCE_S)
    assert found is not None
    return Healed(named_s, trains_s, found)


@pytest.mark.parametrize(
    ("group", "where"),
    [(0, "between"), (2, "imports"), (1, "goes-on")],
    ids=["a worker that goes on", "a group that is formed", "a group that goes on"],
)
def test_a_worker_that_is_stopped_before_the_first_step_of_a_new_round_is_named_and_healed(
    tmp_path: Path, group: int, where: str
) -> None:
    healed = lives_through(tmp_path, group=group, how="stopped", where=where)
    assert healed.incident["cause"] == "the process is stopped"
    assert healed.incident["confidence"] == "Certain"


def test_a_worker_that_runs_and_hangs_while_the_other_groups_wait_to_meet_it_has_the_time_of_a_step(
    tmp_path: Path,
) -> None:
    """By its starts alone it would have half a minute at least."""
    healed = lives_through(tmp_path, group=1, how="running", where="goes-on")
    assert (healed.incident["kind"], healed.incident["cause"]) == ("Hang", "never entered the round")
    assert healed.incident["culprit"]["rank"] == 0
    assert healed.trains_s < LATE_S_MIN


def test_a_new_worker_that_hangs_in_its_imports_is_named_and_healed(tmp_path: Path) -> None:
    """It runs, and nobody says so but the others that wait for it."""
    healed = lives_through(tmp_path, group=0, how="running", where="imports")
    story = [each["what"] for each in healed.incident["timeline"]]
    assert "evidence: Hang, never entered the round" in story
    assert healed.trains_s < STARTUP_S / 4
