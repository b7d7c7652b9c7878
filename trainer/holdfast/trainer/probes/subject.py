"""`Subject`: what a script gives to be probed, and how it is run without leaving a trace in it."""

import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.api.audit import ProbeAnswer
from holdfast.api.errors import InvalidInput, Problem

SEED: Final = 20_240
FROM_KEYS: Final = ("input_ids", "inputs_embeds", "tokens", "input", "inputs", "x")
"""Names under which a mapping of inputs usually has its sequence; the first that is there is taken."""


class Watch(Protocol):
    """What a script feeds while it trains, and what then answers as a probe does."""

    def answers(self) -> tuple[ProbeAnswer, ...]:
        """What is to be said of all that was fed so far; never empty."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, a small batch, and what is needed to take a step with them.

    Args:
        model: as it trains, on its device and in its dtype. It is handed back as it was: parameters, gradients,
            buffers, training flags, random states.
        inputs: what the model is called with: a tensor, a tuple or list (`model(*inputs)`) or a mapping
            (`model(**inputs)`). The sequence in it is B x T of integers, or B x T x ... of numbers.
        targets: handed to `loss`, B first.
        loss: `loss(outputs, targets)`, a tensor of one element. Without it nothing that needs gradients is probed.
        forward: `forward(model, inputs)`, where the model is not called as above.
        sequence: which of `inputs` is the sequence, by position or key. None: the tensor itself, one of the usual
            names, or the first tensor of two dimensions or more.
        time_dim: which dimension of the sequence is time, 0 or 1; the other one is the batch.
        loss_is_mean: whether `loss` is a mean over the samples; False: a sum.
        reference: a second implementation: a module that is called as the model is, or a function of the inputs.
        world_size: of the run that is planned, for reductions.
        reduce_dtype: in which gradients are reduced there.
        watches: watches that the model or its hooks feed when it runs.

    Raises InvalidInput when a field has no possible value.
    """

    model: nn.Module
    inputs: Any
    targets: Any = None
    loss: Callable[[Any, Any], Tensor] | None = None
    forward: Callable[[nn.Module, Any], Any] | None = None
    sequence: int | str | None = None
    time_dim: int = 1
    loss_is_mean: bool = True
    reference: nn.Module | Callable[[Any], Any] | None = None
    world_size: int | None = None
    reduce_dtype: torch.dtype = torch.float32
    watches: Sequence[Watch] = ()

    def __post_init__(self) -> None:
        problems = []
        if not isinstance(self.model, nn.Module):
            problems.append(Problem("model", type(self.model).__name__, "hand over a torch.nn.Module"))
        if self.time_dim not in (0, 1):
            problems.append(Problem("time_dim", self.time_dim, "write 0 or 1; the other dimension is the batch"))
        if self.world_size is not None and self.world_size < 2:
            problems.append(Problem("world_size", self.world_size, "write 2 or more, or leave it out"))
        if not (isinstance(self.reduce_dtype, torch.dtype) and self.reduce_dtype.is_floating_point):
            problems.append(Problem("reduce_dtype", self.reduce_dtype, "write a dtype such as torch.bfloat16"))
        if problems:
            raise InvalidInput(*problems)
        if self.tokens.ndim < 2:
            shape = tuple(self.tokens.shape)
            raise InvalidInput(Problem("inputs", shape, "give the sequence a batch and a time dimension"))

    @property
    def tokens(self) -> Tensor:
        """The sequence among the inputs. Raises InvalidInput when there is none."""
        key = self._sequence_key()
        found = self.inputs if key is None else self.inputs[key]
        if not isinstance(found, Tensor):
            what = f"{type(found).__name__} {'' if key is None else key!r}".strip()
            raise InvalidInput(Problem("inputs", what, "the sequence is a tensor"))
        return found

    @property
    def steps(self) -> int:
        """T, the length of the sequence."""
        return self.tokens.shape[self.time_dim]

    @property
    def samples(self) -> int:
        """B, the number of samples."""
        return self.tokens.shape[1 - self.time_dim]

    def with_tokens(self, tokens: Tensor) -> "Subject":
        """The same with another sequence."""
        key = self._sequence_key()
        if key is None:
            return replace(self, inputs=tokens)
        if isinstance(self.inputs, Mapping):
            return replace(self, inputs={**self.inputs, key: tokens})
        return replace(self, inputs=tuple(tokens if at == key else each for at, each in enumerate(self.inputs)))

    def part(self, first: int, last: int) -> "Subject":
        """The same with samples `first` to `last` alone. A tensor has samples where its size is B."""

        def taken(value: Tensor) -> Tensor:
            dims = [at for at in (1 - self.time_dim, 0) if at < value.ndim and value.shape[at] == self.samples]
            return value.narrow(dims[0], first, last - first) if dims else value

        return replace(self, inputs=mapped(self.inputs, taken), targets=mapped(self.targets, taken))

    def outputs(self) -> Any:
        """What the model returns for the inputs."""
        return called(self.model if self.forward is None else _bound(self.forward, self.model), self)

    def reference_outputs(self) -> Any:
        """What the second implementation returns for them."""
        if isinstance(self.reference, nn.Module) and self.forward is not None:
            return self.forward(self.reference, self.inputs)
        if isinstance(self.reference, nn.Module):
            return called(self.reference, self)
        assert self.reference is not None
        return self.reference(self.inputs)

    def step(self) -> Tensor:
        """Forward and backward; the loss. The gradients are added to what the parameters hold.

        Raises InvalidInput when the loss is no tensor of one element.
        """
        assert self.loss is not None
        found = self.loss(self.outputs(), self.targets)
        if not isinstance(found, Tensor) or found.numel() != 1:
            what = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInput(Problem("loss", what, "return a tensor of one element"))
        found.backward()  # type: ignore[no-untyped-call]
        return found.detach()

    def gradients(self) -> dict[str, Tensor]:
        """Of one step, by the name of the parameter: copies of what is held here, of those that get one."""
        for parameter in self.model.parameters():
            parameter.grad = None
        self.step()
        named = self.model.named_parameters()
        return {name: local(each.grad).clone() for name, each in named if each.grad is not None}

    def _sequence_key(self) -> Any:
        """Where the sequence is among the inputs; None: they are the sequence. Raises InvalidInput."""
        if isinstance(self.inputs, Tensor):
            return None
        if not isinstance(self.inputs, Mapping | list | tuple):
            what = type(self.inputs).__name__
            raise InvalidInput(Problem("inputs", what, "give a tensor, a tuple, a list or a mapping"))
        keyed = isinstance(self.inputs, Mapping)
        there = dict(self.inputs) if keyed else dict(enumerate(self.inputs))
        if self.sequence is not None:
            if self.sequence not in there:
                known = ", ".join(repr(each) for each in there)
                raise InvalidInput(Problem("sequence", self.sequence, f"the inputs have {known}"))
            return self.sequence
        wide = [key for key, each in there.items() if isinstance(each, Tensor) and each.ndim >= 2]
        usual = [key for key in FROM_KEYS if key in wide]
        if not wide:
            raise InvalidInput(Problem("inputs", list(there), "one of them is a tensor of batch and time"))
        return (usual or wide)[0]


def _bound(forward: Callable[[nn.Module, Any], Any], model: nn.Module) -> Callable[..., Any]:
    def call(inputs: Any) -> Any:
        return forward(model, inputs)

    return call


def called(function: Callable[..., Any], subject: Subject) -> Any:
    """`function` of the inputs; a module is called with them spread out."""
    inputs = subject.inputs
    if not isinstance(function, nn.Module):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return function(**inputs)
    return function(*inputs) if isinstance(inputs, list | tuple) else function(inputs)


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """`value` with each tensor changed, in tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([mapped(each, change) for each in value]) if type(value) in (list, tuple) else value
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor of a tuple, a list, a mapping or a dataclass, in order, however deep."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from tensors_in(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_in(each)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def logits_of(outputs: Any) -> list[Tensor]:
    """What of the outputs is judged: `logits`, where there is such a key or attribute, else every number."""
    named = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    chosen = named if isinstance(named, Tensor) else outputs
    return [each.detach() for each in tensors_in(chosen) if each.is_floating_point()]


def local(tensor: Tensor) -> Tensor:
    """Of a DTensor the shard that is here; any other tensor itself."""
    here = getattr(tensor, "to_local", None)
    return (cast(Tensor, here()) if callable(here) else tensor).detach()


def seed() -> None:
    """Every source of random numbers that a model uses, at the same place again."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    if (numpy := _numpy_random()) is not None:
        numpy.seed(SEED)


def _numpy_random() -> Any:
    """Where NumPy is in use, its random numbers; else None: nobody has drawn any."""
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.random


@contextmanager
def _kept_random(devices: Sequence[torch.device]) -> Iterator[None]:
    """Every source of random numbers goes on where it was."""
    python, numpy = random.getstate(), _numpy_random()
    drawn = None if numpy is None else numpy.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.set_state(drawn)


@contextmanager
def kept_as_found(*modules: nn.Module) -> Iterator[Callable[[], None]]:
    """Hand the modules back as they were. What is yielded puts them there now, and the seed at its start.

    A buffer that is new, or was replaced by one of another shape, stays: caches grow so, and the module remembers
    that elsewhere as well.
    """
    buffers = [
        (each, name, buffer, buffer.clone())
        for module in modules
        for each in module.modules()
        for name, buffer in each.named_buffers(recurse=False)
    ]
    flags = [(each, each.training) for module in modules for each in module.modules()]
    gradients = [(each, each.grad) for module in modules for each in module.parameters()]
    devices = {each.device for module in modules for each in module.parameters() if each.device.type == "cuda"}

    def renew() -> None:
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                buffer.copy_(before)
                now = module._buffers.get(name)
                if now is not buffer and (now is None or now.shape == buffer.shape):
                    module._buffers[name] = buffer
        seed()

    for parameter, _ in gradients:
        parameter.grad = None
    with ExitStack() as stack:
        stack.enter_context(_kept_random(sorted(devices, key=str)))
        # Compiled code calls no hooks. Without the compiler's module, which takes seconds, nothing is compiled.
        if "torch._dynamo" in sys.modules:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        try:
            renew()
            yield renew
        finally:
            renew()
            for parameter, grad in gradients:
                parameter.grad = grad
            for module, flag in flags:
                module.training = flag


DROPOUTS: Final = tuple(
    name for name in dir(functional) if re.fullmatch(r"(feature_)?(alpha_)?dropout\d?d?", name)
)
ATTENTION: Final = "scaled_dot_product_attention"


@contextmanager
def without_dropout() -> Iterator[None]:
    """Dropout of every kind passes everything on, also where a function of `torch.nn.functional` does it.

    The seed alone does not do: where the number of tokens that reach a module depends on the data, equal tokens
    meet other random numbers. The functions are put in their place for the whole process, since activations that
    are computed anew are so in threads and modes of autograd's own. A script that imported one of them by its name
    keeps its dropout.
    """

    def passed(input: Tensor, *_: Any, **__: Any) -> Tensor:
        return input

    attention = getattr(functional, ATTENTION)

    def attended(*args: Any, **kwargs: Any) -> Any:
        if len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        return attention(*args, **{**kwargs, **({"dropout_p": 0.0} if "dropout_p" in kwargs else {})})

    before = {name: getattr(functional, name) for name in (*DROPOUTS, ATTENTION)}
    try:
        for name in DROPOUTS:
            setattr(functional, name, passed)
        setattr(functional, ATTENTION, attended)
        yield
    finally:
        for name, function in before.items():
            setattr(functional, name, function)
