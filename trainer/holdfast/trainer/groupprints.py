"""Fingerprints of groups of a rank's parameters, so that two runs can tell in which of them they differ."""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from torch.nn import Module

from holdfast.api.bounds import NAME_LENGTH_MAX
from holdfast.api.runhistory import GROUPS_MAX
from holdfast.trainer.fingerprint import Sketch

logger = logging.getLogger(__name__)

_UNDER_WAY_MAX: Final = 4  # a device so far behind is given no more to do
REST: Final = "(others)"

Publish = Callable[[int, str, int], object]
"""Called with the step, the group and its fingerprint."""


class GroupPrints:
    """One model's during one round; taken and published as `fingerprint.Replica` does, at the same steps.

    It reads the rank's parameters once more at these steps, on rank 0 alone.
    """

    def __init__(self, model: Module, *, every: int, publish: Publish) -> None:
        """`every` is in steps."""
        self._model = model
        self._every = every
        self._publish = publish
        self._under_way: list[tuple[int, dict[str, Sketch]]] = []
        self._is_unfit = False

    def completed(self, step: int) -> None:
        """Step `step` is complete, the optimizer has stepped. Never waits, and never raises: training goes on."""
        if self._is_unfit:
            return
        try:
            self._publish_arrived()
            if step % self._every == 0 and len(self._under_way) < _UNDER_WAY_MAX:
                held = dict(self._model.named_parameters())
                groups = grouped(held)
                prints = {group: Sketch({name: held[name] for name in names}) for group, names in groups.items()}
                self._under_way.append((step, prints))
                self._publish_arrived()
        except Exception:
            logger.exception("groups of parameters are not fingerprinted any more step=%d", step)
            self._is_unfit = True

    def _publish_arrived(self) -> None:
        while self._under_way and all(sketch.is_there() for sketch in self._under_way[0][1].values()):
            step, prints = self._under_way.pop(0)
            for group, sketch in prints.items():
                self._publish(step, group, sketch.value())


def grouped(names: Iterable[str], most: int = GROUPS_MAX) -> dict[str, list[str]]:
    """Parameters by the first parts of their names: as many parts as leave `most` groups at the most.

    Where the first part alone makes more, what comes after the first ones is one group, `REST`.
    """
    split = [(name, name.split(".")) for name in names]
    found: dict[str, list[str]] = {}
    for depth in range(1, max((len(parts) for _, parts in split), default=0) + 1):
        finer: dict[str, list[str]] = {}
        for name, parts in split:
            finer.setdefault(".".join(parts[:depth])[:NAME_LENGTH_MAX], []).append(name)
        if len(finer) <= most or not found:
            found = finer
        else:
            break
    if len(found) <= most:
        return found
    kept = dict(list(found.items())[: most - 1])
    kept[REST] = [name for group, members in found.items() if group not in kept for name in members]
    return kept
