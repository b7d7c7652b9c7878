"""What a loop that computes through an `Accelerator` gives in each step: its own loss, gradient norm, tokens."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.trainer import Phase, Run, SpikeGuard


def tokens_in(batch: object) -> int:
    """How many tokens a batch of a language model has, by the shape of its `input_ids`; else `UNKNOWN_INT`."""
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    count = getattr(ids, "numel", None)
    return int(count()) if callable(count) else UNKNOWN_INT


class Observed:
    """While the `with` block runs, `accelerator.backward` and `clip_grad_norm_` are listened to, and `guard` is
    asked before an optimizer that was handed to `guards` takes its step. What the loop computes is not changed,
    unless the guard leaves a step out.

    The loss of a step is this rank's own: the mean over its micro batches. Nothing here waits for a device, but
    the guard.
    """

    def __init__(self, accelerator: Any, run: Run, guard: SpikeGuard | None, *, step: int = 0) -> None:
        """`step` is the last one that is complete."""
        self._accelerator = accelerator
        self._run = run
        self._guard = guard
        self._replaced: list[tuple[Any, str, Any]] = []  # with what its owner had of its own
        self._loss: Any = None
        self._norm: Any = None
        self._tokens = 0
        self._skipped = False
        self.step = step
        self.has_stepped = False
        """Whether an optimizer was asked for its step, with gradients of the whole step, since `completed`."""

    def __enter__(self) -> "Observed":
        self._replace(self._accelerator, "backward", self._backward)
        self._replace(self._accelerator, "clip_grad_norm_", self._clip_grad_norm)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def guards(self, optimizer: Any) -> None:
        """`optimizer` is one that the accelerator has prepared."""

        def step(given: Callable[..., object], *arguments: Any, **named: Any) -> object:
            if not self._accelerator.sync_gradients:
                return given(*arguments, **named)
            self.has_stepped = True
            if self._guard is not None and self._run.should_skip(
                self.step + 1, loss=self._loss, grad_norm=self._norm, guard=self._guard
            ):
                return None
            done = given(*arguments, **named)
            self._skipped = self._skipped or bool(getattr(optimizer, "step_was_skipped", False))
            return done

        self._replace(optimizer, "step", step)

    def took(self, batch: object) -> None:
        """The loop trains with `batch` next; several of them in a step add up."""
        count = tokens_in(batch)
        if count != UNKNOWN_INT:
            self._tokens += count

    def completed(self, step: int) -> None:
        """`step` is complete: tell the run. Raises RoundEnded when the round is over."""
        loss, norm, tokens, skipped = self._loss, self._norm, self._tokens, self._skipped
        self._loss = self._norm = None
        self._tokens, self._skipped, self.has_stepped = 0, False, False
        self.step = step
        self._run.step(step, loss=loss, grad_norm=norm, tokens=tokens or UNKNOWN_INT, skipped=skipped)

    def _backward(self, given: Callable[..., object], loss: Any, *arguments: Any, **named: Any) -> object:
        self._run.phase(Phase.BACKWARD)
        share = loss.detach() / self._accelerator.gradient_accumulation_steps
        self._loss = share if self._loss is None else self._loss + share
        done = given(loss, *arguments, **named)
        self._run.phase(Phase.FORWARD)
        return done

    def _clip_grad_norm(
        self, given: Callable[..., Any], parameters: Any, max_norm: float, norm_type: float = 2
    ) -> Any:
        self._run.phase(Phase.OPTIMIZER)
        norm = given(parameters, max_norm, norm_type=norm_type)
        if norm_type == 2 and norm is not None:
            whole = getattr(norm, "full_tensor", None)
            self._norm = norm if whole is None else whole()
        return norm

    def _replace(self, owner: Any, name: str, by: Callable[..., object]) -> None:
        """Calls of `owner.name` go to `by`, which is given what was there before."""
        given, before = getattr(owner, name), vars(owner).get(name)

        def called(*arguments: Any, **named: Any) -> object:
            return by(given, *arguments, **named)

        # torch's schedulers leave words of theirs on the method.
        called.__dict__.update(getattr(given, "__dict__", {}))
        setattr(owner, name, called)
        self._replaced.append((owner, name, before))
