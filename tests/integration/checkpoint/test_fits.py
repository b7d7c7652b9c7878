"""`holdfast checkpoint fits`: what a restart would restore is said before there is one, and nothing is changed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import answer

SCRIPT = """
import sys, torch
from holdfast.checkpoint import Checkpointer, Standalone

kind, uri = sys.argv[1:3]
head = torch.nn.Linear(4, 3 if kind == "wider" else 2)
layers = [torch.nn.Linear(4, 4), *([torch.nn.LayerNorm(4)] if kind == "deeper" else []), head]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
more = {} if kind == "fewer" else {"extra": {"second": torch.optim.Adam(head.parameters())}}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1) if kind == "scheduled" else None
allowed = {"may_be_missing": ["*"], "may_be_left_over": ["*"]} if kind == "allowed wider" else {}
saves = Checkpointer(
    Standalone(uri), model=model, optimizer=optimizer, scheduler=scheduler, every_steps=1, **more, **allowed
)
if kind == "silent":
    sys.exit("no data")
for step, _ in saves.steps(range(10), until=int(sys.argv[3])):
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    optimizer.step()
    more and more["extra"]["second"].step()
saves.close()
print("trained")
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = answer(["checkpoint", "fits", "-o", "json", *words])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else {"error": said.err}


def test_what_would_be_restored_missing_and_left_over_is_said_and_nothing_is_trained(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "stored"
    subprocess.run([sys.executable, script, "same", str(stored), "2"], check=True, timeout=100)
    before = sorted(str(each) for each in stored.rglob("*"))

    def fit(kind: str) -> tuple[int, dict[str, Any]]:
        return asked(capsys, str(stored), str(script), kind, str(stored), "9")

    code, same = fit("same")
    assert (code, same["fits"], same["checkpoint"], same["missing"], same["left_over"]) == (
        0,
        True,
        "step-00000002",
        [],
        [],
    )
    assert {"model.0.weight", "optimizer.state.1.bias.momentum_buffer"} <= set(same["restored"])
    code, deeper = fit("deeper")
    assert (code, deeper["missing"]) == (1, ["model.2.weight", "model.2.bias"])
    assert len(deeper["misfits"]) == 2
    code, wider = fit("wider")
    assert code == 1
    assert any("model.1.weight: the checkpoint has [2, 4] float32" in each for each in wider["misfits"])
    code, fewer = fit("fewer")
    assert code == 1
    assert any(each.startswith("extra.second.state") for each in fewer["left_over"])
    code, scheduled = fit("scheduled")
    assert (code, scheduled["missing"]) == (1, ["scheduler"])
    code, silent = fit("silent")
    assert code == 3
    assert "did not come to the place where it restores: it ended with 1; no data" in silent["error"]
    assert sorted(str(each) for each in stored.rglob("*")) == before


def test_a_script_that_never_restores_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, waits = tmp_path / "stored", tmp_path / "waits.py"
    (tmp_path / "train.py").write_text(SCRIPT)
    subprocess.run([sys.executable, tmp_path / "train.py", "same", str(stored), "1"], check=True, timeout=100)
    waits.write_text("import threading; threading.Event().wait()")
    code, said = asked(capsys, "--within", "1", str(stored), str(waits))
    assert code == 3
    assert "it still ran after 1 s (--within)" in said["error"]
    code, said = asked(capsys, str(stored), str(tmp_path / "none.py"))
    assert code == 2
    assert "name a training script that exists" in said["error"]
