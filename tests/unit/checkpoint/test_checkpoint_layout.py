import io
from pathlib import Path

import pytest
import torch

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint import Checkpointer, SaveFailed, Standalone
from holdfast.checkpoint.capture.live import Claim
from holdfast.checkpoint.capture.shares import share_out
from holdfast.checkpoint.format.archive import frame, pack_object, unpack_object
from holdfast.checkpoint.format.index import (
    Box,
    Index,
    Listing,
    StoredChunk,
    StoredObject,
    StoredTensor,
    decode,
    encode,
    find_gap,
    merge,
)
from holdfast.checkpoint.storage.local import parse_uri

DTYPES = (torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool, torch.uint8, torch.complex64)


def box(*pairs: tuple[int, int]) -> Box:
    return Box(offsets=tuple(offset for offset, _ in pairs), sizes=tuple(size for _, size in pairs))


def test_the_overlap_of_two_boxes_is_in_both() -> None:
    assert box((0, 4), (0, 9)).overlap(box((2, 4), (3, 3))) == box((2, 2), (3, 3))
    assert box((0, 4)).overlap(box((4, 4))) is None
    assert box().overlap(box()) == box()
    assert box((2, 2), (3, 3)).within(box((2, 4), (1, 9))) == (slice(0, 2), slice(2, 5))


def test_a_tensor_of_which_a_chunk_is_missing_is_found() -> None:
    half = StoredChunk(file="f", start=0, length_bytes=9, payload=0, box=box((0, 2), (0, 2)))
    tensor = StoredTensor(dtype="float32", shape=(4, 2), chunks=(half,))
    assert find_gap({"w": tensor, "o": StoredObject(file="f", start=0, length_bytes=1)}) == "w"
    whole = StoredTensor(dtype="float32", shape=(2, 2), chunks=(half,))
    assert find_gap({"w": whole}) is None
    index = Index(entries={"w": whole}, paths={"w": ("model", "w", 0)})
    assert decode(encode(index)) == index


def part(tensor: StoredTensor | StoredObject) -> Listing:
    return Listing(entries={"w": tensor}, paths={})


def test_ranks_that_disagree_on_a_tensor_fail_the_save_by_name() -> None:
    chunk = StoredChunk(file="f", start=0, length_bytes=9, payload=0, box=box((0, 2)))
    one = part(StoredTensor(dtype="float32", shape=(2,), chunks=(chunk,)))
    other = part(StoredTensor(dtype="float64", shape=(2,), chunks=(chunk,)))
    with pytest.raises(SaveFailed, match=r"w is float32\[2\] on one rank and float64\[2\]"):
        merge([one, other])
    with pytest.raises(SaveFailed, match="w is a tensor on one rank"):
        merge([one, part(StoredObject(file="f", start=0, length_bytes=1))])
    with pytest.raises(SaveFailed, match="do not add up"):
        merge([one, one])


def test_what_several_ranks_hold_is_written_once_and_evenly() -> None:
    replicas = [Claim(name, (), 10) for name in "abcd"]
    own = Claim("own", (4,), 15)
    shares = share_out([replicas, [*replicas, own], replicas]).names
    assert sorted(key for share in shares for key in share) == [*((name, ()) for name in "abcd"), ("own", (4,))]
    assert ("own", (4,)) in shares[1]
    assert [len(share) for share in shares] == [2, 1, 2]
    assert shares == share_out([replicas, [*replicas, own], replicas]).names


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("sizes", [(), (0,), (3,), (5, 7), (2, 3, 4)], ids=str)
def test_an_archive_around_a_payload_is_one_that_torch_loads(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    tensor = (torch.arange(torch.Size(sizes).numel()) % 2).view(sizes).to(dtype)
    around = frame(dtype, sizes)
    payload = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    assert len(payload) == around.payload_bytes
    loaded = torch.load(io.BytesIO(around.before + payload + around.after), weights_only=True)
    assert torch.equal(loaded, tensor)


def test_objects_of_plain_values_survive_and_code_does_not_run() -> None:
    value = {"a": [1, 2.5, None, "x", (True, b"z")], 3: torch.arange(3)}
    back = unpack_object(pack_object(value))
    assert isinstance(back, dict)
    assert str(back) == str(value)
    with pytest.raises(Exception, match="Weights only load failed"):
        unpack_object(pack_object(Path("x")))


def test_a_uri_names_a_folder_or_is_refused_with_the_fix() -> None:
    assert parse_uri("file:///runs/a%20b") == Path("/runs/a b")
    assert parse_uri("file://localhost/runs") == Path("/runs")
    assert parse_uri("/runs/x") == Path("/runs/x")
    assert parse_uri("runs").is_absolute()
    for uri in ("s3://runs/x", "file://host/runs", "http://x/y"):
        with pytest.raises(InvalidInput, match=r"checkpoint.uri: .* is not accepted; write file:///absolute/path"):
            parse_uri(uri)


def test_a_checkpointer_without_a_directory_only_counts() -> None:
    model = torch.nn.Linear(1, 1)
    checkpointer = Checkpointer(Standalone(), model=model, optimizer=torch.optim.SGD(model.parameters()))
    assert list(checkpointer.steps("abc", until=2)) == [(1, "a"), (2, "b")]
    assert list(checkpointer.steps("xyz")) == [(3, "x"), (4, "y"), (5, "z")]
    checkpointer.close()


def test_what_cannot_be_checkpointed_is_refused_by_name() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with pytest.raises(InvalidInput, match="keep: 0"):
        Checkpointer(Standalone(), model=model, optimizer=optimizer, keep=0)
    extra: dict[str, object] = {"ema": 3}
    checkpointer = Checkpointer(Standalone(), model=model, optimizer=optimizer, extra=extra)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"extra.ema: 'int'"):
        next(checkpointer.steps("abc"))
