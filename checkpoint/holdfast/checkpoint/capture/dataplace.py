"""Where one rank is in the data that `Checkpointer.steps` goes over, and how it gets there again.

One call of `steps` is one pass. Of the pass under way these are kept: its number, how many batches were taken, the
data's own state where it has one, the random numbers that the pass began with, and the number that a sampler was
given by `set_epoch`. A pass is begun again with those numbers, so that it has the same order, and the batches that
were taken are passed over, unless the data knows its own place.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch

from holdfast.checkpoint.capture import dataparts, randomness
from holdfast.checkpoint.capture.cursor import Cursor, cursor_of
from holdfast.checkpoint.capture.dealing import Dealing
from holdfast.checkpoint.capture.drawnorder import DrawnOrder

_LOG = logging.getLogger(__name__)

Batch = TypeVar("Batch")


@runtime_checkable
class Stateful(Protocol):
    """An object that can say and take its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


@dataclass(frozen=True, slots=True)
class _Place:
    """What is saved beside the cursor: in which world, how the script numbers its passes, how many batches of the
    data each rank is to have, where they say so, whether its loader has workers of an earlier pass, a digest of
    the order of what was taken (None: not known), the states that its samplers began the pass with, and how many
    ranks took different batches.
    """

    world_size: int = 0
    number: int | None = None
    is_told: bool = False
    length: int | None = None
    keeps_workers: bool = False
    order: str | None = None
    samplers: Sequence[Mapping[str, Any]] = ()
    takers: int = 0

    def plain(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


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
        self,
        rank: int,
        world_size: int,
        given: Stateful | None = None,
        *,
        at_once: bool = False,
        dealing: Dealing | None = None,
    ) -> None:
        """`dealing` None: each rank takes other batches."""
        self._rank, self._world_size = rank, world_size
        self._dealing = dealing
        self._takers = self._takers_of(None)  # of the pass under way
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
        self._keeps_workers = False  # the pass under way began with workers that its loader had
        self._begun: dict[str, torch.Tensor] = {}
        self._samplers: Sequence[Mapping[str, Any]] = ()  # their states when the pass under way began
        self._order = DrawnOrder()
        self._expected: str | None = None  # what that of the batches to be passed over was
        self._restored: _Restored | None = None
        self._before = 0  # batches of passes that are over, and that an iterator would give once more
        self.carries = False
        """What cannot be passed over in this pass is passed over in the next: nobody knew how long they are."""

    @property
    def cursor(self) -> Cursor:
        """Where training is: of what was restored until its pass is open."""
        if self._restored is not None and self._restored.cursor is not None:
            return self._restored.cursor
        return Cursor(self._epoch, self._batches * self._takers, self._has_ended)

    @property
    def position(self) -> int:
        """How many batches of that pass each rank has taken. Of what was restored into another world, as far as is
        known without its data.
        """
        restored = self._restored
        return self._batches if restored is None else self._each(restored, self._takers_of(None))

    def _each(self, restored: _Restored, takers: int) -> int:
        """How many batches of the pass are behind each rank: in a world of another size, of so many `takers`."""
        cursor, place = restored.cursor or Cursor(), restored.place
        is_same = place.world_size == self._world_size and place.takers > 0
        return cursor.each(place.takers if is_same else takers)

    def _takers_of(self, data: object) -> int:
        return self._world_size if self._dealing is None else self._dealing.takers(data)

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
            number = dataparts.number_of(self._data) if self._has_ended else self._number
            kept = dataparts.keeps_workers(self._data) if self._has_ended else self._keeps_workers
            length = dataparts.length_of(self._data)
            samplers = self._samplers_now() if self._has_ended else self._samplers
            order = self._order.taken
            place = _Place(self._world_size, number, self._is_told, length, kept, order, samplers, self._takers)
        state = {} if own is None else {"data": own}
        return state if self._at_once else {**self.cursor.plain(), **place.plain(), **state}

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
                bool(state.get("keeps_workers")),
                state.get("order"),
                state.get("samplers", ()),
                int(state.get("takers", state.get("world_size", 0))),
            ),
            has_ended=bool(state.get("has_ended")),
        )
        if self._at_once and self.counts_globally:
            self._give(self._restored)

    @property
    def begun(self) -> Mapping[str, torch.Tensor]:
        """The random numbers that the pass began with; where it has ended, its loader's generators as they are."""
        if self._has_ended and self._restored is None:
            return {**self._begun, **dataparts.generators_of(self._data)}
        return self._begun

    def restored(self, *, batches: int, saved_world_size: int, begun: Mapping[str, torch.Tensor]) -> int:
        """What was read is complete. `batches` is what each rank of the saved world had taken in all passes;
        returned is what each of this one has. It counts where the checkpoint does not know of passes.
        """
        found, self._begun = self._restored, dict(begun)
        takers = self._takers_of(None)
        if saved_world_size != self._world_size:
            saved_takers = 0 if found is None else found.place.takers
            batches = batches * (saved_takers or saved_world_size) // takers
        self._before = max(0, batches - self.position)
        is_own = found is not None and found.own is not None
        is_own = is_own and (saved_world_size == self._world_size or self.counts_globally)
        if self._at_once:
            if found is not None and is_own:
                self._give(found)
        elif found is None or found.cursor is None:
            cursor = Cursor(0, 0 if is_own else batches * takers)
            own = found.own if found is not None and is_own else None
            has_ended = found is not None and found.has_ended
            place = _Place(self._world_size, takers=takers)
            self._restored = _Restored(cursor, own, place, has_ended=has_ended)
            self.carries = True
            if self._rank == 0:
                _LOG.warning(
                    "the checkpoint does not say in which pass over its data it is, assumed is %s batches=%d",
                    "the loop's first pass" if is_own else "that no pass has become longer or shorter",
                    batches,
                )
        return batches

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
        number = dataparts.number_of(data)
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
        self._epoch, self._takers = self._next - 1, self._takers_of(data)
        if restored is None or restored.cursor is None:
            self._batches, self._has_ended = 0, False
            self._count(dataparts.number_of(data))
            self._keeps_workers = dataparts.keeps_workers(data)
            self._begun, self._samplers, self._expected = _now(data), self._samplers_now(), None
            return 0
        self._batches = self._each(restored, self._takers)
        self._has_ended = restored.cursor.is_over and not self._is_longer(data, restored)
        self._number, self._is_told = restored.place.number, restored.place.is_told
        self._number_at_end = restored.place.number if self._has_ended else None
        self._keeps_workers = restored.place.keeps_workers
        dataparts.set_number(data, restored.place.number)
        is_own = restored.own is not None and self._knowing is not None
        is_own = is_own and (restored.place.world_size == self._world_size or self.counts_globally)
        if self._keeps_workers and not is_own:
            with self._order.looking_at(data):
                dataparts.start_workers(data)
            if self._rank == 0:
                _LOG.info("workers that outlive a pass begin with random numbers anew epoch=%d", self._epoch)
        is_same_world = restored.place.world_size == self._world_size
        self._samplers = restored.place.samplers
        self._expected = restored.place.order if is_same_world and not is_own else None
        if self._has_ended and is_same_world:
            dataparts.give_samplers(data, self._samplers, but=self._given)
        if not self._begun:
            self._begun = _now(data)
        self._begin_again(data)
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

    def through(self, data: Iterable[Batch], behind: int) -> tuple[Iterator[Batch], int]:
        """The batches of the pass that was opened, with `behind` of them passed over; and how many of these there
        were not. Where a sampler has drawn others than before, it is given the state that it began the pass with;
        where that does not help the log says so.
        """
        expected, self._expected = self._expected, None
        source, left = self._passing_over(data, behind)
        if not behind or expected is None or self._order.taken in (None, expected):
            return source, left
        if self._samplers:
            source = iter(())  # what the first one leaves when it goes is not to change what is given now
            dataparts.set_number(data, self._number)
            dataparts.give_samplers(data, self._samplers, but=self._given)
            self._begin_again(data)
            source, left = self._passing_over(data, behind)
        if self._order.taken != expected:
            _LOG.warning(
                "the loader's order is not that of before: it passes over other samples than were trained, so that"
                " of this epoch some come twice and some do not epoch=%d batches=%d sampler=%s; give the sampler"
                " state_dict() and load_state_dict(), or an order that follows from set_epoch(epoch)",
                self._epoch,
                behind,
                dataparts.sampler_name(data),
            )
        return source, left

    def _passing_over(self, data: Iterable[Batch], behind: int) -> tuple[Iterator[Batch], int]:
        source = self._order.through(data) if self._knowing is None else iter(data)
        return source, behind - sum(1 for _ in islice(source, behind))

    def _begin_again(self, data: object) -> None:
        """The random numbers with which the pass over `data` begins are those of then."""
        randomness.reinstate(self._begun)
        dataparts.give_generators(data, self._begun)

    def _samplers_now(self) -> Sequence[Mapping[str, Any]]:
        return dataparts.samplers_of(self._data, but=self._given) if self._knowing is None else ()

    def _is_longer(self, data: object, restored: _Restored) -> bool:
        """Whether there are more data now than when the pass ended. In a world of another size a rank's share of
        the last batches is not known: less than one for each rank is not more.
        """
        length = dataparts.length_of(data)
        if restored.own is not None or restored.place.length is None or length is None:
            return False
        if restored.place.world_size == self._world_size:
            return length > restored.place.length
        takers, saved = self._takers, restored.place.takers
        return length * takers - restored.place.length * saved > (0 if saved == takers else max(saved, takers))

    def took(self, batches: int = 1) -> None:
        """So many batches more were taken, or passed over because the job says so."""
        self._batches += batches

    def ended(self) -> None:
        """Nothing is left of the pass."""
        self._has_ended = True
        self._number_at_end = dataparts.number_of(self._data)

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


def _now(data: object) -> dict[str, torch.Tensor]:
    return {**randomness.capture(), **dataparts.generators_of(data)}
