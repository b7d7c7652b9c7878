"""What the planner makes of published runs, beside what they reached, and how soon it has judged every layout.

    python bench/plan.py [--runs 5]

Of each published run: how far the planned figure is from it, beside the tolerance that its test holds it to.
"""

import argparse
import sys
import time
from pathlib import Path

from figure import measured, publish

from holdfast.planner.cluster import Cluster
from holdfast.planner.gpu import GPUS
from holdfast.planner.layout import Training
from holdfast.planner.model import Model
from holdfast.planner.plan import Question, plan

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "unit" / "planner"))
from nvidia_runs import RUNS
from published_runs import HELD

JUDGED_S_MAX = 1.0
QUESTION = Question(
    Model("Llama 3 405B", layers=126, hidden=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256),
    Cluster(GPUS["H100-80GB"], 16384),
    Training(sequence=8192, batch=2048, tokens=15.6e12),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    figures = []
    for each in RUNS:
        differs = abs(each.ours / each.figure - 1.0)
        name = f"{each.name}: {each.ours:.4g} planned, {each.figure:.4g} {each.unit} published"
        figures.append(measured(name, ours=[differs], other=[each.within], unit="of it", target=1.0))
    for held in HELD:
        differs = abs(held.ours / held.gib - 1.0)
        name = f"memory of {held.name}: {held.ours:.4g} GiB planned, {held.gib:.4g} measured"
        figures.append(measured(name, ours=[differs], other=[held.within], unit="of it", target=1.0))
    took = []
    for _ in range(arguments.runs):
        began = time.perf_counter()
        judged = plan(QUESTION)
        took.append(time.perf_counter() - began)
    count = len(judged.options) + len(judged.rejected)
    name = f"every layout of Llama 3 405B on 16384 GPUs judged: {count}"
    figures.append(measured(name, ours=took, other=[JUDGED_S_MAX], unit="s", target=1.0))
    publish("plan", figures)


if __name__ == "__main__":
    main()
