"""A job file: YAML read strictly, and what one machine runs of it.

Mistakes are told in one sentence with the line. For this machine paths are made absolute, the number of nodes is
chosen, and what could not run is refused.
"""

import shutil
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from holdfast.api.errors import InvalidInput, InvalidSpec, Problem
from holdfast.api.metadata import API_VERSION
from holdfast.api.section import MISSING
from holdfast.api.trainingjob import TrainingJob, read_trainingjob

FILE_MAX: Final = 16 * 2**20
VALUES_MAX: Final = 1_000_000


class _StrictLoader(yaml.SafeLoader):
    """Plain YAML without its surprises: no duplicate keys, no dates out of texts."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.MarkedYAMLError(problem="a name must be a text", problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"{key} is given twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_documents(file: Path) -> list[Any]:
    """Every document of a YAML file that is not empty. Raises InvalidInput."""
    try:
        with file.open("rb") as opened:
            body = opened.read(FILE_MAX + 1)
        if len(body) > FILE_MAX:
            raise _refused(file, f"it is larger than {FILE_MAX >> 20} MiB; is it a job file?")
        text = body.decode("utf-8")
    except OSError as error:
        raise _refused(file, f"the file cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise _refused(file, "the file is not UTF-8 text") from error
    try:
        documents = [document for document in yaml.load_all(text, _StrictLoader) if document is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise _refused(file, f"{line}{error.problem or error.context}") from error
    except (yaml.YAMLError, TypeError, RecursionError) as error:
        raise _refused(file, f"the file is not YAML: {' '.join(str(error).split())}") from error
    if not documents:
        raise _refused(file, "the file is empty")
    if _is_endless(documents):
        raise _refused(file, f"its anchors (*NAME) repeat it into more than {VALUES_MAX:,} values")
    return documents


def _is_endless(documents: list[Any]) -> bool:
    """Whether there are more values than anybody would read, each counted as often as an anchor repeats it."""
    left, count = list(documents), 0
    while left and count <= VALUES_MAX:
        value = left.pop()
        count += 1
        if isinstance(value, dict):
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return count > VALUES_MAX


def read_job_file(file: Path) -> TrainingJob:
    """The one TrainingJob in `file`; an Intervention beside it is left alone.

    Raises InvalidInput naming the file, InvalidSpec naming every field that is wrong.
    """
    jobs = []
    for document in read_documents(file):
        if not isinstance(document, dict):
            raise _refused(file, "a document is not a mapping of names to values")
        kind = document.get("kind", MISSING)
        if kind == "Intervention":
            continue
        if kind != "TrainingJob":
            raise InvalidSpec(Problem("kind", kind, "write TrainingJob"))
        if document.get("apiVersion") != API_VERSION:
            raise InvalidSpec(Problem("apiVersion", document.get("apiVersion", MISSING), f"write {API_VERSION}"))
        jobs.append(document)
    if not jobs:
        raise _refused(file, "it holds no document of kind TrainingJob")
    if len(jobs) > 1:
        raise _refused(file, f"it holds {len(jobs)} TrainingJobs, but one run is one job; split the file")
    return read_trainingjob(jobs[0])


class _File(str):
    """A file in a sentence: shown bare, not in quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _refused(file: Path, why: str) -> InvalidInput:
    return InvalidInput(Problem("file", _File(file), why))


@dataclass(frozen=True, slots=True)
class Prepared:
    """`entrypoint` is what the launcher takes: flags for how to run it, then the program and its arguments.

    `working_directory` is the job file's: relative paths in the file mean the same wherever it is run from.
    """

    job: TrainingJob
    entrypoint: tuple[str, ...]
    working_directory: Path


def prepare(
    job: TrainingJob, job_file: Path, nodes: int | None, checkpoints: Path, *, takes_stores: bool = False
) -> Prepared:
    """Resolve a job for machines that are there. `checkpoints` is used when the job names no place.

    `takes_stores`: checkpoints may go to an object store.

    Raises InvalidInput when the entry point is not there, InvalidSpec when `nodes` is outside the job's range or
    the job is suspended.
    """
    home = job_file.absolute().parent
    if job.spec.suspend:
        raise InvalidSpec(Problem("spec.suspend", value=True, fix="set it to false: nothing of the job would run"))
    if nodes is not None:
        allowed = job.spec.nodes
        if not allowed.min <= nodes <= allowed.max:
            fix = f"the job allows {allowed.min} to {allowed.max} (spec.nodes.min and spec.nodes.max)"
            raise InvalidInput(Problem("--nodes", nodes, fix))
        model_ranks = job.spec.parallelism.model_ranks
        if nodes * job.spec.local_size() % model_ranks:
            processes = f"{nodes} x {job.spec.local_size()} processes"
            fix = f"{processes} do not divide by {model_ranks} (tensor x context x pipeline)"
            raise InvalidSpec(Problem("--nodes", nodes, fix))
        job = _replace(job, "nodes", max=nodes)
    uri = job.spec.checkpoint.uri
    if uri is None:
        uri = str(checkpoints)
    elif "://" in uri and not uri.startswith("file:///") and not takes_stores:
        fix = "write file:///absolute/path or a path; other stores are not possible yet"
        raise InvalidSpec(Problem("spec.checkpoint.uri", uri, fix))
    elif "://" not in uri:
        uri = str((home / uri).resolve())
    return Prepared(_replace(job, "checkpoint", uri=uri), _entrypoint(job.spec.entrypoint, home), home)


def _replace(job: TrainingJob, section: str, **changes: Any) -> TrainingJob:
    """A copy with other fields in one section of the spec."""
    changed = getattr(job.spec, section).model_copy(update=changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update={section: changed})})


def _entrypoint(words: tuple[str, ...], home: Path) -> tuple[str, ...]:
    program, *arguments = words
    if program == "-m" and arguments:
        return ("-m", *arguments)
    if program == "-m":
        fix = "name the module to run after -m"
    elif program.endswith(".py"):
        if (script := home / program).is_file():
            return (str(script), *arguments)
        fix = f"there is no such file in {home}, where the job file is"
    else:
        if found := shutil.which(program, path=str(home)) or shutil.which(program):
            return ("--no-python", found, *arguments)
        fix = "it is neither a .py file, nor -m and a module, nor a program that is installed"
    raise InvalidInput(Problem("spec.entrypoint[0]", program, fix))
