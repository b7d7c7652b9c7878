"""From a job file to what one machine runs: paths made absolute, the number of nodes chosen, mistakes found."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.api.errors import InvalidInput, InvalidSpec, Problem
from holdfast.api.trainingjob import TrainingJob


@dataclass(frozen=True, slots=True)
class Prepared:
    """`entrypoint` is what the launcher takes: flags for how to run it, then the program and its arguments.

    `working_directory` is the job file's: relative paths in the file mean the same wherever it is run from.
    """

    job: TrainingJob
    entrypoint: tuple[str, ...]
    working_directory: Path


def prepare(job: TrainingJob, job_file: Path, nodes: int | None, checkpoints: Path) -> Prepared:
    """Resolve a job for this machine. `checkpoints` is used when the job names no place.

    Raises InvalidInput when the entry point is not there, InvalidSpec when `nodes` is outside the job's range or
    the job is suspended.
    """
    home = job_file.absolute().parent
    if job.spec.suspend:
        raise InvalidSpec(Problem("spec.suspend", value=True, fix="set it to false: nothing of the job would run"))
    job = _with_nodes(job, nodes) if nodes is not None else job
    uri = job.spec.checkpoint.uri
    if uri is None:
        uri = str(checkpoints)
    elif "://" in uri and not uri.startswith("file:///"):
        fix = "write file:///absolute/path or a path; other stores are not possible yet"
        raise InvalidSpec(Problem("spec.checkpoint.uri", uri, fix))
    elif "://" not in uri:
        uri = str((home / uri).resolve())
    return Prepared(_replace(job, "checkpoint", uri=uri), _entrypoint(job.spec.entrypoint, home), home)


def _with_nodes(job: TrainingJob, nodes: int) -> TrainingJob:
    allowed = job.spec.nodes
    if not allowed.min <= nodes <= allowed.max:
        fix = f"the job allows {allowed.min} to {allowed.max} (spec.nodes.min and spec.nodes.max)"
        raise InvalidInput(Problem("--nodes", nodes, fix))
    model_ranks = job.spec.parallelism.tensor * job.spec.parallelism.pipeline
    if nodes * job.spec.local_size() % model_ranks:
        fix = f"{nodes} x {job.spec.local_size()} processes do not divide by {model_ranks} (tensor x pipeline)"
        raise InvalidSpec(Problem("--nodes", nodes, fix))
    return _replace(job, "nodes", max=nodes)


def _replace(job: TrainingJob, section: str, **changes: Any) -> TrainingJob:
    """A copy with other fields in one section of the spec."""
    changed = getattr(job.spec, section).model_copy(update=changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update={section: changed})})


def _entrypoint(words: tuple[str, ...], home: Path) -> tuple[str, ...]:
    program, *arguments = words
    if program == "-m":
        if not arguments:
            raise _missing("-m", "name the module to run after -m")
        return ("-m", *arguments)
    if program.endswith(".py"):
        script = home / program
        if not script.is_file():
            raise _missing(program, f"there is no such file in {home}, where the job file is")
        return (str(script), *arguments)
    found = shutil.which(program, path=str(home)) or shutil.which(program)
    if found is None:
        raise _missing(program, "it is neither a .py file, nor -m and a module, nor a program that is installed")
    return ("--no-python", found, *arguments)


def _missing(program: str, fix: str) -> InvalidInput:
    return InvalidInput(Problem("spec.entrypoint[0]", program, fix))
