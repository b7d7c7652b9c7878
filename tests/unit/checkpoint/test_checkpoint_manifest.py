import pytest
from drawer import Drawer, manifest_of
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.errors import Damaged
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, decode, encode, hash_block, record_of
from holdfast.checkpoint.format.verifiedfile import VerifiedFile


def views(*parts: bytes) -> list[memoryview]:
    return [memoryview(part) for part in parts]


def test_a_manifest_reads_back_as_it_was_written() -> None:
    manifest = manifest_of(12, round=3, parent=8, file=record_of(views(b"abc")))
    assert decode(encode(manifest)) == manifest


@given(position=st.integers(min_value=0), bit=st.integers(0, 7))
def test_a_flipped_bit_anywhere_in_a_manifest_is_damage(position: int, bit: int) -> None:
    document = bytearray(encode(manifest_of(12, file=record_of(views(b"abc")))))
    document[position % len(document)] ^= 1 << bit
    with pytest.raises(Damaged):
        decode(bytes(document))


def test_a_manifest_of_another_format_is_refused() -> None:
    manifest = manifest_of(1)
    body = encode(manifest).replace(b'"format":1', b'"format":2').split(b'"body":')[1][:-1]
    with pytest.raises(Damaged, match="format 2"):
        decode(b'{"seal":"%s","body":%s}' % (hash_block(body).encode(), body))


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES])
def test_a_file_has_a_hash_per_block_however_its_parts_are_cut(size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    whole = record_of(views(content))
    assert record_of(views(content[:100], content[100:BLOCK_BYTES], content[BLOCK_BYTES:])) == whole
    assert whole.size_bytes == size
    assert whole.blocks == tuple(
        hash_block(content[start : start + BLOCK_BYTES]) for start in range(0, size, BLOCK_BYTES)
    )


def test_a_verified_read_crosses_blocks_and_stops_at_the_damaged_one() -> None:
    drawer = Drawer()
    content = bytearray(b"ab" * (BLOCK_BYTES // 2 * 3))
    file = VerifiedFile(drawer, "file", record_of(views(bytes(content))))
    content[-1] ^= 1
    drawer.content["file"] = bytes(content)
    assert file.read(BLOCK_BYTES - 3, 6) == content[BLOCK_BYTES - 3 : BLOCK_BYTES + 3]
    assert file.read(0, 0) == b""
    with pytest.raises(Damaged, match=f"in the block at {2 * BLOCK_BYTES}"):
        file.read(2 * BLOCK_BYTES - 1, 2)


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 6), (6, 1)])
def test_a_read_outside_of_a_file_is_damage(offset: int, length: int) -> None:
    drawer = Drawer()
    drawer.content["file"] = b"12345"
    with pytest.raises(Damaged, match="ends at 5"):
        VerifiedFile(drawer, "file", record_of(views(b"12345"))).read(offset, length)
