"""Writes down what every module takes and gives, for two runs to be compared step by step (`api.rehearsal`).

Everything waits for the device, and nothing here is meant for a run that has to be fast. What cannot be read (a
tensor without words, a module that is compiled) leaves a question mark or no line, and never stops the run.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from holdfast.api.bounds import LINE_LENGTH_MAX
from holdfast.api.rehearsal import UNREADABLE, Kind, Look, Rehearsal, Seen, trace_file
from holdfast.trainer.fingerprint import fingerprint
from holdfast.trainer.groupprints import grouped
from holdfast.trainer.hostcopy import Number
from holdfast.trainer.torchtensors import TorchDispatchMode, tree_leaves

_SAYS_MAX: Final = 1024
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size)


class RehearsalOver(SystemExit):
    """The last step that is wanted is complete; the process ends with exit code 0."""


class Rehearsing:
    """One rank's. `watch` once a round, `completed` after each step, both on the training thread."""

    def __init__(self, wanted: Rehearsal, rank: int) -> None:
        """Raises OSError when the file cannot be made."""
        self._wanted = wanted
        self._file = open(trace_file(Path(wanted.output), rank), "wb")  # noqa: SIM115  # until the last step
        self._step = 0  # the one under way
        self._lock = threading.RLock()  # a device's backward pass has a thread of its own
        self._calls: Counter[str] = Counter()
        self._under_way: dict[str, list[int]] = {}
        self._names: dict[int, str] = {}  # of parameters, by id
        self._model: Module | None = None
        self._handles: list[RemovableHandle] = []
        self._operations: _Operations | None = None
        self._is_reading = False

    def watch(self, model: Module, step: int) -> None:
        """`model` goes on after `step`, as it was restored or made."""
        if self._model is not None:
            return
        self._model, self._step = model, step
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self._say(Kind.STATE, name, gave=self.hash([tensor]))
        self._file.flush()
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._step = step + 1
        for name, module in model.named_modules():
            # First of the hooks before a call, last of those after it, so that nothing else lies in between.
            self._handles.append(module.register_forward_pre_hook(self._entered(name), with_kwargs=True))
            self._handles.append(module.register_forward_hook(self._left(name), with_kwargs=True))
        self._handles.append(register_optimizer_step_pre_hook(self._updating))

    def completed(self, step: int, loss: Number | None, grad_norm: Number | None) -> None:
        """Step `step` is complete. Raises RehearsalOver after the last one that is wanted."""
        self._step = step
        for kind, number in ((Kind.LOSS, loss), (Kind.NORM, grad_norm)):
            if number is not None:
                self._say(kind, "", gave=_float_of(number).hex())
        held = {} if self._model is None else dict(self._model.named_parameters())
        for name, parameter in held.items():
            self._say(Kind.PARAMETER, name, gave=self.hash([parameter]))
        for group, names in grouped(held).items():
            print_ = fingerprint({name: held[name] for name in names})
            self._say(Kind.GROUP, group, gave=f"{print_:016x}")
        self._file.flush()
        if step >= self._wanted.last:
            self.close()
            raise RehearsalOver(0)
        self._step = step + 1
        self._calls.clear()
        self._under_way.clear()

    def close(self) -> None:
        """Nothing more is seen."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._file.close()

    def hash(self, values: Iterable[object]) -> str:
        """Of tensors and plain values, in hex; "?" where one of them can be read as neither."""
        digest = hashlib.blake2b(digest_size=8)
        before, self._is_reading = self._is_reading, True
        try:
            for value in values:
                if isinstance(value, Tensor):
                    digest.update(fingerprint({"": value.detach()}).to_bytes(8, "little"))
                elif isinstance(value, _PLAIN):
                    digest.update(repr(value).encode())
                else:
                    digest.update(type(value).__qualname__.encode())
        except Exception:
            return UNREADABLE
        finally:
            self._is_reading = before
        return digest.hexdigest()

    @property
    def is_reading(self) -> bool:
        """Whether the operations that run now are those of a fingerprint."""
        return self._is_reading

    def operation(self, name: str, took: Sequence[object], gave: object) -> None:
        """One operation of the module that is looked at."""
        plain = [repr(each) for each in took if not isinstance(each, Tensor)]
        tensors = [each for each in took if isinstance(each, Tensor)]
        self._say(
            Kind.OPERATION,
            name,
            took=self.hash(tensors),
            gave=self.hash(tree_leaves(gave)),
            says=", ".join(plain)[:_SAYS_MAX],
        )

    def _say(
        self, kind: Kind, name: str, *, call: int = 0, took: str = "", gave: str = "", says: str = ""
    ) -> None:
        with self._lock:
            if not self._file.closed:
                seen = Seen(self._step, kind, name[:LINE_LENGTH_MAX], call, took, gave, says)
                self._file.write(msgspec.json.encode(seen) + b"\n")

    def _entered(self, name: str) -> Callable[[Module, tuple[Any, ...], dict[str, Any]], None]:
        def entered(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if torch.compiler.is_compiling():
                return
            call = self._calls[name]
            self._calls[name] += 1
            self._under_way.setdefault(name, []).append(call)
            if name == "":
                self._say(Kind.RANDOM, "", gave=self.hash(_generators()))
            self._say(Kind.ENTER, name, call=call, took=self.hash(tree_leaves((args, kwargs))))
            look = self._wanted.look
            if look is not None and look == Look(self._step, name, call):
                self._operations = _Operations(self)
                self._operations.__enter__()  # type: ignore[no-untyped-call]

        return entered

    def _left(self, name: str) -> Callable[[Module, tuple[Any, ...], dict[str, Any], Any], None]:
        def left(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            calls = self._under_way.get(name)
            if torch.compiler.is_compiling() or not calls:
                return
            call = calls.pop()
            look = self._wanted.look
            if self._operations is not None and look == Look(self._step, name, call):
                self._operations.__exit__(None, None, None)  # type: ignore[no-untyped-call]
                self._operations = None
            given = tree_leaves(output)
            self._say(
                Kind.LEAVE, name, call=call, took=self.hash(tree_leaves((args, kwargs))), gave=self.hash(given)
            )
            for place, tensor in enumerate(given):
                if isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled():
                    tensor.register_hook(self._gradient(name, call, place))  # type: ignore[no-untyped-call]

        return left

    def _gradient(self, name: str, call: int, place: int) -> Callable[[Tensor], None]:
        def computed(gradient: Tensor) -> None:
            said = f"output {place}"
            self._say(Kind.OUTPUT_GRADIENT, name, call=call, gave=self.hash([gradient]), says=said)

        return computed

    def _updating(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = self._names.get(id(parameter))
                if name is not None and parameter.grad is not None:
                    self._say(Kind.GRADIENT, name, gave=self.hash([parameter.grad]))


class _Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    """Tells of every operation while it is entered."""

    def __init__(self, told: Rehearsing) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._told = told

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if self._told.is_reading:
            return func(*args, **named)
        # Before: an operation may write into what it takes.
        took = [each.clone() if isinstance(each, Tensor) else each for each in tree_leaves((args, dict(named)))]
        gave = func(*args, **named)
        with suppress(Exception):
            self._told.operation(str(func), took, gave)
        return gave


def _float_of(number: Number) -> float:
    return float(number.detach() if isinstance(number, Tensor) else number)


def _generators() -> list[Tensor]:
    """The states of torch's generators of random numbers that are in use."""
    states = [torch.get_rng_state()]
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state())
    return states
