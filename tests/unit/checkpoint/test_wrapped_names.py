"""One naming for all nestings of wrappers: what is saved under any of them is restored under any other."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.format.manifest import hash_block, record_of
from holdfast.checkpoint.format.wrappers import unwrapped


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(1))


def compiled(module: nn.Module) -> nn.Module:
    wrapped: nn.Module = torch.compile(module, backend="eager")  # never run here
    return wrapped


Wrap = Callable[[nn.Module], nn.Module]
WRAPS: dict[str, tuple[Wrap, Wrap]] = {  # of each block, of the whole
    "plain": (lambda block: block, lambda model: model),
    "compiled": (lambda block: block, compiled),
    "compiled blocks": (compiled, lambda model: model),
    "recomputed": (checkpoint_wrapper, lambda model: model),
    "recomputed of compiled": (lambda block: checkpoint_wrapper(compiled(block)), lambda model: model),
    "compiled of recomputed": (lambda block: compiled(checkpoint_wrapper(block)), compiled),
    "three deep": (lambda block: checkpoint_wrapper(compiled(checkpoint_wrapper(block))), compiled),
}


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    return torch.optim.AdamW([{"params": weights}, {"params": biases, "lr": 0.5}], lr=0.1)


def go(folder: Path, how: str, until: int) -> list[torch.Tensor]:
    torch.manual_seed(until)
    of_block, of_model = WRAPS[how]
    model = of_model(nn.Sequential(of_block(Block()), of_block(Block()), nn.Linear(2, 1)))
    optimizer = optimizer_of(model)
    saves = Checkpointer(Standalone(folder.as_uri()), model=model, optimizer=optimizer, every_steps=1)
    for step, _ in saves.steps(itertools.count(), until=until):
        for each in model.parameters():
            each.grad = torch.full_like(each, float(step))
        for name, buffer in model.named_buffers():
            buffer += step if name else 0
        optimizer.step()
    saves.close()
    kept = [optimizer.state[each][name] for each in model.parameters() for name in ("exp_avg", "exp_avg_sq")]
    return [*(each.detach() for each in model.parameters()), *model.buffers(), *kept]


@pytest.mark.parametrize("how", WRAPS)
def test_what_is_saved_under_one_nesting_is_restored_under_another(how: str, tmp_path: Path) -> None:
    plain = go(tmp_path / "plain", "plain", 3)
    there = [go(tmp_path / "there", each, until) for each, until in ((how, 1), ("plain", 2), (how, 3))][-1]
    straight = [go(tmp_path / "straight", "plain", until) for until in (1, 3)][-1]
    assert all(torch.equal(*each) for each in zip(straight, there, strict=True))
    names = [json.loads((tmp_path / each / "step-00000003/index.json").read_text()) for each in ("plain", "there")]
    assert names[0]["entries"].keys() == names[1]["entries"].keys()
    assert len(plain) == len(there)


def test_an_older_checkpoint_with_the_names_of_wrappers_still_restores(tmp_path: Path) -> None:
    before = go(tmp_path, "plain", 2)
    folder = tmp_path / "step-00000002"
    written = (folder / "index.json").read_text().replace("0.inner", "0._orig_mod.inner")
    (folder / "index.json").write_text(written)
    document = json.loads((folder / "manifest.json").read_text())
    record = record_of([memoryview(written.encode())])
    document["body"]["files"]["index.json"] = {"size_bytes": record.size_bytes, "blocks": list(record.blocks)}
    body = json.dumps(document["body"]).encode()
    (folder / "manifest.json").write_bytes(b'{"seal":"%s","body":%s}' % (hash_block(body).encode(), body))
    model = nn.Sequential(Block(), Block(), nn.Linear(2, 1))
    saves = Checkpointer(Standalone(tmp_path.as_uri()), model=model, optimizer=optimizer_of(model))
    next(iter(saves.steps(itertools.count())))
    assert all(torch.equal(*each) for each in zip(before, [*model.parameters(), *model.buffers()], strict=False))


def test_names_of_wrappers_are_parts_of_a_name() -> None:
    assert unwrapped("model.0._orig_mod.inner.weight") == "model.0.inner.weight"
    assert unwrapped("optimizer.state._orig_mod.0._checkpoint_wrapped_module._orig_mod.inner.weight.step") == (
        "optimizer.state.0.inner.weight.step"
    )
    assert unwrapped("model.my_orig_mod_list.weight") == "model.my_orig_mod_list.weight"


def test_a_further_object_has_its_own_names_back_with_those_of_wrappers_in_them(tmp_path: Path) -> None:
    class Average:
        def __init__(self) -> None:
            self.weights: dict[str, torch.Tensor] = {}

        def state_dict(self) -> dict[str, torch.Tensor]:
            return dict(self.weights)

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            self.weights = dict(state)

    def train(until: int) -> list[str]:
        of_block, of_model = WRAPS["three deep"]
        model = of_model(nn.Sequential(of_block(Block()), nn.Linear(2, 1)))
        optimizer, average = torch.optim.SGD(model.parameters()), Average()
        saves = Checkpointer(
            Standalone(tmp_path.as_uri()), model=model, optimizer=optimizer, extra={"average": average}
        )
        for _ in saves.steps(itertools.count(), until=until):
            for name, each in model.named_parameters():
                average.weights.setdefault(name, each.detach().clone())
        saves.close()
        return list(average.weights)

    names = train(1)
    assert any("_orig_mod" in name for name in names)
    assert sorted(train(2)) == sorted(names)
