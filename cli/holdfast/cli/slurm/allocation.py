"""An allocation of Slurm's as hosts: each node has a step of its own, and is drained when it is proved bad.

A step per node, not one over all of them: a lost node ends its own step and no other, and a launcher can be
started again on one node. What drains nodes needs the rights of Slurm's operators. Where this user has them not,
the node is left an order, which the epilog of examples/slurm carries out as root when the job leaves the node; a
human is told so, with the command. The nodes that were drained are noted in the state directory: one that is
allocated again all the same was put back by somebody with those rights.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.api.plan import NodeState
from holdfast.cli.hosts.reach import Standing
from holdfast.cli.slurm.controller import ask, nodes, reason_text

DRAIN_COMMAND: Final = ("scontrol", "update")
ORDER_FILE: Final = "/tmp/holdfast-drain.{job}.{host}"
"""Where the epilog looks for an order, on the node that is meant."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes of one Slurm job; fills `Reach`. `drained` is the folder with a file for each node it drained.

    `drain_command` takes nodename=, state= and reason=, as `scontrol update` does.
    """

    job_id: str
    hosts: tuple[str, ...]
    drained: Path
    drain_command: tuple[str, ...] = DRAIN_COMMAND

    def command(self, host: str, program: Sequence[str]) -> tuple[str, ...]:
        """A step on that node alone, beside whatever runs there, with all that the allocation has of the node."""
        return (
            *("srun", f"--jobid={self.job_id}", f"--nodelist={host}", "--nodes=1", "--ntasks=1", "--overlap"),
            *("--mem=0", "--cpu-bind=none", "--kill-on-bad-exit=0", "--input=all"),
            *("--export=ALL", f"--job-name={host}", *program),
        )

    async def standings(self) -> Mapping[str, Standing]:
        try:
            seen = await nodes(self.hosts)
        except HoldfastError:
            return {}  # the controller is away: what was known stays
        return {name: line.standing for name, line in seen.items()}

    async def take_out(self, host: str, reason: str) -> str | None:
        """Drain it. A node that somebody drained before keeps their reason."""
        words = (f"nodename={host}", "state=drain", f"reason={reason_text(reason)}")
        try:
            line = (await nodes((host,))).get(host)
            if line is None or line.standing.state is NodeState.READY:
                await ask(*self.drain_command, *words)
        except HoldfastError as error:
            try:
                await self._leave_order(host, reason_text(reason))
            except HoldfastError:
                epilog = "no order for its epilog could be left there"
            else:
                epilog = "its epilog will, where it is Holdfast's"
            return f"{host} is not drained ({error}); {epilog}; whoever may drain it types: {_typed(words)}"
        self.drained.mkdir(exist_ok=True)
        (self.drained / host).write_text(f"{reason_text(reason)}\n")
        return None

    async def _leave_order(self, host: str, reason: str) -> None:
        """Tell the node's epilog to drain it. Raises Refused, Unavailable.

        /tmp is everybody's: what somebody else put there under that name is never written through (`set -C`).
        """
        place = ORDER_FILE.format(job=self.job_id, host=host)
        script = f"rm -f {shlex.quote(place)}; set -C; printf '%s\\n' {shlex.quote(reason)} > {shlex.quote(place)}"
        await ask(*self.command(host, ("/bin/sh", "-c", script)))

    async def put_back(self, host: str) -> str | None:
        """Resume it, if its reason is one of ours."""
        words = (f"nodename={host}", "state=resume")
        try:
            line = (await nodes((host,))).get(host)
            if line is None or line.is_drained_by_holdfast:
                await ask(*self.drain_command, *words)
        except HoldfastError as error:
            return f"{host} could not be resumed ({error}); whoever may do so types: {_typed(words)}"
        (self.drained / host).unlink(missing_ok=True)
        return None

    async def given_again(self) -> Sequence[str]:
        again = [host for host in self.hosts if (self.drained / host).exists()]
        for host in again:
            (self.drained / host).unlink()
        return again

    def requeue_command(self) -> tuple[str, ...]:
        """What puts the job back into the queue, with everything it was submitted with."""
        return ("scontrol", "requeue", self.job_id)

    async def requeue(self) -> None:
        """Slurm then ends this process, and starts the job anew. Raises Refused, Unavailable."""
        await ask(*self.requeue_command())


def _typed(words: Sequence[str]) -> str:
    return shlex.join((*DRAIN_COMMAND, *words))


def allocation_from(environment: Mapping[str, str]) -> tuple[str, str]:
    """Id and node list of the allocation that this process is in. Raises InvalidInput outside of one."""
    job_id, nodelist = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NODELIST", "")
    if not job_id or not nodelist:
        fix = "run it inside an allocation (sbatch or salloc); without --here the job is submitted"
        raise InvalidInput(Problem("--here", "no SLURM_JOB_ID", fix))
    return job_id, nodelist
