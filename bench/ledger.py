"""Where simulated runs' GPU-seconds went, whether they add up, and what the ledger costs the watchdog.

    python bench/ledger.py [--runs 20] [--members 12500]

Each run is a random schedule of faults (tests/sim) of which every GPU-second is counted twice: by the ledger, and
by a walk over all members after every event. Then the money of a large cluster comes out of the ledger, and the
time of one step report of a large job is measured with the ledger's part of it.
"""

import argparse
import gc
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

from figure import Figure, measured, publish

TESTS: Final = Path(__file__).parents[1] / "tests"
sys.path += [str(TESTS / "servers"), str(TESTS / "sim")]

from test_schedules import live_through  # noqa: E402  from the tests' folders, on the path only now

from holdfast.api.event import JobSubmitted, MemberEntered, MemberJoined, RoundProgressed  # noqa: E402
from holdfast.api.ledger import MONEY_UNITS, Row  # noqa: E402
from holdfast.api.policy import GpuHour, Policy  # noqa: E402
from holdfast.watchdog.brain import advance, initial  # noqa: E402
from holdfast.watchdog.brain.accounts import NOBODY, Accounts, Stretch  # noqa: E402
from holdfast.watchdog.brain.holding import booked  # noqa: E402
from holdfast.watchdog.brain.state import JobState  # noqa: E402

RUNS, MEMBERS, REPORTS = 20, 12_500, 2_000
GPUS, DOLLARS, DAYS = 16_384, 4.0, 30
HOUR_US: Final = 3_600_000_000
REPORT_S: Final = 1.0  # a job's steps are told once a second at most
SHARE: Final = 0.001  # of that second


def spent_by_runs(runs: int) -> list[Figure]:
    """Their rows, and how much of what was held is in no row."""
    rows: Counter[Row] = Counter()
    held_us = 0
    for seed in range(runs):
        world = live_through(seed)
        accounts = world.job.state.ledger.at(world.now)
        for row, amount in accounts.rows.items():
            rows[row] += amount.gpu_us
        held_us += world.invariants.held_us()
    whole_us = sum(rows.values())
    print(f"{'row':<18}{'GPU-seconds':>16}{'share':>9}    of {runs} simulated runs")
    for row in Row:
        print(f"{row.value:<18}{rows[row] / 1e6:>16,.3f}{rows[row] / whole_us:>9.2%}")
    print(f"{'total':<18}{whole_us / 1e6:>16,.3f}{1.0:>9.2%}")
    apart_ms = abs(whole_us - held_us) / 1e3
    return [measured("ms held and in no row, at most 1", ours=[apart_ms], other=[1.0], unit="ms", target=1.0)]


def money_of_a_large_cluster() -> list[Figure]:
    """What an hour costs, and one per cent of a month, from the ledger's own books."""
    rate = round(GPUS * DOLLARS * MONEY_UNITS)
    hour = Accounts().book(Row.PRODUCTIVE, Stretch(0, HOUR_US, GPUS, rate, wall=True))
    month = Accounts().book(Row.PRODUCTIVE, Stretch(0, DAYS * 24 * HOUR_US, GPUS, rate, wall=True))
    lost = month.move(Row.PRODUCTIVE, Row.SLOW, month.total().gpu_us // 100, NOBODY).of(Row.SLOW)
    name = f"{GPUS:,} GPUs at {DOLLARS:g} $"
    return [
        measured(f"$ an hour of {name}", ours=[hour.total().price], other=[65_536.0], unit="$", target=1.0),
        measured(f"$ of 1% of {DAYS} days of {name}", ours=[lost.price], other=[471_859.2], unit="$", target=1.0),
    ]


def large_job(members: int) -> JobState:
    """A job that trains on so many members."""
    policy = Policy("bench/large", members, members, processes_per_node=8, gpu_hour=GpuHour(DOLLARS, "USD"))
    state = advance(initial(policy.job), JobSubmitted(policy), 1000.0).state
    for number in range(members):
        name = f"node-{number}"
        joined = MemberJoined(name, name, "a", "10.0.0.1", 8, (7000, 7001), True)  # noqa: FBT003
        state = advance(state, joined, 1000.0).state
    assert state.round is not None
    for share in state.round.ranks:
        state = advance(state, MemberEntered(share.member, state.round.number, True), 1001.0).state  # noqa: FBT003
    return advance(state, RoundProgressed(state.round.number, 1), 1005.0).state


def cost_of_a_report(members: int) -> list[Figure]:
    """Seconds of a step report in the brain, and the ledger's part of it, as shares of the second between two."""
    state, now = large_job(members), 1005.0
    assert state.round is not None
    whole, part = [], []
    gc.disable()
    for step in range(2, REPORTS):
        now += REPORT_S
        event = RoundProgressed(state.round.number, step, data_us=step * 1000, checkpoint_us=step * 10)
        began = time.perf_counter()
        after = advance(state, event, now).state
        whole.append(time.perf_counter() - began)
        began = time.perf_counter()
        booked(state, after, event, now)
        part.append(time.perf_counter() - began)
        state = after
    gc.enable()
    size = f"{members:,} members"
    return [
        measured(f"a step report in the brain, {size}", ours=whole, other=[REPORT_S], unit="s", target=SHARE),
        measured(f"of it the change of row, {size}", ours=part, other=[REPORT_S], unit="s", target=SHARE / 10),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--members", type=int, default=MEMBERS)
    asked = parser.parse_args()
    figures = [*spent_by_runs(asked.runs), *money_of_a_large_cluster(), *cost_of_a_report(asked.members)]
    publish("ledger", figures)


if __name__ == "__main__":
    main()
