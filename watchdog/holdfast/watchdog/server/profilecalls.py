"""A profile of some ranks of a job: asked for, and told as the ranks answer."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.api.profile import ProfileStatus, ProfileTold, ProfileWanted
from holdfast.api.round import Round
from holdfast.watchdog.server.connection import LauncherConnection, Slot


class ProfileCalls:
    """Of one job. The newest that is asked for counts."""

    def __init__(self) -> None:
        self._newest: ProfileStatus | None = None

    def take(
        self, launchers: Mapping[str, LauncherConnection], round_: Round, ranks: Sequence[int], steps: int
    ) -> None:
        """Ask `ranks` of `round_`; for one whose launcher cannot be asked it is told why."""
        number = self._newest.number + 1 if self._newest is not None else 1
        self._newest = ProfileStatus(number, round_.number, tuple(ranks), steps)
        wanted = ProfileWanted(round_.number, number, self._newest.ranks, steps)
        asked = set()
        for rank in ranks:
            share = round_.member_of(rank)
            if share is None or share.member in asked:
                continue
            if (launcher := launchers.get(share.member)) is None or not launcher.takes_profiles:
                problem = f"its launcher, {share.member}, is away or of an older version"
                self.told(round_, share.member, ProfileTold(round_.number, number, rank, problem=problem))
                continue
            launcher.show(Slot.PROFILE, wanted)
            asked.add(share.member)

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
