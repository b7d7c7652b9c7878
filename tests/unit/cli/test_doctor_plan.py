"""`holdfast doctor job.yaml`: what a plan assumed, beside what the watchdog of its run tells."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakewatchdog import FakeWatchdog, fake_watchdog
from wireobjects import JOB, a_status, an_incident

from holdfast.api.fleet import FleetReport, Rate
from holdfast.api.status import Checkpoint, MeasuredRate, NodeStatus
from holdfast.api.telemetry import GpuHealth, GpuSample
from holdfast.cli.main import answer

QUESTION = """
model: {layers: 32, hidden: 4096, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256}
cluster: {gpu: H100, gpus: 16, price: 2, storage: 1e10}
training: {sequence: 8192, batch: 128, tokens: 1e11}
"""
RATES = (
    MeasuredRate("bandwidth-device", 2.68e12, 2.6e12, "n1", 16),
    MeasuredRate("bandwidth-peer", 180e9, 170e9, "n2", 16),
    MeasuredRate("bandwidth-host", 5e10, 5e10, "n1", 16),
    MeasuredRate("link", 3e9, 3e9, "", 2),
)
NODES = (NodeStatus("n1", 0.5, gpus=(GpuSample("GPU-1", 0, GpuHealth.HEALTHY, memory_used_bytes=79e9),)),)
FLEET = FleetReport(1.0, all=Rate("all", 90, 1e5, 0.9, 0.7, 1.1))


@pytest.fixture
def job(tmp_path: Path) -> Path:
    question, written = tmp_path / "question.yaml", tmp_path / "gpt.yaml"
    question.write_text(QUESTION)
    assert answer(["plan", str(question), "--layout", "tp=2,pp=1,cp=1", "--write", str(written)]) == 0
    written.write_text(written.read_text().replace("name: gpt\n", "name: gpt\n  namespace: research\n"))
    return written


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[FakeWatchdog]:
    with fake_watchdog(tmp_path / "state") as fake:
        yield fake


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


def line(told: list[str], what: str) -> tuple[str, str]:
    """The line of a finding, and the one below it."""
    (at,) = [number for number, each in enumerate(told) if each[6:].startswith(f"{what}  ")]
    return told[at], (told[at + 1] if at + 1 < len(told) else "")


def test_each_assumption_is_told_beside_what_was_measured(
    job: Path, watchdog: FakeWatchdog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = Checkpoint(step=110, uri="/c", round=2, at=1000.0, stall_s=4.0, took_s=30.0)
    status = a_status(world_size=16, step_time_s=9.0, rates=RATES, last_checkpoint=saved, ettr=0.9)
    watchdog.answers["GET status"] = (200, status)
    watchdog.answers["GET nodes"] = (200, NODES)
    watchdog.answers["GET /v1/fleet"] = (200, FLEET)
    watchdog.answers["GET incidents"] = (200, [an_incident(began_at=10.0, recovered_at=319.0, recovered_round=3)])
    capsys.readouterr()
    assert answer(["doctor", str(job), "--state-dir", str(tmp_path / "state")]) == 0
    told = lines(capsys)
    assert line(told, "GPU memory's rate")[0].startswith("ok")
    nvlink, becomes = line(told, "NVLink's rate")
    assert nvlink.startswith("warn")
    assert nvlink.endswith("180 GB/s, assumed 360 GB/s: 50% less")
    assert "a step takes" in becomes
    assert "what RDMA reaches a test by TCP does not see" in line(told, "network of a node")[1]
    assert "79 GB" in line(told, "memory of a GPU")[0]
    assert line(told, "stall of a checkpoint")[0].endswith("4 s, assumed 1 s: 4 times that")
    assert line(told, "rate to host memory")[0].endswith(
        "50 GB/s, assumed 25 GB/s: 100% more; a checkpoint is copied there in 141 ms in place of 281 ms"
    )
    assert line(told, "time until a checkpoint is written")[0].endswith("30 s, assumed 11.2 s: 167% more")
    # Of 309 s the last 9 were the step that showed that it went on.
    assert line(told, "restart after a failure")[0].endswith("5 min, assumed 1 min: 5 times that")
    # 0.9 for 1,000 GPU-hours are 172.8 for 1,000 days of nodes with 8 GPUs.
    assert "172.8, assumed 3.789" in line(told, "failures for 1,000 node-days")[0]
    assert line(told, "step time")[0].startswith("warn")
    assert "set reached.matmul to 0." in line(told, "share of the GPU's rate that matmuls reach")[1]
    assert "with all that was measured" in line(told, "plan")[0]


def test_a_run_of_another_size_is_not_compared_by_its_steps(
    job: Path, watchdog: FakeWatchdog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watchdog.answers["GET status"] = (200, a_status(world_size=8, step_time_s=9.0))
    capsys.readouterr()
    assert answer(["doctor", str(job), "--state-dir", str(tmp_path / "state")]) == 0
    told = lines(capsys)
    assert "8 ranks run, 16 were planned" in line(told, "ranks")[0]
    assert not any("step time  " in each for each in told)
    assert "not known" in line(told, "failures")[0], "nobody tells of the fleet: Unknown, and not none"
    assert "nothing was measured yet" in line(told, "plan")[0]


def test_a_job_that_has_no_run_is_no_failure(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    capsys.readouterr()
    assert answer(["doctor", str(job)]) == 0
    assert f"none is found to compare the plan of {JOB} with" in lines(capsys)[0]


def test_a_job_without_a_plan_says_how_to_get_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = tmp_path / "bare.yaml"
    bare.write_text(
        "apiVersion: holdfast.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: gpt}\n"
        "spec: {entrypoint: [train.py]}\n"
    )
    assert answer(["doctor", str(bare)]) == 2
    assert "holdfast plan --write" in capsys.readouterr().err
    assert answer(["plan", str(bare)]) == 2
    assert answer(["doctor", str(tmp_path / "gone.yaml")]) == 2
    bare.write_text("3")
    assert answer(["doctor", str(bare)]) == 2


@pytest.mark.parametrize(
    ("written", "instead", "says"),
    [
        ("layout: {tensor: 2", "layout: {tensor: 0", "layout.tensor"),
        ("layout: {tensor: 2", "layout: {tensor: 3", "layout"),
        ("gpus: 16", "gpus: 24", "layout"),
        ("layout:", "lay:", "lay"),
        ("stepSeconds", "stepSecs", "expects"),
    ],
)
def test_a_plan_that_somebody_has_changed_is_refused(
    job: Path, written: str, instead: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert written in job.read_text()
    job.write_text(job.read_text().replace(written, instead))
    assert answer(["doctor", str(job)]) == 2
    assert says in capsys.readouterr().err


def test_what_a_watchdog_says_that_cannot_be_is_not_divided_by(
    job: Path, watchdog: FakeWatchdog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = tuple(MeasuredRate(each.check, 0.0, 0.0, "n1", 1) for each in RATES)
    watchdog.answers["GET status"] = (200, a_status(world_size=16, step_time_s=0.0, rates=none))
    watchdog.answers["GET nodes"] = (200, ())
    watchdog.answers["GET /v1/fleet"] = (200, FleetReport(1.0, all=Rate("all", 0, 1e5, 0.0, 0.0, 0.001)))
    capsys.readouterr()
    assert answer(["doctor", str(job), "--state-dir", str(tmp_path / "state")]) == 0
    told = lines(capsys)
    assert len(told) == 2, told
    assert line(told, "failures for 1,000 node-days")[0].startswith("ok"), "fewer than assumed"


def test_a_plan_can_be_asked_again_from_its_job(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert answer(["plan", str(job), "--layout", "tp=2,pp=1,cp=1", "-o", "json"]) == 0
    again = capsys.readouterr().out
    question = job.parent / "question.yaml"
    assert answer(["plan", str(question), "--layout", "tp=2,pp=1,cp=1", "-o", "json"]) == 0
    assert capsys.readouterr().out == again
