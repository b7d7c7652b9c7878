"""SIGKILL at random moments, of the watchdog and of a process that saves: is anything acknowledged lost?

    python bench/kills.py [--watchdogs 200] [--savers 60] [--seed 0]

A watchdog over SQLite takes jobs and interventions as fast as it answers, and leads a real launcher; it is killed
and started again. What it acknowledged must be there, and an answer once given must stand. A process trains and
saves every step, and says what is committed; it is killed, and the next one must come back to that, bit by bit.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from drill.processes import Tree, none_left_behind
from figure import BUILD, Figure, measured, publish

from holdfast.api.errors import HoldfastError
from holdfast.api.intervention import (
    InterventionAction,
    InterventionOutcome,
    InterventionRequest,
    InterventionState,
)
from holdfast.api.policy import Policy
from holdfast.cli.statedirectory import StateDirectory
from holdfast.cli.watchdogclient import DirectLine, WatchdogClient
from holdfast.watchdog import brain
from holdfast.watchdog.journal.replay import Verdict, replay
from holdfast.watchdog.store.sqlite import SqliteStore
from holdfast.wire.access import Access, Address, Credential

REAL: Final = "bench/real"
JOBS_MAX: Final = 12
LIVES_S: Final = (0.05, 1.0)  # of a watchdog that listens
SAVES_S: Final = (0.0, 0.3)  # of a process after its first commit
LISTENS_WITHIN_S: Final = 60.0
ASKED_OF_OTHERS: Final = (InterventionAction.RESTART, InterventionAction.PAUSE, InterventionAction.REWIND)
ASKED_OF_THE_REAL: Final = (InterventionAction.RESTART, InterventionAction.RETURN, InterventionAction.CHECKPOINT)
SCRIPT: Final = "import time\ntime.sleep(1e6)\n"


@dataclass
class Told:
    """What was acknowledged, and what was found otherwise later."""

    policies: dict[str, Policy] = field(default_factory=dict)
    answers: dict[str, tuple[InterventionRequest, InterventionOutcome]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    otherwise: list[str] = field(default_factory=list)


class Installation:
    """One store, the watchdogs that lived on it, and a launcher that outlives them."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.state = StateDirectory(folder)
        self.told = Told()
        self._chance = chance
        self._listen = "127.0.0.1:0"
        self._watchdog: Tree | None = None

    def start(self) -> None:
        """Returns when it listens."""
        command = (sys.executable, "-m", "holdfast.watchdog", "--log-level", "WARNING", "--listen", self._listen)
        files = ("--store", str(self.state.store_file), "--token-file", str(self.state.token_file))
        log = self.state.root / "watchdog.log"
        self._watchdog = tree = Tree.start((*command, *files), log=log, environment=os.environ)
        deadline = time.monotonic() + LISTENS_WITHIN_S
        while (at := self.state.listening_at()) is None or at.pid != tree.root.pid:
            if time.monotonic() > deadline:
                raise SystemExit(f"the watchdog does not listen: {log.read_text()[-2000:]}")
            time.sleep(0.01)
        self._listen = f"{at.host}:{at.port}"

    def launch(self) -> None:
        """A launcher whose workers do nothing."""
        folder = self.state.root
        (folder / "train.py").write_text(SCRIPT)
        self.submit(Policy(job=REAL, nodes_min=1, nodes_max=1, form_grace_s=0.0))
        command = (sys.executable, "-m", "holdfast.agent.launch", "--member", "m-1", "--node", "n-1")
        where = (
            "--rdzv-endpoint",
            self._listen,
            "--rdzv-id",
            REAL,
            "--nproc-per-node",
            "1",
            "--run-dir",
            str(folder),
        )
        rest = ("--log-dir", str(self.state.logs), "--token-file", str(self.state.token_file))
        memory = ("--memory-dir", str(folder), str(folder / "train.py"))
        Tree.start((*command, *where, *rest, *memory), log=folder / "launcher.log", environment=os.environ)

    def kill_after(self, seconds: float) -> threading.Timer:
        assert self._watchdog is not None
        timer = threading.Timer(seconds, self._watchdog.root.kill)
        timer.start()
        return timer

    def is_gone(self) -> None:
        """Wait until what was killed is gone."""
        assert self._watchdog is not None
        self._watchdog.root.wait(LISTENS_WITHIN_S)

    def submit(self, policy: Policy) -> None:
        """Raises OSError while nobody listens."""
        headers = {"Authorization": f"Bearer {self.state.token()}", "Content-Type": "application/json"}
        url = f"http://{self._listen}/v1/jobs"
        request = urllib.request.Request(url, data=msgspec.json.encode(policy), headers=headers)
        urllib.request.urlopen(request, timeout=LISTENS_WITHIN_S).close()
        self.told.policies[policy.job] = policy

    def client(self, job: str) -> WatchdogClient:
        host, _, port = self._listen.rpartition(":")
        return WatchdogClient(
            DirectLine(Access(Address(host, int(port)), Credential(self.state.token())), token_of="the bench"), job
        )

    def ask(self) -> None:
        """One random request. Raises OSError, HoldfastError while nobody listens."""
        job = f"bench/job-{self._chance.randrange(JOBS_MAX)}"
        if job not in self.told.policies or self._chance.random() < 0.3:
            before = self.told.policies.get(job)
            generation = before.generation + 1 if before else 1
            self.submit(Policy(job=job, nodes_min=1, nodes_max=1 + generation % 7, generation=generation))
            return
        job = self._chance.choice([job, REAL])
        action = self._chance.choice(ASKED_OF_THE_REAL if job == REAL else ASKED_OF_OTHERS)
        asked = InterventionRequest(uuid.uuid4().hex, job, action, "tried", node="n-1", to_step=7)
        self.told.answers[asked.id] = (asked, self.client(job).intervene(asked))

    def look_back(self) -> None:
        """Compare everything that was acknowledged with what the watchdog says now."""
        for job, policy in self.told.policies.items():
            plan = self.client(job).status()
            if plan.job != job:
                self.told.lost.append(f"{job} of generation {policy.generation}")
        for id_, (asked, answer) in self.told.answers.items():
            now = self.client(asked.job).intervene(asked)
            if answer.state is not InterventionState.PENDING and now != answer:
                self.told.otherwise.append(
                    f"{asked.action} of {asked.job}: {answer.outcome!r}, now {now.outcome!r}"
                )
            self.told.answers[id_] = (asked, now)

    def generations_lost(self) -> list[str]:
        """Jobs whose journal holds an older policy than the one that was acknowledged."""
        store = SqliteStore(self.state.store_file)
        states = {job: replay(store, job, brain=brain) for job in self.told.policies}
        different = [job for job, each in states.items() if each.verdict is Verdict.DIFFERENT]
        older = [
            job
            for job, each in states.items()
            if each.state.policy is None or each.state.policy.generation < self.told.policies[job].generation
        ]
        return different + older


def watchdogs(folder: Path, kills: int, chance: random.Random) -> list[Figure]:
    there = Installation(folder, chance)
    there.start()
    there.launch()
    for number in range(kills):
        timer = there.kill_after(chance.uniform(*LIVES_S))
        while timer.is_alive():
            try:
                there.ask()
            except (OSError, HoldfastError):
                break
        timer.join()
        there.is_gone()
        there.start()
        if number % 10 == 9 or number == kills - 1:
            there.look_back()
    there.kill_after(0.0).join()
    there.is_gone()
    told = there.told
    lost = [*told.lost, *there.generations_lost()]
    for each in (*lost, *told.otherwise):
        print(each)
    of = f"{kills} SIGKILLs of the watchdog, {len(told.policies)} jobs, {len(told.answers)} interventions"
    return [none(f"acknowledged and lost: {of}", lost), none(f"answered otherwise later: {of}", told.otherwise)]


@contextmanager
def saving(folder: Path) -> Iterator[multiprocessing.process.BaseProcess]:
    """A process that trains and saves in `folder`, from a server that has imported what it needs."""
    process = _CONTEXT.Process(target=train, args=(folder,))
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


_CONTEXT: Final = multiprocessing.get_context("forkserver")


def train(folder: Path) -> None:
    """Train for ever; each step's weights, each commit and where it began are lines of a file of this process."""
    import torch  # in the server that processes are forked from

    from holdfast.api.round import Restore, Tier
    from holdfast.checkpoint import Checkpointer, Standalone

    file = (folder / f"said-{os.getpid()}").open("a", buffering=1)

    class Telling(Standalone):
        def committed(self, step: int, uri: str, /, **_: object) -> None:
            print(f"committed,{step},", file=file)

        def restored(self, step: int | None, skipped: tuple[str, ...], /, **_: object) -> None:
            print(f"restored,{step or 0},", file=file)

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters())
    run = Telling(restore=Restore(tier=Tier.CHECKPOINT))
    saver = Checkpointer(
        run, model=model, optimizer=optimizer, uri=(folder / "saved").as_uri(), every_steps=1, keep=2
    )
    batches = (torch.full((4, 256), float(number % 13)) for number in range(10**9))
    for step, batch in saver.steps(batches, until=10**9):
        model(batch * 1e-2).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        digest = float(sum(each.detach().double().sum() for each in model.parameters()))
        print(f"trained,{step},{digest.hex()}", file=file)


def savers(folder: Path, kills: int, chance: random.Random) -> list[Figure]:
    _CONTEXT.set_forkserver_preload(["torch", "holdfast.checkpoint"])
    weights: dict[int, str] = {}
    committed, lost, differ = 0, list[str](), list[str]()
    for _ in range(kills):
        with saving(folder) as process:
            said = folder / f"said-{process.pid}"
            deadline = time.monotonic() + LISTENS_WITHIN_S
            while not _has_committed(said) and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(chance.uniform(*SAVES_S))
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
        words = list(_words(said))
        if not words or words[0][0] != "restored":
            lost.append(f"process {process.pid} did not say where it begins")
        for what, step, value in words:
            if what == "restored" and step < committed:
                lost.append(f"step {committed} was committed, step {step} was restored")
            if what == "committed":
                committed = max(committed, step)
            if what == "trained" and weights.setdefault(step, value) != value:
                differ.append(f"step {step} came out otherwise")
    for told in (*lost, *differ):
        print(told)
    of = f"{kills} SIGKILLs of a process that saves, {committed} steps committed"
    return [none(f"acknowledged and lost: {of}", lost), none(f"trained otherwise afterwards: {of}", differ)]


def _has_committed(said: Path) -> bool:
    return any(what == "committed" for what, _, _ in _words(said))


def _words(said: Path) -> Iterator[tuple[str, int, str]]:
    """What a process said, whole lines only: what of which step, and with which value."""
    text = said.read_text() if said.exists() else ""
    for line in text.split("\n")[:-1]:
        what, step, value = line.split(",")
        yield what, int(step), value


def none(what: str, found: list[str]) -> Figure:
    """There should be none of it."""
    return measured(what, ours=[len(found)], other=[1], unit="", target=0.0)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--watchdogs", type=int, default=200)
    parser.add_argument("--savers", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=BUILD, help="folder for kills.json")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second, none_left_behind():
        figures = watchdogs(Path(first), given.watchdogs, chance)
        publish("kills", [*figures, *savers(Path(second), given.savers, chance)], folder=given.output)


if __name__ == "__main__":
    main()
