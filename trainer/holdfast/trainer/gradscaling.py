"""Which steps torch's gradient scaler left out: their gradients overflowed, and the optimizer did not run.

A scaler begins with a scale that is too large and halves it until nothing overflows, so that the first steps of a
run in half precision have infinite norms and do no harm. Who steps its optimizer through `torch.amp.GradScaler` is
known here, whatever else it is told. Nothing waits for the device: an optimizer that decides there is asked when
somebody wants to know.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Final

import torch
from torch import Tensor

SCALED_IN_A_ROW: Final = 64
"""So many steps one after the other a scaler may leave out: from the largest number of single precision to one it
halves its scale 128 times, from its usual 65536 to one 16 times. What goes on longer is not finite by itself."""


class GradScaling:
    """What the scalers of this process did since it was asked last. Belongs to the training thread."""

    def __init__(self) -> None:
        self.is_used = False
        """Whether a scaler stepped an optimizer since."""
        self._has_skipped = False
        self._overflows: list[Tensor] = []
        self._follows = False

    def follow(self) -> None:
        """From now on; once is enough."""
        if not self._follows:
            self._follows = True
            torch.amp.GradScaler.step = self._noting(torch.amp.GradScaler.step)  # type: ignore[method-assign]

    def take(self) -> Callable[[], bool]:
        """Whether the step that ends now was left out; asking may wait for the device."""
        has_skipped, overflows = self._has_skipped, self._overflows
        self.is_used, self._has_skipped, self._overflows = False, False, []
        return lambda: has_skipped or any(bool(each.item()) for each in overflows)

    def _noting(self, given: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(given)
        def step(scaler: object, optimizer: Any, *arguments: Any, **named: Any) -> Any:
            hook = getattr(optimizer, "register_step_post_hook", None)
            if hook is None or not getattr(scaler, "is_enabled", bool)():
                return given(scaler, optimizer, *arguments, **named)
            ran = False

            def noted(ran_one: Any, *_: object) -> None:
                nonlocal ran
                ran = True
                # An optimizer that takes the scale itself is told whether anything overflowed.
                overflow = getattr(ran_one, "found_inf", None)
                if isinstance(overflow, Tensor):
                    self._overflows.append(overflow)

            handle = hook(noted)
            try:
                return given(scaler, optimizer, *arguments, **named)
            finally:
                handle.remove()
                self.is_used = True
                self._has_skipped |= not ran

        return step


scaling: Final = GradScaling()
"""This process's."""
