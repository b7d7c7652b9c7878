"""What follows when a job that has succeeded is run again: nothing, more of the same, or a question.

What a run was asked to train is kept in its state directory. The same again has nothing to do. Other arguments, or
a script that was edited, are how more steps are asked for: the job goes on from its newest checkpoint. Another
program, or another world, may be another job under an old name: what its checkpoint would do there only its author
knows.
"""

import hashlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from holdfast.api.errors import InvalidInput, Problem

if TYPE_CHECKING:  # every command looks at what was trained, and few read a job
    from holdfast.api.trainingjob import JobSpec

# What stands before the program itself in what a launcher takes.
_FLAGS = ("-m", "--no-python")


class Trained(msgspec.Struct, frozen=True):
    """What a run was asked to train. `source` is the SHA-256 of the script, "" where it is no file."""

    entrypoint: tuple[str, ...]
    source: str
    nodes: tuple[int, int]
    processes: int
    model_ranks: int

    @property
    def program(self) -> tuple[str, ...]:
        return self.entrypoint[: 2 if self.entrypoint[0] in _FLAGS else 1]

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.entrypoint[len(self.program) :]


class Follows(Enum):
    """What follows a success."""

    NOTHING = "nothing"
    MORE = "more"
    QUESTION = "question"


@dataclass(frozen=True, slots=True)
class Sequel:
    """`differences` are what the job asks for now and did not before, one in each line."""

    follows: Follows
    differences: tuple[str, ...] = ()


def trained_by(entrypoint: tuple[str, ...], spec: "JobSpec") -> Trained:
    """What a job trains whose launchers are given this entry point. Raises OSError without its script."""
    source = ""
    if entrypoint[0] not in _FLAGS:
        with open(entrypoint[0], "rb") as script:
            source = hashlib.file_digest(script, "sha256").hexdigest()
    nodes = (spec.nodes.min, spec.nodes.max)
    return Trained(entrypoint, source, nodes, spec.local_size(), spec.parallelism.model_ranks)


def sequel(before: Trained | None, now: Trained, *, told_to_continue: bool = False) -> Sequel:
    """What follows the success of what was trained `before`, None where that is not known any more."""
    known = now if before is None else before
    others = [
        f"{name} was {was}, is {is_}"
        for name, was, is_ in (
            ("entry point", " ".join(known.program), " ".join(now.program)),
            ("spec.nodes", _span(known.nodes), _span(now.nodes)),
            ("processes per node", str(known.processes), str(now.processes)),
            ("ranks that share a model", str(known.model_ranks), str(now.model_ranks)),
        )
        if was != is_
    ]
    more = []
    if known.arguments != now.arguments:
        was, is_ = (" ".join(each.arguments) or "none" for each in (known, now))
        more.append(f"arguments were {was}, are {is_}")
    if known.source != now.source and known.program == now.program:
        more.append(f"{now.program[-1]} was edited")
    differences = (*others, *more)
    if told_to_continue:
        return Sequel(Follows.MORE, differences)
    return Sequel(Follows.QUESTION if others else Follows.MORE if more else Follows.NOTHING, differences)


def question(job: str, differences: tuple[str, ...]) -> InvalidInput:
    """What is asked before another program or another world goes on with what a job has trained."""
    fix = (
        f"{'; '.join(differences)}: --continue goes on from its newest checkpoint, --fresh starts it over, and "
        "another metadata.name makes it another job"
    )
    return InvalidInput(Problem("job", f"{job}, which has succeeded", fix))


def _span(nodes: tuple[int, int]) -> str:
    return f"{nodes[0]} to {nodes[1]}"
