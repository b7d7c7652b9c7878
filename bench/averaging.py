"""What a step costs more because replica groups average its gradients, beside torch's DDP.

    python bench/averaging.py [--steps 12] [--layers 16] [--layer-ms 10]

Two processes of this machine, over loopback and gloo, each a group of one rank. A layer's forward and backward
pass take their time without the processor, as on an accelerator (`time.sleep`), so that there is something to hide
behind. In turn, step by step: nothing is averaged; `Replicas.average` after the backward pass; the same with
`Replicas.overlapped`; torch's DDP. What counts is how much longer a step takes than one that averages nothing.
"""

import argparse
import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, cast

import torch
import torch.distributed as dist
import torch.multiprocessing
from figure import Figure, measured, publish
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from holdfast.api.control import Assignment
from holdfast.api.round import Endpoint, GroupSeat, Restore
from holdfast.trainer import Replicas, Run
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.stay import Stay

GROUPS: Final = 2
WIDTH: Final = 1024  # of a layer: 4 MiB of parameters
BACKWARD: Final = 2  # times as long as the forward pass
NOTHING, AFTER, WHILE, DDP = "nothing averaged", "average", "overlapped", "DDP"


class Layer(nn.Module):
    """A product with each row of its weight, which costs the processor next to nothing, and a pause."""

    def __init__(self, pause_s: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH, WIDTH), 1e-3))
        self.pause_s = pause_s

    def forward(self, values: Tensor) -> Tensor:
        passed: Tensor = Paused.apply(values * self.weight[0], self.weight, self.pause_s)  # type: ignore[no-untyped-call]
        return passed


class Paused(torch.autograd.Function):
    """Takes its time; the gradient of the weight is made as large as it is."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, pause_s: float) -> Tensor:
        ctx.pause_s, ctx.shape = pause_s, weight.shape
        time.sleep(pause_s)
        return values

    @staticmethod
    def backward(ctx: Any, *above: Tensor) -> tuple[Tensor, Tensor, None]:
        time.sleep(BACKWARD * ctx.pause_s)
        return above[0], torch.full(ctx.shape, 1e-3), None


class Lone:
    """What `Replicas` needs of a run, without a launcher: one round of groups of one rank."""

    timeout_s = 60.0

    def __init__(self, rank: int, port: int) -> None:
        host = Endpoint("127.0.0.1", port)
        seat = GroupSeat(1, rank, 1, Endpoint("127.0.0.1", port + rank), rank, GROUPS, meets_in=1)
        self.assignment = Assignment(
            "bench", 1, rank, 0, GROUPS, 1, host, Restore(), "bench", group=seat, restarts=0
        )
        self.group = RoundGroup(self.assignment, backend="gloo", timeout_s=self.timeout_s)
        self.stay = Stay(self.assignment, self.group)

    def say(self, message: object) -> None:
        raise RuntimeError(f"nothing was to fail: {message}")


@dataclass(frozen=True, slots=True)
class Given:
    steps: int
    layers: int
    layer_s: float
    port: int


def contestants(given: Given, lone: Lone) -> Mapping[str, Callable[[], object]]:
    def model() -> nn.Sequential:
        return nn.Sequential(*[Layer(given.layer_s) for _ in range(given.layers)])

    values = torch.ones(WIDTH)
    plain, grouped = model(), model()
    replicas = Replicas(cast(Run, lone), model=grouped, optimizer=torch.optim.SGD(grouped.parameters(), lr=0.0))

    def step(trained: nn.Module, around: Callable[[], Any], then: Callable[[], object]) -> None:
        trained.zero_grad()
        loss = trained(values).sum()
        with around():
            loss.backward()
        then()

    return {
        NOTHING: lambda: step(plain, contextlib.nullcontext, lambda: None),
        AFTER: lambda: step(grouped, contextlib.nullcontext, replicas.average),
        WHILE: lambda: step(grouped, replicas.overlapped, replicas.average),
    }


def in_groups(rank: int, given: Given, told: Any) -> None:
    torch.set_num_threads(1)
    lone = Lone(rank, given.port)
    lone.group.form(lambda: None)
    told.put((rank, timed(contestants(given, lone), given.steps)))


def by_ddp(rank: int, given: Given, told: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(given.port + 20)}
    dist.init_process_group("gloo", rank=rank, world_size=GROUPS)
    model = DistributedDataParallel(nn.Sequential(*[Layer(given.layer_s) for _ in range(given.layers)]))
    values = torch.ones(WIDTH)

    def step() -> None:
        model.zero_grad()
        model(values).sum().backward()

    told.put((rank, timed({DDP: step}, given.steps)))


def timed(contestants: Mapping[str, Callable[[], object]], steps: int) -> dict[str, list[float]]:
    """Seconds a step, by contestant; they take turns. Of the first two nothing is told: memory is found."""
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(steps + 2):
        for name, step in contestants.items():
            began = time.perf_counter()
            step()
            found[name].append(time.perf_counter() - began)
    return {name: each[2:] for name, each in found.items()}


def run(work: Callable[..., None], given: Given) -> dict[str, list[float]]:
    """Both processes' times, the slower one's of each step."""
    context = torch.multiprocessing.get_context("spawn")
    told = context.Queue()
    processes = [context.Process(target=work, args=(rank, given, told)) for rank in range(GROUPS)]
    for each in processes:
        each.start()
    heard = [told.get(timeout=600) for _ in processes]
    for each in processes:
        each.join()
    names = heard[0][1]
    return {name: [max(pair) for pair in zip(*(times[name] for _, times in heard), strict=True)] for name in names}


def judged(found: Mapping[str, Sequence[float]], size: str) -> list[Figure]:
    alone = median(found[NOTHING])
    more = {name: [1e3 * (each - alone) for each in found[name]] for name in (AFTER, WHILE, DDP)}
    what, whole = f"{size}, gradients averaged", [1e3 * each for each in found[WHILE]]
    return [
        measured(f"{what}, overlapped over not", ours=more[WHILE], other=more[AFTER], unit="ms", target=0.75),
        measured(f"{what}, overlapped over DDP", ours=more[WHILE], other=more[DDP], unit="ms", target=1.1),
        measured(f"{what}, a step over one without", ours=whole, other=[1e3 * alone], unit="ms", target=1.2),
    ]


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument(
        "--layer-ms", type=float, default=10.0, help="of a forward pass; the other takes twice that"
    )
    given = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    told = Given(given.steps, given.layers, given.layer_ms / 1e3, port)
    found = {**run(in_groups, told), **run(by_ddp, told)}
    for name, times in found.items():
        print(f"  {name}: {1e3 * median(times):.0f} ms a step ({1e3 * min(times):.0f} to {1e3 * max(times):.0f})")
    size = f"{given.layers} layers of {4 * WIDTH * WIDTH >> 20} MiB, {GROUPS} groups"
    publish("averaging", judged(found, size))


if __name__ == "__main__":
    main()
