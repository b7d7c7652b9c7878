"""One poisoned batch throws the parameters far off, and the loss stays high: the run goes back by itself, leaves
out what led to it, and is the run that never met it, bit for bit. For a while its learning rate is half, also in a
round that a crash begins meanwhile. What a gradient norm may be is as the job says, too.
"""

import json
from pathlib import Path

import pytest
import torch
from embeddedrun import holdfast, job_file
from patience import patient

from holdfast.trainer import SpikeGuard

pytestmark = pytest.mark.long

POISONED, UNTIL, SKIPPED, SLOW = 430, 620, 20, 120
SPIKED, GUARDED, SKIP_ABOVE, DEVIATIONS = 50, 60, 5, 2

TRAINS = f"""
import json, os, signal, sys, time
from pathlib import Path
import torch, torch.distributed as dist
from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Run, SpikeGuard

run = Run(backend="gloo")
crashed = Path(sys.argv[2])

{{model}}
class Batches:
    def __init__(self, rank):
        self.rank = rank

    def __iter__(self):
        return (batch(index, self.rank) for index in range(1, 10**6))

def train(part):
    model, optimizer = made()
    guard = SpikeGuard(part)
    saves = Checkpointer(run, model=model, optimizer=optimizer, extra=dict(spikes=guard), every_steps=50)
    for step, (index, x, y) in saves.steps(Batches(part.rank), until={UNTIL}):
        time.sleep(0.02)
        loss = (model(x) - y).square().mean()
        loss.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        is_spike = False
        if step <= {GUARDED}:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), guard.max_norm)
            is_spike = run.should_skip(step, grad_norm=norm, guard=guard)
        if not is_spike:
            optimizer.step()
        optimizer.zero_grad()
        run.step(step, loss=loss)
        if index == {POISONED + 80} and part.rank == 1 and not crashed.exists():
            crashed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if part.rank == 0:
            with open(sys.argv[1], "a") as file:
                file.write(json.dumps([part.round, step, index, loss.item()]) + "\\n")
    saves.close()

run.enter(train)
"""

MODEL = f"""
def made():
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.002)

def batch(index, rank):
    drawn = torch.Generator().manual_seed(1000 * index + rank)
    x = torch.randn(32, 8, generator=drawn)
    y = x.sum(dim=1, keepdim=True) + 0.3 * torch.randn(32, 1, generator=drawn)
    too_large = 1e5 if index == {POISONED} and rank == 1 else 12.0 if index == {SPIKED} else 1.0
    return index, x, y * too_large
"""


def undisturbed(indices: list[int], *, cut_at: int, cut_until: int) -> list[float]:
    """The losses of rank 0 where both ranks take these batches and no others, with half the learning rate from
    step `cut_at` to `cut_until`.
    """
    torch.set_num_threads(1)
    space: dict[str, object] = {"torch": torch}
    exec(MODEL, space)
    model, optimizer = space["made"]()  # type: ignore[operator]
    guard = SpikeGuard(skip_above=SKIP_ABOVE, deviations=DEVIATIONS)
    losses = []
    for step, index in enumerate(indices, start=1):
        optimizer.param_groups[0]["lr"] = 0.001 if cut_at <= step <= cut_until else 0.002
        gradients = []
        for rank in (0, 1):
            _, x, y = space["batch"](index, rank)  # type: ignore[operator]
            loss = (model(x) - y).square().mean()
            if rank == 0:
                losses.append(loss.item())
            loss.backward()
            gradients.append([each.grad.clone() for each in model.parameters()])
            optimizer.zero_grad()
        for each, first, second in zip(model.parameters(), *gradients, strict=True):
            each.grad = first + second
        is_spike = False
        if step <= GUARDED:
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), guard.max_norm))
            is_spike = guard.is_spike(norm)
            assert is_spike is (index == SPIKED)
            guard.learn(norm, skipped=is_spike)
        if not is_spike:
            optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.timeout(240)
def test_a_divergence_is_gone_back_for_and_what_led_to_it_left_out(tmp_path: Path) -> None:
    said = tmp_path / "steps.jsonl"
    job = job_file(
        tmp_path,
        script=TRAINS.replace("{model}", MODEL),
        words=[str(said), str(tmp_path / "crashed")],
        nodes="{min: 2, max: 2}",
        # What a loaded machine does to one of the ranks is told by another detector.
        more=f"  faultPolicy:\n    heartbeat: {{interval: 100ms, lost: {patient(3):.0f}s}}\n"
        "    straggler: {sustained: 100000steps}\n"
        f"    loss: {{rewindAfter: 50steps, skipBatches: {SKIPPED}, learningRateScale: 0.5,"
        f" learningRateSteps: {SLOW}, skipAboveNorm: {SKIP_ABOVE}, clipDeviations: {DEVIATIONS}}}\n",
    )
    state = tmp_path / "state"
    ended = holdfast("run", job, "--state-dir", state)
    assert ended.returncode == 0, ended.stderr
    incidents = json.loads(holdfast("incidents", "--state-dir", state, "-o", "json").stdout)
    incident, crash = sorted(incidents, key=lambda each: each["detected_at"])
    assert (incident["kind"], incident["state"]) == ("Divergence", "Recovered")
    assert (crash["kind"], crash["state"]) == ("ProcessExit", "Recovered")
    assert f"pass over the batches up to it and {SKIPPED} more" in incident["actions"][-1]["reason"]

    lived = [tuple(json.loads(line)) for line in said.read_text().splitlines()]
    _, second, last = sorted({round for round, *_ in lived})
    began, again = (min(step for round, step, *_ in lived if round == each) for each in (second, last))
    kept = {step: (index, loss) for _, step, index, loss in lived}  # of a step that was done again, the last
    assert sorted(kept) == list(range(1, UNTIL + 1))
    indices = [kept[step][0] for step in sorted(kept)]
    assert POISONED in [index for *_, index, _ in lived]
    assert POISONED not in indices
    # The batches up to the last good step and so many more were passed over, and it counts from there.
    cut_until = kept[began][0] - 1 - SKIPPED + SLOW
    assert began < again < cut_until, "the crash came while the learning rate was half"
    losses = [kept[step][1] for step in sorted(kept)]
    assert losses == undisturbed(indices, cut_at=began, cut_until=cut_until)
