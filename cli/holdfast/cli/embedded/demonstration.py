"""What the demo runs: the example of this repository on three nodes and a spare, and four faults."""

from pathlib import Path

from holdfast.api.errors import Unavailable
from holdfast.api.trainingjob import Nodes, TrainingJob
from holdfast.cli.embedded.faultscript import After, Deed, ScriptedFault, When

NODES = Nodes(min=2, max=3, spares=1)
STEPS_DEFAULT = 300
STEPS_MIN = 100  # fewer leave no time between the faults
SIMULATED_GPU_FELL_OFF_THE_BUS = 79


def example_job_file() -> Path:
    """The job file of the example. Raises Unavailable where Holdfast is installed without its examples."""
    file = Path(__file__).resolve().parents[4] / "examples" / "bytes" / "job.yaml"
    if not file.is_file():
        raise Unavailable(
            "the demo needs the examples folder of the source tree, which is not installed with Holdfast"
        )
    return file


def demo_job(example: TrainingJob, *, steps: int, text: Path | None) -> TrainingJob:
    """The example, made elastic and given its length; it saves into the run's own state directory."""
    words = (*example.spec.entrypoint, "--steps", str(steps))
    if text is not None:
        words = (*words, "--text", str(text.absolute()))
    checkpoint = example.spec.checkpoint.model_copy(update={"uri": None})
    spec = example.spec.model_copy(update={"entrypoint": words, "nodes": NODES, "checkpoint": checkpoint})
    metadata = example.metadata.model_copy(update={"name": "demo"})
    return example.model_copy(update={"spec": spec, "metadata": metadata})


def demo_faults(steps: int) -> tuple[ScriptedFault, ...]:
    """A crash, a lost node, a hang and a broken GPU, each after the one before was healed."""
    deeds = (
        (Deed.KILL_WORKER, None),
        (Deed.KILL_NODE, None),
        (Deed.STOP_WORKER, None),
        (Deed.XID, SIMULATED_GPU_FELL_OFF_THE_BUS),
    )
    return tuple(
        ScriptedFault(
            at=When(step=steps * (place + 1) // (len(deeds) + 2)), do=deed, after=After.RECOVERED, rank=1, xid=xid
        )
        for place, (deed, xid) in enumerate(deeds)
    )
