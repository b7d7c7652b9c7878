"""A random fault every twenty seconds for half an hour: what is healed, who is blamed, and what is left behind.

    python bench/soak.py [--minutes 30] [--every 20] [--seed 0] [--pace 0] [--load 0]

`holdfast run` trains a small model on three nodes of this machine with a spare beside them. This program is the
fault: it picks processes and nodes itself, from a seed, and asks nobody whether the last one is healed. `--load`
keeps so many processors busy meanwhile.
"""

import argparse
import getpass
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

import psutil
from drill.processes import Tree, none_left_behind, signal_each
from figure import BUILD, Figure, Goal, measured, publish

from holdfast.agent.launch.memoryfolder import ROOT, folder_of
from holdfast.agent.sensors.simulated_gpu import Fault, inject
from holdfast.api.errors import Unavailable
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.intervention import InterventionAction, InterventionRequest, InterventionState
from holdfast.api.status import JobPhase, JobStatus
from holdfast.cli.statedirectory import StateDirectory
from holdfast.cli.watchdogclient import DirectLine, WatchdogClient
from holdfast.wire.access import Access, Address, Credential

JOB_FILE: Final = """
apiVersion: holdfast.dev/v1alpha1
kind: TrainingJob
metadata: {{name: soak, namespace: bench}}
spec:
  entrypoint: [{script}, --steps, "1000000", --batch, "12", --pace, "{pace}"]
  nodes: {{min: 1, max: 3, spares: 1}}
  startup: {{preflight: none}}
  checkpoint: {{interval: 30s}}
  faultPolicy:
    hang: {{timeout: 10s}}
    restarts: {{max: 10000, per: 1h, backoff: 1s}}
    budget: {{evictions: 10000, per: 1h, clusterFraction: 100%}}
"""
JOB: Final = "bench/soak"
EXAMPLE: Final = Path(__file__).parents[1] / "examples" / "bytes" / "train.py"
HOLDFAST: Final = (sys.executable, "-c", "from holdfast.cli.main import main; main()")
START_S: Final = 180.0
HEALED_WITHIN_S: Final = 180.0
LOOK_S: Final = 0.5
SETTLED_AFTER: Final = 5  # faults: by then everything was opened once
DESCRIPTORS_MORE_MAX: Final = 16  # than then: connections of nodes that come and go
TORCHS: Final = f"torchinductor_{getpass.getuser()}"  # a cache that torch keeps for the next process
NODES_EVER: Final = 10_000
BLAMED_WITHIN_S: Final = (
    60.0  # of what was done: a stopped worker is named after 10 s, a busy machine takes its time
)


class Deed(Enum):
    """What is done to a run."""

    KILL_WORKER = "SIGKILL of a worker"
    STOP_WORKER = "SIGSTOP of a worker"
    KILL_LAUNCHER = "SIGKILL of a launcher"
    KILL_NODE = "SIGKILL of everything of a node"
    KILL_AGENT = "SIGKILL of an agent"
    KILL_WATCHDOG = "SIGKILL of the watchdog"
    XID = "XID 79 of a GPU"
    END_WORKERS = "SIGTERM to all workers"
    DRAIN = "eviction"


STRIKES: Final = tuple(each for each in Deed if each not in (Deed.END_WORKERS, Deed.DRAIN))
"""What the soak does; those left out stop a run that is well, and blame nobody."""


@dataclass(frozen=True)
class Strike:
    """What was done, to which node ("" where it was none), and when, in seconds since the epoch."""

    at: float
    deed: Deed
    node: str


@dataclass
class Soak:
    """One run that is disturbed, what is done to it, and what was done."""

    folder: Path
    state: StateDirectory
    tree: Tree
    chance: random.Random
    began: float  # seconds since the epoch
    deeds: Sequence[Deed] = STRIKES
    struck: list[Strike] = field(default_factory=list)

    @classmethod
    def start(cls, folder: Path, seed: int, job: str, deeds: Sequence[Deed] = STRIKES) -> "Soak":
        """Begin the job that `job` describes, by the name `JOB`."""
        (folder / "job.yaml").write_text(job)
        state = StateDirectory(folder / "state")
        command = (*HOLDFAST, "run", str(folder / "job.yaml"), "--state-dir", str(state.root))
        environment = {**os.environ, "TMPDIR": str(folder / "tmp")}
        (folder / "tmp").mkdir()
        tree = Tree.start(command, log=folder / "run.log", environment=environment)
        return cls(folder, state, tree, random.Random(seed), tree.root.create_time(), deeds)

    def status(self) -> JobStatus | None:
        """None while the watchdog is away."""
        try:
            return self._client().status()
        except Unavailable:
            return None

    def incidents(self) -> tuple[Incident, ...]:
        return self._client().incidents()

    def descriptors(self) -> int:
        """Of `holdfast run`."""
        return int(self.tree.root.num_fds())

    def is_well(self) -> bool:
        """It trains, and no incident is open."""
        seen = self.status()
        return seen is not None and seen.phase is JobPhase.RUNNING and seen.incidents_open == 0

    def until_well(self, within_s: float) -> bool:
        deadline = time.monotonic() + within_s
        while not (well := self.is_well()) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return well

    def has_ended(self, within_s: float) -> bool:
        """Whether `holdfast run` ends by itself in that time."""
        try:
            self.tree.root.wait(within_s)
        except psutil.TimeoutExpired:
            return False
        return True

    def strike(self) -> None:
        """One fault, to somebody who is there; none when nobody is."""
        deed = self.chance.choice(self.deeds)
        at = time.time()  # noqa: TID251 - the watchdog's clock begins with it, and incidents carry that
        node = self._do(deed)
        if node is not None:
            self.struck.append(Strike(at, deed, node))
            print(f"{len(self.struck):3}  {deed.value}{f' of {node}' if node else ''}", flush=True)

    def stop(self) -> None:
        """As Ctrl-C does; returns when `holdfast run` has ended."""
        self.tree.root.send_signal(signal.SIGINT)
        self.tree.root.wait(HEALED_WITHIN_S)

    def left_in_files(self) -> list[str]:
        """What is left outside of the state directory: memory of its nodes, and temporary files."""
        nodes = [self.state.node(f"node-{number}") for number in range(NODES_EVER)]
        memory = [folder_of(ROOT, job=JOB, member=each.name, run_dir=each) for each in nodes]
        files = [each for each in (self.folder / "tmp").iterdir() if each.name != TORCHS]
        return [str(each) for each in (*memory, *files) if each.exists()]

    def left_in_processes(self) -> list[psutil.Process]:
        """Orphans of the run come to this process."""
        below = psutil.Process().children(recursive=True)
        return [
            each for each in below if each.create_time() > self.began and each.status() != psutil.STATUS_ZOMBIE
        ]

    def _client(self) -> WatchdogClient:
        """Raises Unavailable."""
        at = self.state.listening_at()
        if at is None:
            raise Unavailable("it does not listen yet")
        return WatchdogClient(
            DirectLine(Access(Address(at.host, at.port), Credential(self.state.token())), token_of="the soak"), JOB
        )

    def _ours(self) -> list[psutil.Process]:
        below = psutil.Process().children(recursive=True)
        return [each for each in below if str(self.folder) in " ".join(_command(each))]

    def _of(self, module: str, node: str = "") -> list[psutil.Process]:
        """The processes of one part, of one node or of all."""
        named = [each for each in self._ours() if module in _command(each)]
        return [each for each in named if not node or node in _command(each)]

    def _do(self, deed: Deed) -> str | None:
        """The node that it was done to; None: nobody was there."""
        if deed is Deed.KILL_WATCHDOG:
            signal_each(self._of("holdfast.watchdog"), signal.SIGKILL)
            return ""
        try:
            ranks = [each for each in self._client().ranks() if each.pid is not None]
            if not ranks:
                return None
            if deed is Deed.DRAIN:
                return self._drain(self.chance.choice(ranks).node)
        except Unavailable:
            return None
        victim = self.chance.choice(ranks)
        launchers, agents = self._of("holdfast.agent.launch", victim.node), self._of("holdfast.agent", victim.node)
        worker = [psutil.Process(victim.pid)] if victim.pid and psutil.pid_exists(victim.pid) else []
        if deed is Deed.END_WORKERS:
            pids = [each.pid for each in ranks if each.pid and psutil.pid_exists(each.pid)]
            signal_each([psutil.Process(each) for each in pids], signal.SIGTERM)
            return ""
        if deed is Deed.XID:
            inject(str(self.state.node(victim.node)), Fault(gpu=0, xid=79, text="fallen off the bus"))
        elif deed is Deed.KILL_WORKER:
            signal_each(worker, signal.SIGKILL)
        elif deed is Deed.STOP_WORKER:
            signal_each(worker, signal.SIGSTOP)
        elif deed is Deed.KILL_LAUNCHER:
            signal_each(launchers, signal.SIGKILL)
        elif deed is Deed.KILL_AGENT:
            signal_each(agents, signal.SIGKILL)
        else:
            below = [each for root in (*launchers, *agents) for each in root.children(recursive=True)]
            signal_each([*launchers, *agents, *below], signal.SIGKILL)
        return victim.node

    def _drain(self, node: str) -> str | None:
        """As an engineer takes a node. Raises Unavailable."""
        request = InterventionRequest(uuid.uuid4().hex, JOB, InterventionAction.EVICT, "a drill", node=node)
        outcome = self._client().intervene(request)
        return None if outcome.state is InterventionState.REFUSED else node


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def blamed_without_cause(incidents: Sequence[Incident], struck: Sequence[Strike]) -> list[str]:
    """The incidents that name a node to which nothing was done shortly before they were noticed."""

    def is_just(incident: Incident) -> bool:
        since_s = [incident.detected_at - each.at for each in struck if each.node == incident.culprit.node]
        return any(0.0 <= each <= BLAMED_WITHIN_S for each in since_s)

    return [
        f"{each.id} {each.kind} of {each.culprit.node}: {each.cause}"
        for each in incidents
        if each.culprit.node and not each.innocent and not is_just(each)
    ]


def soak(folder: Path, given: argparse.Namespace) -> list[Figure]:
    run = Soak.start(folder, given.seed, JOB_FILE.format(script=EXAMPLE, pace=given.pace))
    if not run.until_well(START_S):
        raise SystemExit((folder / "run.log").read_text()[-3000:])
    began, opened = time.monotonic(), 0
    while time.monotonic() - began < given.minutes * 60.0:
        run.strike()
        time.sleep(given.every)
        if len(run.struck) <= SETTLED_AFTER:
            opened = max(opened, run.descriptors())
    well, more = run.until_well(HEALED_WITHIN_S), run.descriptors() - opened
    incidents = run.incidents()
    for each in (unhealed := [each for each in incidents if each.state is not IncidentState.RECOVERED]):
        print(f"not healed: {each.id} {each.kind} {each.state}: {each.cause} {each.note}")
    for blame in (slandered := blamed_without_cause(incidents, run.struck)):
        print(f"blamed: {blame}")
    run.stop()
    for rest in (left := [*map(str, run.left_in_processes()), *run.left_in_files()]):
        print(f"left: {rest}")
    of = f"of {len(run.struck)} faults in {given.minutes:g} min, {given.load} processors kept busy"
    return [
        none("run that trains no more", int(not well), of),
        none("incidents not healed", len(unhealed), f"{of}, {len(incidents)} incidents"),
        none("incidents that blame a node to which nothing was done", len(slandered), of),
        none("processes and files left", len(left), of),
        measured(
            f"descriptors of `holdfast run` more than after {SETTLED_AFTER} faults, {of}",
            ours=[max(0, more)],
            other=[DESCRIPTORS_MORE_MAX],
            unit="descriptors",
            target=1.0,
        ),
    ]


def none(what: str, count: int, of: str) -> Figure:
    """There should be none of it."""
    return measured(f"{what}, {of}", ours=[count], other=[1], unit="", target=0.0, goal=Goal.AT_MOST)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least")
    parser.add_argument("--load", type=int, default=0, help="processors kept busy by something else")
    parser.add_argument("--output", type=Path, default=BUILD, help="folder for soak.json")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    with none_left_behind():
        for _ in range(given.load):
            command = (sys.executable, "-S", "-c", "while True: pass")
            Tree.start(command, log=folder / "load.log", environment=os.environ)
        publish("soak", soak(folder, given), folder=given.output)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
