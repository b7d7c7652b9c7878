"""What evidence of a hang costs: its grouping at 16,000 ranks, its size, and the recorder beside each collective.

python bench/evidence.py [--rounds 7]
"""

import argparse
import os
import subprocess
import sys
import time
from typing import Final

import msgspec
from figure import Figure, measured, publish

from holdfast.api.event import StacksTaken
from holdfast.api.stacks import Collective, RankStack, StackTold
from holdfast.watchdog.standstill import evidence_of

RANKS: Final = 16_000
NODES: Final = 1_000
PER_NODE: Final = 8
WITHIN_S: Final = 1.0
COLLECTIVE: Final = """
import os, sys, time
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=sys.argv[1], RANK="0", WORLD_SIZE="1")
import torch, torch.distributed as dist
dist.init_process_group("gloo")
values = torch.ones(4)
def seconds():
    began = time.process_time()
    for _ in range(3000):
        dist.all_reduce(values)
    return (time.process_time() - began) / 3000
seconds()
print(min(seconds() for _ in range(5)) * 1e6)
"""


def told(rank: int) -> RankStack:
    """One rank: a deep stack, four collectives of two groups."""
    frames = tuple(f"module_{depth}.py:{depth * 7} in forward_{depth}" for depth in range(20))
    issued = tuple(
        Collective(group, number, "all_reduce", "[4096, 4096] BFloat16", "train.py:42 in step", number < 12)
        for group in ("default_pg", "mesh_dp 3")
        for number in range(9, 13)
    )
    stuck = ("train.py:9 in spin",) if rank == 77 else ()
    return RankStack(rank, 1000 + rank, (*stuck, *frames), tuple(range(4)), issued)


def grouping(rounds: int) -> list[Figure]:
    stacks = [told(rank) for rank in range(RANKS)]
    times, size = [], 0
    for _ in range(rounds):
        began = time.perf_counter()
        lines = evidence_of(stacks, RANKS, 0.0)
        times.append((time.perf_counter() - began) * 1e3)
        size = len(msgspec.json.encode(StacksTaken("inc-0001", lines)))
    return [
        measured(f"grouping {RANKS} ranks", ours=times, other=[WITHIN_S * 1e3], unit="ms", target=0.5),
        measured("what the journal keeps of it", ours=[size], other=[64 * 1024], unit="bytes", target=0.25),
    ]


def gathering(rounds: int) -> Figure:
    """The watchdog's own part at `NODES` nodes: each answer decoded, all of them grouped."""
    frames = [msgspec.msgpack.encode(StackTold(3, 1, told(rank))) for rank in range(NODES * PER_NODE)]
    decoder, times = msgspec.msgpack.Decoder(StackTold), []
    for _ in range(rounds):
        began = time.perf_counter()
        evidence_of([decoder.decode(each).stack for each in frames], NODES * PER_NODE, 0.0)
        times.append((time.perf_counter() - began) * 1e3)
    name = f"answers of {NODES} nodes decoded and grouped"
    return measured(name, ours=times, other=[WITHIN_S * 1e3], unit="ms", target=1.0)


def recorder(rounds: int) -> Figure:
    """An all_reduce of one process with the recorder and without, by turns."""
    with_it, without = [], []
    for number in range(rounds):
        for entries, kept in (("64", with_it), ("0", without)):
            environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": entries}
            command = (sys.executable, "-c", COLLECTIVE, str(29_700 + number))
            kept.append(float(subprocess.run(command, env=environment, capture_output=True, check=True).stdout))
    return measured("an all_reduce with torch's recorder", ours=with_it, other=without, unit="us", target=1.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    publish("evidence", [*grouping(given.rounds), gathering(given.rounds), recorder(min(given.rounds, 5))])


if __name__ == "__main__":
    main()
