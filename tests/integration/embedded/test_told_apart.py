"""What sends a loss astray is told apart, healed, and leaves no trace: a head that overflows, a bit that flips in
one rank's parameters, a shard that repeats. The fourth, a poisoned batch, is in test_divergence.py.
"""

import json
from pathlib import Path

import pytest
import torch
from embeddedrun import holdfast, job_file
from patience import patient

pytestmark = pytest.mark.long

OVERFLOWS, FLIPS, REPEATS, UNTIL = 50, 90, 170, 280

TRAINS = f"""
import json, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run

run = Run(backend="gloo")
torch.set_num_threads(1)
done = Path(sys.argv[2])

{{model}}
def befalls(what, rank, step, at, on):
    if rank != on or step != at or (done / what).exists():
        return False
    (done / what).touch()
    return True

class Batches:
    def __init__(self, rank):
        self.rank, self.stuck = rank, None

    def __iter__(self):
        for index in range(1, 10**6):
            if befalls("repeats", self.rank, index, {REPEATS}, 2):
                self.stuck = index
            yield batch(self.stuck or index, self.rank)

def train(part):
    heads, optimizer = made()
    saves = Checkpointer(run, model=heads, optimizer=optimizer, every_steps=20, keep=8)
    for step, (x, y) in saves.steps(Batches(part.rank), until={UNTIL}):
        time.sleep(0.02)
        first, second = heads[0](x), heads[1](x)
        if befalls("overflows", part.rank, step, {OVERFLOWS}, 1):
            second = (second.half() * 65504 * 65504).float()
        loss = (first + second - y).square().mean()
        loss.backward()
        for each in heads.parameters():
            there = [torch.empty_like(each.grad) for _ in range(part.world_size)]
            dist.all_gather(there, each.grad)
            each.grad = sum(there)
        optimizer.step()
        optimizer.zero_grad()
        if befalls("flips", part.rank, step, {FLIPS}, 0):
            heads[0].weight.data.view(torch.int32)[0, 7] ^= 1 << 21
        run.step(step, loss=loss)
        if part.rank == 1:
            with open(sys.argv[1], "a") as file:
                file.write(json.dumps([part.round, step, loss.item()]) + "\\n")
    saves.close()

run.enter(train)
"""

# The labels are off by as much everywhere, so that the losses of the ranks are close; what repeats is soon learned
# by heart, as there are more parameters than samples in a batch.
MODEL = """
def made():
    torch.manual_seed(1)
    heads = torch.nn.ModuleList(torch.nn.Linear(1024, 1, bias=False) for _ in range(2))
    return heads, torch.optim.SGD(heads.parameters(), lr=4.0)

def batch(index, rank):
    drawn = torch.Generator().manual_seed(1000 * index + rank)
    x = torch.randn(256, 1024, generator=drawn) / 32
    return x, x.sum(dim=1, keepdim=True) + 0.3 * (2 * torch.randint(0, 2, (256, 1), generator=drawn) - 1)
"""


def undisturbed() -> list[float]:
    """The losses of rank 1 in a run that meets none of it."""
    torch.set_num_threads(1)
    space: dict[str, object] = {"torch": torch}
    exec(MODEL, space)
    heads, optimizer = space["made"]()  # type: ignore[operator]
    losses = []
    for step in range(1, UNTIL + 1):
        gradients = []
        for rank in range(3):
            x, y = space["batch"](step, rank)  # type: ignore[operator]
            loss = (heads[0](x) + heads[1](x) - y).square().mean()
            if rank == 1:
                losses.append(loss.item())
            loss.backward()
            gradients.append([each.grad.clone() for each in heads.parameters()])
            optimizer.zero_grad()
        for each, *there in zip(heads.parameters(), *gradients, strict=True):
            each.grad = sum(there)
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.timeout(240)
def test_an_overflow_a_flipped_bit_and_a_shard_that_repeats_are_told_apart_and_leave_no_trace(
    tmp_path: Path,
) -> None:
    said = tmp_path / "steps.jsonl"
    (tmp_path / "done").mkdir()
    job = job_file(
        tmp_path,
        script=TRAINS.replace("{model}", MODEL),
        words=[str(said), str(tmp_path / "done")],
        nodes="{min: 3, max: 3, spares: 1}",
        # What a loaded machine does to one of the ranks is told by another detector.
        more=f"  faultPolicy:\n    heartbeat: {{interval: 100ms, lost: {patient(3):.0f}s}}\n"
        "    straggler: {sustained: 100000steps}\n"
        "    corruption: {fingerprintEverySteps: 10}\n"
        "    loss: {rewindAfter: 40steps, skipBatches: 20, learningRateScale: 0.5}\n",
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state, "--no-replace")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]

    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    incidents.sort(key=lambda each: each["detected_at"])
    # Where steps are slow, the shard that repeats is found by its batches before the loss shows it.
    repeating = [each for each in incidents if each["kind"] == "Data"]
    assert {(each["cause"], each["culprit"]["rank"]) for each in repeating} <= {("a batch comes again", 2)}
    incidents = [each for each in incidents if each not in repeating]
    told = [(each["kind"], each["culprit"].get("rank"), each["state"]) for each in incidents]
    assert told == [("NonFinite", 1, "Recovered"), ("Corruption", 0, "Recovered"), ("Divergence", 2, "Recovered")]
    repeats = incidents[-1]
    assert repeats["cause"] == "the loss of one rank is below the others'"
    assert repeats["actions"][-1]["reason"].endswith("rank 2 as a new process"), "and no batch is passed over"

    lived = [tuple(json.loads(line)) for line in said.read_text().splitlines()]
    kept = {step: loss for _, step, loss in lived}  # of a step that was done again, the last
    assert len(lived) > len(kept)
    assert [kept[step] for step in range(1, UNTIL + 1)] == undisturbed()
