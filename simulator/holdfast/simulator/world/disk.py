"""The checkpoint directory all nodes share, with the fence that the real library keeps there."""

from typing import Final

KEEP: Final = 2


class Disk:
    """Commits as (round, step), in order of time. `fence` is the highest round that ever began.

    `there` are the steps that can be restored, and whether every rank was finite when each was saved, as its
    manifest says; `rounds` which round committed them. With `keep` as many stay, the newest ones, besides the
    newest that is healthy and the newest that is `verified`. Without it nothing is deleted before something was
    saved that is not healthy: then the newest `KEEP` stay, and the newest that is healthy.
    """

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self.fence = 0
        self.commits: list[tuple[int, int]] = []
        self.known: set[tuple[int, int]] = set()
        self.refused = 0
        self.there: dict[int, bool] = {}
        self.rounds: dict[int, int] = {}
        self.had_healthy = False
        self.verified = -1  # the last step that is known to be right

    def raise_fence(self, round_number: int) -> None:
        self.fence = max(self.fence, round_number)

    def commit(self, round_number: int, step: int, *, healthy: bool = True) -> bool:
        """Whether the commit of a round was taken: an older round than the fence is refused."""
        if round_number < self.fence:
            self.refused += 1
            return False
        self.commits.append((round_number, step))
        self.known.add((round_number, step))
        self.there.pop(step, None)
        self.there[step], self.rounds[step] = healthy, round_number
        self.had_healthy = self.had_healthy or healthy
        if not healthy or self.keep is not None:
            self._prune(KEEP if self.keep is None else self.keep)
        return True

    def go_on(self, step: int | None, verified: int | None) -> None:
        """A round goes on behind `step`, and is told what is verified. With `keep` it deletes what is of a history
        that was given up, as the real library does.
        """
        self.verified = -1 if verified is None else verified
        if self.keep is not None:
            self.there = {each: healthy for each, healthy in self.there.items() if each <= (step or 0)}
            self.rounds = {each: self.rounds[each] for each in self.there}

    def newest(self, limit: int | None, unhealthy_from: int | None = None) -> int | None:
        """The step a restore not above `limit` and before `unhealthy_from` finds: one that was healthy, if any."""
        allowed = [step for step in self.there if limit is None or step <= limit]
        allowed = [step for step in allowed if unhealthy_from is None or step < unhealthy_from]
        return max(allowed, key=lambda step: (self.there[step], step), default=None)

    def _prune(self, keep: int) -> None:
        kept = {*list(self.there)[-keep:], *[step for step, healthy in self.there.items() if healthy][-1:]}
        kept |= {
            step for step in [max((each for each in self.there if each <= self.verified), default=-1)] if step >= 0
        }
        self.there = {step: healthy for step, healthy in self.there.items() if step in kept}
        self.rounds = {step: self.rounds[step] for step in self.there}
