"""What a script changes between two passes over its data, set aside while it goes through passes that are over.

A loop over all epochs begins with those that are over. `steps` yields nothing in them, yet the script steps its
scheduler behind each, updates an average or counts; it may also prune parameters, copy averaged ones into the
model or go over other data in training mode. None of that is to happen twice, so the restored state is put back
before the pass that goes on. Of what is large a digest is kept in place of a copy: where it has changed, it is
read again.
"""

from copy import deepcopy
from dataclasses import replace
from typing import Final

import torch

from holdfast.checkpoint.capture.content import Contents
from holdfast.checkpoint.capture.live import LiveState
from holdfast.checkpoint.capture.state import TrainingState, load_extra

_TRAINED: Final = ("model.", "optimizer.state.")


class Aside:
    """A copy of the restored state: scheduler, scaler, `extra`, and the settings of the optimizer's groups; and a
    digest of what `rank` holds of the model and of what the optimizer keeps.
    """

    def __init__(self, state: TrainingState, rank: int) -> None:
        self._owners = [*state.singles.values(), *state.extra.values()]
        self._states = [deepcopy(each.state_dict()) for each in self._owners]
        self._optimizer = state.optimizer
        self._settings = [
            {name: deepcopy(value) for name, value in group.items() if name != "params"}
            for group in self._optimizer.param_groups
        ]
        self._live = LiveState(replace(state, data=None, extra={}), rank=rank)
        self._contents = Contents()
        self._trained = self._digest()

    def is_touched(self) -> bool:
        """Whether this rank's part of the model, or what the optimizer keeps of it, was changed since."""
        return self._digest() != self._trained

    def _digest(self) -> str:
        look = self._live.look(with_data=False)
        names = sorted(name for name in (*look.held, *look.given) if name.startswith(_TRAINED))
        return self._contents.of_all(look, [(name, ()) for name in names])

    @torch.no_grad()
    def put_back(self) -> None:
        """What was copied. Once."""
        for owner, state in zip(self._owners, self._states, strict=True):
            load_extra(owner, state)
        for group, settings in zip(self._optimizer.param_groups, self._settings, strict=True):
            for name, value in settings.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    group[name].copy_(value)  # a learning rate that is on the device stays there
                else:
                    group[name] = value
