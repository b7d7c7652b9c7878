"""`holdfast checkpoint` on a directory of saves that a real training loop left."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from patience import patient

from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.cli.main import answer

HOLDFAST = (sys.executable, "-c", "from holdfast.cli.main import main; main()")


def test_stored_checkpoints_are_listed_shown_verified_and_pruned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = tmp_path / "run"
    model = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saves = Checkpointer(
        Standalone(), model=model, optimizer=optimizer, uri=stored.as_uri(), every_steps=2, keep=9
    )
    for _ in saves.steps([torch.ones(1, 2)] * 8):
        pass
    saves.close()

    def asked(*words: str) -> str:
        assert answer(["checkpoint", words[0], str(stored), *words[1:]]) == 0
        return capsys.readouterr().out

    assert [each["step"] for each in json.loads(asked("ls", "-o", "json"))] == [8, 6, 4, 2]
    shown = json.loads(asked("show", "--step", "4", "-o", "json"))
    weight = next(name for name in json.dumps(shown).split('"') if name.endswith("weight"))
    assert "step" in shown
    assert weight in asked("show", "--tensor", weight)
    assert len(asked("verify").splitlines()) < len(asked("verify", "--all").splitlines())
    assert "step-00000002" in asked("verify", "--step", "2") + asked("verify", "--step", "2", "-o", "name")
    asked("prune", "--keep", "1", "--dry-run")
    assert len(json.loads(asked("ls", "-o", "json"))) == 4, "nothing was deleted"
    # Where replicas are compared every four steps, what lies before the last comparison stays.
    asked("prune", "--keep", "1", "--compared-every", "4")
    after = [each["step"] for each in json.loads(asked("ls", "-o", "json"))]
    asked("prune", "--keep", "1")
    least = [each["step"] for each in json.loads(asked("ls", "-o", "json"))]
    assert (after, least) == ([8, 4], [8])

    plain = tmp_path / "plain.safetensors"
    assert (
        answer(["checkpoint", "convert", str(stored), str(plain), "--to", "safetensors", "--select", "model."])
        == 0
    )
    assert answer(["checkpoint", "diff", str(stored), str(plain), "-o", "json"]) == 1
    assert plain.exists()


def test_the_version_and_the_completion_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(["version"]) == 0
    assert capsys.readouterr().out.strip()[0].isdigit()
    for shell in ("bash", "zsh", "fish"):
        assert answer(["completion", shell]) == 0
        assert "_HOLDFAST_COMPLETE" in capsys.readouterr().out


def test_what_went_wrong_is_told_with_its_traceback_to_who_asks_for_it(tmp_path: Path) -> None:
    wrong = ("status", "--state-dir", str(tmp_path / "nowhere"))
    plain = subprocess.run([*HOLDFAST, *wrong], capture_output=True, text=True, timeout=patient(60), check=False)
    debugged = subprocess.run(
        [*HOLDFAST, "--debug", *wrong], capture_output=True, text=True, timeout=patient(60), check=False
    )
    assert plain.returncode == debugged.returncode == 3
    assert plain.stderr == f"holdfast: there is no state directory at {tmp_path / 'nowhere'}\n"
    assert debugged.stderr.startswith("Traceback")
    assert debugged.stderr.endswith(plain.stderr)
