"""How fast parameters are fingerprinted, against reading the same memory.

    python bench/fingerprint.py [--rounds 15] [--mib 256]

Reading is a sum over the same words, which is as fast as memory is read; both are timed in turn, and it is their
ratio that counts. Also what a step costs that takes no fingerprint.
"""

import argparse
import time
from collections.abc import Callable
from typing import Final

import torch
from figure import Figure, Goal, measured, publish, unmeasured
from torch import Tensor, nn

from holdfast.trainer.fingerprint import Replica, Sketch

TARGET: Final = 0.7
WORD_BYTES: Final = 8
IDLE_CALLS: Final = 10_000
IDLE_LIMIT_US: Final = 1.0


def seconds(work: Callable[[], object], wait: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def speed(name: str, words: Tensor, rounds: int, wait: Callable[[], object] = lambda: None) -> Figure:
    """The tensor's fingerprint and its plain sum, in GB/s."""
    tensors = {"weight": words}
    ours, other = [], []
    for number in range(rounds + 1):
        read_s = seconds(words.sum, wait)
        fingerprint_s = seconds(lambda: Sketch(tensors), wait)
        if number:  # the first one finds its memory
            ours.append(words.numel() * WORD_BYTES / fingerprint_s / 1e9)
            other.append(words.numel() * WORD_BYTES / read_s / 1e9)
    return measured(name, ours=ours, other=other, unit="GB/s", target=TARGET, goal=Goal.AT_LEAST)


def on_the_cpu(threads: int, count: int, rounds: int) -> Figure:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return speed(f"fingerprint on the CPU with {threads} threads, over reading", torch.arange(count), rounds)
    finally:
        torch.set_num_threads(before)


def on_the_device(count: int, rounds: int) -> Figure:
    name = "fingerprint on the device, over reading"
    if not torch.cuda.is_available():
        reason = "this machine has no CUDA device"
        return unmeasured(name, unit="GB/s", target=TARGET, goal=Goal.AT_LEAST, reason=reason)
    return speed(name, torch.arange(count, device="cuda"), rounds, torch.cuda.synchronize)


def idle_step(rounds: int) -> Figure:
    """What a watched model adds to a step that takes no fingerprint."""
    replica = Replica(nn.Linear(8, 8), every=10**9, part="", publish=lambda step, value, group: None)
    samples = []
    for _ in range(rounds):
        began = time.perf_counter()
        for step in range(1, IDLE_CALLS):
            replica.completed(step)
        samples.append((time.perf_counter() - began) / IDLE_CALLS * 1e6)
    name = "a step without a fingerprint, of a watched model"
    return measured(name, ours=samples, other=[IDLE_LIMIT_US], unit="us", target=1.0)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mib", type=int, default=256, help="size of the tensor")
    given = parser.parse_args()
    count = given.mib * 2**20 // WORD_BYTES
    figures = [on_the_cpu(threads, count, given.rounds) for threads in (1, 2)]
    figures += [on_the_device(16 * count, given.rounds), idle_step(given.rounds)]
    publish("fingerprint", figures)


if __name__ == "__main__":
    main()
