"""What a script changes between two passes over its data, set aside while it goes through passes that are over.

A loop over all epochs begins with those that are over. `steps` yields nothing in them, yet the script steps its
scheduler behind each, updates an average or counts. None of that is to happen twice, so the restored state is put
back before the pass that goes on. Parameters and what the optimizer keeps of them change in steps alone, and stay.
"""

from copy import deepcopy

import torch

from holdfast.checkpoint.capture.state import TrainingState, load_extra


class Aside:
    """A copy of the restored state: scheduler, scaler, `extra`, and the settings of the optimizer's groups."""

    def __init__(self, state: TrainingState) -> None:
        self._owners = [*state.singles.values(), *state.extra.values()]
        self._states = [deepcopy(each.state_dict()) for each in self._owners]
        self._groups = state.optimizer.param_groups
        self._settings = [
            {name: deepcopy(value) for name, value in group.items() if name != "params"} for group in self._groups
        ]

    @torch.no_grad()
    def put_back(self) -> None:
        """Once."""
        for owner, state in zip(self._owners, self._states, strict=True):
            load_extra(owner, state)
        for group, settings in zip(self._groups, self._settings, strict=True):
            for name, value in settings.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(name), torch.Tensor):
                    group[name].copy_(value)  # a learning rate that is on the device stays there
                else:
                    group[name] = value
