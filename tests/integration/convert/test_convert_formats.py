"""Everything through every pair of formats and back: each bit is the same."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import patient
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from holdfast.api.errors import Damaged, InvalidInput
from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.convert.comparison import Compared, compare
from holdfast.checkpoint.convert.content import Contents, Origin, Shape, Source
from holdfast.checkpoint.convert.conversion import Converted, Kind, convert, open_source
from holdfast.checkpoint.convert.safetensorsfile import NAMES
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.nested import nest

STRANGE = [torch.complex128, torch.float4_e2m1fn_x2]
DTYPES = [*NAMES, *STRANGE]
SUFFIXES = {Kind.SAFETENSORS: ".safetensors", Kind.TORCH: ".pt"}


class HeldSnapshot:
    """A source in memory."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        self.rest = {name: value for name, value in state.items() if name not in self.tensors}
        shapes = {name: Shape(each.dtype, tuple(each.shape)) for name, each in self.tensors.items()}
        paths: dict[str, tuple[str | int, ...]] = {name: tuple(name.split(".")) for name in state}
        self.contents = Contents(shapes, tuple(self.rest), paths, Origin(step=12, world_size=2, batches=12))

    def tensor(self, name: str) -> torch.Tensor:
        return self.tensors[name]

    def value(self, name: str) -> object:
        return self.rest[name]


def noise(dtype: torch.dtype, sizes: tuple[int, ...], seed: int) -> torch.Tensor:
    """Any bits there can be, so NaN with a payload as well; of bool only the two that are allowed."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(sizes).numel()
    if dtype is torch.bool:
        return torch.randint(0, 2, sizes, generator=generator).bool()
    raw = torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(sizes)


tensors = st.builds(
    noise,
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.integers(0, 1 << 20),
)
numbers = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
objects = st.recursive(
    st.one_of(numbers, tensors),
    lambda inner: st.one_of(st.tuples(inner, inner), st.lists(numbers, max_size=3)),
    max_leaves=4,
)
names = st.lists(
    st.text("ab.é ", min_size=1, max_size=4).filter(lambda name: "." not in name), min_size=1, max_size=3
)


@st.composite
def states(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in draw(st.lists(names, max_size=5)):
        name = ".".join(path)
        if not any(each == name or each.startswith(f"{name}.") or name.startswith(f"{each}.") for each in found):
            found[name] = draw(st.one_of(tensors, objects))
    return found


def written(source: Source, folder: Path, kind: Kind, **words: Any) -> tuple[Path, Converted]:
    target = folder / f"{kind}{len(list(folder.iterdir()))}{SUFFIXES.get(kind, '')}"
    return target, convert(source, target, kind, **words)


def assert_equal(found: Compared) -> None:
    assert found.is_equal, found


@settings(max_examples=16, suppress_health_check=list(HealthCheck))
@given(state=states(), pair=st.sampled_from([(a, b) for a in Kind for b in Kind]))
def test_whatever_is_converted_there_and_on_is_the_same_bit_for_bit(
    state: dict[str, Any], pair: tuple[Kind, Kind], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("formats")
    source: Source = HeldSnapshot(state)
    if Kind.SAFETENSORS in pair:
        source = HeldSnapshot(
            {
                name: value
                for name, value in state.items()
                if isinstance(value, torch.Tensor) and value.dtype not in STRANGE
            }
        )
    first, _ = written(source, folder, pair[0])
    second, _ = written(open_source(str(first)), folder, pair[1])
    assert_equal(compare(source, open_source(str(first))))
    assert_equal(compare(source, open_source(str(second))))
    paths = {name: source.contents.path_of(name) for name in (*source.contents.tensors, *source.contents.objects)}
    again = open_source(str(second)).contents
    assert {name: again.path_of(name) for name in (*again.tensors, *again.objects)} == paths


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(), (0,), (3, 0), (3, 5)], ids=str)
def test_every_dtype_and_shape_survives_all_formats_in_turn(
    dtype: torch.dtype, sizes: tuple[int, ...], tmp_path: Path
) -> None:
    whole = HeldSnapshot({"model.weight": noise(dtype, sizes, 1)})
    source: Source = whole
    for kind in Kind:
        if kind is Kind.SAFETENSORS and dtype in STRANGE:
            with pytest.raises(Unfit, match=r"no such dtype: model\.weight"):
                written(source, tmp_path, kind)
            continue
        target, _ = written(source, tmp_path, kind)
        source = open_source(str(target))
        assert_equal(compare(whole, source))


@pytest.mark.filterwarnings("ignore:.*parse (tensor )?invariant")  # of torch, as the test makes and loads one
def test_a_file_of_torch_save_holds_what_was_nested_and_loads_without_code(tmp_path: Path) -> None:
    state = {
        "model": {"a.b": torch.randn(4, 3).t(), "tied": torch.ones(2)},
        "optimizer": {
            "state": {0: {"step": torch.tensor(3.0)}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99)}],
        },
        "list": [torch.ones(1), {"x": torch.zeros(2, dtype=torch.bfloat16)}],
        "pair": (torch.arange(3), "text"),
        "nothing": {},
        "sparse": torch.eye(3).to_sparse(),
    }
    torch.save(state, tmp_path / "a.pt")
    source = open_source(str(tmp_path / "a.pt"))
    assert "keys that are numbers" in source.contents.remarks[0]
    convert(source, tmp_path / "b", Kind.HOLDFAST)
    convert(open_source(str(tmp_path / "b")), tmp_path / "c.pt", Kind.TORCH)
    found = torch.load(tmp_path / "c.pt", weights_only=True)
    assert_equal(compare(source, open_source(str(tmp_path / "c.pt"))))
    assert torch.equal(found["model"]["a.b"], state["model"]["a.b"])  # type: ignore[index]
    assert found["optimizer"]["state"] == {"0": {"step": torch.tensor(3.0)}}
    assert found["optimizer"]["param_groups"] == [{"lr": 0.1, "betas": (0.9, 0.99)}]
    assert torch.equal(found["list"][1]["x"], torch.zeros(2, dtype=torch.bfloat16))
    assert torch.equal(found["pair"][0], torch.arange(3))
    assert found["nothing"] == {}


def test_what_safetensors_cannot_hold_is_said_and_nothing_is_written(tmp_path: Path) -> None:
    source = HeldSnapshot({"model.w": torch.ones(2), "scheduler": {"last": 3}})
    with pytest.raises(Unfit, match="these are none: scheduler"):
        convert(source, tmp_path / "a.safetensors", Kind.SAFETENSORS)
    assert list(tmp_path.iterdir()) == []
    found = convert(source, tmp_path / "a.safetensors", Kind.SAFETENSORS, tensors_only=True)
    assert (found.tensors, found.left_out) == (1, ("scheduler",))


def test_a_selection_loses_its_prefix_and_loads_into_a_plain_model(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    torch.save({"model": model.state_dict(), "step": 7}, tmp_path / "a.pt")
    source = open_source(str(tmp_path / "a.pt"))
    convert(source, tmp_path / "m.pt", Kind.TORCH, prefix="model.")
    twin = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    twin.load_state_dict(torch.load(tmp_path / "m.pt", weights_only=True))
    assert torch.equal(twin[0].weight, model[0].weight)
    with pytest.raises(InvalidInput, match="nothing begins with that"):
        convert(source, tmp_path / "n.pt", Kind.TORCH, prefix="modle.")


@pytest.mark.parametrize("kind", Kind)
def test_nothing_that_exists_is_overwritten(kind: Kind, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.write_text("mine")
    with pytest.raises(InvalidInput, match="is not overwritten"):
        convert(HeldSnapshot({"a": torch.ones(1)}), target, kind)
    assert target.read_text() == "mine"


@pytest.mark.parametrize("kind", Kind)
def test_a_conversion_that_fails_leaves_nothing(kind: Kind, tmp_path: Path) -> None:
    class Broken(HeldSnapshot):
        def tensor(self, name: str) -> torch.Tensor:
            raise Damaged("the disk is dying")

    with pytest.raises(Damaged):
        convert(Broken({"a": torch.ones(1)}), tmp_path / "b", kind)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_stock_torch_loads_what_was_converted(tmp_path: Path) -> None:
    state = {"w": torch.randn(3, 4), "b": torch.ones(2, dtype=torch.float8_e5m2)}
    for kind in (Kind.DCP, Kind.HOLDFAST):
        convert(HeldSnapshot(state), tmp_path / kind, kind)
        folder = tmp_path / kind / "step-00000012" if kind is Kind.HOLDFAST else tmp_path / kind
        found = {name: torch.zeros_like(value) for name, value in state.items()}
        dcp.load(found, storage_reader=FileSystemReader(folder), no_dist=True)
        assert_equal(compare(HeldSnapshot(state), HeldSnapshot(found)))


def test_a_converted_checkpoint_resumes_training(tmp_path: Path) -> None:
    def train(uri: Path, until: int) -> tuple[list[int], list[float]]:
        torch.manual_seed(1)
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        run = Checkpointer(Standalone(), model=model, optimizer=optimizer, uri=str(uri), every_steps=2)
        steps = []
        for step, batch in run.steps([torch.full((1, 4), float(number)) for number in range(9)], until=until):
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            steps.append(step)
        run.close()
        return steps, model.weight.flatten().tolist()

    train(tmp_path / "a", 4)
    convert(open_source(str(tmp_path / "a")), tmp_path / "b", Kind.HOLDFAST)
    steps, weights = train(tmp_path / "b", 6)
    assert steps == [5, 6]
    assert weights == train(tmp_path / "c", 6)[1]
    newest = open_source(str(tmp_path / "b"))
    assert newest.contents.origin.step == 6
    # A file of torch.save tells apart no less than what it was made of: it has the names that a restore looks for.
    convert(newest, tmp_path / "d.pt", Kind.TORCH)
    assert_equal(compare(newest, open_source(str(tmp_path / "d.pt"))))


SAVING = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor


def save(rank, world, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}.store", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(35, dtype=torch.float32).reshape(7, 5)
    sharded = {f"by{dim}": distribute_tensor(whole, mesh, [Shard(dim)]) for dim in (0, 1)}
    plain = {"half": whole.to(torch.bfloat16), "count": 3, "pair": (1, "two")}
    dcp.save({"model": {**sharded, **plain}}, storage_writer=dcp.FileSystemWriter(folder))
    dist.destroy_process_group()


child = os.fork()  # Importing torch is most of what this takes: once is enough.
save(0 if child else 1, 2, sys.argv[1] + "/2")
if child:
    code = os.waitpid(child, 0)[1]
    save(0, 1, sys.argv[1] + "/1")
    sys.exit(os.waitstatus_to_exitcode(code))
"""


def test_what_stock_torch_saved_on_one_and_two_ranks_is_read(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SAVING, str(tmp_path)], check=True, timeout=patient(110))
    whole = torch.arange(35, dtype=torch.float32).reshape(7, 5)
    wanted = {"by0": whole, "by1": whole, "half": whole.to(torch.bfloat16), "count": 3, "pair": (1, "two")}
    for world in (1, 2):
        source = open_source(str(tmp_path / str(world)))
        convert(source, tmp_path / f"{world}.pt", Kind.TORCH, prefix="model.")
        assert_equal(compare(HeldSnapshot(wanted), open_source(str(tmp_path / f"{world}.pt"))))


def test_metadata_that_would_run_code_is_refused_and_runs_none(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(Unfit, match="no metadata"):
        open_source(str(tmp_path / "dcp"))
    torch.save({"a": Trap()}, tmp_path / "a.pt")
    with pytest.raises(Unfit, match="plain values"):
        open_source(str(tmp_path / "a.pt"))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_damaged_metadata_is_damage_or_refused_but_never_another_error(tmp_path: Path) -> None:
    state = {"w": torch.ones(3), "o": 1}
    dcp.save(state, storage_writer=FileSystemWriter(tmp_path / "dcp"), no_dist=True)
    path = tmp_path / "dcp" / ".metadata"
    document = path.read_bytes()
    for place in range(len(document)):
        changed = bytearray(document)
        changed[place] ^= 4
        path.write_bytes(changed)
        try:
            source = open_source(str(tmp_path / "dcp"))
            for name in source.contents.tensors:
                source.tensor(name)
            for name in source.contents.objects:
                source.value(name)
        except (Damaged, Unfit):
            continue


@pytest.mark.parametrize(("name", "content"), [("a.pt", b"PK\3\4 no"), ("a.safetensors", b"\1"), ("b.pt", b"")])
def test_files_that_are_none_are_damage(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises((Damaged, Unfit)):
        open_source(str(tmp_path / name))


def test_a_comparison_says_where_and_how_far_values_differ() -> None:
    a = torch.zeros(3, 4)
    b = a.clone()
    b[1, 2], b[2, 0] = 0.5, -2.0
    nan = torch.tensor([float("nan")])
    found = compare(
        HeldSnapshot({"w": a, "n": nan, "s": a, "o": 1, "gone": a, "t": a}),
        HeldSnapshot({"w": b, "n": nan.clone(), "s": a.double(), "o": 2, "t": 0, "new": a}),
    )
    assert (found.only_in_a, found.only_in_b, found.equal) == (("gone",), ("new",), 1)
    said = {each.name: each for each in found.differences}
    assert (said["w"].count, said["w"].first, said["w"].largest) == (2, (1, 2), 2.0)
    assert said["s"].what == "float32[3, 4] in the one, float64[3, 4] in the other"
    assert said["o"].what == "the objects differ"
    assert said["t"].what == "float32[3, 4] in the one, an object in the other"


def test_zero_and_minus_zero_differ_by_nothing_in_one_bit() -> None:
    (found,) = compare(HeldSnapshot({"w": torch.tensor(0.0)}), HeldSnapshot({"w": torch.tensor(-0.0)})).differences
    assert (found.first, found.largest, found.count) == ((), 0.0, 1)


def test_paths_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidInput, match="contradicts"):
        nest({"a": 1, "a.b": 2}, {"a": ("a",), "a.b": ("a", "b")})
