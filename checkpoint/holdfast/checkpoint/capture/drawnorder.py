"""Which samples a loader has drawn in a pass: a digest of the indices of the batches that were taken.

A pass that goes on is begun again, and what was taken is passed over. Whether that gives the same samples depends
on what the sampler draws from, and a sampler may keep that to itself. So its indices are looked at as the loader
asks for them: they are those of the samples, whatever the dataset makes of them at random. Nothing is known of
data without indices (iterators, iterable datasets), and of indices that are neither numbers nor text.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import xxhash
from torch.utils.data import IterableDataset, Sampler

from holdfast.checkpoint.capture import dataparts

Batch = TypeVar("Batch")

_PLAIN: Final = (int, float, str, bytes, type(None))


class DrawnOrder:
    """That of one pass after another. Belongs to the training thread."""

    def __init__(self) -> None:
        self._drawn: deque[str | None] = deque()  # behind each batch that was asked for and not taken yet
        self._opening: tuple[Any, str, Any] | None = None  # the loader, and what of it is replaced for a moment
        self.taken: str | None = None
        """The digest of what was taken of the pass; None: nothing is known of it."""

    def through(self, data: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of a pass over `data`, which begins now."""
        self._drawn, self.taken = deque(), None
        self._look_at(data)
        source = iter(data)
        if self.taken is not None:
            self._look_away()  # else it asks for its sampler with the first batch
        return self._each(source)

    def _each(self, source: Iterator[Batch]) -> Iterator[Batch]:
        for batch in source:
            self._look_away()
            self.taken = self._drawn.popleft() if self._drawn and self.taken is not None else None
            yield batch
        self._look_away()

    @contextmanager
    def looking_at(self, data: object) -> Iterator[None]:
        """What makes an iterator of `data` meanwhile, for passes to come, makes one that can be looked at."""
        self._look_at(data)
        try:
            yield
        finally:
            self._look_away()

    def _look_at(self, data: object) -> None:
        self._look_away()
        loader = dataparts.loader_of(data)
        if loader is None or isinstance(loader.dataset, IterableDataset):
            return
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        sampler = getattr(loader, name)
        self._opening = loader, name, sampler
        object.__setattr__(loader, name, _Watched(sampler, self))

    def _look_away(self) -> None:
        if self._opening is not None:
            loader, name, sampler = self._opening
            object.__setattr__(loader, name, sampler)
            self._opening = None

    def begins(self, indices: Iterator[Any]) -> Iterator[Any]:
        """A sampler that is looked at is gone over: for the pass, while that is being opened."""
        if self._opening is None:
            return indices
        self.taken = ""
        self._drawn = deque()
        return self._noted(indices, self._drawn)

    def _noted(self, indices: Iterator[Any], drawn: "deque[str | None]") -> Iterator[Any]:
        digest: str | None = ""
        for each in indices:
            words = None if digest is None else _words(each)
            digest = None if words is None else xxhash.xxh3_64_hexdigest(f"{digest}".encode() + words)
            drawn.append(digest)
            yield each


class _Watched(Sampler[Any]):
    """A sampler that is looked at. A loader that keeps its workers keeps it as well. A loader's own `__iter__` may
    ask for its kind, index it, or set what it has.
    """

    _watched: Any
    _order: DrawnOrder

    def __init__(self, sampler: Any, order: DrawnOrder) -> None:
        object.__setattr__(self, "_watched", sampler)
        object.__setattr__(self, "_order", order)

    @property  # type: ignore[misc]  # read only: nobody makes it another kind
    def __class__(self) -> Any:
        return type(self._watched)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._watched, name, value)

    def __getitem__(self, index: Any) -> Any:
        return self._watched[index]

    def __iter__(self) -> Iterator[Any]:
        return self._order.begins(iter(self._watched))

    def __len__(self) -> int:
        return len(self._watched)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_watched":
            raise AttributeError(name)
        return getattr(self._watched, name)


def _words(indices: Any) -> bytes | None:
    """What is equal for equal indices in any process; None: nobody can say."""
    try:
        return array("q", indices).tobytes()
    except (TypeError, ValueError, OverflowError):
        return repr(indices).encode() if _is_plain(indices) else None


def _is_plain(indices: object) -> bool:
    if isinstance(indices, list | tuple):
        return all(map(_is_plain, indices))
    return isinstance(indices, _PLAIN)
