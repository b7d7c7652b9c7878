"""The TrainingJob that a plan leads to: nodes and spares, ranks of a model, interval, price and FLOP."""

import math
from collections.abc import Mapping

from holdfast.planner.plan import Option, Plan, Question


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
    if cluster.price is not None:
        spec["cost"] = {"gpuHour": cluster.price}
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": spec,
    }


def _fewest(question: Question, option: Option) -> int:
    """Nodes that whole replicas of the model fill: with fewer there is none."""
    layout = option.layout
    replica = layout.tensor * layout.context * layout.pipeline
    return replica // math.gcd(replica, min(question.cluster.per_node, question.cluster.gpus))
