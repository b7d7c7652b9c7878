"""What regrouping in place would spare: torch's `_reconfigure` beside groups made anew, as the trainer does it.

torch has it since 2.14. Where the torch of this environment has none, another one is made, with the newest torch
that Holdfast admits (5 GB), and deleted.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Final

import torch.distributed
from figure import Figure, measured, unmeasured

from drill.exercise import Effort
from drill.processes import none_left_behind

ROOT: Final = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "servers"), str(ROOT / "tests" / "versions")]

import environments  # noqa: E402
from server_process import free_port  # noqa: E402

SCRIPT: Final = Path(__file__).parent / "scripts" / "regrouping.py"
SIZES: Final = (2, 4, 8)
WAYS: Final = ("anew", "kept")
EVENTS: Final[Mapping[str, str]] = {"left_s": "leaves", "joined_s": "comes back"}
ROUNDS: Final = 5  # of a run; in each the last rank leaves and comes back
WITHIN_S: Final = 120.0
RECOVERY_S: Final = 0.25  # what a recovery may take as a whole
WORTH: Final = 0.1  # of that: what a second way to the same state would have to spare
NEEDS: Final = (
    *("editables", "hatchling", "msgspec", "numpy", "prometheus-client", "psutil", "pydantic", "pyyaml", "xxhash"),
)
PASSED_ON: Final = ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")
Seconds = Mapping[tuple[str, str], list[float]]  # by way and event


def figures(effort: Effort, environment: Mapping[str, str]) -> list[Figure]:
    """One for each size and event. One that cannot be measured says why."""
    try:
        with _torch_that_regroups() as python:
            took = {size: _measured(python, size, effort, environment) for size in SIZES}
    except (OSError, subprocess.SubprocessError) as error:
        return [
            unmeasured(f"{size} ranks, one {event}", unit="s", target=WORTH, reason=f"not run: {error}")
            for size in SIZES
            for event in EVENTS.values()
        ]
    return [_spared(size, event, took[size]) for size in SIZES for event in EVENTS]


def _spared(size: int, event: str, took: Seconds) -> Figure:
    """As a share of a recovery."""
    anew, kept = (took[way, event] for way in WAYS)
    told = f"{size} ranks, one {EVENTS[event]}: made anew {median(anew):.3g} s, kept {median(kept):.3g} s; spared"
    spared = [one - other for one, other in zip(anew, kept, strict=True)]
    return measured(told, ours=spared, other=[RECOVERY_S], unit="s", target=WORTH)


def _measured(python: Path, size: int, effort: Effort, environment: Mapping[str, str]) -> Seconds:
    """The slowest rank's seconds until all train together, the two ways taking turns. Raises SubprocessError."""
    took: dict[tuple[str, str], list[float]] = {(way, event): [] for way in WAYS for event in EVENTS}
    for _ in range(effort.runs):
        for way in WAYS:
            for line in _run(python, size, way, environment):
                for event in EVENTS:
                    took[way, event].append(line[event])
    return took


def _run(python: Path, size: int, way: str, environment: Mapping[str, str]) -> Sequence[Mapping[str, float]]:
    port = free_port()
    command = lambda rank: [python, SCRIPT, str(rank), str(size), way, str(ROUNDS), str(port)]  # noqa: E731
    clean = {**environments.environment(), **{name: environment[name] for name in PASSED_ON}}
    with none_left_behind():
        others = [subprocess.Popen(command(rank), env=clean) for rank in range(1, size)]
        first = subprocess.run(
            command(0), env=clean, stdout=subprocess.PIPE, text=True, check=True, timeout=WITHIN_S
        )
        for each in others:
            each.wait(WITHIN_S)
    return [json.loads(line) for line in first.stdout.splitlines()]


@contextmanager
def _torch_that_regroups() -> Iterator[Path]:
    """A Python that has it. Raises CalledProcessError when none can be installed."""
    if hasattr(torch.distributed, "_reconfigure"):
        yield Path(sys.executable)
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-regrouping-") as scratch:
        large = Path(scratch) / "environment"
        constraints = environments.constraints_with(environments.admitted("torch"), Path(scratch))
        environments.make(large, Path(sys.executable), ("torch", *NEEDS), constraints)
        yield environments.lay_over(large, "regrouping")
