"""The same training inside `Run`: a round that ends is left and the next one entered in the same process."""

import sys
from pathlib import Path

from workload import Workload

from holdfast.trainer import Assignment, Run


def main() -> None:
    """Train until killed."""
    run = Run(backend="gloo")

    def train(assignment: Assignment) -> None:
        workload = Workload(Path(sys.argv[1]), assignment.rank, assignment.world_size)
        while True:
            loss = workload.advance()
            run.step(workload.step, loss=loss)

    run.enter(train)


if __name__ == "__main__":
    main()
