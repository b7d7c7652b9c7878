"""Training with `Checkpointer`: a snapshot in memory after every step, and nothing in storage."""

import itertools
import sys
import time
from pathlib import Path
from typing import Final

import torch
from torch.nn.parallel import DistributedDataParallel
from workload import WIDTH, Marks, new_model

from holdfast.checkpoint import Checkpointer
from holdfast.trainer import Assignment, Run

SLEEP_S: Final = 0.2  # A short step of a large run: a copy has that long to get to its keeper.


def main() -> None:
    """Train until killed."""
    run = Run(backend="gloo")

    def train(assignment: Assignment) -> None:
        marks = Marks(Path(sys.argv[1]), assignment.rank, assignment.world_size)
        model = new_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        ddp = DistributedDataParallel(model)
        checkpointer = Checkpointer(run, model=model, optimizer=optimizer)
        is_new = True
        for step, _ in checkpointer.steps(itertools.count()):
            if is_new:
                marks.begun(step - 1)
                is_new = False
            time.sleep(SLEEP_S)
            batch = torch.randn(16, WIDTH)
            optimizer.zero_grad()
            loss = (ddp(batch) - batch).square().mean()
            loss.backward()
            optimizer.step()
            marks.stepped(step)
            run.step(step, loss=loss)

    run.enter(train)


if __name__ == "__main__":
    main()
