"""One rank of a torchft replica group: the model, data and pace of examples/replicas/train.py, sharded with FSDP2.

torchrun --nproc-per-node 2 torchftgroup.py GROUP STEPS PACE_S TRACE
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional
from torchft import Manager, Optimizer, ProcessGroupGloo

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "replicas"))
from train import build, digest, samples

WIDTH, BATCH = 128, 32


def main() -> None:
    group, steps, pace_s, trace = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), Path(sys.argv[4])
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = build(WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for parameter in model.parameters():  # what the optimizer keeps has to be there to be loaded
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    held = [each._local_tensor for each in model.parameters()]

    def kept() -> list[torch.Tensor]:
        state = [optimizer.state[each] for each in model.parameters()]
        return [getattr(each[name], "_local_tensor", each[name]) for each in state for name in sorted(each)]

    def told() -> dict[str, Any]:
        return {"held": [each.detach().clone() for each in held], "kept": [each.clone() for each in kept()]}

    @torch.no_grad()
    def take(state: dict[str, Any]) -> None:
        for mine, other in zip([*held, *kept()], [*state["held"], *state["kept"]], strict=True):
            mine.copy_(other)

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=take,
        state_dict=told,
        min_replica_size=1,
        replica_id=f"group_{group}",
        hostname="127.0.0.1",
    )
    wrapped = Optimizer(manager, optimizer)
    while manager.current_step() < steps:
        began, before = time.monotonic(), manager.current_step()
        wrapped.zero_grad()
        values, wanted = samples(before + 1, group * size + rank, 2 * size, BATCH)
        functional.cross_entropy(model(values), wanted).backward()
        time.sleep(max(0.0, pace_s - (time.monotonic() - began)))
        grads = [each.grad._local_tensor for each in model.parameters()]
        flat = torch.cat([each.reshape(-1) for each in grads])
        manager.allreduce(flat).wait()
        at = 0
        for each in grads:
            each.copy_(flat[at : at + each.numel()].reshape(each.shape))
            at += each.numel()
        wrapped.step()
        if manager.current_step() > before:
            line = {"step": manager.current_step(), "at": time.monotonic(), "rank": rank, "inside": rank}
            line |= {"group": group, "groups": manager.num_participants(), "digest": digest(model, optimizer)}
            with (trace / f"process-{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
    manager.shutdown()


if __name__ == "__main__":
    main()
