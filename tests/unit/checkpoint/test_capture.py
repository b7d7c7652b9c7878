"""What a capture sees of a training state that changes under it, and what it makes of that."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from holdfast.checkpoint.capture.capture import PrivateMemory
from holdfast.checkpoint.capture.image import ImageWriter, Snapshot
from holdfast.checkpoint.capture.live import ChunkKey, LiveState
from holdfast.checkpoint.capture.state import TrainingState
from holdfast.checkpoint.format.archive import content_of, unpack_object
from holdfast.checkpoint.format.index import StoredObject
from holdfast.checkpoint.format.nested import Flat


class Norm(nn.Module):
    """A parameter, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.register_parameter("bias", None)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.mean) * self.scale


@dataclass(frozen=True, slots=True)
class Counted(TrainingState):
    """Says how often it was asked for everything."""

    asked: list[int] = field(default_factory=list)

    def flat(self, rank: int) -> Flat:
        self.asked.append(rank)
        return TrainingState.flat(self, rank)


class Loop:
    """A model in training, and its snapshots."""

    def __init__(self, model: nn.Module | None = None, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(6, 6), Norm(), nn.Linear(6, 6, bias=False))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, **settings)
        self.room = PrivateMemory(1 << 20)
        self.writer = ImageWriter(0)
        self.generation, self.share = 0, dict[ChunkKey, str]()
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.state = Counted(self.model, self.optimizer, scheduler, None, {})
        self.live = LiveState(self.state, rank=0)

    def step(self) -> None:
        self.model(torch.randn(3, 6)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def take(self) -> Snapshot:
        look = self.live.look()
        if look.generation != self.generation:
            self.generation, self.share = look.generation, {claim.key: claim.name for claim in look.claims()}
        taken = self.writer.write(look, self.share, lambda *_: self.room, step=1, batches=1)
        assert taken is not None
        return taken

    @property
    def asked(self) -> int:
        """How often the state was asked for everything since this was last looked at."""
        number = len(self.state.asked)
        self.state.asked.clear()
        return number


def read(snapshot: Snapshot) -> dict[str, object]:
    """What stock torch reads out of the image."""
    found: dict[str, object] = {}
    for name, stored in snapshot.entries.items():
        chunk = stored if isinstance(stored, StoredObject) else stored.chunks[0]
        archive = bytes(snapshot.image[chunk.start : chunk.start + chunk.length_bytes])
        is_object = isinstance(stored, StoredObject)
        found[name] = unpack_object(archive) if is_object else torch.load(io.BytesIO(archive), weights_only=True)
    return found


def assert_exact(loop: Loop) -> None:
    """A snapshot taken now is what the state dict says."""
    found = read(loop.take())
    flat = TrainingState.flat(loop.state, 0)
    expected = flat.values
    assert content_of(found.pop("outline")) == content_of(flat.outline)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            whole = value.to_local() if isinstance(value, DTensor) else value
            ours = found[name]
            assert isinstance(ours, torch.Tensor)
            assert (ours.dtype, ours.shape) == (whole.dtype, whole.shape), name
            assert torch.equal(ours, whole) or "random" in name, name
        else:
            assert found[name] == value, name


@pytest.fixture
def loop() -> Loop:
    loop = Loop()
    loop.step()
    loop.take()
    assert loop.asked == 1
    return loop


def test_steps_are_seen_without_asking_for_the_state_dict(loop: Loop) -> None:
    for _ in range(3):
        loop.step()
        loop.optimizer.param_groups[0]["lr"] *= 0.5
        loop.state.scheduler.last_epoch += 1  # type: ignore[union-attr]
        loop.live.look()
        assert loop.asked == 0
        assert_exact(loop)


def test_a_snapshot_does_not_change_with_the_state_and_its_memory_is_used_again(loop: Loop) -> None:
    first = loop.take()
    before = bytes(first.image)
    loop.step()
    assert bytes(first.image) == before
    again = loop.take()
    assert again.image.obj is first.image.obj
    assert bytes(again.image) != before
    assert again.file == "__0_0.distcp"
    assert again.paths.keys() == again.entries.keys()


def swap_content(loop: Loop) -> None:
    loop.model[0].weight.data = torch.randn(6, 6)  # type: ignore[union-attr,index]


def transpose_content(loop: Loop) -> None:
    loop.model[0].weight.data = loop.model[0].weight.data.t()  # type: ignore[union-attr,index]


def replace_buffer(loop: Loop) -> None:
    loop.model[1].mean = torch.full((6,), 2.0)  # type: ignore[union-attr,index]


def load_optimizer(loop: Loop) -> None:
    saved = loop.optimizer.state_dict()
    for state in saved["state"].values():
        state["exp_avg"] = state["exp_avg"] + 1
    loop.optimizer.load_state_dict(saved)


SAME_SHAPE = [swap_content, transpose_content, replace_buffer, load_optimizer]


def name_of(change: Callable[[Loop], None]) -> str:
    return change.__name__


@pytest.mark.parametrize("change", SAME_SHAPE, ids=name_of)
def test_what_is_put_in_place_of_a_tensor_is_saved_and_is_no_new_shape(
    loop: Loop, change: Callable[[Loop], None]
) -> None:
    generation = loop.live.look().generation
    change(loop)
    assert_exact(loop)
    assert loop.live.look().generation == generation


def replace_parameter(loop: Loop) -> None:
    loop.model[0].weight = nn.Parameter(torch.randn(6, 6))  # type: ignore[union-attr,index]
    recreate_optimizer(loop)


def recreate_optimizer(loop: Loop) -> None:
    loop.optimizer.param_groups.clear()
    loop.optimizer.state.clear()
    loop.optimizer.add_param_group({"params": list(loop.model.parameters()), "lr": 0.1})
    loop.step()


def load_model(loop: Loop) -> None:
    other = {name: torch.randn_like(tensor) for name, tensor in loop.model.state_dict().items()}
    loop.model.load_state_dict(other, assign=True)
    recreate_optimizer(loop)


def change_dtype(loop: Loop) -> None:
    loop.model[1].mean = torch.zeros(6, dtype=torch.float64)  # type: ignore[union-attr,index]


def change_shape(loop: Loop) -> None:
    loop.model[1].mean = torch.zeros(1)  # type: ignore[union-attr,index]


def add_buffer(loop: Loop) -> None:
    loop.model[1].register_buffer("extent", torch.ones(3))  # type: ignore[union-attr,index]


def fill_parameter(loop: Loop) -> None:
    loop.model[1].bias = nn.Parameter(torch.ones(6))  # type: ignore[union-attr,index]


def replace_module(loop: Loop) -> None:
    loop.model[1] = nn.Tanh()  # type: ignore[index]
    recreate_optimizer(loop)


def swap_modules(loop: Loop) -> None:
    loop.model.first, loop.model.second = loop.model.second, loop.model.first  # type: ignore[assignment]


def save_scratch(loop: Loop) -> None:
    loop.model[1]._non_persistent_buffers_set.clear()  # type: ignore[index]


def add_state(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        state["trust"] = torch.ones(2)


def count_plainly(loop: Loop) -> None:
    for state in loop.optimizer.state.values():
        state["step"] = 7


OTHER_SHAPE = [
    load_model,
    replace_parameter,
    recreate_optimizer,
    change_dtype,
    change_shape,
    add_buffer,
    fill_parameter,
    replace_module,
    save_scratch,
    add_state,
    count_plainly,
]


@pytest.mark.parametrize("change", OTHER_SHAPE, ids=name_of)
def test_a_change_of_what_there_is_to_save_is_noticed(loop: Loop, change: Callable[[Loop], None]) -> None:
    change(loop)
    assert_exact(loop)
    loop.asked  # noqa: B018
    assert_exact(loop)
    assert loop.asked == 0


def test_a_parameter_that_changes_its_group_is_noticed() -> None:
    loop = Loop(nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), foreach=False)
    loop.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    loop.model.register_parameter("last", loop.optimizer.param_groups[1]["params"][0])
    before = loop.live.look()
    loop.optimizer.param_groups[1]["params"].append(loop.optimizer.param_groups[0]["params"].pop(0))
    after = loop.live.look()
    assert after.members() != before.members()
    assert after.generation > before.generation


def test_modules_that_change_places_are_saved_under_their_new_names() -> None:
    model = nn.Module()
    model.first, model.second = nn.Linear(6, 6), nn.Linear(6, 6)
    model.forward = lambda x: model.second(model.first(x))  # type: ignore[method-assign,operator]
    loop = Loop(model)
    loop.step()
    assert_exact(loop)
    swap_modules(loop)
    assert_exact(loop)


def test_optimizer_state_that_appears_with_the_first_step_is_saved() -> None:
    loop = Loop()
    for parameter in loop.model.parameters():  # Else stock torch makes a state when it is asked for one.
        parameter.grad = torch.zeros_like(parameter)
    generation = loop.live.look().generation
    assert not any(name.startswith("optimizer.state") for name in read(loop.take()))
    loop.step()
    assert_exact(loop)
    assert loop.live.look().generation > generation


def test_tied_weights_and_tensor_learning_rates_are_saved() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    loop = Loop(model, foreach=False, capturable=False)
    loop.optimizer.param_groups[0]["lr"] = torch.tensor(0.5)
    loop.step()
    assert_exact(loop)
    loop.optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    loop.step()
    assert_exact(loop)


def test_a_model_that_saves_other_tensors_than_it_holds_is_asked_each_time() -> None:
    loop = Loop()

    def double(module: nn.Module, state: dict[str, torch.Tensor], prefix: str, _: object) -> None:
        state[f"{prefix}scale"] = state[f"{prefix}scale"] * 2

    loop.model[1]._register_state_dict_hook(double)  # type: ignore[index]
    for _ in range(2):
        loop.step()
        loop.asked  # noqa: B018
        found = read(loop.take())
        assert torch.equal(found["model.1.scale"], loop.model[1].scale * 2)  # type: ignore[arg-type,index,union-attr]
        assert loop.asked == 1


def test_an_optimizer_with_a_state_dict_of_its_own_is_asked_each_time() -> None:
    loop = Loop()
    loop.optimizer.register_state_dict_post_hook(lambda optimizer, found: found["param_groups"][0].update(mark=3))
    for _ in range(2):
        loop.step()
        loop.asked  # noqa: B018
        assert read(loop.take())["optimizer.param_groups.0.mark"] == 3
        assert loop.asked == 1


def test_tensors_that_do_not_lie_in_one_piece_are_copied_as_they_are_seen() -> None:
    model = nn.Module()
    model.wide = nn.Parameter(torch.randn(6, 4).t())  # type: ignore[assignment]
    model.register_buffer("thin", torch.arange(10, dtype=torch.int8)[::2])
    model.register_buffer("imaginary", torch.randn(3, dtype=torch.complex64).conj())
    model.register_buffer("nothing", torch.zeros(0, 3))
    loop = Loop(model)
    assert_exact(loop)


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_sharded_models_are_seen_without_asking_as_well(one_rank: None) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    fully_shard(model[0])
    fully_shard(model)
    loop = Loop(model)
    for number in range(3):
        loop.step()
        loop.asked  # noqa: B018
        loop.take()
        assert loop.asked == (1 if number == 0 else 0)
        assert_exact(loop)
    load_optimizer(loop)
    assert_exact(loop)
