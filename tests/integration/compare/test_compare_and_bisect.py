"""Two runs of one script that differ in one thing: `holdfast compare` and `holdfast bisect` find it, at its step.

The runs, and most of what is trained again, are in this process: importing torch takes longer than all the steps.
Run A trains 8 steps; B goes on from A's checkpoint of step 4 unless it begins otherwise.
"""

import json
import runpy
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from patience import patient

from holdfast.api.bitflip import BitFlip, request_bit_flip
from holdfast.api.control import Assignment
from holdfast.api.rehearsal import REHEARSAL_VARIABLE, Rehearsal
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.cli.bisect import rehearsals
from holdfast.cli.bisect.program import Program
from holdfast.cli.bisect.rehearsals import Traces
from holdfast.cli.main import answer
from holdfast.trainer import description, sourcecode
from holdfast.trainer.host import Alone

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).with_name("tinytraining.py")
SECRET = "hunter2hunter2"


def run_script(script: Path, *words: str) -> None:
    """As `python SCRIPT WORDS` in this process."""
    before = sys.argv
    sys.argv = [str(script), *words]
    try:
        with suppress(SystemExit):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = before


class Laboratory:
    """A folder with run A in it, and other runs beside it."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._root, self._monkeypatch, self._capsys = root, monkeypatch, capsys
        first = Alone.next_assignment

        def fingerprinted(alone: Alone) -> Assignment:
            return msgspec.structs.replace(first(alone), fingerprint_every=1)

        monkeypatch.setattr(Alone, "next_assignment", fingerprinted)
        for each in (description, sourcecode):
            monkeypatch.setattr(each, "PATIENCE_S", patient(each.PATIENCE_S))
        monkeypatch.setattr(rehearsals, "rehearse", self._rehearse)
        for name in ("RANK", "WORLD_SIZE", "HOLDFAST_CONTROL"):
            monkeypatch.delenv(name, raising=False)
        self.script = root / "a" / "train.py"
        self.script.parent.mkdir()
        shutil.copy(SCRIPT, self.script)
        self.a = self.train("A")

    def train(self, name: str, *words: str, script: Path | None = None, after: int | None = None) -> Path:
        """A run of the script, from A's checkpoint of step `after` if that is given; where its checkpoints are."""
        place = self._root / name
        if after is not None:
            shutil.copytree(self.a / f"step-{after:08d}", place / f"step-{after:08d}")
        run_script(script or self.script, "--checkpoint", str(place), *words)
        return place

    def asked(self, command: str, b: Path, *words: str) -> dict[str, Any]:
        """What the command answers of A and `b`."""
        before = self._stored(self.a, b)
        self._capsys.readouterr()
        code = answer([command, str(self.a), str(b), "-o", "json", *words])
        told = self._capsys.readouterr()
        assert told.out, told.err
        found: dict[str, Any] = json.loads(told.out)
        is_alike = found["cause"] == "no difference" if command == "bisect" else found["firstStep"] is None
        assert code == (0 if is_alike else 1)
        assert self._stored(self.a, b) == before, "the originals are only read"
        return found

    def _stored(self, *runs: Path) -> list[tuple[Path, int]]:
        return sorted((each, each.stat().st_mtime_ns) for run in runs for each in run.rglob("*"))

    def _rehearse(
        self, programs: Sequence[tuple[Program, Rehearsal, Path]], timeout_s: float, *, together: bool
    ) -> list[Traces]:
        """In this process what otherwise is done in others."""
        found = []
        for program, wanted, folder in programs:
            folder.mkdir(parents=True)
            order = folder / "rehearsal.json"
            order.write_bytes(msgspec.json.encode(msgspec.structs.replace(wanted, output=str(folder))))
            with self._monkeypatch.context() as changed:
                changed.setenv(REHEARSAL_VARIABLE, str(order))
                changed.chdir(program.directory)
                run_script(Path(program.command[1]), *program.command[2:])
            found.append(Traces(folder, program.ranks))
        return found


@pytest.fixture
def laboratory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Laboratory:
    return Laboratory(tmp_path, monkeypatch, capsys)


def settings(compared: dict[str, Any]) -> set[str]:
    return {f"{each['section']}/{each['name']}" for each in compared["settings"]}


def test_a_changed_seed_is_found_before_the_first_step(laboratory: Laboratory) -> None:
    b = laboratory.train("B", "--seed", "1", "--api-key", SECRET)
    # What was left out of the command has to be said.
    said = [f"{sys.executable} {laboratory.script} --seed {seed} --api-key {SECRET}" for seed in (0, 1)]
    words = ["--a-command", said[0], "--b-command", said[1]]
    for name in ("a", "b"):
        words += [f"--{name}-directory", str(laboratory.script.parent)]
    compared, found = laboratory.asked("compare", b), laboratory.asked("bisect", b, *words)
    assert {"configuration/seed", "seeds/torch"} <= settings(compared)
    assert (compared["loss"]["step"], compared["lossBits"]["step"], compared["prints"]["step"]) == (1, 1, 1)
    assert (found["cause"], found["step"], found["difference"]["stage"]) == ("started otherwise", 0, "state")
    assert SECRET not in "".join(each.read_text() for each in b.glob("step-*/run.json"))


def test_a_changed_flag_is_found_at_the_step_where_it_first_matters(laboratory: Laboratory) -> None:
    norms = laboratory.asked("compare", laboratory.a)
    assert norms["firstStep"] is None
    b = laboratory.train("B", "--clip", "0.2", after=4)
    compared, found = laboratory.asked("compare", b), laboratory.asked("bisect", b)
    assert "configuration/clip" in settings(compared)
    assert laboratory.asked("compare", b, "--tolerance", "1e-30")["loss"] == compared["lossBits"]
    short = laboratory.asked("bisect", b, "--steps", "1")
    assert (short["cause"], short["began"], short["last"]) == ("not reached", 4, 5)
    assert "differ at step 6" in short["says"]
    assert compared["losses"] == [1, 8], "the history of what was restored goes on"
    # At step 6, not yet at 5, the gradients are above it: the loss of it is the same, what it leaves is not.
    assert (compared["prints"]["step"], compared["prints"]["equal"]) == (6, 5)
    assert (compared["lossBits"]["step"], compared["checkpoints"]["equal"]) == (7, 4)
    assert (found["began"], found["step"], found["difference"]["stage"]) == (4, 6, "gradient")
    assert found["difference"]["count"] > 1


def test_one_bad_device_is_what_recorded_otherwise_than_its_settings_give(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    node.mkdir()
    with monkeypatch.context() as broken:
        broken.setenv("HOLDFAST_RUN_DIR", str(node))
        broken.setenv("HOLDFAST_CORRUPTIBLE", "1")
        request_bit_flip(node, BitFlip(rank=0, step=5, bit=20, parameter="1.down.weight"))
        b = laboratory.train("B", after=4)
    command = (sys.executable, str(laboratory.script), "--checkpoint", str(b))
    compared, found = laboratory.asked("compare", b), laboratory.asked("bisect", b, "--", *command)
    assert (compared["prints"]["step"], compared["prints"]["groups"]) == (5, ["1.down.weight"])
    assert compared["lossBits"]["step"] == 6
    assert (found["cause"], found["step"], found["difference"]) == ("not repeated", 5, None)
    (departure,) = found["departures"]
    assert (departure["name"], departure["what"]) == ("B", "the parameters of 1.down.weight")


def test_one_changed_line_of_the_model_is_found_with_its_module_and_operation(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    changed = tmp_path / "b" / "train.py"
    changed.parent.mkdir()
    line = "functional.gelu(self.up(hidden))"
    changed.write_text(SCRIPT.read_text().replace(line, line[:-1] + ', approximate="tanh")'))
    b = laboratory.train("B", script=changed, after=4)
    found = laboratory.asked("bisect", b, "--scratch", str(tmp_path / "kept"))
    assert (tmp_path / "kept" / "checkpoints" / "step-00000004").is_dir()
    assert (found["step"], found["difference"]["module"]) == (5, "0")
    assert found["difference"]["operation"] == "aten.gelu.default in A, aten.gelu.default('tanh') in B"


def test_of_checkpoints_that_tell_nothing_of_their_run_only_the_state_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, start in (("a", 0.0), ("b", 1.0)):
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(model.weight, start)
        torch.nn.init.constant_(model.bias, 0.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        saves = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=str(tmp_path / name))
        for _ in saves.steps([1, 2]):
            pass
        saves.close()
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    assert answer(["compare", a, b, "-o", "json"]) == 1
    told = capsys.readouterr()
    found = json.loads(told.out)
    assert (found["settingsKnown"], found["losses"], found["fingerprints"]) == (False, None, None)
    assert found["checkpoints"]["names"] == ["model.weight"]
    assert "no checkpoint says how the run was started" in told.err
    assert answer(["compare", a, b]) == 1
    assert "unknown: no step's loss is known of both" in capsys.readouterr().out
    assert answer(["bisect", a, b]) == 2
    assert "name the command after --" in capsys.readouterr().err


def test_it_is_the_same_in_processes_of_their_own(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, rehearse_apart: Callable[..., object]
) -> None:
    b = laboratory.train("B", "--clip", "0.2", after=4)
    monkeypatch.setattr(rehearsals, "rehearse", rehearse_apart)
    found = laboratory.asked("bisect", b, "--together", "--ranks", "1", "--timeout", str(patient(60)))
    assert (found["step"], found["difference"]["stage"], found["departures"]) == (6, "gradient", [])


@pytest.fixture(scope="module")
def rehearse_apart() -> Callable[..., object]:
    return rehearsals.rehearse
