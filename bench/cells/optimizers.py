"""Optimizers of kinds that torch has none of, as small as they can be: what matters is what they keep."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class ScheduleFree(Optimizer):
    """Averages in place of a schedule: a second copy of the weights, counters in the groups.

    Source: Defazio et al., The Road Less Scheduled, arXiv:2405.15682, algorithm 1 without warm-up
    """

    def __init__(self, parameters: Parameters, lr: float = 0.02, beta: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["k"] += 1
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["z"], state["x"] = each.clone(), each.clone()
                state["z"].sub_(each.grad, alpha=group["lr"])
                state["x"].lerp_(state["z"], 1 / group["k"])
                each.copy_(torch.lerp(state["z"], state["x"], group["beta"]))


class EightBit(Optimizer):
    """Momentum in 8 bits with one scale for each parameter, and a counter of whole numbers."""

    def __init__(self, parameters: Parameters, lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state["step"] = torch.zeros((), dtype=torch.int64)
                    state["momentum"] = torch.zeros_like(each, dtype=torch.int8)
                    state["scale"] = torch.ones((), dtype=torch.float32)
                kept, gradient = local(state["momentum"]), local(each.grad).float()
                momentum = 0.9 * kept.float() * state["scale"] + gradient
                largest = momentum.abs().max() if momentum.numel() else torch.zeros(())
                if isinstance(each, DTensor):
                    torch.distributed.all_reduce(largest, op=torch.distributed.ReduceOp.MAX)
                state["step"] += 1
                state["scale"].copy_(largest / 127 + 1e-12)
                kept.copy_((momentum / state["scale"]).round())
                local(each).sub_((group["lr"] * kept.float() * state["scale"]).to(each.dtype))


class PerRow(Optimizer):
    """One number for each row that this rank holds, in a plain tensor, as many people's own optimizers have it."""

    def __init__(self, parameters: Parameters, lr: float = 0.02) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                own, gradient = local(each), local(each.grad).float()
                rows = own.shape[0] if own.dim() else 1
                state = self.state[each]
                if not state:
                    state["rows"] = torch.zeros(rows)
                if not own.numel():
                    continue
                flat = gradient.reshape(rows, -1)
                state["rows"].mul_(0.9).add_(flat.square().mean(1), alpha=0.1)
                change = flat / (state["rows"].sqrt()[:, None] + 1e-3)
                own.sub_((group["lr"] * change).view_as(own).to(own.dtype))


class Lookahead(Optimizer):
    """Every third step the weights go half of the way from where they were then. What it keeps beside the inner
    optimizer lies in its state dictionary under keys of its own.

    Source: Zhang et al., Lookahead Optimizer: k steps forward, 1 step back, arXiv:1907.08610
    """

    def __init__(self, inner: Optimizer, every: int = 3) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.every, self.count = inner, every, 0
        self.param_groups, self.state = inner.param_groups, inner.state
        self.slow = [[each.detach().clone() for each in group["params"]] for group in self.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {**self.inner.state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.slow, self.count = state_dict["slow"], state_dict["count"]
        self.inner.load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.inner.step()
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow, strict=True):
                for each, before in zip(group["params"], slow, strict=True):
                    before.lerp_(each, 0.5)
                    each.copy_(before)
