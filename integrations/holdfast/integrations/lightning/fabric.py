"""The steps of a loop with Lightning Fabric."""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

import torch
from lightning.fabric import Fabric
from lightning.fabric.wrappers import _FabricModule, _unwrap_objects
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.rankrecord import Phase
from holdfast.checkpoint import Checkpointer
from holdfast.integrations.gradients import drop, parameters_of, total_norm
from holdfast.integrations.lightning.batch import accumulation_for
from holdfast.trainer import GuestRun, SpikeGuard, joined

Batch = TypeVar("Batch")

_CALLS: Final = "_num_iter_calls"
_loops: "weakref.WeakKeyDictionary[Fabric, FabricLoop]" = weakref.WeakKeyDictionary()


def fabric_steps(
    fabric: Fabric, model: Module, optimizer: Any, data: Iterable[Batch], **options: Any
) -> Iterator[tuple[int, Batch]]:
    """The steps of a pass over `data`, each with its number, in place of `for batch in data`:

        for step, batch in fabric_steps(fabric, model, optimizer, loader):

    All of them are what `fabric.setup` and `setup_dataloaders` returned. The first call restores the newest
    checkpoint; call it again for the next epoch. `options` are those of `FabricLoop`; those of the first call
    count. Raises what `Checkpointer.steps` raises.
    """
    loop = _loops.get(fabric)
    if loop is None:
        loop = _loops[fabric] = FabricLoop(fabric, model, optimizer, **options)
    return loop.steps(data)


class FabricLoop:
    """What `fabric_steps` makes for the first pass: model and optimizer are saved as by a `Checkpointer`, with
    `extra` besides, and the loss that `fabric.backward` was given is published with the gradient norm.

    `options` are those of `Checkpointer`: `every_steps`, `keep`, `uri`, `scheduler`, `extra`. `guards_spikes` and
    `skips_nonfinite` are as with `HoldfastCallback`; `accumulation`: a step is so many batches, of whose gradients
    `no_backward_sync` is the loop's own affair. Outside of Holdfast nothing is saved without `uri`.
    """

    def __init__(
        self,
        fabric: Fabric,
        model: Module,
        optimizer: Any,
        *,
        guards_spikes: bool = True,
        skips_nonfinite: bool = False,
        extra: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._run = run = joined()
        self._guards_spikes, self._skips_nonfinite = guards_spikes, skips_nonfinite
        self._guard = SpikeGuard(run.assignment)
        self._model = model._forward_module if isinstance(model, _FabricModule) else model
        self._optimizer: Optimizer = _unwrap_objects(optimizer)
        self._losses: list[Tensor] = []
        self._grad_norm: Tensor | None = None
        self._step = 0
        self.checkpointer = Checkpointer(
            run,
            model=self._model,
            optimizer=self._optimizer,
            extra={**(extra or {}), "spikes": self._guard},
            **options,
        )
        self._optimizer.register_step_pre_hook(self._before_update)
        backward: Callable[..., None] = fabric.backward

        @functools.wraps(backward)
        def heard(tensor: Tensor, *words: Any, **named: Any) -> None:
            run.phase(Phase.BACKWARD)
            self._losses.append(tensor.detach())
            backward(tensor, *words, **named)

        fabric.backward = heard  # type: ignore[method-assign]

    def steps(self, data: Iterable[Batch]) -> Iterator[tuple[int, Batch]]:
        """As `fabric_steps`."""
        run = self._run
        try:
            for step, batch in self.checkpointer.steps(_Counted(data) if hasattr(data, _CALLS) else data):
                self._step = step
                yield step, batch
                loss = torch.stack(self._losses).mean() if self._losses else None
                run.step(step, loss=loss, grad_norm=self._grad_norm)
                self._losses, self._grad_norm = [], None
        except Exception as error:
            if isinstance(run, GuestRun):
                run.failed(error)
            raise
        run.phase(Phase.IDLE)

    def _before_update(self, optimizer: Optimizer, *_: Any) -> None:
        self._run.phase(Phase.OPTIMIZER)
        self._grad_norm = norm = total_norm(self._model, parameters_of(optimizer))
        if not (self._guards_spikes or self._skips_nonfinite):
            return
        if norm is not None and not self._skips_nonfinite and not torch.isfinite(norm):
            norm = None  # a fault, which is gone back for
        if self._run.should_skip(self._step, grad_norm=norm, guard=self._guard if self._guards_spikes else None):
            drop(optimizer)


class _Counted:
    """A loader that Fabric has set up. It gives its sampler the number of the pass by counting how often it was
    gone over, also in a process that begins in a later one. Source:
    https://github.com/Lightning-AI/pytorch-lightning, src/lightning/fabric/wrappers.py: _FabricDataLoader
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    @property
    def epoch(self) -> int:
        return int(getattr(self._loader, _CALLS))

    def set_epoch(self, epoch: int) -> None:
        setattr(self._loader, _CALLS, epoch)


def micro_batches(global_batch: int, fabric: Fabric, micro_batch: int) -> int:
    """How many batches of `micro_batch` samples each rank adds up for a step of `global_batch` over the ranks of
    `fabric`. Raises InvalidInput where they do not come out even.
    """
    return accumulation_for(global_batch, world_size=fabric.world_size, micro_batch=micro_batch)
