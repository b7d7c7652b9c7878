"""The batch script of a job: what Slurm is asked for, and what of the job file means nothing to it. Pure.

Sources of the options: https://slurm.schedmd.com/sbatch.html
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.gpus import Uncounted, gpus_of
from holdfast.api.trainingjob import TrainingJob

SAVE_BEFORE_S: Final = 180
"""Slurm sends the signal up to a minute before the time that is asked for; a save takes one minute at most."""
OURS: Final = (
    "nodes",
    "no-kill",
    "requeue",
    "no-requeue",
    "signal",
    "ntasks",
    "ntasks-per-node",
    "open-mode",
    "array",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchScript:
    """What differs from job to job. `command` runs inside the allocation, `asked` are options of sbatch's own.

    `output` is the folder of its log.
    """

    job: TrainingJob
    command: Sequence[str]
    output: str
    asked: Sequence[str] = ()
    save_before_s: int = SAVE_BEFORE_S

    def text(self) -> str:
        """The script. Raises InvalidInput where `asked` contradicts what Holdfast needs."""
        nodes = self.job.spec.nodes
        most = nodes.max + nodes.spares
        gpus = _gpus(self.job)
        options = (
            f"--job-name=holdfast-{self.job.id.replace('/', '-')}",
            f"--nodes={nodes.min}" if nodes.min == most else f"--nodes={nodes.min}-{most}",
            "--ntasks-per-node=1",
            "--exclusive",
            "--mem=0",
            *([f"--gpus-per-node={gpus}"] if gpus else []),
            f"--output={_pattern(self.output)}",
            "--open-mode=append",
            "--no-kill",
            "--requeue",
            f"--signal=B:USR1@{self.save_before_s}",
            *self._asked(),
        )
        lines = (
            "#!/bin/bash",
            f"# {self.job.id} under Holdfast: {nodes.min} to {nodes.max} nodes train, {nodes.spares} stand by.",
            "# A lost node does not end the job (--no-kill): a spare takes its ranks, or fewer nodes train.",
            "# Before its time is up the job is saved (USR1), queued again (--requeue), and goes on from there.",
            *(f"#SBATCH {shlex.quote(option)}" for option in options),
            "",
            "trap '' USR1  # until what follows listens to it",
            f"exec {shlex.join(self.command)}",
        )
        return "\n".join(lines) + "\n"

    def _asked(self) -> Sequence[str]:
        for option in self.asked:
            name = option.removeprefix("--").partition("=")[0]
            if not option.startswith("--") or "\n" in option:
                raise InvalidInput(
                    Problem("--sbatch", option, "write it as --NAME=VALUE, such as --time=24:00:00")
                )
            if name in OURS:
                fix = "leave it out: it follows from the job file, and a lost node or a requeue relies on it"
                raise InvalidInput(Problem("--sbatch", option, fix))
        return self.asked


def _gpus(job: TrainingJob) -> int:
    """Of a node. Claims mean nothing to Slurm: a job with some says how many workers a node runs."""
    counted = gpus_of(job.spec.template)
    return job.spec.local_size() if isinstance(counted, Uncounted) else counted


def _pattern(folder: str) -> str:
    """The log's name for sbatch, to which % means something. Raises InvalidInput."""
    if "\\" in folder or not folder.isprintable():
        fix = "name a folder without backslashes and line breaks: sbatch reads them as something else"
        raise InvalidInput(Problem("--state-dir", folder, fix))
    return folder.replace("%", "%%") + "/slurm-%j.out"


def means_nothing(job: TrainingJob) -> tuple[str, ...]:
    """What the job file says and Slurm does not hear, a sentence each."""
    spec, said = job.spec, job.spec.model_fields_set
    sentences = []
    if spec.template is not None:
        taken = "of it only the number of GPUs is used" if _gpus(job) else "nothing of it is used"
        sentences.append(f"spec.template is a pod's, and {taken}: the nodes' own software runs, as srun finds it")
    if spec.placement.pack:
        sentences.append(
            "spec.placement.pack names node labels of Kubernetes; ask Slurm with --sbatch=--switches=1"
        )
    if "ttl_after_finished" in said:
        sentences.append("spec.ttlAfterFinished deletes nothing here: the state folder stays")
    if spec.reporting is not None:
        sentences.append(
            "spec.reporting is not acted on; run `python -m holdfast.console.trackers` beside the job"
        )
    return tuple(sentences)
