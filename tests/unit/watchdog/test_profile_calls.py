"""A profile: who may be asked for one, whose answers count, and when it is over."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round, Tier
from holdfast.watchdog.server.profilecalls import ProfileCalls


@dataclass
class Asked:
    takes_profiles: bool = True
    shown: list[ProfileWanted] = field(default_factory=list)

    def show(self, slot: object, message: ProfileWanted) -> None:
        self.shown.append(message)


def round_of(number: int = 3) -> Round:
    shares = tuple(MemberRanks(f"m{at}", f"n{at}", 2 * at, 2) for at in range(2))
    return Round("a/b", number, shares, Endpoint("h", 1), Restore(Tier.CHECKPOINT), Entry.REENTER, "why")


@pytest.fixture
def there() -> dict[str, Any]:
    return {"m0": Asked(), "m1": Asked()}


def test_it_is_over_when_every_rank_has_answered_once(there: dict[str, Any]) -> None:
    calls = ProfileCalls()
    calls.take(there, round_of(), (0, 3), 5)
    assert there["m0"].shown == there["m1"].shown == [ProfileWanted(3, 1, (0, 3), 5)]
    for member, rank in (("m0", 0), ("m0", 3), ("m0", 1), ("m9", 3), ("m0", 0)):
        calls.told(round_of(), member, ProfileTold(3, 1, rank, path="/p"))
    found = calls.status(round_of())
    assert found is not None
    assert ([each.rank for each in found.told], found.over) == ([0], "")
    calls.told(round_of(), "m1", ProfileTold(3, 1, 3, problem="why not"))
    found = calls.status(round_of())
    assert found is not None
    assert found.over == "every rank has answered"


def test_the_newest_counts_and_ends_with_its_round(there: dict[str, Any]) -> None:
    calls = ProfileCalls()
    assert calls.status(round_of()) is None
    calls.take(there, round_of(), (0, 1), 5)
    calls.take(there, round_of(), (1,), 5)
    assert there["m0"].shown == [ProfileWanted(3, 1, (0, 1), 5), ProfileWanted(3, 2, (1,), 5)]
    calls.told(round_of(), "m0", ProfileTold(3, 1, 1, path="/p"))
    found = calls.status(round_of())
    assert found is not None
    assert (found.number, found.told, found.over) == (2, (), "")
    found = calls.status(round_of(4))
    assert found is not None
    assert found.over == "round 3 ended before"


def test_of_a_rank_whose_launcher_cannot_be_asked_it_is_told_why(there: dict[str, Any]) -> None:
    there["m1"].takes_profiles = False
    calls = ProfileCalls()
    calls.take(there, round_of(), (0, 2), 5)
    found = calls.status(round_of())
    assert found is not None
    assert [(each.rank, each.problem) for each in found.told] == [
        (2, "its launcher, m1, is away or of an older version")
    ]
    assert len(there["m0"].shown) == 1
