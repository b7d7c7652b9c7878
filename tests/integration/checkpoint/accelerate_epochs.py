"""Two ranks of a script with `Batches`, cut and begun again in one process, with each kind of loader. Prints what
differs from an undisturbed run.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, TensorDataset

from holdfast.integrations.accelerate import Batches

EPOCHS = 4
KINDS = {
    "seedable": {"use_seedable_sampler": True},
    "shuffled": {},
    "told": {},
    "stateful": {"use_stateful_dataloader": True, "use_seedable_sampler": True},
}


class Told(torch.utils.data.Sampler[int]):
    """Its order is that of the epoch that it is told."""

    epoch = 0

    def __len__(self) -> int:
        return 40

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(self.epoch).sample(range(40), 40))


Seen = list[tuple[int, list[int], str]]


def train(folder: Path, kind: str, stop: int | None = None) -> Seen:
    """`stop` is the step that is not completed."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    torch.manual_seed(5)
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**KINDS[kind]))
    plain = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2))
    numbers = TensorDataset(torch.arange(40.0).unsqueeze(1))
    order: dict[str, Any] = {"sampler": Told()} if kind == "told" else {"shuffle": True}
    model, optimizer, loader = accelerator.prepare(
        plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), DataLoader(numbers, batch_size=4, **order)
    )
    seen: Seen = []
    for step, (batch,) in enumerate(Batches(accelerator, loader, folder=folder, every_steps=1, epochs=EPOCHS), 1):
        loss = model(batch / 40).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.append((step, [int(each) for each in batch.flatten()], loss.item().hex()))
        if step == stop:
            return seen[:-1]
    return seen


torch.set_num_threads(1)
folder = Path(sys.argv[1])
for kind in KINDS:
    whole = [(samples, loss) for _, samples, loss in train(folder / f"{kind}-whole", kind)]
    assert len(whole) == EPOCHS * 5, len(whole)
    # In the third epoch, and at the end of the second.
    for stop in (13, 11):
        cut = train(folder / f"{kind}-{stop}", kind, stop) + train(folder / f"{kind}-{stop}", kind)
        if [(samples, loss) for _, samples, loss in cut] != whole:
            print(f"DIFFERS {kind} cut at {stop}", flush=True)
