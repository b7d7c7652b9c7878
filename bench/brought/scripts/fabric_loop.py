"""A loop with Lightning Fabric, as its documentation shows; `--holdfast` changes its `for` line.

    fabric_loop.py FOLDER [--steps N] [--holdfast]

Without that it saves and resumes by itself, from the newest file that is there.
Source: https://lightning.ai/docs/fabric/stable/guide/checkpoint/checkpoint.html
"""

import argparse
import os
from pathlib import Path

import torch
from lightning.fabric import Fabric
from told import Told
from torch.utils.data import DataLoader, TensorDataset

WIDTH, SAMPLES, SAVE_EVERY = 64, 256, 5


def own_steps(fabric, model, optimizer, loader, folder):
    """What a script does by itself: the newest file, and the batches of an epoch from its first one on."""
    state = {"model": model, "optimizer": optimizer, "step": 0}
    saved = sorted(folder.glob("step-*.ckpt"), key=lambda each: int(each.stem.rpartition("-")[2]))
    if saved:
        fabric.load(saved[-1], state)
    epoch = state["step"] // len(loader)
    while True:
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            state["step"] += 1
            yield state["step"], batch
            if state["step"] % SAVE_EVERY == 0:
                fabric.save(folder / f"step-{state['step']}.ckpt", state)
        epoch += 1


def healed_steps(fabric, model, optimizer, loader, folder):
    from holdfast.integrations.lightning import fabric_steps

    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from fabric_steps(fabric, model, optimizer, loader, every_steps=SAVE_EVERY, uri=str(folder))
        epoch += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    fabric = Fabric(accelerator="cpu", strategy="ddp", devices=devices, num_nodes=nodes)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    layers = (torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1))
    plain = torch.nn.Sequential(*layers, torch.nn.Linear(WIDTH, WIDTH))
    numbers = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(2))
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-3))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(numbers), batch_size=4, shuffle=True))
    steps = healed_steps if arguments.holdfast else own_steps
    told, is_begun = Told(arguments.folder), False
    for step, (batch,) in steps(fabric, model, optimizer, loader, arguments.folder / "out"):
        if not is_begun:
            told.begun(step - 1)
            is_begun = True
        loss = told.spoiled((model(batch) - batch).square().mean())
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        told.stepped(step, fabric.all_reduce(loss.detach()).item())
        if step == arguments.steps:
            break


if __name__ == "__main__":
    main()
