import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.trainer.frame import FrameReader, FrameTooLong, framed


@given(bodies=st.lists(st.binary(max_size=50)), cut=st.integers(1, 20))
def test_frames_arrive_whole_however_the_stream_is_cut(bodies: list[bytes], cut: int) -> None:
    stream = b"".join(framed(body) for body in bodies)
    reader = FrameReader(max_bytes=100)
    arrived = [body for at in range(0, len(stream), cut) for body in reader.feed(stream[at : at + cut])]
    assert arrived == bodies


def test_a_frame_that_is_too_long_is_refused_before_it_is_held() -> None:
    with pytest.raises(FrameTooLong):
        list(FrameReader(max_bytes=10).feed(framed(b"x" * 11)[:4]))
