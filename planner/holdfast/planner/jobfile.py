"""The TrainingJob that a plan leads to: nodes and spares, ranks of a model, interval, price and FLOP.

It carries the question and what was assumed, so that both can be compared with what turns out to be true.
"""

import math
from collections.abc import Mapping

from holdfast.api.planned import PLAN_ANNOTATION
from holdfast.api.policy import Expects
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
            "gigaflopsPerToken": round(question.model.flops_per_token(training.sequence) / 1e9, 3),
            "peakTeraflopsPerGpu": cluster.gpu.bf16 / 1e12,
        },
    }
    if math.isfinite(plan.interval.value):
        spec["checkpoint"] = {"interval": f"{max(1, round(plan.interval.value))}s"}
    expects = Expects(
        step_seconds=option.step.value,
        memory_rate=cluster.gpu.memory_rate * question.reached.memory,
        nvlink_rate=cluster.gpu.nvlink * question.reached.links,
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
    """Nodes that whole replicas of the model fill: with fewer there is none."""
    layout = option.layout
    replica = layout.tensor * layout.context * layout.pipeline
    return replica // math.gcd(replica, min(question.cluster.per_node, question.cluster.gpus))
