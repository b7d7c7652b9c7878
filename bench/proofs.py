"""What the proofs of a rank take of its step time, and that they hold on the device there is.

    python bench/proofs.py [--steps 200] [--runs 500] [--wide 2048]

A small model is trained on the GPU, or on the CPU where there is none. The share is what looks, block and norm
took by their own stopwatches, at the pace they settled on, over the steps of the same run.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
from figure import Figure, Goal, measured, publish
from torch import nn

from holdfast.api.bitflip import BitFlip
from holdfast.trainer.block import FixedBlock
from holdfast.trainer.drill import flip_bit
from holdfast.trainer.fingerprint import fingerprint
from holdfast.trainer.pause import Pauses
from holdfast.trainer.proofs import Proofs
from holdfast.trainer.record import open_record

SHARE_MAX: Final = 0.5  # percent
EVERY: Final = 10
FLIPS: Final = 20


class Training:
    """A model that trains."""

    def __init__(self, device: torch.device, wide: int) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(wide, wide), nn.GELU()) for _ in range(8)]
        self.model = nn.Sequential(*layers).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.batch = torch.randn(4 * wide, wide, device=device)

    def step(self) -> None:
        self.model(self.batch).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.batch.is_cuda:
            torch.cuda.synchronize()  # a step is as long as the device takes, also where the host runs ahead


def share(device: torch.device, steps: int, wide: int) -> Figure:
    """Percent of the step time."""
    training = Training(device, wide)
    with TemporaryDirectory() as directory:
        proofs = Proofs(training.model, every=EVERY, record=open_record(Path(directory), 0))
        for step in range(1, steps + 1):
            training.step()
            proofs.completed(step)
        wanted = {"look": 1, "norm": EVERY, "block": EVERY}
        paces = {name: budget.every(wanted[name]) for name, budget in proofs.budgets.items()}
        taken = sum((budget.share or 0.0) / paces[name] for name, budget in proofs.budgets.items())
        proofs.close()
    told = ", ".join(f"{name} every {pace}" for name, pace in paces.items())
    name = f"proofs in the step time on {device.type} ({told})"
    return measured(name, ours=[100 * taken], other=[SHARE_MAX], unit="%", target=1.0)


def answers(device: torch.device, runs: int) -> Figure:
    """In how many ways the block comes out while the device trains beside it: one, on a sound device."""
    block, training = FixedBlock(device, (torch.float32, torch.bfloat16)), Training(device, 256)
    told = set()
    for run in range(runs):
        if run % 10 == 0:
            training.step()
        told.add(fingerprint(block.run()))
    name = f"answers of the fixed block in {runs} runs on {device.type}"
    return measured(name, ours=[len(told)], other=[1], unit="answers", target=1.0)


def flips(device: torch.device) -> Figure:
    """How many of some flipped bits are seen, each in a pause of its own; others are not seen to change."""
    training = Training(device, 256)
    pauses, seen = Pauses(training.model, device), 0
    for number in range(2 * FLIPS):
        pauses.begin(number)
        if number % 2:
            flip_bit(training.model, BitFlip(0, number, bit=number % 32, element=97 * number))
        training.step()
        seen += sum(bool(look.changed.value) == bool(look.step % 2) for look in pauses.ended())
    pauses.close()
    name = f"pauses told rightly on {device.type}"
    return measured(name, ours=[seen], other=[2 * FLIPS], unit="pauses", target=1.0, goal=Goal.AT_LEAST)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--wide", type=int, help="of the model's layers (default: 2048 on a GPU, 256 on a CPU)")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    wide = given.wide or (2048 if device.type == "cuda" else 256)
    publish("proofs", [share(device, given.steps, wide), answers(device, given.runs), flips(device)])


if __name__ == "__main__":
    main()
