"""What was proved of nodes, handed on to others: as a condition of the node, and as a remediation asked for."""

from holdfast.operator.decide.action import Action
from holdfast.operator.decide.context import Context
from holdfast.operator.decide.nodehealth import told_health
from holdfast.operator.decide.observed import HandOn
from holdfast.operator.decide.remediations import Asker, asked_for, failures, over


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
    return (*health, *asking, *over(asker, plan, there, ttl_s=options.remediation_ttl_s, now=ctx.now))
