"""What a round's store holds, and what its ranks ask of it. Pure; `now` is an argument.

The requests are those of torch's `Store`. A request that must wait for keys is parked until they are set or its
time is over, and answered then.
"""

import hmac
from dataclasses import dataclass, field
from typing import Annotated, Final

import msgspec

from holdfast.api.bounds import Seconds

COUNT_MAX: Final = 2**62


class Hello(msgspec.Struct, frozen=True, tag=True):
    """First request of a connection: which round the rank came for. Another round's rank is turned away.

    `proof` shows that it was assigned to the round: as `proof_of` gives it.
    """

    job: str
    round: int
    proof: bytes = b""


class Set(msgspec.Struct, frozen=True, tag=True):
    key: str
    value: bytes


class Append(msgspec.Struct, frozen=True, tag=True):
    key: str
    value: bytes


class CompareSet(msgspec.Struct, frozen=True, tag=True):
    """Set to `value` when the key holds `expected`, or is missing and `expected` is empty."""

    key: str
    expected: bytes
    value: bytes


class Add(msgspec.Struct, frozen=True, tag=True):
    """Count: a number is kept as its decimal text, as torch's stores keep it."""

    key: str
    amount: Annotated[int, msgspec.Meta(ge=-COUNT_MAX, le=COUNT_MAX)]


class Await(msgspec.Struct, frozen=True, tag=True):
    """Answered with the value of the last key once all of `keys` are set."""

    keys: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    timeout_s: Seconds


class Check(msgspec.Struct, frozen=True, tag=True):
    keys: tuple[str, ...]


class Delete(msgspec.Struct, frozen=True, tag=True):
    key: str


class Count(msgspec.Struct, frozen=True, tag=True):
    """How many keys are set."""


Request = Hello | Set | Append | CompareSet | Add | Await | Check | Delete | Count


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """`refused` is empty, or says why there is no value."""

    value: bytes = b""
    number: int = 0
    refused: str = ""


def proof_of(owner: str, job: str, round: int) -> bytes:
    """What only members can say: their assignment names the `owner`. It tells who listens nothing that serves
    elsewhere. Empty without an owner: a launcher that is not Holdfast's has none.
    """
    return hmac.digest(owner.encode(), f"{job} {round}".encode(), "sha256") if owner else b""


@dataclass(frozen=True, slots=True)
class _Parked:
    asker: int
    request: Await
    deadline: float


@dataclass(slots=True)
class StoreTable:
    """The keys of one round's store and the requests parked at it. Askers are known by any integer.

    `owner` names the life of the job, as in `Restore`.
    """

    job: str
    round: int
    owner: str = ""
    _values: dict[str, bytes] = field(default_factory=dict)
    _parked: list[_Parked] = field(default_factory=list)

    def ask(self, asker: int, request: Request, now: float) -> list[tuple[int, Answer]]:
        """Take a request; returns who is to be answered now and what, the asker itself or others it frees."""
        if isinstance(request, Await):
            self._parked.append(_Parked(asker, request, now + request.timeout_s))
            return self.settle(now)
        return [(asker, self._answer(request)), *self.settle(now)]

    def settle(self, now: float) -> list[tuple[int, Answer]]:
        """Answers for the parked requests whose keys are all set, or whose time is over."""
        answers: list[tuple[int, Answer]] = []
        still_parked: list[_Parked] = []
        for parked in self._parked:
            missing = [key for key in parked.request.keys if key not in self._values]
            if not missing:
                answers.append((parked.asker, Answer(value=self._values[parked.request.keys[-1]])))
            elif parked.deadline <= now:
                refused = f"wait timeout after {parked.request.timeout_s:.0f} s for keys: {', '.join(missing)}"
                answers.append((parked.asker, Answer(refused=refused)))
            else:
                still_parked.append(parked)
        self._parked = still_parked
        return answers

    def forget(self, asker: int) -> None:
        """The asker is gone and wants no answer."""
        self._parked = [parked for parked in self._parked if parked.asker != asker]

    def next_wakeup(self) -> float | None:
        """When a parked request's time is over."""
        return min((parked.deadline for parked in self._parked), default=None)

    def _answer(self, request: Request) -> Answer:
        match request:
            case Hello(job, round, proof):
                here = f"this is the store of {self.job} round {self.round}"
                if (job, round) != (self.job, self.round):
                    return Answer(refused=f"{here}, not of {job} round {round}")
                if not hmac.compare_digest(proof, proof_of(self.owner, self.job, self.round)):
                    return Answer(refused=f"{here}, in another life of the job")
            case Set(key, value):
                self._values[key] = value
            case Append(key, value):
                self._values[key] = self._values.get(key, b"") + value
            case CompareSet(key, expected, value):
                held = self._values.get(key)
                if held == expected or (held is None and not expected):
                    self._values[key] = held = value
                return Answer(value=expected if held is None else held)
            case Add(key, amount):
                number = self._values.get(key, b"0")
                if len(number) > len(str(-COUNT_MAX)) or not number.removeprefix(b"-").isdigit():
                    return Answer(refused=f"key {key} holds no number to add to")
                total = int(number) + amount
                if abs(total) > COUNT_MAX:
                    return Answer(refused=f"key {key} would count beyond {COUNT_MAX}")
                self._values[key] = str(total).encode()
                return Answer(number=total)
            case Check(keys):
                return Answer(number=int(all(key in self._values for key in keys)))
            case Delete(key):
                return Answer(number=int(self._values.pop(key, None) is not None))
            case Count():
                return Answer(number=len(self._values))
        return Answer()
