"""The memory that a stored tensor is read into: the live parameter itself."""

import numpy as np
import numpy.typing as npt
import torch

from holdfast.checkpoint.strip import Strip

Bytes = npt.NDArray[np.uint8]


class Target:
    """A tensor, or a part of one, as plain bytes. What is not contiguous is read beside and copied by `finish`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._live = tensor
        self._whole = (
            tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        )
        self._bytes = self._whole.reshape(-1).view(torch.uint8)
        self._host: Bytes | None = self._bytes.numpy() if self._bytes.device.type == "cpu" else None

    @classmethod
    def of_bytes(cls, length_bytes: int) -> "Target":
        """Fresh host memory."""
        return cls(torch.empty(length_bytes, dtype=torch.uint8))

    def put(self, strip: Strip, block: Bytes, base: int) -> None:
        """Copy the strip out of `block`, which begins at `base` of the file. Other threads run
        meanwhile, but for the smallest.
        """
        if self._host is not None:
            _rows(self._host, strip.at, strip.at_stride, strip)[...] = _rows(
                block, strip.start - base, strip.stride, strip
            )
            return
        source = torch.from_numpy(np.ascontiguousarray(_rows(block, strip.start - base, strip.stride, strip)))
        shape, strides = (strip.rows, strip.row_bytes), (strip.at_stride or strip.row_bytes, 1)
        # An offset given to as_strided counts from the storage, in which others may lie before this tensor.
        self._bytes[strip.at :].as_strided(shape, strides).copy_(source)

    def memory(self, strip: Strip) -> memoryview | None:
        """Where the strip belongs, if that is host memory in one piece."""
        if self._host is None or strip.rows != 1:
            return None
        return self._host.data[strip.at : strip.at + strip.row_bytes]

    def finish(self) -> None:
        """All of it was put."""
        if self._whole is not self._live:
            self._live.copy_(self._whole)

    def content(self) -> Bytes:
        """The bytes, on the host."""
        return self._bytes.cpu().numpy()


def _rows(memory: Bytes, start: int, stride: int, strip: Strip) -> Bytes:
    """A view of the strip's rows. Raises when they do not lie within `memory`."""
    if strip.rows == 1:
        return memory[start : start + strip.row_bytes].reshape(1, strip.row_bytes)
    shape = (strip.rows, strip.row_bytes)
    return np.ndarray(shape, dtype=np.uint8, buffer=memory, offset=start, strides=(stride, 1))
