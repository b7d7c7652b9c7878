"""How long a self-test takes, and what one more run of its checks costs.

    python bench/selftest.py [--times 5] [--full]

Each sample is a whole test in a process of its own, as `holdfast probe` and a cold launcher run it;
"in the test" leaves the import of torch out, as a warm launcher does.
"""

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass

import msgspec
from figure import Figure, measured, publish, unmeasured

from holdfast.agent.launch.host import gpu_count
from holdfast.api.selftest import Tested, Verdict

LIGHT_CPU_S = 4.0
LIGHT_GPU_S = 60.0
FULL_S = 600.0
REPEAT_MS = 20.0  # 149 runs of every check in three seconds


@dataclass(frozen=True)
class Sample:
    """One test: seconds with the start of the process, and without."""

    whole_s: float
    inside_s: float


def sample(device: str, level: str, repeats: int | None = None) -> Sample:
    command = [sys.executable, "-m", "holdfast.agent.selftest", "--json", "--device", device, "--level", level]
    command += ["--repeat", str(repeats)] if repeats else []
    began = time.perf_counter()
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    whole_s = time.perf_counter() - began
    tested = msgspec.json.decode(ended.stdout, type=Tested)
    if tested.verdict is not Verdict.PASSED:
        raise SystemExit(f"this machine does not pass: {tested.says}")
    return Sample(whole_s, tested.took_s)


def durations(device: str, level: str, limit_s: float, times: int) -> list[Figure]:
    samples = [sample(device, level) for _ in range(times)]
    name = f"{level} self-test on {device}"
    return [
        measured(f"{name}, whole", ours=[each.whole_s for each in samples], other=[limit_s], unit="s", target=1.0),
        measured(
            f"{name}, in the test", ours=[each.inside_s for each in samples], other=[limit_s], unit="s", target=1.0
        ),
    ]


def cost_of_a_run(device: str, times: int) -> Figure:
    """Milliseconds for one more run of every check: the difference of a test with 299 runs and one with 149."""
    costs = []
    for _ in range(times):
        few, many = sample(device, "light", 149), sample(device, "light", 299)
        costs.append((many.inside_s - few.inside_s) / 150 * 1e3)
    return measured(
        f"one more run of every check on {device}", ours=costs, other=[REPEAT_MS], unit="ms", target=1.0
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="also the full level, which takes its time")
    given = parser.parse_args()
    figures = [*durations("cpu", "light", LIGHT_CPU_S, given.times), cost_of_a_run("cpu", given.times)]
    not_asked = "ask for it with --full"
    if given.full:
        figures += durations("cpu", "full", FULL_S, 1)
    else:
        figures.append(unmeasured("full self-test on cpu, whole", unit="s", target=1.0, reason=not_asked))
    for level, limit_s in (("light", LIGHT_GPU_S), ("full", FULL_S)):
        if gpu_count({}) == 0:
            reason = "this machine has no CUDA device"
        elif level == "full" and not given.full:
            reason = not_asked
        else:
            figures += durations("cuda", level, limit_s, given.times if level == "light" else 1)
            continue
        figures.append(unmeasured(f"{level} self-test on cuda, whole", unit="s", target=1.0, reason=reason))
    publish("selftest", figures)


if __name__ == "__main__":
    main()
