"""Job files: YAML with one or more documents, read strictly, errors in one sentence with the line."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from holdfast.api.errors import InvalidInput, InvalidSpec, Problem
from holdfast.api.metadata import API_VERSION
from holdfast.api.section import MISSING
from holdfast.api.trainingjob import TrainingJob, read_trainingjob

Document = Mapping[str, Any]


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
        text = file.read_text(encoding="utf-8")
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
    return documents


def read_job_file(file: Path) -> TrainingJob:
    """The one TrainingJob in `file`; documents of other Holdfast kinds beside it are left alone.

    Raises InvalidInput naming the file, InvalidSpec naming every field that is wrong.
    """
    jobs = [document for document in map(_checked(file), read_documents(file)) if _is_job(document)]
    if not jobs:
        raise _refused(file, "it holds no document of kind TrainingJob")
    if len(jobs) > 1:
        raise _refused(file, f"it holds {len(jobs)} TrainingJobs, but one run is one job; split the file")
    return read_trainingjob(jobs[0])


def _checked(file: Path) -> Any:
    def check(document: Any) -> Document:
        if not isinstance(document, dict):
            raise _refused(file, "a document is not a mapping of names to values")
        return document

    return check


def _is_job(document: Document) -> bool:
    """Whether a document is a job; one that says neither is asked to say so."""
    if "kind" not in document:
        raise InvalidSpec(Problem("kind", MISSING, "write TrainingJob"))
    if document["kind"] == "Intervention":
        return False
    if document["kind"] != "TrainingJob":
        raise InvalidSpec(Problem("kind", document["kind"], "write TrainingJob"))
    if document.get("apiVersion") != API_VERSION:
        raise InvalidSpec(Problem("apiVersion", document.get("apiVersion", MISSING), f"write {API_VERSION}"))
    return True


class _File:
    """A file in a sentence: shown bare, not in quotes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return str(self.path)


def _refused(file: Path, why: str) -> InvalidInput:
    return InvalidInput(Problem("file", _File(file), why))
