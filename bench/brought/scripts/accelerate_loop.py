"""A loop of Accelerate's, as its documentation shows; `--holdfast` changes its `for` line.

    accelerate_loop.py FOLDER [--steps N] [--sharded] [--holdfast]

Without that it saves and resumes by itself, from the newest folder that is there.
Source: https://huggingface.co/docs/accelerate/usage_guides/checkpoint
"""

import argparse
from pathlib import Path

import shards_on_cpu
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.utils import set_seed
from told import Told
from torch.utils.data import DataLoader, TensorDataset

WIDTH, SAMPLES, SAVE_EVERY, BATCH = 64, 256, 5, 4
STEPS_PER_EPOCH = SAMPLES // (2 * BATCH)  # of two ranks


def own_batches(accelerator, loader, folder, epochs):
    """What a script does by itself: the newest folder, whatever is in it."""
    saved = sorted(folder.glob("checkpoint-*"), key=lambda each: int(each.name.rpartition("-")[2]))
    done = 0
    if saved:
        accelerator.load_state(str(saved[-1]))
        done = int(saved[-1].name.rpartition("-")[2])
    step, first = done, done // len(loader)
    for epoch in range(first, epochs):
        skipped = done % len(loader) if epoch == first else 0
        rest = accelerator.skip_first_batches(loader, skipped) if skipped else loader
        rest.set_epoch(epoch)
        for batch in rest:
            yield batch
            step += 1
            if step % SAVE_EVERY == 0:
                accelerator.save_state(str(folder / f"checkpoint-{step}"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--sharded", action="store_true")
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    plugin = None
    if arguments.sharded:
        shards_on_cpu.allow()
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    set_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, 4 * WIDTH),
        torch.nn.GELU(),
        torch.nn.Dropout(arguments.dropout),
        torch.nn.Linear(4 * WIDTH, WIDTH),
    )
    numbers = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(numbers), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    # Of len(loader) it would be another number in another world, and the last steps would never be made.
    epochs, folder = 1 + arguments.steps // STEPS_PER_EPOCH, arguments.folder / "out"
    if arguments.holdfast:
        from holdfast.integrations.accelerate import Batches

        batches = Batches(accelerator, loader, folder=folder, every_steps=SAVE_EVERY, epochs=epochs)
    else:
        batches = own_batches(accelerator, loader, folder, epochs)
    told, scheduled = Told(arguments.folder), None
    for (batch,) in batches:
        with accelerator.accumulate(model):
            loss = told.spoiled((model(batch) - batch).square().mean())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        scheduled = loss.detach() if scheduled is None else scheduled + loss.detach()
        if accelerator.sync_gradients:
            step = int(next(iter(optimizer.state.values()))["step"])
            if step == 1 or not hasattr(told, "is_begun"):
                told.begun(step - 1)
                told.is_begun = True
            told.stepped(
                step, accelerator.reduce(scheduled, "mean").item() / accelerator.gradient_accumulation_steps
            )
            scheduled = None
            if step == arguments.steps:
                break


if __name__ == "__main__":
    main()
