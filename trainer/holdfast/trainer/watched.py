"""What is to be done after each step with the model that a round trains."""

import logging
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import Module
from torch.nn.utils import get_total_norm

from holdfast.api.control import Assignment
from holdfast.api.drill import DRILL_FILE, Spoiler, parse_injection, read_drill
from holdfast.api.errors import HoldfastError
from holdfast.trainer.block import CHECK
from holdfast.trainer.corruption import Corruption, NanOutputs
from holdfast.trainer.proofs import Proofs
from holdfast.trainer.record import RankRecord
from holdfast.trainer.replica import Replica

logger = logging.getLogger(__name__)


class Watched:
    """The model of one round: nothing is done with it, as a rule, but what the assignment asks for."""

    def __init__(
        self,
        model: Module,
        assignment: Assignment,
        *,
        part: str,
        record: RankRecord,
        corruptible: Path | None,
    ) -> None:
        """`corruptible` is the directory in which a drill leaves its requests.

        What a drill corrupts is fingerprinted after, but in a pause that has begun: so does memory.
        """
        todo: list[Callable[[int], None]] = []
        self._model: Module | None = model
        self._proofs: Proofs | None = None
        every = assignment.fingerprint_every
        if every > 0:
            spoiler = _spoiler(corruptible, assignment.local_rank)
            self._proofs = Proofs(
                model, every=every, record=record, is_drill=corruptible is not None, spoiler=spoiler
            )
            todo.append(self._proofs.completed)
        if corruptible is not None:
            todo.append(Corruption(corruptible, assignment.rank, model).completed)
            todo.append(NanOutputs(corruptible, assignment.rank, model).completed)
        if every > 0:
            todo.append(Replica(model, every=every, part=part, publish=record.fingerprint).completed)
        self._todo = tuple(todo)

    def completed(self, step: int) -> None:
        """Step `step` is complete."""
        for each in self._todo:
            each(step)

    def close(self) -> None:
        """The round is over: let go of the model."""
        if self._proofs is not None:
            self._proofs.close()
        self._todo, self._model = (), None

    @torch.no_grad()
    def is_finite(self) -> bool:
        """Whether all parameters in training are, as far as this rank can tell. Waits for the device.

        A gradient that was not finite in the last step is in them, and no loss will tell of it.
        """
        trained = [each for each in self._model.parameters() if each.requires_grad] if self._model else []
        held = [getattr(each, "_local_tensor", each).detach() for each in trained if each.dtype.itemsize > 1]
        try:
            # The largest of all magnitudes, which is not finite when one of them is not: it cannot overflow.
            largest = get_total_norm([each for each in held if each.numel()], norm_type=math.inf)
            return bool(largest.isfinite())
        except Exception as error:  # a script may do with its model what it wants once it has trained it
            logger.warning("whether parameters are finite is not known error=%s", error)
            return True


def _spoiler(corruptible: Path | None, local_rank: int) -> Spoiler | None:
    """How the device of a rank goes wrong in a drill; None: not at all."""
    if corruptible is None or not (corruptible / DRILL_FILE).exists():
        return None
    try:
        drill = read_drill(corruptible / DRILL_FILE)
        injections = [parse_injection(text) for text in drill.inject]
    except HoldfastError as error:
        logger.warning("drill is not understood file=%s error=%s", corruptible / DRILL_FILE, error)
        return None
    device = drill.devices[local_rank] if local_rank < len(drill.devices) else ""
    spoiler = Spoiler(injections, CHECK, device)
    return None if spoiler.is_idle or spoiler.hangs else spoiler
