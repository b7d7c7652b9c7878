"""A loop like nanoGPT's, healed: what Holdfast asks of it is marked, and is less than twenty lines in all.

    python examples/nanogpt/train.py --steps 50
    torchrun --nproc-per-node 2 examples/nanogpt/train.py --steps 50
    holdfast run examples/nanogpt/job.yaml

Of the original are the structure and the names: a memory-mapped text, `get_batch`, micro steps, DDP with
`require_backward_grad_sync`, a schedule worked out at each step. https://github.com/karpathy/nanoGPT
"""

import argparse
import itertools
import math
import os
import sysconfig
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import Checkpointer  # Holdfast
from holdfast.integrations.globalbatch import share_of  # Holdfast
from holdfast.trainer import Assignment, Run  # Holdfast

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--batch", type=int, default=16, help="samples of a step, over all ranks")
parser.add_argument("--batch-size", type=int, default=4, help="samples of a micro step, at most")
parser.add_argument("--block-size", type=int, default=32)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--losses", type=Path, help="file for step, loss and world size of each step")
parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
arguments = parser.parse_args()
device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
source = Path(sysconfig.get_paths()["stdlib"], "argparse.py")
text = torch.frombuffer(bytearray(source.read_bytes()), dtype=torch.uint8)


class GPT(nn.Module):
    def __init__(self, width: int = 48, layers: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(arguments.block_size, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        length = inputs.shape[1]
        hidden = self.tokens(inputs) + self.places(torch.arange(length, device=inputs.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=inputs.device)
        logits = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(step: int, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples `first` to `first + count` of those of `step`: the same ones in a world of any size."""
    generator = torch.Generator().manual_seed(
        step
    )  # Holdfast: what a step is trained with follows from its number
    starts = torch.randint(len(text) - arguments.block_size - 1, (arguments.batch,), generator=generator)
    rows = [text[start : start + arguments.block_size + 1].long() for start in starts[first : first + count]]
    whole = torch.stack(rows).to(device)
    return whole[:, :-1], whole[:, 1:]


def get_lr(step: int) -> float:
    warm = min(1.0, step / 10)
    return arguments.learning_rate * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / arguments.steps)))


def train(part: Assignment) -> None:  # Holdfast: what belongs to a round is built in here
    torch.manual_seed(1337)
    raw = GPT().to(device)
    model = DistributedDataParallel(raw) if part.world_size > 1 else raw
    optimizer = torch.optim.AdamW(raw.parameters(), lr=arguments.learning_rate)
    share = share_of(arguments.batch, world_size=part.world_size, micro_batch=arguments.batch_size)  # Holdfast
    checkpointer = Checkpointer(run, model=raw, optimizer=optimizer, every_steps=10)  # Holdfast: saves and loads
    for step, _ in checkpointer.steps(itertools.repeat(None), until=arguments.steps):  # Holdfast: for `while True`
        due = time.monotonic() + arguments.pace
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        total = 0.0
        for micro in range(share.accumulation):
            if part.world_size > 1:
                model.require_backward_grad_sync = micro == share.accumulation - 1
            first = (part.rank * share.accumulation + micro) * share.micro_batch
            loss = model(*get_batch(step, first, share.micro_batch)) / share.accumulation
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens = share.micro_batch * share.accumulation * arguments.block_size
        run.step(step, loss=total, grad_norm=norm, tokens=tokens)  # Holdfast: this rank's own loss
        if arguments.losses is not None:
            with arguments.losses.open("a") as file:
                file.write(f"{step} {part.rank} {total.hex()} {part.world_size}\n")
        time.sleep(max(0.0, due - time.monotonic()))
    checkpointer.close()


run = Run()  # Holdfast
run.enter(train)  # Holdfast: and again after a fault, in this process
