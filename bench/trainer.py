"""What publishing costs the training loop, per `run.step`.

    python bench/trainer.py [--batches 30]

One process in the mode without a launcher, with its record mapped in a run directory and its side thread
beating as in production.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch
from figure import Figure, measured, publish, unmeasured

from holdfast.api.control import RUN_DIRECTORY_VARIABLE, Assignment
from holdfast.api.rankrecord import Phase
from holdfast.trainer import Run

CALLS: Final = 2000
LIMIT_US: Final = 5.0
BUSY_MATRIX: Final = 8192


def cost_us(call: Callable[[int], object], batches: int) -> list[float]:
    """Microseconds a call, one sample per batch of calls."""
    samples = []
    for batch in range(batches + 1):
        began = time.perf_counter()
        for number in range(CALLS):
            call(number)
        samples.append((time.perf_counter() - began) / CALLS * 1e6)
        if batch == 0:
            samples.clear()  # the first batch warms caches
    return samples


def within_limit(name: str, samples: Sequence[float]) -> Figure:
    return measured(name, ours=samples, other=[LIMIT_US], unit="us", target=1.0)


def host_figures(run: Run, batches: int) -> list[Figure]:
    loss, norm = torch.tensor(2.5), torch.tensor(0.5)
    return [
        within_limit(
            "run.step with loss and norm as floats",
            cost_us(lambda step: run.step(step, loss=2.5, grad_norm=0.5, tokens=4096), batches),
        ),
        within_limit(
            "run.step with loss and norm as tensors on the CPU",
            cost_us(lambda step: run.step(step, loss=loss, grad_norm=norm, tokens=4096), batches),
        ),
        within_limit("run.phase", cost_us(lambda _: run.phase(Phase.FORWARD), batches)),
    ]


def device_figure(run: Run, batches: int) -> Figure:
    """run.step while the accelerator has work queued, over the time that work takes: no synchronisation."""
    name = "run.step behind queued work, over the time of that work"
    if not torch.cuda.is_available():
        return unmeasured(name, unit="us", target=0.01, reason="this machine has no CUDA device")
    matrix = torch.randn(BUSY_MATRIX, BUSY_MATRIX, device="cuda")
    loss = torch.tensor(2.5, device="cuda")
    ours, other = [], []
    for step in range(batches + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            matrix @ matrix
        queued = time.perf_counter()
        run.step(step, loss=loss, grad_norm=loss)
        published = time.perf_counter()
        torch.cuda.synchronize()
        if step:
            ours.append((published - queued) * 1e6)
            other.append((time.perf_counter() - began) * 1e6)
    return measured(name, ours=ours, other=other, unit="us", target=0.01)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--batches", type=int, default=30)
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        run = Run(environment={RUN_DIRECTORY_VARIABLE: folder})

        def train(_: Assignment) -> None:
            figures.extend(host_figures(run, given.batches))
            figures.append(device_figure(run, given.batches))

        run.enter(train)
    publish("trainer", figures)


if __name__ == "__main__":
    main()
