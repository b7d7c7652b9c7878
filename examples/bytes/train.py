"""A small language model over bytes, trained with FSDP2 on any folder of text.

    python examples/bytes/train.py --steps 50
    torchrun --nproc-per-node 2 examples/bytes/train.py --steps 50
    holdfast run examples/bytes/job.yaml
    holdfast audit examples/bytes/train.py

What Holdfast asks of a training script is marked with "Holdfast:". The rest is an ordinary FSDP2 script. With the
same seed, text and number of ranks the losses are the same, bit for bit, however often the run was interrupted.
"""

import argparse
import hashlib
import json
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional

from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Assignment, Run
from holdfast.trainer.probes import Subject

TEXT_BYTES_MAX = 64 << 20
VOCABULARY = 256  # Every byte is a token.


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small language model over bytes.")
    parser.add_argument("--steps", type=int, default=200, help="optimizer steps in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--text", type=Path, help="folder of text files (default: Python's own source files)")
    parser.add_argument("--batch", type=int, default=24, help="samples per step over all ranks together")
    parser.add_argument("--length", type=int, default=64, help="bytes per sample")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--replicated", action="store_true", help="the whole model on every rank, not a shard")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--checkpoint", help="directory of checkpoints (default: what the job says, or none)")
    parser.add_argument("--checkpoint-every", type=int, metavar="STEPS", help="save after so many steps")
    parser.add_argument("--pace", type=float, default=0.0, metavar="SECONDS", help="a step takes at least so long")
    parser.add_argument("--losses", type=Path, help="file that rank 0 appends every step's loss to, as JSON lines")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    return parser.parse_args()


def read_text(folder: Path | None, *, bytes_min: int) -> Tensor:
    """All bytes of the folder's files, in the order of their names. Exits with 2 when there are too few."""
    if folder is None:
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    elif folder.is_dir():
        files = sorted(path for path in folder.rglob("*") if path.is_file())
    else:
        refuse(f"--text {folder}: there is no such folder.")
    text = bytearray()
    for file in files:
        text += file.read_bytes()[: TEXT_BYTES_MAX - len(text)]
    if len(text) < bytes_min:
        refuse(f"--text {folder}: the folder holds {len(text)} bytes of text, a sample alone takes {bytes_min}.")
    return torch.frombuffer(text, dtype=torch.uint8)


def refuse(why: str) -> NoReturn:
    print(f"train.py: {why}", file=sys.stderr)
    raise SystemExit(2)


class Samples:
    """An endless stream of batches; its position is the number of samples all ranks have taken together.

    Sample number i is the same whichever rank takes it, and however many ranks there are: its place in the text
    follows from the seed and i alone. A rank's batch is its slice of the global one.
    """

    counts_globally = True  # The position is right for any rank of any world.

    def __init__(self, *, batch: int, rank: int, world_size: int) -> None:
        if batch < world_size:
            refuse(f"--batch {batch}: {world_size} ranks need at least as many samples per step.")
        self.text, self.batch, self.length, self.seed = text, batch, arguments.length, arguments.seed
        self.first = batch * rank // world_size
        self.last = batch * (rank + 1) // world_size
        self.taken = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            rows = torch.stack([self.sample(self.taken + i) for i in range(self.first, self.last)])
            self.taken += self.batch
            yield rows[:, :-1], rows[:, 1:]

    def sample(self, number: int) -> Tensor:
        digest = hashlib.blake2b(f"{self.seed}:{number}".encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "little") % (len(self.text) - self.length)
        return self.text[start : start + self.length + 1].long()

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, hidden: Tensor) -> Tensor:
        qkv = self.qkv(self.before_attention(hidden)).unflatten(-1, (3, self.heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(-2))
        return hidden + self.mlp(self.before_mlp(hidden))


class Transformer(nn.Module):
    def __init__(self, *, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """The loss, summed over all bytes; without targets the logits of the byte after each."""
        hidden = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        return logits if targets is None else total_loss(logits, targets)


def total_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Summed over all bytes."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def whole_model() -> Transformer:
    """The same weights wherever it is called."""
    torch.manual_seed(arguments.seed)
    return Transformer(
        layers=arguments.layers, width=arguments.width, heads=arguments.heads, length=arguments.length
    ).to(device)


def build_model(part: Assignment) -> Transformer:
    """A shard of the model on each rank, unless every rank is to be a replica."""
    model = whole_model()
    shards = 1 if arguments.replicated else part.world_size
    shape = (part.world_size // shards, shards)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards"))
    if not arguments.replicated:
        mesh = mesh["shards"]
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def note_loss(step: int, loss: float, part: Assignment) -> None:
    if arguments.losses is not None:
        line = {"step": step, "loss": loss, "hex": loss.hex(), "round": part.round}
        with arguments.losses.open("a") as file:
            file.write(json.dumps(line) + "\n")
    if step % 10 == 0 or step == arguments.steps:
        print(f"step {step} loss {loss:.4f} round {part.round} ranks {part.world_size}", flush=True)


def train(part: Assignment) -> None:  # Holdfast: everything that belongs to a round is built in here.
    model = build_model(part)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)
    samples = Samples(batch=arguments.batch, rank=part.rank, world_size=part.world_size)
    checkpointer = Checkpointer(  # Holdfast: saves while training goes on, restores when a round begins.
        run,
        model=model,
        optimizer=optimizer,
        uri=arguments.checkpoint,
        every_steps=arguments.checkpoint_every,
    )
    for step, (inputs, targets) in checkpointer.steps(samples, until=arguments.steps):
        due = time.monotonic() + arguments.pace
        total = model(inputs.to(device), targets.to(device))
        # FSDP averages gradients over ranks; scaled like this the average is that of the global batch.
        (total * part.world_size / (arguments.batch * arguments.length)).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step()
        optimizer.zero_grad()
        loss = total.detach() / (arguments.batch * arguments.length)
        dist.all_reduce(loss)
        # Holdfast: the step is complete. The loss is this rank's own: in a mean nobody sees whose is wrong.
        run.step(step, loss=total.detach() / targets.numel(), grad_norm=norm, tokens=targets.numel())
        if part.rank == 0:
            note_loss(step, loss.item(), part)
        time.sleep(max(0.0, due - time.monotonic()))
    checkpointer.close()


def audit() -> Subject:  # Holdfast: what `holdfast audit` probes before the job starts.
    inputs, targets = next(iter(Samples(batch=4, rank=0, world_size=1)))
    return Subject(
        model=whole_model(),
        inputs=inputs.to(device),
        targets=targets.to(device),
        loss=total_loss,
        loss_is_mean=False,
        world_size=8,  # FSDP reduces in float32 here, which is what a Subject says unasked.
    )


arguments = parse_arguments()
text = read_text(arguments.text, bytes_min=arguments.length + 2)
device = torch.device(arguments.device)
if __name__ == "__main__":
    run = Run(backend="gloo" if arguments.device == "cpu" else None)  # Holdfast: the first line of five.
    run.configure(vars(arguments))  # Holdfast: for `holdfast compare`; nothing else needs it.
    run.enter(train)  # Holdfast: and the last. Called again for every round, until it returns.
