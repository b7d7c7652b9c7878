"""What the doctor reads in a training script, and which change it names."""

from pathlib import Path

import pytest

from holdfast.cli.doctor.facts import Finding, Level
from holdfast.cli.doctor.script import Script, read_script
from holdfast.cli.doctor.scriptchecks import examine_script, framework_of
from holdfast.cli.main import answer
from holdfast.cli.target import Program

TRAINER = "from transformers import Trainer\ntrainer = Trainer(model=m)\ntrainer.train({})\n"
LOOP = (
    "import torch\nimport torch.distributed as dist\n"
    "def main():\n    dist.init_process_group('gloo')\n    torch.load('a')\n    torch.save({}, 'a')\n"
    "if __name__ == '__main__':\n    main()\n"
)


def read(folder: Path, text: str, **beside: str) -> Script:
    for name, written in beside.items():
        (folder / f"{name}.py").write_text(written)
    path = folder / "train.py"
    path.write_text(text)
    return read_script(path)


def found(folder: Path, text: str, what: str, **beside: str) -> list[Finding]:
    return [each for each in examine_script(read(folder, text, **beside)) if each.what == what]


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        (TRAINER.format(""), "Transformers Trainer", "holdfast.integrations.transformers import HoldfastCallback"),
        ("import transformers as t\nx = t.Trainer()\n", "Transformers Trainer", "HoldfastCallback"),
        ("from trl import SFTTrainer\nSFTTrainer()\n", "Transformers Trainer", "HoldfastCallback"),
        ("import lightning as L\nL.Trainer(devices=2)\n", "Lightning Trainer", "holdfast.integrations.lightning"),
        ("from lightning.fabric import Fabric\nFabric()\n", "Lightning Fabric", "fabric_steps"),
        ("from accelerate import Accelerator\na = Accelerator()\n", "Accelerate", "Batches(accelerator"),
        ("import deepspeed\ndeepspeed.initialize()\n", "DeepSpeed", "FrameworkLoop"),
        ("from torchtitan.trainer import Trainer\n", "torchtitan", "HoldfastCheckpoints.Config"),
        (LOOP, "a loop of its own", "Checkpointer"),
        ("import transformers\nprint(transformers.__version__)\n", "a loop of its own", "Checkpointer"),
    ],
)
def test_the_framework_is_told_with_the_one_change_that_integrates_it(
    tmp_path: Path, text: str, name: str, line: str
) -> None:
    script = read(tmp_path, text)
    assert framework_of(script).name == name
    (finding,) = (each for each in examine_script(script) if each.what == "integration")
    assert finding.level is Level.WARN
    assert line in finding.fix
    assert "steps, loss and norm are seen" in finding.fix


SCALED = (
    "from holdfast.checkpoint import Checkpointer\nfrom holdfast.trainer import Run\n{made}\n"
    "saves = Checkpointer(run, model=m, optimizer=o{given})\nrun.step(step, loss=loss{told})\n"
)
TORCH, APEX = "import torch\nscaler = torch.amp.GradScaler()", "from apex import amp\namp.initialize(m, o)"


@pytest.mark.parametrize(
    ("made", "given", "told", "fix"),
    [
        (TORCH, "", "", "scaler=scaler"),
        ("from torch.cuda.amp import GradScaler\nscaler = GradScaler()", "", "", "scaler=scaler"),
        (TORCH, ", scaler=scaler", "", None),
        (APEX, "", "", "skipped=True"),
        (APEX, "", ", skipped=overflow", None),
        ("", "", "", None),
    ],
    ids=["torch", "cuda", "given", "apex", "told", "none"],
)
def test_a_gradient_scaler_is_saved_and_what_it_leaves_out_is_told(
    made: str, given: str, told: str, fix: str | None, tmp_path: Path
) -> None:
    findings = found(tmp_path, SCALED.format(made=made, given=given, told=told), "scaler")
    assert [fix in each.fix for each in findings] == ([] if fix is None else [True])


def test_a_script_that_is_integrated_lacks_nothing(tmp_path: Path) -> None:
    integrated = "from holdfast.integrations.transformers import HoldfastCallback\n" + TRAINER.format("")
    assert {each.level for each in examine_script(read(tmp_path, integrated))} == {Level.OK}


@pytest.mark.parametrize(
    "text",
    [
        "import torch.multiprocessing as mp\nmp.spawn(train, nprocs=8)\n",
        "from torch import multiprocessing\nmultiprocessing.spawn(train)\n",
        "from torch.multiprocessing import spawn as start\nstart(train)\n",
        "from accelerate import notebook_launcher\nnotebook_launcher(train)\n",
        "import lightning as L\nL.Trainer(strategy='ddp_spawn')\n",
    ],
)
def test_a_script_that_starts_its_own_training_processes_cannot_be_healed(tmp_path: Path, text: str) -> None:
    (finding,) = found(tmp_path, text, "processes")
    assert (finding.level, finding.says) == (
        Level.FAIL,
        "it starts its training processes itself at train.py:2",
    )
    assert "LOCAL_RANK" in finding.fix


def test_what_it_imports_from_its_own_folder_is_read_too_and_nothing_else(tmp_path: Path) -> None:
    beside = {"launching": "import torch.multiprocessing as mp\ndef go():\n    mp.spawn(train)\n"}
    (finding,) = found(tmp_path, "import launching, json\nlaunching.go()\n", "processes", **beside)
    assert "launching.py:3" in finding.says


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        ("import torch.distributed as d\nd.init_process_group('nccl', world_size=8, rank=0)\n", Level.FAIL,
         "world_size=8, rank=0 is written at train.py:2"),
        ("import torch.distributed as d\nd.init_process_group(init_method='tcp://10.0.0.1:1')\n", Level.FAIL,
         "init_method=tcp://10.0.0.1:1 is written at train.py:2"),
        ("import os\nos.environ['MASTER_PORT'] = '12355'\n", Level.FAIL, "it sets MASTER_PORT at train.py:2"),
        ("import lightning as L\nL.Trainer(num_nodes=4)\n", Level.WARN, "num_nodes=4 is written at train.py:2"),
    ],
)  # fmt: skip
def test_a_world_that_is_written_in_the_script_is_told(tmp_path: Path, text: str, level: Level, says: str) -> None:
    (finding,) = found(tmp_path, text, "world")
    assert finding.level is level
    assert finding.says.startswith(says)


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as d\nd.init_process_group('nccl', init_method='env://')\n",
        "import os, torch.distributed as d\nd.init_process_group(rank=int(os.environ['RANK']))\n",
        "import os\nif 'RANK' not in os.environ:\n    os.environ['RANK'] = '0'\n",
        "import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\n",
        "import lightning as L\nL.Trainer(num_nodes=1, devices=8)\n",
    ],
)
def test_a_world_that_follows_the_environment_is_no_fault(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, text, "world") == []


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("import os\nos.system('torchrun --nproc-per-node 8 train.py')\n", Level.FAIL),
        ("import subprocess\nsubprocess.run(['accelerate', 'launch', 'x.py'])\n", Level.FAIL),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--local_rank', type=int)\n", Level.WARN),
        (
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--local-rank', required=True)\n",
            Level.FAIL,
        ),
    ],
)
def test_what_it_expects_of_a_launcher_is_told(tmp_path: Path, text: str, level: Level) -> None:
    (finding,) = found(tmp_path, text, "launcher")
    assert finding.level is level


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (TRAINER.format(""), Level.WARN),
        (TRAINER.format("resume_from_checkpoint=last"), Level.OK),
        ("import lightning as L\nL.Trainer().fit(m)\n", Level.WARN),
        ("import lightning as L\nL.Trainer().fit(m, ckpt_path='last')\n", Level.OK),
        (LOOP, Level.OK),
        (LOOP.replace("torch.load('a')", "pass"), Level.WARN),
    ],
)
def test_a_script_that_never_resumes_is_told_so(tmp_path: Path, text: str, level: Level) -> None:
    (finding,) = found(tmp_path, text, "resume")
    assert finding.level is level


NANOGPT = (
    "import torch\n{before}init_from = {setting}\n"
    "if init_from == 'scratch':\n    model = GPT()\nelif init_from == 'resume':\n    torch.load('ckpt.pt')\n"
)


@pytest.mark.parametrize(
    ("setting", "before", "level"),
    [
        ("'scratch'", "", Level.WARN),
        ("'resume'", "", Level.OK),
        ("'resume' if there else 'scratch'", "", Level.OK),
        ("arguments.init_from", "init_from = 'scratch'\n", Level.OK),
        ("'scratch'\ninit_from, seed = read()", "", Level.OK),
        ("'scratch'\ninit_from = 'scratch'", "", Level.WARN),
    ],
)
def test_what_a_setting_of_the_script_keeps_from_being_loaded_is_told(
    tmp_path: Path, setting: str, before: str, level: Level
) -> None:
    (finding,) = found(tmp_path, NANOGPT.format(setting=setting, before=before), "resume")
    assert finding.level is level
    assert ("as long as init_from = 'scratch' at train.py:" in finding.says) is (level is Level.WARN)


def test_how_it_saves_is_told(tmp_path: Path) -> None:
    (in_place,) = found(tmp_path, LOOP, "checkpoints")
    assert "torch.save at train.py:6 writes in place" in in_place.says
    whole = LOOP.replace("    torch.save", "    import os; os.replace('b', 'a'); torch.save")
    assert found(tmp_path, whole, "checkpoints") == []
    (none,) = found(tmp_path, LOOP.replace("torch.save({}, 'a')", "pass"), "checkpoints")
    assert "it saves none" in none.says
    assert none.fix.startswith("Checkpointer(")
    framework = "from accelerate import Accelerator\na = Accelerator()\n"
    (line,) = found(tmp_path, framework, "checkpoints")
    assert line.fix.startswith("the line above saves")


@pytest.mark.parametrize(
    ("text", "touches"),
    [
        ("import torch\ntorch.cuda.set_device(0)\n", True),
        ("import torch\nx = torch.zeros(3, device='cuda')\n", True),
        ("import torch\nmodel = make()\nmodel.to('cuda:0')\n", True),
        ("import torch\nmodel = make().cuda()\n", True),
        ("import torch\nDEVICE = torch.device('cuda')\n", False),
        ("import torch\nHAS = torch.cuda.is_available()\n", False),
        ("import torch\ndef main():\n    torch.cuda.set_device(0)\n", False),
        ("import torch\nif __name__ == '__main__':\n    torch.cuda.set_device(0)\n", False),
    ],
)
def test_a_device_that_is_touched_by_importing_the_script_is_told(
    tmp_path: Path, text: str, touches: bool
) -> None:
    assert bool(found(tmp_path, text, "devices")) is touches


def test_what_python_refuses_is_told_with_its_line_and_the_rest_is_read(tmp_path: Path) -> None:
    script = read(tmp_path, "import broken\nimport torch\n", broken="def f(:\n")
    first = examine_script(script)[0]
    assert (first.level, first.what) == (Level.FAIL, "syntax")
    assert first.says.startswith("broken.py:1: ")


def test_the_script_is_never_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nraise SystemExit(9)\n")
    assert answer(["doctor", str(path)], Program.HOLDFAST) == 0
    assert not (tmp_path / "ran").exists()
    assert "a loop of its own" in capsys.readouterr().out
    path.write_text("import torch.multiprocessing as mp\nmp.spawn(train)\n")
    assert answer(["doctor", str(path)], Program.HOLDFAST) == 1


def test_the_trainers_own_train_is_told_of_and_not_that_of_a_model(tmp_path: Path) -> None:
    text = "from transformers import Trainer\nmodel.train()\ntrainer = Trainer(model)\ntrainer.train()\n"
    (tmp_path / "a.py").write_text(text)
    (resume,) = [each for each in examine_script(read_script(tmp_path / "a.py")) if each.what == "resume"]
    assert resume.says.startswith("train() at a.py:4 begins at step 0")


def test_a_trainer_of_the_scripts_own_class_is_that_of_its_framework(tmp_path: Path) -> None:
    text = (
        "import transformers\nclass Mine(transformers.Trainer):\n    pass\n"
        "mine = Mine(model)\nmine.train(resume_from_checkpoint=True)\n"
    )
    (tmp_path / "a.py").write_text(text)
    found = {each.what: each for each in examine_script(read_script(tmp_path / "a.py"))}
    assert found["framework"].says == "Transformers Trainer at a.py:2"
    assert found["resume"].level is Level.OK


@pytest.mark.parametrize(
    "text", ["x = " + "-" * 100_000 + "1", "x = 1\0", "# coding: latin-99", "x = " + "(" * 5000]
)
def test_a_file_that_python_cannot_read_is_a_finding(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(f"{text}\n")
    assert answer(["doctor", str(tmp_path / "train.py")], Program.HOLDFAST) == 1
    assert "FAIL  syntax" in capsys.readouterr().out


@pytest.mark.parametrize(("name", "fix"), [("none.py", "there is no such file"), ("a.ipynb", "nbconvert")])
def test_what_is_no_script_is_refused_with_the_fix(
    tmp_path: Path, name: str, fix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert answer(["doctor", str(tmp_path / name)], Program.HOLDFAST) == 2
    assert fix in capsys.readouterr().err
