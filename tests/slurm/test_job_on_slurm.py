"""A job file on a real Slurm of three nodes: one is lost, one is drained, the job is queued again and goes on."""

import asyncio
import json
import os
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import EXAMPLES, NODES, SlurmCluster

from holdfast.cli.slurm.allocation import Allocation

HOLDFAST = (sys.executable, "-m", "holdfast.cli")
STEPS = 130
# Slurm's controller takes this user's word as it would take any user's: no right to drain.
WITHOUT_RIGHTS = "setpriv --reuid=65534 --clear-groups scontrol update"
SCRIPT = """
import runpy, subprocess, sys
subprocess.Popen(["sleep", "1000"], start_new_session=True)  # what a script leaves behind
sys.argv[0] = {example!r}
runpy.run_path({example!r}, run_name="__main__")
"""
JOB = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: bytes}}
spec:
  entrypoint: [train.py, --steps, "{steps}", --checkpoint-every, "10", --pace, "0.1", --losses, "{folder}/losses"]
  nodes: {{min: 2, max: 2, spares: 1}}
  startup: {{preflight: none}}
"""


@dataclass
class Submitted:
    """The job, seen as its user and its administrator see it."""

    slurm: SlurmCluster
    folder: Path
    id: str

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def losses(self) -> list[dict[str, Any]]:
        file = self.folder / "losses"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def said(self) -> str:
        file = self.state / "logs" / f"slurm-{self.id}.out"
        return file.read_text() if file.exists() else ""

    def has_trained(self, step: int, after_round: int = -1) -> None:
        """Wait until a round behind `after_round` has come to the step."""
        self.slurm.wait_until(
            f"step {step} in a round after {after_round}; it said:\n{self.said()}",
            lambda: any(each["step"] >= step and each["round"] > after_round for each in self.losses()),
        )

    def nodes_with_ranks(self) -> list[str]:
        ranks = self.slurm.run(*HOLDFAST, "ranks", "--state-dir", str(self.state), "-o", "json")
        return [each["node"] for each in json.loads(ranks)]


def submit(slurm: SlurmCluster, folder: Path) -> Submitted:
    (folder / "train.py").write_text(SCRIPT.format(example=str(EXAMPLES.parent / "bytes" / "train.py")))
    (folder / "job.yaml").write_text(JOB.format(steps=STEPS, folder=folder))
    said = slurm.run(
        *(
            *HOLDFAST,
            "slurm",
            str(folder / "job.yaml"),
            "--state-dir",
            str(folder / "state"),
            "--sbatch=--time=10",
        ),
        *("--save-before", "60", "--simulate-gpus", "--drain-with", WITHOUT_RIGHTS),
    )
    return Submitted(slurm, folder, said.splitlines()[0])


def test_a_node_that_fails_its_probe_gets_no_job_and_is_drained_with_the_reason(slurm: SlurmCluster) -> None:
    (slurm.bad / "n3").write_text("broken")
    slurm.run("sbatch", "--wait", "--nodelist=n3", "--output=/dev/null", "--wrap=true")
    assert "drain" not in slurm.state("n3"), "a broken installation is no verdict on the node"
    (slurm.bad / "n3").write_text("")
    job = slurm.run("sbatch", "--parsable", "--nodelist=n3", "--output=/dev/null", "--wrap=true")
    slurm.wait_until("n3 is drained", lambda: "drain" in slurm.state("n3"))
    assert slurm.reason("n3") == f"holdfast: probe before job {job}: Failed in 2 s: gpu 0 is wrong"
    slurm.wait_until("the job is queued again", lambda: slurm.job(job)["JobState"] == "PENDING")
    slurm.run("scancel", job)
    (slurm.bad / "n3").unlink()
    slurm.run("scontrol", "update", "nodename=n3", "state=resume")
    slurm.wait_until("n3 is idle", lambda: slurm.state("n3") == "idle")


@pytest.mark.parametrize("prepared", ["what root's group may read", "another user's order", "a pipe", "an order"])
def test_an_epilog_takes_an_order_of_the_jobs_user_alone(
    slurm: SlurmCluster, tmp_path: Path, prepared: str
) -> None:
    """Called as slurmd calls it, for a job of the user 65534 that ended on n2."""
    job = str(os.getpid())
    order = Path(f"/tmp/holdfast-drain.{job}.n2")
    (tmp_path / "secret").write_text("hunter2\n")
    (tmp_path / "secret").chmod(0o640)
    try:
        if prepared == "a pipe":
            os.mkfifo(order)
        elif prepared == "what root's group may read":
            order.symlink_to(tmp_path / "secret")
            tmp_path.chmod(0o755)
        else:
            order.write_text("holdfast: inc-0001: xid 79\n")
        if prepared != "another user's order":
            os.chown(order, 65534, 65534, follow_symlinks=False)
        slurm.run(
            *("env", f"SLURM_JOB_ID={job}", "SLURM_JOB_UID=65534", "SLURMD_NODENAME=n2"),
            str(slurm.folder / "epilog.sh"),
        )
        if prepared == "an order":
            assert slurm.reason("n2") == "holdfast: inc-0001: xid 79"
            assert not order.exists()
            slurm.run("scontrol", "update", "nodename=n2", "state=resume")
            slurm.wait_until("n2 is idle", lambda: slurm.state("n2") == "idle")
        else:
            assert slurm.state("n2") == "idle", slurm.reason("n2")
    finally:
        order.unlink(missing_ok=True)


@pytest.mark.timeout(240)
def test_a_job_lives_through_a_lost_node_its_time_limit_and_a_bad_gpu(slurm: SlurmCluster, tmp_path: Path) -> None:
    slurm.wait_until("all nodes are idle", lambda: all(slurm.state(node) == "idle" for node in NODES))
    job = submit(slurm, tmp_path)
    job.has_trained(15)

    # A node is lost: the spare inside the allocation takes its ranks, and the batch job goes on.
    lost = next(node for node in job.nodes_with_ranks() if node != NODES[0])
    before = job.losses()[-1]["round"]
    slurm.lose(lost)
    job.has_trained(25, after_round=before)
    assert slurm.job(job.id)["JobState"] == "RUNNING"

    # Its time is nearly up: it is saved and queued again, and the lost node is back by then.
    slurm.run("scancel", "--signal=USR1", "--batch", job.id)
    slurm.wait_until("it is queued again", lambda: slurm.job(job.id)["Restarts"] == "1")
    last, told = job.losses()[-1], re.search(r"step (\d+) is saved", job.said())
    assert told, job.said()
    slurm.bring_back(lost)
    job.has_trained(last["step"] + 10, after_round=last["round"])
    first = next(each for each in job.losses() if each["round"] > last["round"])
    assert first["step"] == int(told[1]) + 1, job.said()

    # A GPU falls off the bus: a spare takes over, and the node is drained by the epilog, for the user may not.
    slurm.wait_until("the third node is back", lambda: slurm.job(job.id)["NumNodes"] == "3")
    bad = next(node for node in job.nodes_with_ranks() if node != NODES[0])
    lives = (slurm.folder / "tmp").glob(f"holdfast-{bad}-*")
    (max(lives, key=lambda each: each.stat().st_mtime) / "gpu-faults.jsonl").write_text('{"gpu": 0, "xid": 79}\n')
    slurm.wait_until(f"it ends; it said:\n{job.said()}", lambda: slurm.job(job.id)["JobState"] == "COMPLETED")
    assert job.losses()[-1]["step"] == STEPS
    assert (
        f"{bad} is not drained (setpriv says: slurm_update error: Invalid user id); its epilog will" in job.said()
    )
    slurm.wait_until(f"{bad} is drained", lambda: slurm.state(bad) == "drained")
    assert slurm.reason(bad).startswith("holdfast: inc-")
    assert "xid 79" in slurm.reason(bad)

    # However often it was interrupted, each step's loss is the same, bit for bit.
    seen = Counter(each["step"] for each in {(each["step"], each["hex"]): each for each in job.losses()}.values())
    assert seen == Counter(range(1, STEPS + 1))
    # Nothing is left on any node, not even what the script let go of.
    slurm.wait_until("no process is left", lambda: not slurm.processes(SLURM_JOB_ID=job.id))


async def test_whoever_has_the_rights_drains_and_resumes(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    allocation = Allocation("1", NODES, tmp_path / "drained")
    bad = next(node for node in NODES if slurm.state(node) == "idle")
    assert await allocation.take_out(bad, "inc-0007: self-test failed") is None
    assert slurm.reason(bad) == "holdfast: inc-0007: self-test failed"
    standings = await allocation.standings()
    assert standings[bad].takes_work  # as far as Slurm is concerned: Holdfast's own plan keeps away from it
    assert await allocation.put_back(bad) is None
    await asyncio.to_thread(slurm.wait_until, "it is idle", lambda: slurm.state(bad) == "idle")
