"""The checkpoint directory all nodes share, with the fence that the real library keeps there."""


class Disk:
    """Commits as (round, step), in order of time. `fence` is the highest round that ever began."""

    def __init__(self) -> None:
        self.fence = 0
        self.commits: list[tuple[int, int]] = []
        self.known: set[tuple[int, int]] = set()
        self.refused = 0

    def raise_fence(self, round_number: int) -> None:
        self.fence = max(self.fence, round_number)

    def commit(self, round_number: int, step: int) -> bool:
        """Whether the commit of a round was taken: an older round than the fence is refused."""
        if round_number < self.fence:
            self.refused += 1
            return False
        self.commits.append((round_number, step))
        self.known.add((round_number, step))
        return True

    def newest(self, limit: int | None) -> int | None:
        """The step a restore not above `limit` finds."""
        steps = [step for _, step in self.commits if limit is None or step <= limit]
        return max(steps, default=None)
