"""The TrainingJob that a plan leads to: nodes and spares, ranks of a model, interval, price and FLOP."""

import math
from collections.abc import Mapping

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.plan import Option, Plan, Question


def job_of(question: Question, plan: Plan, option: Option, name: str) -> Mapping[str, object]:
    """The manifest, as YAML and JSON have it; the entrypoint is for the user to fill in.

    Raises InvalidInput for a layout that a TrainingJob cannot say.
    """
    cluster, layout, training = question.cluster, option.layout, question.training
    if layout.context > 1:
        fix = "a TrainingJob has no axis for context parallelism yet; give --layout cp=1"
        raise InvalidInput(Problem("--write", str(layout), fix))
    spec: dict[str, object] = {
        "entrypoint": ["train.py"],
        "nodes": {"min": _fewest(question, option), "max": cluster.nodes, "spares": round(plan.spares.value)},
        "processesPerNode": min(cluster.per_node, cluster.gpus),
        "parallelism": {"tensor": layout.tensor, "pipeline": layout.pipeline},
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
    """Nodes of one replica of the model: with fewer there is none."""
    layout = option.layout
    replica = layout.tensor * layout.pipeline
    return max(1, -(-replica // question.cluster.per_node))
