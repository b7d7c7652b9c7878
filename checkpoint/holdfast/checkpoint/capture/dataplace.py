"""Where one rank is in the data that `Checkpointer.steps` goes over, and how it gets there again.

One call of `steps` is one pass. Of the pass under way these are kept: its number, how many batches were taken, the
data's own state where it has one, the random numbers that the pass began with, and the number that a sampler was
given by `set_epoch`. A pass is begun again with those numbers, so that it has the same order, and the batches that
were taken are passed over, unless the data knows its own place.
"""

import logging
from collections.abc import Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

import torch
from torch.utils.data import IterableDataset

from holdfast.checkpoint.capture import randomness
from holdfast.checkpoint.capture.cursor import Cursor, cursor_of

_LOG = logging.getLogger(__name__)

LOADERS: Final = "generator."
"""Sources of a pass that begin so are the generators that its loader was given."""
_COUNTERS: Final = ("epoch", "iteration")  # of samplers and datasets; of Accelerate's loaders


@runtime_checkable
class Stateful(Protocol):
    """An object that can say and take its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """What is saved beside the cursor: in which world, how the script numbers its passes, and how many batches of
    the data each rank is to have, where they say so.
    """

    world_size: int = 0
    number: int | None = None
    is_told: bool = False
    length: int | None = None


@dataclass(frozen=True, slots=True)
class _Restored:
    """What was saved, until the pass that it is of begins. `cursor` None: saved before passes had numbers."""

    cursor: Cursor | None
    own: Mapping[str, Any] | None = None
    place: _Place = _Place()
    has_ended: bool = False  # only where there is no cursor


class DataPlace:
    """Belongs to the training thread. `given` is the object that knows the place, if that is not what a pass is
    over.

    `at_once`: of a loop that counts by itself. Only `given` is saved then, and takes its state when it is
    restored.
    """

    def __init__(
        self, rank: int, world_size: int, given: Stateful | None = None, *, at_once: bool = False
    ) -> None:
        self._rank, self._world_size = rank, world_size
        self._given, self._at_once = given, at_once
        self._knowing = given  # what knows its place in the pass under way
        self._data: object = given
        self._epoch = self._batches = 0
        self._has_ended = False
        self._calls = 0  # passes that the script has begun, those that are over among them
        self._begins_at = 0  # the first of them
        self._next = 0  # the number of the next one
        self._number: int | None = None  # of the pass under way, as a sampler knows it
        self._number_at_end: int | None = None
        self._is_told = False  # the script gives a sampler the number of each pass
        self._begun: dict[str, torch.Tensor] = {}
        self._restored: _Restored | None = None
        self._before = 0  # batches of passes that are over, and that an iterator would give once more
        self.carries = False
        """What cannot be passed over in this pass is passed over in the next: nobody knew how long they are."""

    @property
    def cursor(self) -> Cursor:
        """Where training is: of what was restored until its pass is open."""
        if self._restored is not None and self._restored.cursor is not None:
            return self._restored.cursor
        return Cursor(self._epoch, self._batches * self._world_size, self._has_ended)

    @property
    def counts_globally(self) -> bool:
        """Whether the data says, by an attribute of that name, that its state is right for any rank and world."""
        return getattr(self._knowing, "counts_globally", False) is True

    # Saved and restored

    def state_dict(self) -> dict[str, Any]:
        restored = self._restored
        if restored is not None and restored.cursor is not None:
            own, place = restored.own, restored.place
        else:
            own = None if self._knowing is None else self._knowing.state_dict()
            number = _number_of(self._data) if self._has_ended else self._number
            place = _Place(self._world_size, number, self._is_told, _length_of(self._data))
        state = {} if own is None else {"data": own}
        return state if self._at_once else {**self.cursor.plain(), **asdict(place), **state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """For the pass that it is of."""
        self._restored = _Restored(
            cursor=cursor_of(state),
            own=state.get("data"),
            place=_Place(
                int(state.get("world_size", 0)),
                state.get("number"),
                bool(state.get("is_told")),
                state.get("length"),
            ),
            has_ended=bool(state.get("has_ended")),
        )
        if self._at_once and self.counts_globally:
            self._give(self._restored)

    @property
    def begun(self) -> Mapping[str, torch.Tensor]:
        """The random numbers that the pass began with; where it has ended, its loader's generators as they are."""
        if self._has_ended and self._restored is None:
            return {**self._begun, **_generators_now(self._data)}
        return self._begun

    def restored(self, *, batches: int, saved_world_size: int, begun: Mapping[str, torch.Tensor]) -> None:
        """What was read is complete. `batches` is what each rank of this world has taken in all passes; it counts
        where the checkpoint does not know of passes.
        """
        found, self._begun = self._restored, dict(begun)
        self._before = max(0, batches - self.cursor.each(self._world_size))
        is_own = found is not None and found.own is not None
        is_own = is_own and (saved_world_size == self._world_size or self.counts_globally)
        if self._at_once:
            if found is not None and is_own:
                self._give(found)
        elif found is None or found.cursor is None:
            place = Cursor(0, 0 if is_own else batches * self._world_size)
            own = found.own if found is not None and is_own else None
            has_ended = found is not None and found.has_ended
            self._restored = _Restored(place, own, _Place(self._world_size), has_ended=has_ended)
            self.carries = True
            if self._rank == 0:
                _LOG.warning(
                    "the checkpoint does not say in which pass over its data it is, assumed is %s batches=%d",
                    "the loop's first pass" if is_own else "that no pass has become longer or shorter",
                    batches,
                )

    # The passes

    def begins_here(self) -> None:
        """The script has asked for the number of the pass: where it has begun none, it begins with that one."""
        if self._calls == 0:
            self._begins_at = self._next = self.cursor.epoch

    def is_behind(self, data: object) -> bool:
        """Whether the pass that the script begins now, over `data`, is over. To be asked once for each pass.

        Passes are counted. Where the script gives a sampler their numbers, those say with which one it began.
        """
        calls, restored = self._calls, self._restored
        self._calls += 1
        if restored is None or restored.cursor is None:
            self._next += 1
            return False
        behind = self._begins_at + calls - restored.cursor.epoch
        number = _number_of(data)
        if restored.place.is_told and number is not None and restored.place.number is not None:
            behind = max(number - restored.place.number, calls - restored.cursor.epoch)
        self._next = restored.cursor.epoch + 1
        return behind < 0

    def passed_by(self, data: object) -> None:
        """The pass over `data` is over. An iterator gives what it has once, so what that pass took is read and
        dropped; all else begins anew with each pass.
        """
        if isinstance(data, Iterator):
            self._before -= sum(1 for _ in islice(data, self._before))

    def open(self, data: object) -> int:
        """A pass over `data` begins, or goes on where it was restored; returns how many batches are to be passed
        over. `cursor.is_over` says whether none is left.
        """
        restored, self._restored = self._restored, None
        self._data = data
        self._knowing = self._given if self._given is not None else data if isinstance(data, Stateful) else None
        self._epoch = self._next - 1
        if restored is None or restored.cursor is None:
            self._batches, self._has_ended = 0, False
            self._count(_number_of(data))
            self._begun = _now(data)
            return 0
        self._batches = restored.cursor.each(self._world_size)
        self._has_ended = restored.cursor.is_over and not self._is_longer(data, restored)
        self._number, self._is_told = restored.place.number, restored.place.is_told
        self._number_at_end = restored.place.number if self._has_ended else None
        _set_number(data, restored.place.number)
        if self._begun:
            _begin_again(data, self._begun)
        else:
            self._begun = _now(data)
        is_own = restored.own is not None and self._knowing is not None
        is_own = is_own and (restored.place.world_size == self._world_size or self.counts_globally)
        if is_own:
            self._give(restored)
        if restored.place.world_size != self._world_size and self._rank == 0:
            _LOG.info(
                "data goes on in a world of another size saved_world_size=%d world_size=%d by=%s batches=%d",
                restored.place.world_size,
                self._world_size,
                "its own global count" if is_own else "passing batches over",
                self._batches,
            )
        before, self._before = self._before, 0
        return 0 if is_own else self._batches + (before if isinstance(data, Iterator) else 0)

    def _is_longer(self, data: object, restored: _Restored) -> bool:
        """Whether there are more data now than when the pass ended. In a world of another size a rank's share of
        the last batches is not known: less than one for each rank is not more.
        """
        length = _length_of(data)
        if restored.own is not None or restored.place.length is None or length is None:
            return False
        more = length * self._world_size - restored.place.length * restored.place.world_size
        return more > (
            0
            if restored.place.world_size == self._world_size
            else max(restored.place.world_size, self._world_size)
        )

    def took(self, batches: int = 1) -> None:
        """So many batches more were taken, or passed over because the job says so."""
        self._batches += batches

    def ended(self) -> None:
        """Nothing is left of the pass."""
        self._has_ended = True
        self._number_at_end = _number_of(self._data)

    def _give(self, restored: _Restored) -> None:
        if self._knowing is None or restored.own is None:
            return
        self._knowing.load_state_dict(dict(restored.own))
        if restored.has_ended or (restored.cursor is not None and restored.cursor.is_over):
            # A loader takes a state up when it is next asked, and draws random numbers meanwhile.
            self._knowing.state_dict()

    def _count(self, number: int | None) -> None:
        """A new pass begins, `number` to a sampler. One that counts by itself does so within a pass."""
        before = self._number_at_end
        self._is_told = number is not None and before is not None and self._number == before == number - 1
        self._number, self._number_at_end = number, None


def _parts_of(data: object) -> Iterator[object]:
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


def _counter_of(data: object) -> tuple[Any, int] | None:
    """What of the data is given the number of the pass by `set_epoch`, and which it has."""
    for part in _parts_of(data):
        if callable(getattr(part, "set_epoch", None)):
            for name in _COUNTERS:
                number = getattr(part, name, None)
                if isinstance(number, int) and not isinstance(number, bool):
                    return part, number
    return None


def _length_of(data: object) -> int | None:
    """That of an iterable dataset is a guess, and torch complains of a guess once a loader was asked for it."""
    if isinstance(getattr(data, "dataset", None), IterableDataset):
        return None
    try:
        return len(data) if isinstance(data, Sized) else None
    except Exception:  # of a loader, where its sampler has no length; others raise what they like
        return None


def _number_of(data: object) -> int | None:
    counter = _counter_of(data)
    return None if counter is None else counter[1]


def _set_number(data: object, number: int | None) -> None:
    """For a sampler that counts the passes by itself, and has not seen those that are over."""
    counter = _counter_of(data)
    if counter is not None and number is not None and counter[1] != number:
        counter[0].set_epoch(number)


def _generators_of(data: object) -> dict[str, torch.Generator]:
    """Those that the loader and its samplers draw from, besides torch's own."""
    found: list[torch.Generator] = []
    for part in _parts_of(data):
        generator = getattr(part, "generator", None)
        if isinstance(generator, torch.Generator) and not any(generator is each for each in found):
            found.append(generator)
    return {f"{LOADERS}{place}": each for place, each in enumerate(found)}


def _generators_now(data: object) -> dict[str, torch.Tensor]:
    return {name: each.get_state() for name, each in _generators_of(data).items()}


def _now(data: object) -> dict[str, torch.Tensor]:
    return {**randomness.capture(), **_generators_now(data)}


def _begin_again(data: object, begun: Mapping[str, torch.Tensor]) -> None:
    """The random numbers with which the pass over `data` begins are those of `begun`."""
    randomness.reinstate(begun)
    for name, generator in _generators_of(data).items():
        if name in begun:
            generator.set_state(begun[name])
