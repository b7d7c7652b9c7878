"""Who started this process: a Holdfast launcher, stock torchrun, or a person. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.control import CONTROL_VARIABLE, RUN_DIRECTORY_VARIABLE, Assignment
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.round import Endpoint, Restore, Tier


class Mode(Enum):
    ATTACHED = "attached"  # under a Holdfast launcher that assigns rounds
    TORCHRUN = "torchrun"  # under any launcher that sets RANK and its companions: one round
    PLAIN = "plain"  # `python train.py`: one process, one round


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the environment says. Exactly one of `control_path` and `assignment` is set.

    `corruptible` is where a drill leaves what it wants corrupted, None outside of drills.
    """

    mode: Mode
    run_directory: Path | None = None
    control_path: str | None = None
    assignment: Assignment | None = None
    corruptible: Path | None = None

    def only_assignment(self) -> Assignment:
        """The one round of a process without a Holdfast launcher."""
        assert self.assignment is not None
        return self.assignment


def surroundings_of(environment: Mapping[str, str]) -> Surroundings:
    """Read the mode out of `environment`. A Holdfast launcher wins over the variables of torchrun.

    Raises InvalidInput when RANK is set and its companions are missing or are no numbers.
    """
    directory = environment.get(RUN_DIRECTORY_VARIABLE)
    run_directory = Path(directory) if directory else None
    corruptible = run_directory if environment.get(CORRUPTIBLE_VARIABLE) else None
    if control_path := environment.get(CONTROL_VARIABLE):
        return Surroundings(Mode.ATTACHED, run_directory, control_path=control_path, corruptible=corruptible)
    if "RANK" in environment:
        return Surroundings(
            Mode.TORCHRUN, run_directory, assignment=_torchrun_assignment(environment), corruptible=corruptible
        )
    return Surroundings(Mode.PLAIN, run_directory, assignment=_plain_assignment(), corruptible=corruptible)


def _torchrun_assignment(environment: Mapping[str, str]) -> Assignment:
    """The one round of this process. Its number is the launcher's restart count, so it grows as rounds do."""
    world_size = _number(environment, "WORLD_SIZE")
    return Assignment(
        job=environment.get("TORCHELASTIC_RUN_ID", "torchrun"),
        round=_number(environment, "TORCHELASTIC_RESTART_COUNT", default=0),
        rank=_number(environment, "RANK"),
        local_rank=_number(environment, "LOCAL_RANK", default=0),
        world_size=world_size,
        local_size=_number(environment, "LOCAL_WORLD_SIZE", default=1),
        endpoint=Endpoint(_text(environment, "MASTER_ADDR"), _number(environment, "MASTER_PORT")),
        restore=Restore(tier=Tier.CHECKPOINT),
        reason="started by torchrun",
    )


def _plain_assignment() -> Assignment:
    """One rank that resumes from the newest checkpoint wherever its script keeps them."""
    return Assignment(
        job="plain",
        round=0,
        rank=0,
        local_rank=0,
        world_size=1,
        local_size=1,
        endpoint=Endpoint("", 0),
        restore=Restore(tier=Tier.CHECKPOINT),
        reason="started without a launcher",
    )


def _text(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if value is None:
        raise InvalidInput(Problem(name, value, "set it beside RANK, as torchrun does"))
    return value


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    if default is not None and name not in environment:
        return default
    value = _text(environment, name)
    try:
        return int(value)
    except ValueError:
        raise InvalidInput(Problem(name, value, "give a whole number")) from None
