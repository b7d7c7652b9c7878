import msgspec

from holdfast.checkpoint.format import archive, index
from holdfast.checkpoint.format.index import Box, Listing, StoredChunk, StoredTensor
from holdfast.checkpoint.format.manifest import record_of
from holdfast.checkpoint.save.persister import Description, Part


def part(name: str, content: bytes) -> Part:
    chunk = StoredChunk(file="__0_0.distcp", start=0, length_bytes=9, payload=0, box=Box((0,), (2,)))
    tensor = StoredTensor(dtype="float32", shape=(2,), chunks=(chunk,))
    listing = Listing(entries={name: tensor}, paths={name: ("model", name)})
    return Part("__0_0.distcp", record_of([memoryview(content)]), msgspec.msgpack.encode(listing))


def test_what_lies_elsewhere_is_described_anew_and_nothing_else() -> None:
    description = Description()
    first = description.files([part("weight", b"1")])
    assert set(first) == {index.FILE_NAME, archive.METADATA_FILE}
    assert description.files([part("weight", b"2")]) is first
    other = description.files([part("bias", b"2")])
    assert list(index.decode(other[index.FILE_NAME]).entries) == ["bias"]
    assert description.files([part("weight", b"1")]) == first
