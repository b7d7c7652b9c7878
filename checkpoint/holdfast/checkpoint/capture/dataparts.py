"""What a pass over data draws its samples with: the loader, its samplers and its dataset; the number of the pass
that they were told, and the generators of random numbers that they keep.
"""

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from copy import deepcopy
from typing import Any, Final

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, SequentialSampler

from holdfast.checkpoint.capture import torchstate

LOADERS: Final = "generator."
"""Sources of a pass that begin so are the generators that its loader, samplers and datasets keep."""
_COUNTERS: Final = ("epoch", "iteration")  # of samplers and datasets; of Accelerate's loaders
_INSIDE: Final = ("base_dataloader", "_dataloader")  # of Accelerate's loaders, of Fabric's
_VALUES: Final = (bool, int, float, str, bytes, type(None))
_PADDED_TO: Final = 8192  # bytes: what is stored keeps its shape while its numbers change
_DEEPEST: Final = 4  # samplers and datasets in each other


def parts_of(data: object) -> Iterator[object]:
    """A loader and what it draws samples with, the outermost first."""
    sampler = getattr(data, "batch_sampler", None)
    inner = getattr(sampler, "batch_sampler", None)
    parts = (
        data,
        getattr(data, "sampler", None),
        sampler,
        getattr(sampler, "sampler", None),
        getattr(inner, "sampler", None),
        getattr(data, "dataset", None),
    )
    return (each for each in parts if each is not None)


def loader_of(data: object) -> "DataLoader[Any] | None":
    """The loader of torch's that reads the data: of Accelerate's and Fabric's the one inside. None: none does."""
    for name in _INSIDE:
        data = getattr(data, name, data)
    return data if isinstance(data, DataLoader) else None


def all_of(data: object) -> Iterator[object]:
    """The same, each once, and the samplers and datasets that those keep."""
    seen: list[object] = []
    front = list(parts_of(data))
    for _ in range(_DEEPEST):
        new = [each for place, each in enumerate(front) if not _is_in(each, [*seen, *front[:place]])]
        yield from new
        seen += new
        front = [kept for each in new for kept in _kept_by(each) if isinstance(kept, Sampler | Dataset)]


def _is_in(one: object, many: list[object]) -> bool:
    return any(one is each for each in many)


def _kept_by(part: object) -> list[object]:
    return list(getattr(part, "__dict__", {}).values())


def _counter_of(data: object) -> tuple[Any, int] | None:
    """What of the data is given the number of the pass by `set_epoch`, and which it has."""
    for part in parts_of(data):
        if callable(getattr(part, "set_epoch", None)):
            for name in _COUNTERS:
                number = getattr(part, name, None)
                if isinstance(number, int) and not isinstance(number, bool):
                    return part, number
    return None


def length_of(data: object) -> int | None:
    """That of an iterable dataset is a guess, and torch complains of a guess once a loader was asked for it."""
    if isinstance(getattr(data, "dataset", None), IterableDataset):
        return None
    try:
        return len(data) if isinstance(data, Sized) else None
    except Exception:  # of a loader, where its sampler has no length; others raise what they like
        return None


def number_of(data: object) -> int | None:
    """Of the pass, as the data was told it; None where it is not told."""
    counter = _counter_of(data)
    return None if counter is None else counter[1]


def set_number(data: object, number: int | None) -> None:
    """For a sampler that counts the passes by itself, and has not seen those that are over."""
    counter = _counter_of(data)
    if counter is not None and number is not None and counter[1] != number:
        counter[0].set_epoch(number)


# Samplers that know their state


def samplers_of(data: object, *, but: object) -> list[Mapping[str, Any]]:
    """The states of those that know theirs, but for the one that is saved by itself. Empty where one is of more
    than plain values and tensors, which would not be read back.
    """
    states = [deepcopy(each.state_dict()) for each in _stateful_in(data, but)]
    return states if all(map(_is_plain, states)) else []


def give_samplers(data: object, states: Sequence[Mapping[str, Any]], *, but: object) -> None:
    """The reverse, for a pass that begins. A sampler that was through with one goes on at its end, and then begins
    the next.
    """
    samplers = _stateful_in(data, but)
    if len(samplers) != len(states):
        return
    for each, state in zip(samplers, states, strict=True):
        each.load_state_dict(deepcopy(state))
        if next(iter(each), each) is not each:
            each.load_state_dict(deepcopy(state))


def sampler_name(data: object) -> str:
    """The type of what decides on the order."""
    found = getattr(data, "sampler", None)
    sampler = getattr(data, "batch_sampler", None) if type(found) is SequentialSampler else found
    return type(sampler or found).__name__


def _stateful_in(data: object, but: object) -> list[Any]:
    return [
        each
        for each in all_of(data)
        if each is not data
        and each is not but
        and not isinstance(each, Dataset)
        and hasattr(each, "state_dict")
        and hasattr(each, "load_state_dict")
    ]


# Workers that outlive a pass


def keeps_workers(data: object) -> bool:
    """Whether a loader goes over its data with the processes that it had before. It draws them no seed then."""
    loader = _keeping(data)
    return loader is not None and torchstate.iterator_of(loader) is not None


def start_workers(data: object) -> None:
    """Those that a loader keeps from pass to pass, where it has none yet. Draws random numbers and reads the first
    samples in vain.
    """
    loader = _keeping(data)
    if loader is not None and torchstate.iterator_of(loader) is None:
        torchstate.make_iterator(loader)


def _keeping(data: object) -> "DataLoader[Any] | None":
    """The loader of torch's, if it keeps workers."""
    loader = loader_of(data)
    return loader if loader is not None and loader.persistent_workers and loader.num_workers else None


# Generators


def generators_of(data: object) -> dict[str, torch.Tensor]:
    """The states of those that the data keeps, besides the global ones, by names under `LOADERS`."""
    return {name: _state_of(each) for name, each in _generators_in(data).items()}


def give_generators(data: object, states: Mapping[str, torch.Tensor]) -> None:
    """The reverse, of those that `states` has; of other sources nothing is taken."""
    for name, generator in _generators_in(data).items():
        if name in states:
            _give(generator, states[name])


def _generators_in(data: object) -> dict[str, Any]:
    """By kind, and in the order in which they are found."""
    found: list[object] = []
    for part in all_of(data):
        for kept in (getattr(part, "generator", None), *_kept_by(part)):
            if _kind_of(kept) is not None and not _is_in(kept, found):
                found.append(kept)
    counts: dict[str, int] = {}
    named = {}
    for generator in found:
        kind = str(_kind_of(generator))
        named[f"{LOADERS}{kind}{counts.setdefault(kind, 0)}"] = generator
        counts[kind] += 1
    return named


def _kind_of(kept: object) -> str | None:
    """None: no generator."""
    if isinstance(kept, torch.Generator):
        return ""
    if isinstance(kept, random.Random) and not isinstance(kept, random.SystemRandom):
        return "python."
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(kept, numpy.random.Generator):
        return "numpy."
    if numpy is not None and isinstance(kept, numpy.random.RandomState):
        return "numpy.legacy."
    return None


def _state_of(generator: Any) -> torch.Tensor:
    kind = _kind_of(generator)
    if kind == "":
        state: torch.Tensor = generator.get_state()
        return state
    if kind == "python.":
        state_of_kind = generator.getstate()
    elif kind == "numpy.":
        state_of_kind = generator.bit_generator.state
    else:
        state_of_kind = generator.get_state(legacy=False)
    words = json.dumps(state_of_kind, default=_json).encode()
    size = -(-len(words) // _PADDED_TO) * _PADDED_TO
    return torch.frombuffer(bytearray(words.ljust(size)), dtype=torch.uint8)


def _give(generator: Any, state: torch.Tensor) -> None:
    kind = _kind_of(generator)
    if kind == "":
        generator.set_state(state)
        return
    plain = json.loads(state.numpy().tobytes(), object_hook=_array)
    if kind == "python.":
        version, words, gauss = plain
        generator.setstate((version, tuple(words), gauss))
    elif kind == "numpy.":
        if plain.get("bit_generator") == type(generator.bit_generator).__name__:
            generator.bit_generator.state = plain
    else:
        generator.set_state(plain)


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(type(key) in _VALUES and _is_plain(each) for key, each in value.items())
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))  # type: ignore[call-overload]
    return type(value) in _VALUES or isinstance(value, torch.Tensor)


def _json(value: Any) -> object:
    """Of NumPy's arrays and numbers."""
    if value.shape:
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return value.item()


def _array(found: dict[str, Any]) -> object:
    if found.keys() == {"array", "dtype"}:
        import numpy

        return numpy.array(found["array"], dtype=found["dtype"])
    return found
