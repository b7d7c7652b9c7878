"""Holdfast: one watchdog, and on every node a launcher and an agent."""

import sys
import urllib.request
from collections.abc import Sequence
from typing import Final

import msgspec

from drill.fleet import SCRIPTS, Fleet, NotStarted, Terms
from drill.processes import Tree
from drill.steplog import newest_by_rank
from holdfast.api.errors import Unavailable
from holdfast.api.incident import Incident
from holdfast.api.policy import MemoryPolicy, Policy
from holdfast.cli.statedirectory import ListeningAt, StateDirectory
from holdfast.cli.watchdogclient import DirectLine, WatchdogClient
from holdfast.wire.access import Access, Address, Credential

JOB: Final = "bench/drill"
LISTENING_WITHIN_S: Final = 20.0
# A drill starts as many nodes as it wants, one after the other; a job would wait longer for its maximum.
FORM_GRACE_S: Final = 1.0


class HoldfastFleet(Fleet):
    """The job's policy is the default, apart from how long the start waits for more nodes, and `memory`. `script`
    is one of SCRIPTS or a path, `words` is what it is given behind the folder.
    """

    def __init__(
        self, terms: Terms, *, script: str, memory: MemoryPolicy | None = None, words: Sequence[str] = ()
    ) -> None:
        super().__init__(terms)
        self._memory = memory
        self._script = script
        self._words = tuple(words)
        self._state = StateDirectory(terms.folder)
        self._listen = "127.0.0.1:0"
        self._watchdog: Tree | None = None

    def start_supervision(self) -> None:
        """Start the watchdog and submit the job. Raises NotStarted."""
        at = self.start_watchdog()
        shape = self.terms.shape
        policy = Policy(
            job=JOB,
            nodes_min=shape.nodes_min,
            nodes_max=shape.nodes_max,
            processes_per_node=shape.local_size,
            form_grace_s=FORM_GRACE_S,
            memory=self._memory,
        )
        request = urllib.request.Request(
            f"http://{at.host}:{at.port}/v1/jobs",
            data=msgspec.json.encode(policy),
            headers={"Authorization": f"Bearer {self._state.token()}", "Content-Type": "application/json"},
        )
        urllib.request.urlopen(request, timeout=LISTENING_WITHIN_S).close()

    def start_watchdog(self) -> ListeningAt:
        """Start it, the next time on the same port, and wait until it listens. Raises NotStarted."""
        command = (sys.executable, "-m", "holdfast.watchdog", "--listen", self._listen)
        files = ("--store", str(self._state.store_file), "--token-file", str(self._state.token_file))
        log = self.terms.folder / "watchdog.log"
        tree = Tree.start((*command, *files), log=log, environment=self.terms.environment)
        self._watchdog = tree
        at = self.wait_for(lambda: self._listening(tree), LISTENING_WITHIN_S)
        if at is None:
            raise NotStarted("the watchdog does not listen")
        self._listen = f"{at.host}:{at.port}"
        return at

    def kill_watchdog(self) -> None:
        """SIGKILL, as when its machine is lost; returns when it is gone."""
        assert self._watchdog is not None, "it was never started"
        self._watchdog.root.kill()
        self._watchdog.root.wait(LISTENING_WITHIN_S)

    def start_node(self, number: int) -> None:
        name = f"node-{number}"
        run_dir = self._state.node(name)
        run_dir.mkdir(parents=True)
        where = ("--run-dir", str(run_dir), "--token-file", str(self._state.token_file))
        launcher = (
            *(sys.executable, "-m", "holdfast.agent.launch", "--member", name, "--node", name),
            *("--rdzv-endpoint", self._listen, "--rdzv-id", JOB, "--local-addr", "127.0.0.1"),
            *("--nproc-per-node", str(self.terms.shape.local_size), "--log-dir", str(self._state.logs), *where),
            # Every run leaves killed launchers behind; what they leave goes with the drill's folder.
            *("--memory-dir", str(self.terms.folder)),
            *(str(SCRIPTS / self._script), str(self.terms.folder), *self._words),
        )
        agent = (
            *(sys.executable, "-m", "holdfast.agent", "--node", name, "--job", JOB),
            *("--watchdog", self._listen, *where),
        )
        self._launch(number, "launcher", launcher)
        self._launch(number, "agent", agent)

    def host(self) -> int:
        """Where rank 0 runs, which has the store of the process group."""
        pid = newest_by_rank(self.log.marks())[0].pid
        return next(
            number for number in self._nodes if pid in {process.pid for process in self.node_processes(number)}
        )

    def incidents(self) -> Sequence[Incident]:
        """Oldest first; none while the watchdog is away."""
        at = self._state.listening_at()
        if at is None:
            return ()
        try:
            return WatchdogClient(
                DirectLine(
                    Access(Address(at.host, at.port), Credential(self._state.token())), token_of="the drill"
                ),
                JOB,
            ).incidents()
        except Unavailable:
            return ()

    def _listening(self, tree: Tree) -> ListeningAt | None:
        at = self._state.listening_at()
        return at if at is not None and at.pid == tree.root.pid else None
