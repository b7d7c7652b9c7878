"""Which of a framework's complete checkpoints a round goes on from: by the rules that ours are chosen by. Pure."""

from collections.abc import Collection, Sequence

from holdfast.api.checkpoint import Standing, restore_order
from holdfast.api.errors import Damaged
from holdfast.api.round import Restore, Tier
from holdfast.integrations.marks import Marked


def common(found: Sequence[Sequence[Marked]]) -> list[Marked]:
    """Of what each rank found, what all of them did, newest first."""
    names = [{(each.name, each.step) for each in rank} for rank in found]
    return [each for each in found[0] if all((each.name, each.step) in rank for rank in names)]


def choice(found: Sequence[Marked], restore: Restore) -> Marked | None:
    """Which of `found`, newest first, a round with this directive goes on from; None: it begins afresh.

    Raises Damaged when the job has something to go back to and none of `found` may be used.
    """
    if restore.tier is Tier.NONE:
        return None
    limits = [restore.step] if restore.otherwise is None else [restore.step, restore.otherwise]
    for limit in limits:
        allowed = [each for each in found if limit is None or each.step <= limit]
        order = restore_order(allowed, restore.unhealthy_from)
        if order:
            return order[0]
    if restore.step:
        raise Damaged(f"no complete checkpoint up to step {restore.step} is there")
    if restore.step is None and found:
        raise Damaged(f"checkpoints are there and none is healthy before step {restore.unhealthy_from}")
    return None


def behind(found: Sequence[Marked], step: int) -> list[Marked]:
    """Those of `found` that training gives up by going on from `step`: it comes by there again, another way."""
    return [each for each in found if each.step > step]


def owned(found: Sequence[Marked], owner: str) -> list[Marked]:
    """Those that this life of the job saved; none where it has no name."""
    return [each for each in found if owner and each.mark.owner == owner]


def superseded(line: Sequence[Marked], count: int, standing: Standing) -> list[Marked]:
    """Those of `line`, newest first, that nobody needs: not the newest `count`, nor the one to rewind to."""
    goal = rewind_goal(line, standing)
    return [each for each in line[count:] if goal is None or each.name != goal.name]


def rewind_goal(line: Sequence[Marked], standing: Standing) -> Marked | None:
    """The one of `line`, newest first, that a rewind would go back to; None: there is none."""
    limit, verified = standing.unhealthy_from, standing.verified
    sound = [each for each in restore_order(line, limit) if verified is None or each.step <= verified]
    return sound[0] if sound else None


def surplus(names: Sequence[str], limit: int | None, needed: Collection[str]) -> list[str]:
    """Of folders `names`, oldest first, those to delete so that `limit` of them stay (None or 0: all of them);
    those `needed` stay in any case.
    """
    count = max(0, len(names) - limit) if limit and limit > 0 else 0
    return [each for each in names if each not in needed][:count]
