"""`holdfast audit` as people give it: real scripts, the real command, processes of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

from holdfast.cli.output import ExitCode

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[3] / "examples" / "bytes" / "train.py"
SCRIPT = """
import sys
import torch
from torch import nn
from torch.nn import functional
from holdfast.trainer.probes import RoutingWatch, Subject

class Mixer(nn.Module):
    def __init__(self, diagonal):
        super().__init__()
        self.diagonal, self.line = diagonal, nn.Linear(8, 8)

    def forward(self, hidden):
        mask = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril(self.diagonal)
        return hidden + self.line(functional.scaled_dot_product_attention(hidden, hidden, hidden, attn_mask=mask))

def cross_entropy(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

def small():
    print("this is no answer")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(32, 8), Mixer(int(sys.argv[1])), nn.Linear(8, 32))
    tokens = torch.randint(32, (4, 16))
    watch = RoutingWatch()
    model[1].register_forward_hook(lambda *_: watch.update("1", [30, 34]))
    return Subject(model=model, inputs=tokens, targets=tokens.roll(-1, 1), loss=cross_entropy,
                   reference=model, world_size=512, reduce_dtype=torch.bfloat16, watches=[watch])

if __name__ == "__main__":
    raise SystemExit("it was not to start")
"""


def holdfast(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "holdfast.cli", "audit", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(60))


def test_a_right_and_a_broken_script_are_told_apart_and_one_without_a_model_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    # Of a mask that is right the causality is sound, and what the script asks of the world besides is not.
    done = holdfast(str(script), "--entry", "small", "--probes", "causality,agreement,routing", "--", "0")
    assert done.returncode == ExitCode.OK, done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["VERDICT", "PROBE"],
        ["sound", "causality"],
        ["sound", "agreement"],
        ["sound", "routing"],
    ]
    assert done.stderr == "this is no answer\n"

    done = holdfast(str(script), "--entry", "small", "-o", "json", "--", "1")
    assert done.returncode == ExitCode.FAILED, done.stderr
    assert "scaling was not probed" not in done.stderr  # a watch might tell of it
    answers = json.loads(done.stdout)["answers"]
    suspect = [(each["probe"], each["where"]) for each in answers if each["verdict"] == "suspect"]
    assert suspect[0] == ("causality", "1")
    assert [probe for probe, _ in suspect[1:]] == ["reduction"]  # four samples stand for 512 ranks, which so agree
    assert [each["probe"] for each in answers if each["verdict"] == "unknown"] == ["scaling"]
    assert all(each["change"] for each in answers if each["verdict"] != "sound")

    done = holdfast(str(script))
    assert done.returncode == ExitCode.INVALID
    assert "define `def audit() -> Subject` in script.py" in done.stderr


def test_the_example_is_sound(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the quick brown fox jumps over the lazy dog. " * 50)
    done = holdfast(str(EXAMPLE), "-o", "name", "--", "--text", str(tmp_path), "--layers", "1")
    assert (done.returncode, done.stdout) == (ExitCode.OK, ""), done.stderr
    assert "agreement was not probed: the script gives no Subject(reference=...)" in done.stderr
