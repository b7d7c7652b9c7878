"""What rank 0 saw of each step of a run, for comparing it with another: losses, gradient norms, fingerprints.

It lies in each checkpoint as the file `history.bin` and tells of the steps that led there: a round that restores a
checkpoint goes on with the history in it, so that what a rewind gave up is not in it. Bounded: the newest steps
are kept. A step may be missing, where nothing was measured or nothing is known of it.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from holdfast.api.bounds import Name
from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Damaged, Malformed

FORMAT: Final = 1
FILE_NAME: Final = "history.bin"
STEPS_MAX: Final = 1 << 17
"""Of losses and of norms, each 2 MiB."""
GROUPS_MAX: Final = 32
"""Of parameters, each with a fingerprint of its own."""
PRINTS_MAX: Final = 1 << 15
"""Fingerprints: those of the newest thousand fingerprinted steps, where there are as many groups as may be."""
BYTES_MAX: Final = 2 * 16 * STEPS_MAX + 20 * PRINTS_MAX + (1 << 20)

_NUMBER: Final = struct.Struct("<qd")  # step, value
_PRINT: Final = struct.Struct("<qIQ")  # step, place in `names`, fingerprint

_Rows = Annotated[bytes, msgspec.Meta(max_length=BYTES_MAX)]


class _File(msgspec.Struct, frozen=True):
    """`names` are the groups of parameters that fingerprints are of."""

    format: int
    losses: _Rows
    norms: _Rows
    names: Annotated[tuple[Name, ...], msgspec.Meta(max_length=PRINTS_MAX)]
    prints: _Rows


class Numbers:
    """One number of each step, in the order of steps. One thread adds; any may read `packed`.

    Costs about a fifth of a microsecond for each number. Every operation on the rows is one of the interpreter's,
    so that a reader sees whole rows.
    """

    def __init__(self, rows: bytes = b"") -> None:
        self._rows = bytearray(rows)
        self._newest = -1

    def add(self, step: int, value: float) -> None:
        """`step`'s number. A step that is trained again takes back what was known of it and of later ones."""
        if step <= self._newest:
            self._rows = bytearray(_up_to(bytes(self._rows), step - 1, _NUMBER))
        self._newest = step
        self._rows += _NUMBER.pack(step, value)
        if len(self._rows) > 2 * STEPS_MAX * _NUMBER.size:
            del self._rows[: -STEPS_MAX * _NUMBER.size]

    def packed(self, until: int) -> bytes:
        """The newest rows up to step `until`, `STEPS_MAX` at the most."""
        return _up_to(bytes(self._rows), until, _NUMBER)[-STEPS_MAX * _NUMBER.size :]

    def go_on(self, step: int, before: bytes) -> None:
        """Forget what came after `step`, and put `before` in front of what is known."""
        mine = _up_to(bytes(self._rows), step, _NUMBER)
        first = _NUMBER.unpack_from(mine)[0] if mine else step + 1
        self._rows = bytearray(_up_to(before, min(first - 1, step), _NUMBER) + mine)
        self._newest = _NUMBER.unpack_from(self._rows, len(self._rows) - _NUMBER.size)[0] if self._rows else -1


def _up_to(rows: bytes, until: int, row: struct.Struct) -> bytes:
    """Without the rows at the end that are of a step above `until`."""
    end = len(rows)
    while end and row.unpack_from(rows, end - row.size)[0] > until:
        end -= row.size
    return rows[:end]


class RunHistory:
    """Of one run, as rank 0 sees it. The training thread adds; a thread that saves may `encode`."""

    def __init__(self) -> None:
        self.losses = Numbers()
        self.norms = Numbers()
        self._prints: list[tuple[int, str, int]] = []

    def fingerprint(self, step: int, group: str, value: int) -> None:
        """The fingerprint of one group of rank 0's parameters after `step`; takes back those of later ones."""
        if self._prints and step < self._prints[-1][0]:
            self._prints = [each for each in self._prints if each[0] < step]
        self._prints.append((step, group, value))
        if len(self._prints) > 2 * PRINTS_MAX:
            del self._prints[:-PRINTS_MAX]

    def clear(self) -> None:
        """Nothing is known any more."""
        self.losses, self.norms, self._prints = Numbers(), Numbers(), []

    def go_on(self, step: int, stored: "StoredHistory") -> None:
        """Training goes on after `step`, whose checkpoint, or an older one of the same line, has `stored`."""
        self.losses.go_on(step, stored.loss_rows)
        self.norms.go_on(step, stored.norm_rows)
        mine = [each for each in self._prints if each[0] <= step]
        first = mine[0][0] if mine else step + 1
        self._prints = [each for each in stored.prints if each[0] < first and each[0] <= step] + mine

    def encode(self, until: int) -> bytes:
        """The file's bytes, of the steps up to `until`."""
        told = [each for each in tuple(self._prints) if each[0] <= until][-PRINTS_MAX:]
        names = {name: place for place, name in enumerate(dict.fromkeys(name for _, name, _ in told))}
        prints = b"".join(_PRINT.pack(step, names[name], value) for step, name, value in told)
        return msgspec.msgpack.encode(
            _File(FORMAT, self.losses.packed(until), self.norms.packed(until), tuple(names), prints)
        )


class StoredHistory:
    """What a checkpoint holds of it."""

    def __init__(
        self, loss_rows: bytes = b"", norm_rows: bytes = b"", prints: Iterable[tuple[int, str, int]] = ()
    ) -> None:
        self.loss_rows = loss_rows
        self.norm_rows = norm_rows
        self.prints = tuple(prints)

    @property
    def losses(self) -> dict[int, float]:
        """By step."""
        return dict(_numbers(self.loss_rows))

    @property
    def norms(self) -> dict[int, float]:
        """Gradient norms, by step."""
        return dict(_numbers(self.norm_rows))

    @property
    def fingerprints(self) -> Mapping[int, Mapping[str, int]]:
        """By step, then by group of parameters."""
        found: dict[int, dict[str, int]] = {}
        for step, name, value in self.prints:
            found.setdefault(step, {})[name] = value
        return found


def _numbers(rows: bytes) -> Iterator[tuple[int, float]]:
    for step, value in _NUMBER.iter_unpack(rows):
        yield int(step), float(value)


def decode(document: bytes) -> StoredHistory:
    """Raises Damaged when the bytes are no history, or of a format that this version cannot read."""
    if len(document) > BYTES_MAX:
        raise Damaged(f"the history has {len(document)} bytes, more than the {BYTES_MAX} that one may have")
    try:
        found = decode_msgpack(document, _File)
    except Malformed as error:
        raise Damaged(f"the history cannot be read: {error}") from error
    if found.format != FORMAT:
        raise Damaged(f"the history is of format {found.format}, this version reads {FORMAT}")
    if len(found.losses) % _NUMBER.size or len(found.norms) % _NUMBER.size or len(found.prints) % _PRINT.size:
        raise Damaged("the history ends in the middle of a row")
    prints = [(int(step), int(place), int(value)) for step, place, value in _PRINT.iter_unpack(found.prints)]
    if any(place >= len(found.names) for _, place, _ in prints):
        raise Damaged("a fingerprint of the history is of a group that is not named")
    for what, steps, apart in (
        ("losses", [step for step, _ in _numbers(found.losses)], 1),
        ("norms", [step for step, _ in _numbers(found.norms)], 1),
        ("fingerprints", [step for step, _, _ in prints], 0),  # one of each group
    ):
        if steps and (steps[0] < 0 or any(later - step < apart for step, later in pairwise(steps))):
            raise Damaged(f"the {what} of the history are not in the order of their steps")
    named = [(step, found.names[place], value) for step, place, value in prints]
    return StoredHistory(found.losses, found.norms, named)
