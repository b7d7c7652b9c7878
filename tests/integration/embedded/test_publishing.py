"""One job with four restarts and one rewind, in W&B, MLflow, TensorBoard and at a webhook: one run in each."""

import hashlib
import hmac
import http.server
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from embeddedrun import PATIENCE_S, family, interrupt, job_file, running, wait_until
from mlflow_server import MlflowServer, starting_mlflow

pytestmark = pytest.mark.long

STEPS = 260
SCRIPT = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run()
told = Path(sys.argv[1])

def train(part):
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpointer = Checkpointer(run, model=model, optimizer=optimizer, every_steps=20, compares_batches=False)
    with (told / f"rank-{part.rank}").open("a") as file:
        for step, batch in checkpointer.steps([torch.ones(1, 2)] * 1000, until=int(sys.argv[2])):
            loss = model(batch).square().sum()
            optimizer.zero_grad()
            loss.backward()
            dist.all_reduce(torch.ones(1))
            optimizer.step()
            time.sleep(0.02)
            while step in (150, 190) and not (told / f"gate-{step}").exists():
                run.check()
                time.sleep(0.01)
            print(step, part.round, file=file, flush=True)
            run.log(step, which=torch.tensor(part.round + part.rank / 2), **{"eval/loss": loss})
            run.step(step, loss=loss.detach(), tokens=8)

run.enter(train)
"""
FAULTS = """
- {at: {step: 30}, do: kill-worker, rank: 1}
- {at: {step: 70}, after: recovered, do: nan, rank: 0}
- {at: {step: 100}, after: recovered, do: kill-watchdog}
"""


@contextmanager
def listening() -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A webhook that is called, and what it heard. It refuses every third call, which is made again."""
    heard: list[tuple[dict[str, str], bytes]] = []
    calls = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal calls
            calls += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if refuses := calls % 3 == 0:
                self.send_response(503)
            else:
                self.send_response(204)
            self.end_headers()
            if not refuses:
                heard.append((dict(self.headers), body))

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/oncall", heard
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def counting(told: Path, rank: int) -> dict[int, int]:
    """Of each step the round in which it was trained last."""
    lines = (told / f"rank-{rank}").read_text().splitlines()
    return {int(step): int(round_) for step, round_ in (line.split() for line in lines)}


def reached(told: Path, step: int) -> bool:
    try:
        return max(counting(told, 0), default=0) >= step
    except (FileNotFoundError, ValueError):  # not there yet, or a line that is not whole
        return False


def publishers(process: Any, module: str) -> list[int]:
    """Processes of the run that run this module."""
    found = []
    for pid in family(process):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if module.encode() in words:
            found.append(pid)
    return found


def kill(process: Any, module: str) -> None:
    """End one of the run's processes as a machine would."""
    wait_until(lambda: bool(publishers(process, module)), f"a process of {module}")
    for pid in publishers(process, module):
        os.kill(pid, signal.SIGKILL)


def in_mlflow(server: MlflowServer, name: str) -> list[tuple[int, float]]:
    (run,) = server.runs("gpt")
    return sorted(server.history(run["info"]["run_id"], name))


def in_wandb(state: Path, name: str) -> list[tuple[int, float]]:
    from holdfast.console.trackers.wandbrun import histories

    files = sorted(state.glob("trackers/*/wandb-*/wandb/offline-run-*/run-*.wandb"))
    assert len({file.name for file in files}) == 1, "one run"
    rows = [row for file in files for row in histories(file)]
    return [(int(row["step"]), float(row[name])) for row in rows if name in row]


def in_tensorboard(state: Path) -> Any:
    """An EventAccumulator. Its imports and those of W&B are for the one process that runs this test."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (folder,) = (state / "tensorboard").iterdir()
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


@pytest.mark.timeout(240)
def test_one_run_in_each_tracker_over_four_restarts_and_a_rewind_and_no_step_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WEBHOOK_SECRET", "s3cret")
    told, state, faults = tmp_path / "told", tmp_path / "state", tmp_path / "faults.yaml"
    told.mkdir()
    log = state / "logs" / "trackers.log"
    faults.write_text(FAULTS)
    with starting_mlflow(tmp_path / "mlflow") as starting, listening() as (hook, heard):
        server = starting.started()
        more = (
            "  processesPerNode: 2\n  checkpoint: {memory: {everySteps: 0}}\n"
            f"  reporting: {{wandb: {{project: gpt, entity: research, url: 'https://wandb.example'}}, ranks: 2,\n"
            f"    mlflow: {{uri: '{server.uri}', experiment: gpt}}, tensorboard: true, webhook: '{hook}'}}\n"
        )
        job = job_file(tmp_path, script=SCRIPT, words=[str(told), str(STEPS)], nodes="{min: 1, max: 1}", more=more)
        with running("run", job, "--state-dir", state, "--faults", faults) as process:
            wait_until(lambda: reached(told, 50), "step 50")
            kill(process, "holdfast.console.trackers.publisher")
            wait_until(lambda: reached(told, 149), "step 149")
            wait_until(
                lambda: "the watchdog is back" in log.read_text(), "the watchdog, which was killed at step 100"
            )
            kill(process, "holdfast.console.trackers")
            wait_until(lambda: log.read_text().count("a job is published") == 2, "who publishes")
            (told / "gate-150").touch()
            wait_until(lambda: reached(told, 189), "step 189")
            interrupt(process)
        (told / "gate-190").touch()
        with running("run", job, "--state-dir", state) as process:
            said, _ = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, said
        expected = [(step, float(counting(told, 0)[step])) for step in range(1, STEPS + 1)]
        assert in_mlflow(server, "which") == expected, log.read_text()
        assert in_wandb(state, "which") == expected, log.read_text()
        events = in_tensorboard(state)
        assert [(each.step, each.value) for each in events.Scalars("which")] == expected, log.read_text()
        # Of other ranks than the first up to a second is lost where all of them are stopped.
        of_rank_1 = in_mlflow(server, "rank-1/which")
        assert len(of_rank_1) > STEPS // 2
        assert all(value == counting(told, 1)[step] + 0.5 for step, value in of_rank_1)
        for name in ("loss/median", "step_s/max", "tokens_s", "rank-1/loss", "gpu/temperature_c/max"):
            sampled = [step for step, _ in in_mlflow(server, name)]
            assert sampled == sorted(set(sampled))
            assert sampled == [step for step, _ in in_wandb(state, name)]
            known = name in events.Tags()["scalars"]
            assert sampled == ([each.step for each in events.Scalars(name)] if known else [])
            # A step a second at best: what comes behind what is out is left out. In a run this short, on a busy
            # machine, GPUs may not be read in time for any of them.
            assert sampled or name.startswith("gpu/"), name
        (run,) = server.runs("gpt")
        assert run["info"]["status"] == "FINISHED"
        tags = {each["key"]: each["value"] for each in run["data"]["tags"]}
    deliveries = [json.loads(body)["delivery"] for _, body in heard]
    assert len(deliveries) == len(set(deliveries))
    kinds = {json.loads(body)["incident"]["kind"] for _, body in heard}
    assert {"ProcessExit", "NonFinite"} <= kinds
    for headers, body in heard:
        signed = headers["X-Holdfast-Timestamp"].encode() + b"." + body
        digest = hmac.new(b"s3cret", signed, hashlib.sha256).hexdigest()
        assert headers["X-Holdfast-Signature"] == f"sha256={digest}"
        incident = json.loads(body)["incident"]["id"]
        assert tags[f"holdfast.incident.{incident}"].startswith("closed")
        assert f"incidents/{incident}/closed" in events.Tags()["tensors"]
    records = b"".join(file.read_bytes() for file in state.glob("trackers/*/wandb-*/wandb/offline-run-*/*.wandb"))
    assert b"ProcessExit" in records
    assert b"research" in records
