"""An optimizer's state comes back in the dtype it was saved in, whatever that of the parameters."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import Linear, Module, Sequential, Tanh

from holdfast.checkpoint import Checkpointer, Standalone


class Precise(torch.optim.Optimizer):
    """As people write them: sums in float32, a bit of float64, whole numbers, a flag and a plain count beside."""

    def __init__(self, params: Iterable[torch.nn.Parameter], *, counts: bool) -> None:
        super().__init__(params, {"lr": 0.1, "counts": counts})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is None:
                    continue
                held = self.state[each]
                if not held:
                    held["sum"] = torch.zeros_like(each, dtype=torch.float32)
                    held["exact"] = torch.zeros((), dtype=torch.float64)
                    held["seen"] = torch.zeros((), dtype=torch.int64)
                    held["signs"] = torch.zeros_like(each, dtype=torch.int8)
                    held["has_begun"] = torch.zeros((), dtype=torch.bool)
                    if group["counts"]:
                        held["count"] = 0
                held["sum"].add_(each.grad.float() / 3)
                held["exact"] += each.grad.double().sum() / 7
                held["seen"] += 1
                held["signs"].copy_(each.grad.sign())
                held["has_begun"].fill_(1)
                if group["counts"]:
                    held["count"] += 1
                each.sub_((held["sum"] * 0.01 + held["exact"].float() * 1e-3).to(each.dtype))


Make = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda those: torch.optim.SGD(those, lr=0.1, momentum=0.9),
    "Adam": lambda those: torch.optim.Adam(those, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "RMSprop": lambda those: torch.optim.RMSprop(those, centered=True, momentum=0.9),
    "Rprop": torch.optim.Rprop,
    "of one's own": lambda those: Precise(those, counts=False),
    "of one's own, with a count": lambda those: Precise(those, counts=True),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
FIRST, LAST = 3, 5


def model_of(dtype: torch.dtype) -> Module:
    torch.manual_seed(1)
    return Sequential(Linear(3, 4), Tanh(), Linear(4, 1)).to(dtype)


def train(directory: Path, make: Make, dtype: torch.dtype, until: int) -> tuple[Module, torch.optim.Optimizer]:
    model = model_of(dtype)
    optimizer = make(model.parameters())
    checkpointer = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=directory.as_uri())
    batches = [torch.linspace(-1, 1, 6, dtype=dtype).reshape(2, 3) * (number + 1) for number in range(LAST)]
    for _, batch in checkpointer.steps(batches, until=until):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
    checkpointer.close()
    return model, optimizer


def bits(tensor: torch.Tensor) -> bytes:
    """Some of these optimizers make NaN of float16, and that is to come back as well."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()


def held(model: Module, optimizer: torch.optim.Optimizer) -> dict[str, tuple[object, object]]:
    """Every value of the optimizer's state, with its dtype."""
    return {
        f"{name}.{key}": (getattr(value, "dtype", type(value)), bits(torch.as_tensor(value)))
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_comes_back_in_the_dtype_it_was_saved_in(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    make = OPTIMIZERS[name]
    saved = train(tmp_path / "run", make, dtype, FIRST)
    back = train(tmp_path / "run", make, dtype, 0)
    assert held(*back) == held(*saved)
    went_on = train(tmp_path / "run", make, dtype, LAST)
    straight = train(tmp_path / "other", make, dtype, LAST)
    assert held(*went_on) == held(*straight)
    for one, other in zip(went_on[0].parameters(), straight[0].parameters(), strict=True):
        assert bits(one) == bits(other)
