"""A loop like nanoGPT's, which keeps one `ckpt.pt`; `--holdfast` puts the recipe of examples/nanogpt into it.

    nanogpt_loop.py FOLDER [--steps N] [--holdfast]

Source: https://github.com/karpathy/nanoGPT/blob/master/train.py
"""

import argparse
import itertools
import os
from pathlib import Path

import torch
import torch.distributed as dist
from told import Told
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, SAVE_EVERY = 64, 5


def build():
    torch.manual_seed(1337)
    model = nn.Sequential(nn.Embedding(128, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 128))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def step_of(model, optimizer, told, step, rank, world):
    rows = torch.randint(128, (16, 33), generator=torch.Generator().manual_seed(step))
    own = rows[rank * 16 // world : (rank + 1) * 16 // world]
    loss = told.spoiled(nn.functional.cross_entropy(model(own[:, :-1]).flatten(0, 1), own[:, 1:].flatten()))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return loss.detach(), norm, mean.item() / world


def unmodified(arguments, told):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = build()
    done, file = 0, arguments.folder / "ckpt.pt"
    if file.exists():
        saved = torch.load(file)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["iter_num"]
    ddp = DistributedDataParallel(model)
    told.begun(done)
    for step in range(done + 1, arguments.steps + 1):
        told.stepped(step, step_of(ddp, optimizer, told, step, rank, world)[2])
        if rank == 0 and step % SAVE_EVERY == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": step}
            torch.save(state, file.with_suffix(".new"))
            os.replace(file.with_suffix(".new"), file)


def with_the_recipe(arguments):
    from holdfast.checkpoint import Checkpointer
    from holdfast.trainer import Run

    run = Run(backend="gloo")

    def train(part):
        told = Told(arguments.folder, rank=part.rank, world=part.world_size)
        model, optimizer = build()
        uri = f"file://{arguments.folder / 'out'}"
        saves = Checkpointer(run, model=model, optimizer=optimizer, uri=uri, every_steps=SAVE_EVERY)
        ddp, is_new = DistributedDataParallel(model), True
        for step, _ in saves.steps(itertools.repeat(None), until=arguments.steps):
            if is_new:
                told.begun(step - 1)
                is_new = False
            loss, norm, mean = step_of(ddp, optimizer, told, step, part.rank, part.world_size)
            told.stepped(step, mean)
            run.step(step, loss=loss, grad_norm=norm)
        saves.close()

    run.enter(train)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.holdfast:
        with_the_recipe(arguments)
    else:
        unmodified(arguments, Told(arguments.folder))


if __name__ == "__main__":
    main()
