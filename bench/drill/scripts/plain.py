"""An unmodified elastic script: it knows torch and the environment torchrun sets, and nothing of Holdfast."""

import sys
from pathlib import Path

import torch.distributed
from workload import Workload


def main() -> None:
    """Train until killed."""
    torch.distributed.init_process_group("gloo")
    workload = Workload(Path(sys.argv[1]), torch.distributed.get_rank(), torch.distributed.get_world_size())
    while True:
        workload.advance()


if __name__ == "__main__":
    main()
