"""Lightning's Trainer and Fabric with the one line, in a run whose worker is killed: what is trained again is the
same, bit for bit. The Trainer's then loses a node in the middle of an epoch: every sample is still seen once, in
steps of as many samples.
"""

from pathlib import Path

import pytest
from embeddedrun import holdfast, job_file

pytestmark = pytest.mark.long

COMMON = """
import os, signal, sys, time, torch
from pathlib import Path
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
told = open(sys.argv[1], "a")


def tell(step, loss, samples):
    numbers = ",".join(str(int(each)) for each in samples)
    told.write(f"{os.environ['RANK']} {step} {os.environ['WORLD_SIZE']} {float(loss).hex()} {numbers}\\n")
    told.flush()
    first = Path(sys.argv[1] + ".killed")
    if step == int(sys.argv[2]) and os.environ["RANK"] == "1" and not first.exists():
        first.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if step > int(sys.argv[3]) and os.environ["WORLD_SIZE"] == "2":
        time.sleep(0.5)  # until its node is lost


def net():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


inputs = torch.randn(80, 8, generator=torch.Generator().manual_seed(1))
samples = TensorDataset(inputs, inputs.sum(1, keepdim=True), torch.arange(80))
"""

TRAINER = f"""
{COMMON}
import lightning
from holdfast.integrations.lightning import HoldfastCallback


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, place):
        loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
        tell(self.trainer.global_step + 1, loss, batch[2])
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


trainer = lightning.Trainer(
    callbacks=[HoldfastCallback(every_steps=4, global_batch=8)],
    accelerator="cpu", strategy="ddp", devices=1, num_nodes=int(os.environ["GROUP_WORLD_SIZE"]), max_epochs=3,
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), DataLoader(samples, batch_size=4, shuffle=True))
"""

FABRIC = f"""
{COMMON}
from lightning.fabric import Fabric
from holdfast.integrations.lightning import fabric_steps

fabric = Fabric(accelerator="cpu", strategy="ddp", devices=1, num_nodes=2)
fabric.launch()
plain = net()
model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))
loader = fabric.setup_dataloaders(DataLoader(samples, batch_size=4, shuffle=True))
for epoch in range(3):
    for step, batch in fabric_steps(fabric, model, optimizer, loader, every_steps=4):
        loss = torch.nn.functional.mse_loss(model(batch[0]), batch[1])
        tell(step, loss, batch[2])
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""

STEPS, SAMPLES, GLOBAL_BATCH = 30, 80, 8
KILLED_AT = 15  # the newest checkpoint is of step 12, near the beginning of the second epoch
LOST_AT = 25  # and that of step 24, or of step 28 where the fault comes late, in the third


@pytest.mark.parametrize(("script", "loses_node"), [(TRAINER, True), (FABRIC, False)], ids=["trainer", "fabric"])
def test_a_killed_worker_is_healed_and_what_is_trained_again_is_bit_for_bit_the_same(
    tmp_path: Path, script: str, loses_node: bool
) -> None:
    told, faults = tmp_path / "told", tmp_path / "faults.yaml"
    faults.write_text(f"- {{at: {{step: {LOST_AT}}}, do: kill-node, rank: 1}}\n" if loses_node else "[]\n")
    storage = f"  checkpoint: {{uri: '{(tmp_path / 'checkpoints').as_uri()}', interval: 1h}}\n"
    words = [str(told), str(KILLED_AT), str(LOST_AT - 1 if loses_node else STEPS)]
    job = job_file(tmp_path, script=script, words=words, nodes="{min: 1, max: 2}", more=storage)
    ended = holdfast("run", job, "--state-dir", tmp_path / "state", "--no-replace", "--faults", faults)
    assert ended.returncode == 0, ended.stdout + ended.stderr

    losses: dict[tuple[str, int], list[str]] = {}
    seen: dict[int, dict[str, list[int]]] = {}
    for line in told.read_text().splitlines():
        rank, step, world, loss, numbers = line.split()
        if world == "2" and int(step) < LOST_AT:
            losses.setdefault((rank, int(step)), []).append(loss)
        seen.setdefault(int(step), {}).setdefault(world, []).extend(map(int, numbers.split(",")))
    # From the checkpoint of step 12, or, with Holdfast's own, from a later snapshot in memory.
    again = {step for (_, step), each in losses.items() if len(each) > 1}
    assert again in (set(range(first, KILLED_AT + 1)) for first in range(13, KILLED_AT + 1))
    differing = {place: each for place, each in losses.items() if len(set(each)) > 1}
    assert not differing

    assert list(seen) == list(range(1, STEPS + 1))
    worlds = {step: list(each)[-1] for step, each in seen.items()}
    alone = {step for step, world in worlds.items() if world == "1"}
    assert alone in (({*range(25, 31)}, {*range(29, 31)}) if loses_node else (set(),))
    for first in range(1, STEPS + 1, SAMPLES // GLOBAL_BATCH):
        steps = range(first, first + SAMPLES // GLOBAL_BATCH)
        assert all(len(set(seen[step][worlds[step]])) == GLOBAL_BATCH for step in steps)
        assert {number for step in steps for number in seen[step][worlds[step]]} == set(range(SAMPLES))
