"""What a restore into a script's state would do, said without doing it.

`holdfast checkpoint fits` starts the script with an order in its environment. The first Checkpointer that would
restore answers it, and ends the process: nothing is read into the state, trained or saved.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.checkpoint.capture.state import TrainingState
from holdfast.checkpoint.restore.plan import Plan
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.storage.address import read_address

VARIABLE: Final = "HOLDFAST_FITS"


class Order(msgspec.Struct, frozen=True):
    """Whether the checkpoint `name` at `uri` fits, to be written to the file `answer`."""

    uri: str
    name: str
    answer: str


class Fit(msgspec.Struct, frozen=True):
    """By name: what the checkpoint has and the script is given (`restored`); what the script has and the
    checkpoint has not (`missing` where that is refused, `kept` where it stays as the script made it); what the
    checkpoint has and nobody asks for (`left_over` where that is refused, `unused` where a line says it).
    `misfits` say which dtype or shape differs. `refused` is why nothing can be said name by name; "" where it can.
    """

    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    left_over: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    misfits: tuple[str, ...] = ()
    refused: str = ""

    @property
    def fits(self) -> bool:
        """Whether a restart with this script would restore it."""
        return not (self.missing or self.left_over or self.misfits or self.refused)


def fit_of(checkpoint: StoredCheckpoint, state: TrainingState, rank: int, world_size: int) -> Fit:
    """As `rank` of that world would restore it. The state stays as it is. Raises Unfit, Damaged, OSError."""
    plan, fitting = Plan.looked_at(checkpoint, state, rank, world_size)
    asked = fitting.asked
    return Fit(
        restored=tuple(name for name in plan.checkpoint.names() if name in asked),
        missing=tuple(fitting.missing),
        kept=tuple(dict.fromkeys(plan.kept)),
        left_over=tuple(fitting.own_left_over()),
        unused=tuple(plan.unused),
        misfits=tuple(fitting.misfits),
    )


def ordered(environment: Mapping[str, str]) -> Order | None:
    """What `holdfast checkpoint fits` wants of this process; None: nothing."""
    said = environment.get(VARIABLE)
    return None if said is None else decode_json(said.encode(), Order)


def answer(order: Order, state: TrainingState, rank: int, world_size: int) -> None:
    """Never returns: the process ends, as all ranks of it do. Rank 0 answers."""
    if rank == 0:
        try:
            address = read_address(order.uri)
            found = fit_of(StoredCheckpoint.open(address.storage, order.name), state, rank, world_size)
        except Exception as error:  # whatever it is, who asked is to hear of it
            found = Fit(refused=f"{type(error).__name__}: {error}")
        unfinished = Path(f"{order.answer}.new")
        unfinished.write_bytes(msgspec.json.encode(found))
        unfinished.rename(order.answer)
    os._exit(0)
