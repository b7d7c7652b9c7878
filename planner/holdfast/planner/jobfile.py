"""The TrainingJob that a plan leads to: nodes and spares, ranks of a model, interval, price and FLOP.

It carries the question and what was assumed, so that both can be compared with what turns out to be true.
"""

import bisect
import math
from collections.abc import Mapping

import msgspec

from holdfast.api.planned import PLAN_ANNOTATION
from holdfast.api.policy import Expects
from holdfast.planner.memory import memory_of, room_of
from holdfast.planner.plan import Option, Plan, Question
from holdfast.planner.questionfile import carried_text


def job_of(question: Question, plan: Plan, option: Option, name: str) -> Mapping[str, object]:
    """The manifest, as YAML and JSON have it; the entrypoint is for the user to fill in."""
    cluster, layout, training = question.cluster, option.layout, question.training
    spec: dict[str, object] = {
        "entrypoint": ["train.py"],
        "nodes": {"min": _fewest(question, option), "max": cluster.nodes, "spares": round(plan.spares.value)},
        "processesPerNode": min(cluster.per_node, cluster.gpus),
        "parallelism": {"tensor": layout.tensor, "context": layout.context, "pipeline": layout.pipeline},
        "utilization": {
            "gigaflopsPerToken": float(f"{question.model.flops_per_token(training.sequence) / 1e9:.6g}"),
            "peakTeraflopsPerGpu": cluster.gpu.bf16 / 1e12,
        },
    }
    if math.isfinite(plan.interval.value):
        spec["checkpoint"] = {"interval": f"{max(1, round(plan.interval.value))}s"}
    expects = Expects(
        step_seconds=option.step.value,
        memory_rate=cluster.gpu.memory_rate * question.reached.memory,
        nvlink_rate=cluster.peer_rate * question.reached.links,
    )
    if cluster.price is not None:
        spot = question.spot
        prices = {"prices": [{"capacity": "Spot", "gpuHour": spot.price}]} if spot is not None else {}
        spec["cost"] = {"gpuHour": cluster.price, **prices}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name, "annotations": {PLAN_ANNOTATION: carried_text(question, layout, expects)}},
        "spec": spec,
    }


def _fewest(question: Question, option: Option) -> int:
    """Nodes that whole replicas of the model fill, and groups that share state or experts: so many that what they
    share still fits their memory.
    """
    model, cluster, training = question.asked
    layout, per_node = option.layout, min(cluster.per_node, cluster.gpus)
    replica = layout.tensor * layout.context * layout.pipeline
    groups = max(1, layout.shards) * layout.tensor * layout.pipeline, layout.expert * layout.pipeline
    unit = math.lcm(replica, per_node, *groups)

    def is_enough(times: int) -> bool:
        fewer = msgspec.structs.replace(layout, data=times * unit // replica)
        return memory_of(model, fewer, training).value <= room_of(cluster.gpu)

    times = bisect.bisect_left(range(1, cluster.gpus // unit), x=True, key=is_enough) + 1
    return times * unit // per_node
