"""A profile of some ranks of a job: asked for, and told as the ranks answer. One at a time."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.api.profile import RANKS_MAX, STEPS_MAX, ProfileStatus, ProfileTold, ProfileWanted
from holdfast.api.round import Round
from holdfast.watchdog.server.connection import LauncherConnection, Slot

GIVEN_UP_S: Final = 3600.0  # of a profile that nobody finishes; another one may be asked for then


class ProfileCalls:
    """Of one job. Times are seconds on the watchdog's clock."""

    def __init__(self) -> None:
        self._newest: ProfileStatus | None = None
        self._begun = 0.0

    def ask(
        self,
        launchers: Mapping[str, LauncherConnection],
        round_: Round | None,
        ranks: Sequence[int],
        steps: int,
        now: float,
    ) -> ProfileStatus:
        """Ask the ranks. Raises InvalidInput for what cannot be asked, Unavailable while one is under way."""
        if round_ is None:
            raise Unavailable("no round runs, so there is nothing to profile")
        if not 1 <= len(set(ranks)) <= RANKS_MAX:
            raise InvalidInput(Problem("ranks", len(set(ranks)), f"name 1 to {RANKS_MAX} ranks"))
        if not 1 <= steps <= STEPS_MAX:
            raise InvalidInput(Problem("steps", steps, f"give 1 to {STEPS_MAX}"))
        running = self.status(round_)
        if running is not None and not running.over and now < self._begun + GIVEN_UP_S:
            raise Unavailable(f"profile {running.number} is under way: ask again once it is over")
        members = {}
        for rank in sorted(set(ranks)):
            share = round_.member_of(rank)
            if share is None:
                raise InvalidInput(Problem("ranks", rank, f"give ranks from 0 to {round_.world_size - 1}"))
            launcher = launchers.get(share.member)
            if launcher is None or not launcher.takes_profiles:
                raise Unavailable(f"the launcher of rank {rank}, {share.member}, is away or of an older version")
            members[share.member] = launcher
        number = self._newest.number + 1 if self._newest is not None else 1
        self._begun = now
        self._newest = ProfileStatus(number, round_.number, tuple(sorted(set(ranks))), steps)
        wanted = ProfileWanted(round_.number, number, self._newest.ranks, steps)
        for launcher in members.values():
            launcher.show(Slot.PROFILE, wanted)
        return self._newest

    def told(self, round_: Round | None, member: str, told: ProfileTold) -> None:
        """One rank's answer. What nobody asked this member for, or asked for twice, is dropped."""
        newest = self._newest
        if newest is None or round_ is None or (told.number, told.round) != (newest.number, newest.round):
            return
        share = round_.member_of(told.rank)
        known = {each.rank for each in newest.told}
        if share is None or share.member != member or told.rank not in newest.ranks or told.rank in known:
            return
        self._newest = msgspec.structs.replace(newest, told=(*newest.told, told))

    def status(self, round_: Round | None) -> ProfileStatus | None:
        """The newest one, and whether more of it will come; None when none was asked for."""
        newest = self._newest
        if newest is None:
            return None
        missing = sorted(set(newest.ranks) - {each.rank for each in newest.told})
        over = ""
        if not missing:
            over = "every rank has answered"
        elif round_ is None or round_.number != newest.round:
            over = f"round {newest.round} ended before"
        return msgspec.structs.replace(newest, over=over)
