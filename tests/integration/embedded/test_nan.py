"""One rank's NaN, as a user meets it: skipped where the script asks, gone back for once, then a human is asked."""

import json
from pathlib import Path

import pytest
from embeddedrun import holdfast, job_file, running, wait_until

pytestmark = pytest.mark.long

SKIPS_UNTIL = 40

TRAIN = f"""
import json, math, sys, time
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run(backend="gloo")

def train(part):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=10, compares_batches=False)
    batches = (torch.full((2, 4), 1.0 + part.rank) for _ in iter(int, 1))
    for step, batch in saves.steps(batches, until=1000):
        time.sleep(0.02)
        loss = model(batch).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        skips = step < {SKIPS_UNTIL} and run.should_skip(step, loss=loss, grad_norm=norm)
        if not skips:
            optimizer.step()
        optimizer.zero_grad()
        run.step(step, loss=loss, grad_norm=norm)
        if part.rank == 0:
            finite = all(bool(each.isfinite().all()) for each in model.parameters())
            with open(sys.argv[1], "a") as file:
                file.write(json.dumps([part.round, step, finite]) + "\\n")
    saves.close()

run.enter(train)
"""


@pytest.mark.timeout(240)
def test_a_nan_is_skipped_then_gone_back_for_once_and_the_same_again_pages(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    job = job_file(
        tmp_path,
        script=TRAIN,
        words=[str(steps)],
        nodes="{min: 2, max: 2}",
        more="  checkpoint: {keep: 1}\n",
    )
    faults = tmp_path / "faults.yaml"
    faults.write_text(
        "- {at: {step: 12}, do: nan, rank: 1}\n"
        "- {at: {step: 60}, after: recovered, do: nan, rank: 1}\n"
        "- {at: {step: 100}, after: recovered, do: nan, rank: 0, for: 100000}\n"
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--faults", faults)
    assert ended.returncode == 1, ended.stderr
    assert "has saved nothing beyond that since" in ended.stderr

    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert [each["kind"] for each in incidents] == ["NonFinite"] * 4
    assert [each["culprit"].get("rank") for each in incidents] == [1, 1, 0, 0]
    assert [each["state"] for each in incidents] == ["Recovered", "Recovered", "Recovered", "Paged"]
    assert [each["actions"][-1]["rung"] for each in incidents] == [0, 5, 5, 6]
    first = incidents[0]["evidence"][0]["says"]
    assert first.startswith("rank 1: loss is nan and gradient norm is nan at step ")

    lived = [json.loads(line) for line in steps.read_text().splitlines()]
    rounds = sorted({round for round, _, _ in lived})
    assert len(rounds) == 3  # the skipped step ended none
    for round in rounds[:2]:
        sick = min(step for of, step, finite in lived if of == round and not finite)
        began = min(step for of, step, _ in lived if of > round)
        assert began <= sick
        assert all(finite for of, step, finite in lived if of == round and step < sick)
    fault = max(int(each["cause"] and each["error"].split("step ")[1].split(":")[0]) for each in incidents[2:])
    kept = [int(each.name.removeprefix("step-")) for each in (state / "checkpoints").glob("step-*")]
    assert any(step < fault for step in kept), "no healthy checkpoint is left"


LAST = """
import math, sys
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run(backend="gloo")

def train(part):
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=10, compares_batches=False)
    batches = (torch.ones(2, 4) for _ in iter(int, 1))
    for step, batch in saves.steps(batches, until=20):
        loss = model(batch).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
            if step == 20 and sys.argv[1] == "gradient":
                each.grad.fill_(math.nan)
        optimizer.step()
        optimizer.zero_grad()
        is_odd = step == 20 and part.rank == 1 and sys.argv[1] == "loss"
        run.step(step, loss=math.nan if is_odd else loss)
    saves.close()

run.enter(train)
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("where", "culprit", "cause"),
    [("loss", 1, "loss is nan"), ("gradient", None, "the parameters are not finite")],
)
def test_a_nan_in_the_last_step_is_no_success(tmp_path: Path, where: str, culprit: int | None, cause: str) -> None:
    job = job_file(
        tmp_path, script=LAST, words=[where], nodes="{min: 2, max: 2}", more="  checkpoint: {keep: 1}\n"
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 1, ended.stderr
    assert f"{cause} at step 20: the job went back for the same at step 20" in ended.stderr
    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    assert [(each["kind"], each["culprit"].get("rank"), each["state"]) for each in incidents] == [
        ("NonFinite", culprit, "Recovered"),
        ("NonFinite", culprit, "Paged"),
    ]
    kept = {each.name for each in (state / "checkpoints").glob("step-*")}
    assert "step-00000010" in kept, "no healthy checkpoint is left"


UNTOLD = """
import math, sys
from pathlib import Path
import torch
from holdfast.trainer import Run

once = Path(sys.argv[1]) / "once"
STEPS, EVERY, NAN_AT = 60, 5, 23

def spoils(step):
    if step == NAN_AT and not once.exists():
        once.touch()
        return True
    return False
"""

WITHOUT_A_LOSS = f"""
{UNTOLD}
from holdfast.checkpoint import Checkpointer

run = Run(backend="gloo")

def train(part):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=EVERY, compares_batches=False)
    for step, batch in saves.steps((torch.ones(2, 4) for _ in iter(int, 1)), until=STEPS):
        run.check()
        model(batch).square().mean().backward()
        if spoils(step):
            model.bias.grad.fill_(math.inf)
        optimizer.step()
        optimizer.zero_grad()
        run.step(step)
    saves.close()

run.enter(train)
"""

OF_A_FRAMEWORK = f"""
{UNTOLD}
import json
from holdfast.checkpoint.foreign import ForeignCheckpoints

run = Run(backend="gloo")

def train(part):
    model = torch.nn.Linear(4, 1)
    checkpoints = ForeignCheckpoints(run, format="of-the-test")
    folder = checkpoints.restore(until=STEPS)
    if folder is not None:
        model.load_state_dict(torch.load(folder / "state.pt"))
    run.watch(model)
    for step in range((checkpoints.restored_step or 0) + 1, STEPS + 1):
        run.check()
        with torch.no_grad():
            model.weight += math.nan if spoils(step) else 0.1
        run.step(step)
        if step % EVERY == 0:
            checkpoints.save(step, lambda folder: torch.save(model.state_dict(), folder / "state.pt"))
    checkpoints.close()

run.enter(train)
"""

MANUAL = f"""
{UNTOLD}
import lightning
from torch.utils.data import DataLoader, TensorDataset
from holdfast.integrations.lightning import HoldfastCallback


class Adversaries(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.one, self.other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)

    def training_step(self, batch, place):
        for number, optimizer in enumerate(self.optimizers()):
            loss = self.other(self.one(batch[0])).square().mean()
            # Of the one that steps first: the other's gradients are finite.
            spoilt = number == 0 and spoils(self.trainer.global_step + 1)
            self.toggle_optimizer(optimizer)
            optimizer.zero_grad()
            self.manual_backward(loss * math.nan if spoilt else loss)
            optimizer.step()
            self.untoggle_optimizer(optimizer)

    def configure_optimizers(self):
        return [torch.optim.Adam(each.parameters(), lr=0.01) for each in (self.one, self.other)]


trainer = lightning.Trainer(
    callbacks=[HoldfastCallback(every_steps=EVERY)], max_steps=STEPS, accelerator="cpu", devices=1, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Adversaries(), DataLoader(TensorDataset(torch.ones(400, 4)), batch_size=2))
"""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("script", "cause", "told_at", "kept"),
    [
        (WITHOUT_A_LOSS, "the parameters are not finite", 25, 20),
        (OF_A_FRAMEWORK, "the parameters are not finite", 25, 20),
        (MANUAL, "gradient norm is nan", 24, 20),
    ],
    ids=["no loss is told", "a framework's own checkpoints", "manual optimization"],
)
def test_a_nan_that_no_loss_tells_of_is_seen_at_the_save_and_gone_back_for(
    tmp_path: Path, script: str, cause: str, told_at: int, kept: int
) -> None:
    job = job_file(
        tmp_path,
        script=script,
        words=[str(tmp_path)],
        nodes="{min: 1, max: 1}",
        more=f"  checkpoint: {{keep: 1, uri: '{(tmp_path / 'stored').as_uri()}'}}\n",
    )
    ended = holdfast("run", job, "--state-dir", tmp_path / "state")
    assert ended.returncode == 0, ended.stderr
    (incident,) = json.loads(holdfast("incidents", "--state-dir", tmp_path / "state", "-o", "json").stdout)
    assert (incident["kind"], incident["cause"], incident["state"]) == ("NonFinite", cause, "Recovered")
    assert incident["error"].startswith(f"at step {told_at}:"), incident
    assert f"round {incident['recovered_round']} begins after step {kept}" in [
        each["what"] for each in incident["timeline"]
    ]
    listed = json.loads(holdfast("checkpoint", "ls", str(tmp_path / "stored"), "-o", "json").stdout)
    assert {each["healthy"] for each in listed} == {True}


SPIKES = """
import json, sys
from holdfast.trainer import Run, SpikeGuard

run = Run(backend="gloo")

def train(part):
    guard = SpikeGuard()
    left_out = []
    for step in range(1, 61):
        norm = 90.0 if (step, part.rank) in ((20, 0), (40, 1)) else 3.0 + step % 2
        if run.should_skip(step, loss=1.0, grad_norm=norm, guard=guard):
            left_out.append(step)
        run.step(step, loss=1.0, grad_norm=norm)
    with open(f"{sys.argv[1]}/rank-{part.rank}", "w") as file:
        json.dump(left_out, file)

run.enter(train)
"""


@pytest.mark.timeout(240)
def test_a_spike_of_one_rank_is_left_out_by_all_and_is_no_incident(tmp_path: Path) -> None:
    job = job_file(tmp_path, script=SPIKES, words=[str(tmp_path)], nodes="{min: 2, max: 2}")
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    # At step 20 nobody knows yet what is usual.
    assert [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in (0, 1)] == [[40], [40]]
    assert json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout) == []


LASTING_STEPS = 10_000
LASTING = f"""
import math, sys, time
from pathlib import Path
import torch
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run(backend="gloo")
first = Path(sys.argv[1]) / "first-round"

def train(part):
    if not first.exists():
        first.write_text(str(part.round))
    is_first = part.round == int(first.read_text())
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=100, compares_batches=False)
    batches = (torch.ones(2, 4) for _ in iter(int, 1))
    for step, batch in saves.steps(batches, until={LASTING_STEPS}):
        loss = model(batch).square().mean()
        loss.backward()
        if is_first and step >= 250:
            model.weight.grad.fill_(math.nan)
        optimizer.step()
        optimizer.zero_grad()
        while is_first and step == {LASTING_STEPS}:
            (first.parent / "there").touch()
            run.check()
            time.sleep(0.05)
        run.step(step, loss=loss)
    saves.close()

run.enter(train)
"""


def steps_in(folder: Path) -> list[int]:
    return sorted(int(each.name[5:]) for each in folder.glob("step-????????"))


@pytest.mark.timeout(240)
def test_after_ten_thousand_steps_of_nan_the_healthy_checkpoint_is_there(
    tmp_path: Path,
) -> None:
    """Only observed, so that it goes on, with a single checkpoint to keep."""
    job = job_file(
        tmp_path, script=LASTING, words=[str(tmp_path)], nodes="{min: 1, max: 1}", more="  checkpoint: {keep: 1}\n"
    )
    state = tmp_path / "state"
    stored = state / "checkpoints"
    with running("run", job, "--state-dir", state, "--observe") as process:
        wait_until((tmp_path / "there").exists, f"step {LASTING_STEPS} of the first round")
        wait_until(lambda: steps_in(stored)[-1] == LASTING_STEPS - 100, "the save of the step before")
        assert 200 in steps_in(stored)
        assert len(steps_in(stored)) < 5
        went = holdfast("rewind", str(LASTING_STEPS - 1000), "--timeout", "80", "--state-dir", state)
        assert went.returncode == 0, went.stderr
        assert "restored step 200" in went.stdout
        wait_until(lambda: process.poll() is not None, "the end of the run")
        assert process.returncode == 0
    listed = json.loads(holdfast("checkpoint", "ls", str(stored), "-o", "json").stdout)
    assert [(each["step"], each["healthy"]) for each in listed][:1] == [(LASTING_STEPS, True)]
