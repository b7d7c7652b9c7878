"""What a pipeline waits: stages that have nothing to do while it fills and drains.

A pass of a micro-batch through a stage is a forward part, the gradient of its input and the gradient of its
weights; where nothing else is known each takes a third. Nobody waits for the last: schedules without bubble fill
the gaps with it.

Sources: https://arxiv.org/abs/2104.04473 (one forward one backward, interleaved),
https://arxiv.org/abs/2401.10241 (table 2: ZB-H1 and ZB-H2)
"""

from holdfast.planner.layout import Layout, Schedule

THIRD = 1.0 / 3.0
INTERLEAVED = "https://arxiv.org/abs/2104.04473"
ZERO = "https://arxiv.org/abs/2401.10241"


def bubble_passes(layout: Layout) -> float:
    """In passes of a micro-batch through a stage: P-1, over the chunks of an interleaved schedule; without bubble
    what ZB-H1 leaves of it.
    """
    stages = layout.pipeline
    if layout.schedule is Schedule.INTERLEAVED:
        return waited(stages) / layout.chunks
    return zero_bubble_waited(stages) if layout.schedule is Schedule.ZERO_BUBBLE else waited(stages)


def bubble_formula(layout: Layout) -> tuple[str, str]:
    """How the bubble of a layout's schedule comes about, over the time computed, and where that is from."""
    if layout.schedule is Schedule.INTERLEAVED:
        return f"(P-1)/M over {layout.chunks} chunks", INTERLEAVED
    if layout.schedule is Schedule.ZERO_BUBBLE:
        return "(P-1) (F + B - W) / M, of equal thirds", ZERO
    return "(P-1)/M", INTERLEAVED


def waited(stages: int, *, forward: float = THIRD, inputs: float = THIRD, weights: float = THIRD) -> float:
    """(P-1) (F + B + W), in the unit of its parts."""
    return (stages - 1) * (forward + inputs + weights)


def zero_bubble_waited(
    stages: int, *, forward: float = THIRD, inputs: float = THIRD, weights: float = THIRD, doubled: bool = False
) -> float:
    """(P-1) (F + B - W) with the activations of one forward one backward; with twice of them (`doubled`) W is
    taken off twice, which leaves nothing where the parts are equal.
    """
    return max(0.0, (stages - 1) * (forward + inputs - (2.0 if doubled else 1.0) * weights))


def bubble_share(passes: float, micro_batches: int) -> float:
    """Of the whole time: what waits over what waits and computes."""
    return passes / (passes + micro_batches)
