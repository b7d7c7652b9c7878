"""torch's elastic agent with our launcher inside, for stock `torchrun --rdzv-backend=holdfast`.

This is a program's entry: the environment is read here. `--rdzv-conf` takes member=, node=, run_dir=,
memory_dir= and token_file=. Source: torch/distributed/elastic/agent/server and torch/distributed/launcher/api.py,
https://github.com/pytorch/pytorch/tree/main/torch/distributed
"""

import logging
import os
import signal
import socket
import sys
from dataclasses import replace
from typing import Any

from torch.distributed.elastic.agent.server.api import DEFAULT_ROLE, RunResult, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousParameters
from torch.distributed.launcher import api as launcher_api

from holdfast.agent.launch import settings
from holdfast.agent.launch.command import run
from holdfast.agent.launch.forking import EntrypointKind
from holdfast.agent.launch.settings import Entrypoint
from holdfast.api.errors import HoldfastError

BACKEND = "holdfast"


class HoldfastRendezvous(RendezvousHandler):
    """Carries torchrun's parameters to our agent, which takes its rounds from the watchdog itself."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self.parameters = parameters

    def get_backend(self) -> str:
        return BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        raise NotImplementedError("the watchdog shows rounds to the launcher; there is nothing to rendezvous on")

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """The watchdog closes a job, not a launcher."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return str(self.parameters.run_id)

    def shutdown(self) -> bool:
        return True


class HoldfastAgent(LocalElasticAgent):
    """torch's agent with our launcher inside: everything between `run` and its result is the launcher's."""

    def run(self, role: str = DEFAULT_ROLE) -> RunResult:
        """Run until the job closes. Raises SystemExit with one sentence when the watchdog does not take us."""
        spec: WorkerSpec = self._worker_group.spec
        rendezvous = spec.rdzv_handler
        assert isinstance(rendezvous, HoldfastRendezvous)
        try:
            outcome = run(settings_of(spec, rendezvous.parameters, log_dir=self._logs_specs.root_log_dir))
        except HoldfastError as error:
            raise SystemExit(f"holdfast: {error}") from error
        if outcome.signal is not None:
            raise SignalException(outcome.reason, signal.Signals(outcome.signal))
        if outcome.succeeded:
            return RunResult(WorkerState.SUCCEEDED, return_values=dict.fromkeys(range(spec.local_world_size)))
        failures = {
            rank: ProcessFailure(failure.local_rank, failure.pid, failure.exit_code, str(failure.error_file))
            for rank, failure in outcome.failures.items()
        }
        if not failures:
            raise SystemExit(f"holdfast: the job failed: {outcome.reason}")
        return RunResult(WorkerState.FAILED, failures=failures)


def make_rendezvous(parameters: RendezvousParameters) -> RendezvousHandler:
    """The rendezvous for our backend. Making it puts our agent in place: torchrun looks the class up after it."""

    def agent_for(spec: WorkerSpec, **given: Any) -> LocalElasticAgent:
        """Our agent for our rendezvous, torch's for any other that the same process may run later."""
        ours = isinstance(spec.rdzv_handler, HoldfastRendezvous)
        return (HoldfastAgent if ours else LocalElasticAgent)(spec=spec, **given)

    # As `holdfast launch` does; torch has handlers of its own for its own loggers.
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    launcher_api.LocalElasticAgent = agent_for  # type: ignore[attr-defined, assignment]
    return HoldfastRendezvous(parameters)


def settings_of(
    spec: WorkerSpec, parameters: RendezvousParameters, *, log_dir: str | None = None
) -> settings.LauncherSettings:
    """What torchrun's command line asks for. Raises InvalidInput naming the flag and the fix."""
    given = {name: parameters.get(name) for name in ("member", "node", "run_dir", "memory_dir", "token_file")}
    flags = settings.Flags(
        entrypoint=("torchrun's own command",),
        no_python=True,
        nnodes=f"{parameters.min_nodes}:{parameters.max_nodes}",
        nproc_per_node=str(spec.local_world_size),
        rdzv_endpoint=parameters.endpoint,
        rdzv_id=str(parameters.run_id),
        max_restarts=spec.max_restarts,
        log_dir=log_dir,
        tee="all",  # torchrun shows every worker's output unless told otherwise
        local_addr=spec.local_addr,
        **given,
    )
    chosen = settings.settings_of(flags, environment=os.environ, host=socket.gethostname())
    return replace(chosen, entrypoint=entrypoint_of(spec))


def entrypoint_of(spec: WorkerSpec) -> Entrypoint:
    """The user's program inside the command torchrun has made of it: `python -u [-m] script arguments`."""
    arguments = [str(argument) for argument in spec.args]
    if callable(spec.entrypoint):  # --run-path: a function that runs the script named first
        return Entrypoint(EntrypointKind.SCRIPT, tuple(arguments))
    program = str(spec.entrypoint)
    if program != sys.executable or arguments[:1] != ["-u"]:
        return Entrypoint(EntrypointKind.PROGRAM, (program, *arguments))
    if arguments[1] == "-m":
        return Entrypoint(EntrypointKind.MODULE, tuple(arguments[2:]))
    return Entrypoint(EntrypointKind.SCRIPT, tuple(arguments[1:]))
