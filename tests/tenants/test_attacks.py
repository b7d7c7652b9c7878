"""What a pod and an account of another namespace, or a pod beside the job, can do to a job: nothing.

Each attack is tried through the watchdog's own doors, with tokens that a real API server made and reviews. Then
the victim's state, journal and ranks are what they were, and nothing that was answered tells of it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import attack_bytes
import attack_joining
import attack_reading
import attack_records
import attack_roles
import attack_slander
import attack_volumes
import pytest
from neighbours import Scene, Tokens, scene

from holdfast.agent.launch.settings import Bound, bound_to
from holdfast.watchdog.server import identity

Act = Callable[[Scene], Awaitable[None]]


@pytest.fixture
async def there(tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(identity, "SEEN_WITHIN_S", 0.2)
    async with scene(tokens) as made:
        yield made


FAMILIES = (
    attack_joining,
    attack_slander,
    attack_records,
    attack_volumes,
    attack_roles,
    attack_reading,
    attack_bytes,
)
ATTACKS: tuple[Act, ...] = tuple(each for family in FAMILIES for each in family.ATTACKS)
CONTROLS: tuple[Act, ...] = tuple(each for family in FAMILIES for each in getattr(family, "CONTROLS", ()))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_nothing_of_the_victim_changes(there: Scene, attack: Act) -> None:
    await attack(there)
    await there.settled()
    there.assert_nothing_changed()


@pytest.mark.parametrize("act", CONTROLS, ids=lambda act: act.__name__)
async def test_the_same_of_whom_it_is_believed_is_seen(there: Scene, act: Act) -> None:
    await act(there)
    assert there.standing() != there.before


@pytest.mark.parametrize("act", attack_reading.READS, ids=lambda act: act.__name__)
async def test_the_doors_open_for_whoever_may_read(there: Scene, act: Act) -> None:
    await act(there)


def test_the_table_has_every_endpoint_role_file_identity_and_quantity() -> None:
    assert len(ATTACKS) >= 60
    assert len({each.__name__ for each in ATTACKS}) == len(ATTACKS)


async def test_a_launcher_that_is_told_nothing_is_the_pod_that_its_token_names(tokens: Tokens) -> None:
    for pod in ("gpt-0", "evil-1"):
        assert bound_to(tokens.of[f"pod {pod}"]).pod.name == pod
    assert bound_to(tokens.of["agent"]) == Bound()
