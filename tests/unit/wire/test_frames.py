import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.control import MAX_FRAME_BYTES
from holdfast.api.errors import Damaged
from holdfast.wire.frame import FrameReader, frame


@given(st.lists(st.binary(max_size=50)), st.integers(1, 20))
def test_frames_survive_being_cut_anywhere(payloads: list[bytes], size: int) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    reader = FrameReader()
    found = [body for at in range(0, len(stream), size) for body in reader.feed(stream[at : at + size])]
    assert found == payloads


def test_a_frame_that_announces_too_much_is_refused_before_it_is_read() -> None:
    with pytest.raises(Damaged, match="larger than"):
        list(FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little")))
    with pytest.raises(Damaged, match="larger than"):
        frame(bytes(MAX_FRAME_BYTES + 1))
