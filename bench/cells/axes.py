"""What the cells differ in, which of them make sense, and a set with each pair of values at least once."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Final

AXES: Final[Mapping[str, tuple[str, ...]]] = {
    "optimizer": (
        "sgd",
        "adamw",
        "amsgrad",
        "tensor lr",
        "nadam",
        "adagrad",
        "adafactor",
        "muon",
        "lbfgs",
        "sparse adam",
        "schedule-free",
        "lookahead",
        "8-bit",
        "per row",
    ),
    "wrapping": (
        "plain",
        "ddp",
        "fsdp2",
        "hsdp",
        "tp",
        "compile",
        "ddp of compile",
        "compile of ddp",
        "ac of compile",
        "fsdp2 of ac of compile",
        "lora",
    ),
    "format": ("fp32", "bf16", "mixed", "float8 buffers", "extra state"),
    "keeps": ("nothing", "average", "scaler", "schedule", "lambda schedule", "generators", "second optimizer"),
    "life": ("same world", "other world", "cut twice", "before the first update", "thawed", "frozen"),
}
"""The first of each is what a script has that does nothing special."""

_ALONE: Final = ("plain", "compile", "ac of compile", "lora")
_SHARDED: Final = ("fsdp2", "hsdp", "fsdp2 of ac of compile")
_CANDIDATES: Final = 60  # looked at for each cell of a covering set


@dataclass(frozen=True, slots=True)
class Cell:
    """One value of each axis."""

    optimizer: str
    wrapping: str
    format: str
    keeps: str
    life: str

    def __str__(self) -> str:
        return " / ".join(self.values())

    def values(self) -> tuple[str, ...]:
        return tuple(getattr(self, each.name) for each in fields(self))

    def pairs(self) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
        yield from combinations(zip(AXES, self.values(), strict=True), 2)

    @property
    def world_size(self) -> int:
        return 1 if self.wrapping in _ALONE else 4 if self.wrapping == "hsdp" else 2

    @property
    def next_world_size(self) -> int:
        """That of the processes that go on."""
        return self.world_size // 2 if self.life == "other world" else self.world_size

    @property
    def nonsense(self) -> str:
        """Why nobody can have this, whatever keeps it; empty where somebody can."""
        if self.life == "other world" and self.wrapping in _ALONE:
            return "one process has no smaller world"
        if self.optimizer == "lbfgs" and self.keeps == "scaler":
            return "torch.amp.GradScaler takes no closure"
        if self.keeps == "lambda schedule" and self.optimizer == "tensor lr":
            return "as any schedule of a tensor, which `schedule` is"
        if self.optimizer == "sparse adam" and self.wrapping in (*_SHARDED, "tp"):
            return "shards have no sparse gradients"
        if self.optimizer == "sparse adam" and (self.keeps == "scaler" or self.format != "fp32"):
            return "sparse gradients are of 32 bits, and are not scaled"
        if self.optimizer == "sparse adam" and self.life in ("thawed", "frozen"):
            return "it trains one parameter, which is never frozen"
        return ""


def cells() -> list[Cell]:
    """All that make sense."""
    return [cell for each in product(*AXES.values()) if not (cell := Cell(*each)).nonsense]


def covering(seed: int) -> list[Cell]:
    """Each pair of values that makes sense at least once, in few cells; the same for a seed."""
    chance = random.Random(seed)
    having: dict[tuple[tuple[str, str], tuple[str, str]], list[Cell]] = {}
    for cell in cells():
        for pair in cell.pairs():
            having.setdefault(pair, []).append(cell)
    left, chosen = dict.fromkeys(having), list[Cell]()
    while left:
        of = having[next(iter(left))]
        candidates = chance.sample(of, min(_CANDIDATES, len(of)))
        best = max(candidates, key=lambda cell: sum(pair in left for pair in cell.pairs()))
        chosen.append(best)
        for pair in best.pairs():
            left.pop(pair, None)
    chance.shuffle(chosen)
    return chosen
