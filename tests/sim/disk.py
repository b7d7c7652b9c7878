"""The checkpoint directory all nodes share, with the fence that the real library keeps there."""

KEEP = 2


class Disk:
    """Commits as (round, step), in order of time. `fence` is the highest round that ever began.

    `there` are the steps that can be restored, and whether every rank was finite when each was saved, as its
    manifest says. Nothing is deleted before something was saved that is not healthy: then the newest `KEEP`
    stay, and the newest that is healthy.
    """

    def __init__(self) -> None:
        self.fence = 0
        self.commits: list[tuple[int, int]] = []
        self.known: set[tuple[int, int]] = set()
        self.refused = 0
        self.there: dict[int, bool] = {}
        self.had_healthy = False

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
        self.there[step] = healthy
        self.had_healthy = self.had_healthy or healthy
        if not healthy:
            self._prune()
        return True

    def newest(self, limit: int | None, unhealthy_from: int | None = None) -> int | None:
        """The step a restore not above `limit` and before `unhealthy_from` finds: one that was healthy, if any."""
        allowed = [step for step in self.there if limit is None or step <= limit]
        allowed = [step for step in allowed if unhealthy_from is None or step < unhealthy_from]
        return max(allowed, key=lambda step: (self.there[step], step), default=None)

    def _prune(self) -> None:
        kept = {*list(self.there)[-KEEP:], *[step for step, healthy in self.there.items() if healthy][-1:]}
        self.there = {step: healthy for step, healthy in self.there.items() if step in kept}
