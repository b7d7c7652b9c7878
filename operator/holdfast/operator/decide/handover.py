"""What was proved of nodes, handed on to others: as a condition of the node, and as a remediation asked for."""

from collections.abc import Iterator

from holdfast.api.cordon import CORDONED_BY, read_cordoned_by
from holdfast.api.nodecondition import Meaning
from holdfast.operator.decide.action import Action, Uncordon
from holdfast.operator.decide.context import Context
from holdfast.operator.decide.nodehealth import returned_health, told_health
from holdfast.operator.decide.observed import Cordoning, HandOn
from holdfast.operator.decide.remediations import Asker, asked_for, failures, over, repaired_for_nobody
from holdfast.operator.kube.objects import seconds_of


def handed_on(ctx: Context) -> tuple[Action, ...]:
    """What makes conditions and remediations match the plan."""
    options, plan, nodes = ctx.options, ctx.plan, ctx.observed.nodes
    if plan is None or options.hand_on is HandOn.NOTHING:
        return ()
    there, asker = ctx.observed.remediations, Asker(ctx.id, ctx.metadata.uid)
    health = told_health(ctx.id, plan, nodes, failures(asker, plan, there), ctx.now)
    if options.hand_on is HandOn.CONDITION:
        return health
    occupied = frozenset(pod.spec.node_name for pod in ctx.pods.there)
    asking = asked_for(asker, plan, nodes, there, occupied)
    alive, ttl_s = ctx.observed.alive, options.remediation_ttl_s
    ending = over(asker, plan, there, alive=alive, ttl_s=ttl_s, now=ctx.now)
    return (*health, *_taken_back(ctx, asker), *asking, *ending)


def _taken_back(ctx: Context, asker: Asker) -> Iterator[Action]:
    """Nodes that were repaired for jobs that ended meanwhile: what those did to them is undone for them."""
    options, kept = ctx.options, {order.node for order in (ctx.plan.cordon if ctx.plan is not None else ())}
    for name, job, done_at in repaired_for_nobody(asker, ctx.observed.remediations, ctx.observed.alive):
        node = ctx.observed.nodes.get(name)
        if node is None or name in kept:
            continue
        if any(each.means is Meaning.EVICT for each in options.condition_map.told(node.status.conditions)):
            continue  # somebody says that it is not well
        by = read_cordoned_by(node.metadata.annotations.get(CORDONED_BY))
        cordoned_at = seconds_of(by.at) if by is not None and by.job == job else None
        # What the next job of that name did after the repair, it did for another reason.
        if cordoned_at is None or cordoned_at > done_at:
            continue
        if options.cordoning is Cordoning.OWN:
            yield Uncordon(name, job)
        if (health := returned_health(job, node, ctx.now)) is not None:
            yield health
