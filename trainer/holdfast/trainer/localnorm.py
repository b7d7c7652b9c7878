"""The norm of a rank's own gradient, before it is reduced over the ranks.

A gradient that is reduced is the same on all ranks, whoever computed it wrong. The rank's own is there for a
moment: autograd has added it up and the framework has not yet sent it. DDP shows it in the parameter itself, FSDP2
in the gathered parameter, which a module holds while it computes. Where neither is so (a pass that is compiled as
a whole, parameters without a gradient of their own) nothing is told.
"""

from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.hooks import RemovableHandle

from holdfast.trainer.hostcopy import HostCopy, Stopwatch

_PARAMETERS_MAX: Final = 1 << 16


class LocalNorm:
    """Of one model on one device, until it is closed. It is measured in the steps for which it is `armed`."""

    def __init__(self, model: Module, device: torch.device) -> None:
        self._device = device
        self._watch = Stopwatch(device)
        self.armed = False
        self._hooked: dict[int, RemovableHandle] = {}  # by the id of a parameter, which the hook keeps alive
        self._norms: dict[int, Tensor] = {}
        self._error: Exception | None = None
        self._handles = [each.register_forward_pre_hook(self._before_forward) for each in model.modules()]

    def arm(self) -> None:
        """Measure in the step that begins now: of several backward passes in it, the last."""
        self.armed = True
        self._watch = Stopwatch(self._device)

    def take(self) -> tuple[HostCopy, Stopwatch] | None:
        """The step is complete: its norm, and what that took; None where nothing was seen. Never waits.

        Raises what went wrong in the step.
        """
        self.armed = False
        if self._error is not None:
            raise self._error
        norms, self._norms = self._norms, {}
        if not norms:
            return None
        self._watch.start()
        total = HostCopy(torch.linalg.vector_norm(torch.stack(list(norms.values()))))
        self._watch.stop()
        return total, self._watch

    def close(self) -> None:
        """Look no more, and let go of the model."""
        for handle in (*self._handles, *self._hooked.values()):
            handle.remove()
        self._handles, self._hooked, self._norms = [], {}, {}

    def _before_forward(self, module: Module, args: tuple[Any, ...]) -> None:
        """Now the module holds what it computes with: under FSDP2 that comes and goes."""
        if torch.compiler.is_compiling() or not self.armed or len(self._hooked) >= _PARAMETERS_MAX:
            return
        try:
            self._hook(module)
        except Exception as error:  # the step goes on
            self._error = error

    def _hook(self, module: Module) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and parameter.is_leaf and id(parameter) not in self._hooked:
                hook = parameter.register_post_accumulate_grad_hook(self._accumulated)  # type: ignore[no-untyped-call]
                self._hooked[id(parameter)] = hook

    @torch.no_grad()
    def _accumulated(self, parameter: Tensor) -> None:
        try:
            self._add(parameter)
        except Exception as error:  # the pass goes on
            self._error = error

    def _add(self, parameter: Tensor) -> None:
        gradient = parameter.grad
        if not self.armed or gradient is None or hasattr(gradient, "_local_tensor") or gradient.is_sparse:
            return
        if gradient.device == self._device:
            self._watch.start()
            self._norms[id(parameter)] = torch.linalg.vector_norm(gradient, dtype=torch.float32)
            self._watch.stop()
