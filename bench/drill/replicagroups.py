"""Two replica groups of two ranks, one of which loses a worker: what that costs the other group, and how soon the
lost one is back. Beside torchft, and beside the same job without groups, which restarts everybody.
"""

import json
import os
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import psutil
from brought.packages import peer
from figure import Figure, Goal, measured, unmeasured

from drill.exercise import TRIES, Effort
from drill.processes import Tree, none_left_behind

ROOT: Final = Path(__file__).parents[2]
SCRIPT: Final = ROOT / "examples/replicas/train.py"
STEPS, PACE_S = 400, 0.1
STRIKES_AT: Final = 30  # steps, so that optimizers and connections are warm
BACK_WITHIN_S: Final = 60.0
STARTS_WITHIN_S: Final = 90.0
STOPPED_WITHIN_S: Final = 20.0  # half of it `restarts.backoff`; by `startup.timeout` alone it would be ten minutes
LOOK_S: Final = 0.002
Line = dict[str, Any]
Launch = Callable[[Path, Path, Mapping[str, str]], list[Tree]]


@dataclass(frozen=True, slots=True)
class Trial:
    """What one loss came to. Times in seconds; None: it did not come to that.

    `lost_steps` is what the longest wait of a rank that lived on took longer than a step, in steps, and
    `lost_at_return` that when the group was back; `back_s` how long after the kill that was; `unequal` counts the
    steps after that in which ranks that hold the same shard differed.
    """

    lost_steps: float | None
    back_s: float | None = None
    lost_at_return: float | None = None
    unequal: int | None = None


def by_holdfast(folder: Path, trace: Path, environment: Mapping[str, str]) -> list[Tree]:
    return [_holdfast(folder, trace, environment, "  parallelism: {replicaGroupNodes: 2}\n")]


def whole_round(folder: Path, trace: Path, environment: Mapping[str, str]) -> list[Tree]:
    return [_holdfast(folder, trace, environment, "")]


def _holdfast(folder: Path, trace: Path, environment: Mapping[str, str], more: str) -> Tree:
    words = ["train.py", "--steps", str(STEPS), "--pace", str(PACE_S), "--save-every", "5", "--trace", str(trace)]
    (folder / "train.py").write_text(SCRIPT.read_text())
    job = folder / "job.yaml"
    job.write_text(
        "apiVersion: holdfast.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: groups}\nspec:\n"
        f"  entrypoint: {words}\n  nodes: {{min: 2, max: 4}}\n  startup: {{preflight: none}}\n{more}"
    )
    command = (sys.executable, "-c", "from holdfast.cli.main import main; main()", "run", str(job))
    state = ("--state-dir", str(folder / "state"))
    return Tree.start((*command, *state), log=folder / "log", environment=environment)


def by_torchft(folder: Path, trace: Path, environment: Mapping[str, str]) -> list[Tree]:
    """As fast as it was seen to be tuned; a group is a torchrun of its own, as its examples have it."""
    place, why = peer("torchft")
    if why:
        raise ModuleNotFoundError(why)
    path = os.pathsep.join(filter(None, (str(place), environment.get("PYTHONPATH"))))
    port = 29600 + os.getpid() % 300
    mine = {**environment, "PYTHONPATH": path, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
    lighthouse = str(place / "bin" / "torchft_lighthouse")
    tuning = ("--min_replicas", "1", "--quorum_tick_ms", "10", "--join_timeout_ms", "100")
    tuning += ("--heartbeat_timeout_ms", "500", "--bind", f"127.0.0.1:{port}")
    trees = [Tree.start((sys.executable, lighthouse, *tuning), log=folder / "lighthouse", environment=mine)]
    script = Path(__file__).parent / "scripts" / "torchftgroup.py"
    for group in range(2):
        run = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", "2")
        run += ("--max-restarts", "3", "--monitor-interval", "0.1", "--rdzv-backend", "c10d")
        run += ("--rdzv-endpoint", "127.0.0.1:0", str(script), str(group), str(STEPS), str(PACE_S), str(trace))
        trees.append(Tree.start(run, log=folder / f"group-{group}", environment=mine))
    return trees


ALONE: Final = "Holdfast without groups"
CONTESTANTS: Final[Mapping[str, Launch]] = {
    "Holdfast": by_holdfast,
    "torchft, tuned": by_torchft,
    ALONE: whole_round,
}


def figures(effort: Effort, environment: Mapping[str, str]) -> list[Figure]:
    """All of them, contestants taking turns."""
    trials: dict[str, list[Trial]] = defaultdict(list)
    lacking: dict[str, str] = {}
    for number in range(effort.runs):
        for name, launch in CONTESTANTS.items():
            try:
                trial = _attempt(launch, environment)
            except ModuleNotFoundError as error:
                lacking[name] = str(error)
                continue
            print(f"  replica-groups, run {number + 1}, {name}: {trial or 'did not start'}", flush=True)
            if trial is not None:
                trials[name].append(trial)
    return [*_judged(trials, lacking), _stopped_starts(effort, environment)]


def _stopped_starts(effort: Effort, environment: Mapping[str, str]) -> Figure:
    """The new worker is stopped before its first step: until it is named and healed, and the group is back."""
    what = "member of a replica group killed, its successor stopped (SIGSTOP) before its first step, group back"
    back = list[float]()
    for number in range(effort.runs):
        trial = _attempt(by_holdfast, environment, stops=True)
        print(f"  replica-groups, run {number + 1}, stopped before its first step: {trial}", flush=True)
        if trial is None or trial.back_s is None:
            return unmeasured(what, unit="s", target=1.0, reason=f"not back within {BACK_WITHIN_S:.0f} s")
        back.append(trial.back_s)
    return measured(what, ours=back, other=[STOPPED_WITHIN_S] * len(back), unit="s", target=1.0)


def _judged(trials: Mapping[str, list[Trial]], lacking: Mapping[str, str]) -> list[Figure]:
    ours, what = trials.get("Holdfast", []), "member of a replica group killed, 2x2 ranks"
    lost = [each.lost_steps for each in ours if each.lost_steps is not None]
    if len(lost) < len(ours) or not ours:
        return [unmeasured(f"{what}, steps lost by the others", unit="steps", target=1.0, reason="not healed")]
    found = [measured(f"{what}, steps lost by the others", ours=lost, other=[1.0], unit="steps", target=1.0)]
    unequal = [float(each.unequal or 0) for each in ours]
    equal = [1.0 if not each else 0.0 for each in unequal]
    figure = f"{what}, runs in which the returned group is bit-equal"
    found.append(measured(figure, ours=equal, other=[1.0], unit="share", target=1.0, goal=Goal.AT_LEAST))
    for name, them in trials.items():
        if name == "Holdfast":
            continue
        compared = [("steps lost by the others", "lost_steps")]
        if name != ALONE:  # there is no group to come back
            compared.append(("until the group is back", "back_s"))
        for told, of in compared:
            mine = [getattr(each, of) for each in ours if getattr(each, of) is not None]
            other = [getattr(each, of) for each in them if getattr(each, of) is not None]
            figure = f"{what}, {told}, beside {name} ({len(other)} of {len(them)} runs came to it)"
            unit = "steps" if of == "lost_steps" else "s"
            if mine and other:
                found.append(measured(figure, ours=mine, other=other, unit=unit, target=1.0))
            else:
                found.append(unmeasured(figure, unit=unit, target=1.0, reason="no run came to it"))
    found += [
        unmeasured(f"{what}, beside {name}", unit="steps", target=1.0, reason=why) for name, why in lacking.items()
    ]
    return found


def _attempt(launch: Launch, environment: Mapping[str, str], *, stops: bool = False) -> Trial | None:
    """`stops`: whoever comes in the victim's place is stopped as soon as it is there, once."""
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, none_left_behind():
            folder, trace = Path(name), Path(name) / "trace"
            trace.mkdir()
            trees = launch(folder, trace, environment)
            if (victim := _trained(trace)) is not None:
                return _struck(trace, victim, trees if stops else [])
    return None


def _trained(trace: Path) -> int | None:
    """Whom to kill, once all four ranks have trained for a while: a rank of the last group."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < deadline:
        known = _read(trace)
        if len(known) >= 4 and all(lines[-1]["step"] >= STRIKES_AT for lines in known.values()):
            return max(known, key=lambda pid: (known[pid][-1]["group"], known[pid][-1]["rank"]))
        time.sleep(0.05)
    return None


def _stop_successor(trees: list[Tree], name: str, victim: int) -> None:
    """Stop the process that comes in the place of the victim. A worker bears its rank as its name."""
    deadline = time.monotonic() + BACK_WITHIN_S
    while time.monotonic() < deadline:
        for each in (process for tree in trees for process in tree.members() if process.pid != victim):
            with suppress(psutil.Error):
                if each.name() == name:
                    each.send_signal(signal.SIGSTOP)
                    return
        time.sleep(LOOK_S)


def _struck(trace: Path, victim: int, stops: list[Tree]) -> Trial:
    before = _read(trace)
    newest = {pid: lines[-1] for pid, lines in before.items()}
    others = [pid for pid, line in newest.items() if line["group"] != newest[victim]["group"]]
    living = others or [pid for pid in before if pid != victim]
    name = psutil.Process(victim).name()
    killed_at = time.monotonic()
    psutil.Process(victim).send_signal(signal.SIGKILL)
    if stops:
        _stop_successor(stops, name, victim)
    back_at = None
    while back_at is None and time.monotonic() < killed_at + BACK_WITHIN_S:
        time.sleep(0.1)
        back_at = _back_at(_read(trace), newest[victim]["groups"], killed_at)
    time.sleep(10 * PACE_S)
    return _trial(_read(trace), living, killed_at, back_at)


def _back_at(known: Mapping[int, list[Line]], groups: int, killed_at: float) -> float | None:
    """When all four ranks, in as many groups as before, had completed a step that none had completed before."""
    highest = max(line["step"] for lines in known.values() for line in lines if line["at"] <= killed_at)
    new = [
        [line for line in lines if line["at"] > killed_at and line["step"] > highest] for lines in known.values()
    ]
    firsts = [next((line["at"] for line in lines if line["groups"] == groups), None) for lines in new]
    there = sorted(at for at in firsts if at is not None and at > killed_at + PACE_S)
    return there[-1] if len(there) >= 4 else None


def _trial(known: Mapping[int, list[Line]], living: list[int], killed_at: float, back_at: float | None) -> Trial:
    waits, at_return, steps_s = list[float](), list[float](), list[float]()
    for lines in (known[pid] for pid in living):
        earlier = [line for line in lines if line["at"] <= killed_at]
        steps_s += [after["at"] - before["at"] for before, after in pairwise(earlier)]
        # A step that is trained again is no progress.
        later = [line for line in lines if line["at"] > killed_at and line["step"] > earlier[-1]["step"]]
        gaps = [(two["at"] - one["at"], two["at"]) for one, two in pairwise([earlier[-1], *later])]
        waits += [gap for gap, at in gaps if back_at is None or at < back_at - PACE_S] or [
            gap for gap, _ in gaps[:1]
        ]
        at_return += [gap for gap, at in gaps if back_at is not None and abs(at - back_at) < 2 * PACE_S]
    step_s = median(steps_s)
    digests: dict[tuple[int, int], set[str]] = defaultdict(set)
    for line in (line for lines in known.values() for line in lines if back_at and line["at"] >= back_at):
        digests[line["step"], line["inside"]].add(line["digest"])
    return Trial(
        lost_steps=max(waits) / step_s - 1 if waits else None,
        back_s=None if back_at is None else back_at - killed_at,
        lost_at_return=max(at_return) / step_s - 1 if at_return else None,
        unequal=sum(len(each) > 1 for each in digests.values()) if back_at is not None else None,
    )


def _read(trace: Path) -> dict[int, list[Line]]:
    """What each process wrote, by its id; a last line that is not whole is left."""
    known: dict[int, list[Line]] = {}
    for file in trace.glob("process-*.jsonl"):
        whole = file.read_text().rpartition("\n")[0]
        if lines := [json.loads(line) for line in whole.splitlines()]:
            known[int(file.stem.partition("-")[2])] = lines
    return known
