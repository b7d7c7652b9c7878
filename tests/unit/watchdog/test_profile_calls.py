"""A profile: who may be asked for one, whose answers count, and when it is over."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.api.errors import InvalidInput, Unavailable
from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round, Tier
from holdfast.watchdog.server.profilecalls import GIVEN_UP_S, ProfileCalls


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
    asked = calls.ask(there, round_of(), [3, 0, 3], 5, 0.0)
    assert asked.ranks == (0, 3)
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


def test_one_at_a_time_until_its_round_ends_or_nobody_believes_in_it(there: dict[str, Any]) -> None:
    calls = ProfileCalls()
    calls.ask(there, round_of(), [0], 5, 0.0)
    with pytest.raises(Unavailable, match="profile 1 is under way"):
        calls.ask(there, round_of(), [0], 5, 1.0)
    found = calls.status(round_of(4))
    assert found is not None
    assert found.over == "round 3 ended before"
    assert calls.ask(there, round_of(4), [0], 5, 2.0).number == 2
    assert calls.ask(there, round_of(4), [0], 5, 3.0 + GIVEN_UP_S).number == 3


@pytest.mark.parametrize(
    ("ranks", "steps", "says"),
    [
        ([4], 5, "ranks: 4 .* 0 to 3"),
        ([], 5, "1 to 8"),
        (list(range(9)), 5, "1 to 8"),
        ([0], 0, "1 to 100"),
        ([0], 101, "1 to 100"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_what_can(
    there: dict[str, Any], ranks: list[int], steps: int, says: str
) -> None:
    with pytest.raises(InvalidInput, match=says):
        ProfileCalls().ask(there, round_of(), ranks, steps, 0.0)


def test_without_a_round_or_a_launcher_that_can_nothing_is_asked(there: dict[str, Any]) -> None:
    with pytest.raises(Unavailable, match="no round runs"):
        ProfileCalls().ask(there, None, [0], 5, 0.0)
    there["m1"].takes_profiles = False
    with pytest.raises(Unavailable, match="rank 2, m1, is away or of an older version"):
        ProfileCalls().ask(there, round_of(), [0, 2], 5, 0.0)
    assert there["m0"].shown == []
    assert ProfileCalls().status(None) is None
