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
from holdfast.trainer.batchprint import print_of

CALLS: Final = 2000
LIMIT_US: Final = 5.0
BATCH_SHARE: Final = 0.005  # of the time
TOKEN_NS: Final = 3.0
BUSY_MATRIX: Final = 8192
BUSY_STEP: Final = 512
STEP_S: Final = 0.02
PRINTS: Final = 64
WARM_WINDOWS: Final = 3  # in which the pace is found


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
        within_limit("run.log of one float", cost_us(lambda step: run.log(step, rate=0.5), batches)),
        within_limit("run.phase", cost_us(lambda _: run.phase(Phase.FORWARD), batches)),
    ]


def batch_figures(run: Run, batches: int) -> list[Figure]:
    """What telling of a batch costs where it is done for each step, and of the time of short steps."""
    tokens = torch.randint(0, 50_000, (8, 4097))
    inputs = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    each = []
    for _ in range(batches):
        began = time.perf_counter()
        for _ in range(PRINTS):
            print_of(inputs)
        each.append((time.perf_counter() - began) / PRINTS / inputs[0].numel() * 1e9)
    name = "print of a batch of 8 x 4096 tokens and as many labels"
    told = measured(name, ours=each, other=[TOKEN_NS], unit="ns a token", target=1.0)
    shares, busy = [], torch.randn(BUSY_STEP, BUSY_STEP)
    for window in range(batches + WARM_WINDOWS):
        spent, began = [0.0, 0.0], time.perf_counter()
        for step in range(2 * PRINTS):
            tells = step >= PRINTS  # turn and turn about, so that a busy machine tells on both
            before = time.perf_counter()
            if tells:
                run.took(window * PRINTS + step, inputs)
            run.step(window * PRINTS + step, loss=2.5)
            spent[tells] += time.perf_counter() - before
            while time.perf_counter() - before < STEP_S:
                busy @ busy
        if window >= WARM_WINDOWS:
            shares.append(2 * (spent[1] - spent[0]) / (time.perf_counter() - began))
    name = "what batches add to steps of 20 ms, whose code is cold"
    share = measured(name, ours=shares, other=[BATCH_SHARE], unit="share", target=1.0)
    return [told, share]


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
            figures.extend(batch_figures(run, given.batches))
            figures.append(device_figure(run, given.batches))

        run.enter(train)
    publish("trainer", figures)


if __name__ == "__main__":
    main()
