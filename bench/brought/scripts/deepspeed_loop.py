"""A loop over DeepSpeed's engine with ZeRO 2, on the CPU; `--holdfast` changes its `for` line.

    deepspeed_loop.py FOLDER [--steps N] [--holdfast]

Without that it saves and resumes by itself, from what DeepSpeed calls the latest.
Source: https://www.deepspeed.ai/getting-started/
"""

import argparse
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from told import Told

WIDTH, SAVE_EVERY = 64, 5
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
    "gradient_clipping": 1.0,
    "steps_per_print": 1_000_000,
}


def own_steps(engine, folder, until):
    """What a script does by itself."""
    engine.load_checkpoint(folder)
    for step in range(engine.global_steps + 1, until + 1):
        yield step
        if step % SAVE_EVERY == 0:
            engine.save_checkpoint(folder)


def healed_loop(engine, folder):
    from holdfast.integrations.frameworkloop import FrameworkLoop

    save, load = engine.save_checkpoint, engine.load_checkpoint
    return FrameworkLoop(format="deepspeed", save=save, load=load, every_steps=SAVE_EVERY, uri=str(folder))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--holdfast", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Compiled for ranks that share a host, which two nodes do not. Whoever is killed while it is compiled leaves a
    # lock in ~/.cache/torch_extensions for which every later process waits for ever.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    engine, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=CONFIG)
    out, rank = arguments.folder / "out", dist.get_rank()
    loop = healed_loop(engine, out) if arguments.holdfast else None
    told, is_begun = Told(arguments.folder), False
    for step in loop.steps(until=arguments.steps) if loop else own_steps(engine, str(out), arguments.steps):
        if not is_begun:
            told.begun(step - 1)
            is_begun = True
        batch = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(1000 * step + rank))
        loss = told.spoiled((engine(batch) - batch).square().mean())
        engine.backward(loss)
        engine.step()
        if loop:
            loop.measured(loss=loss.detach(), grad_norm=engine.get_global_grad_norm())
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        told.stepped(step, mean.item())


if __name__ == "__main__":
    main()
