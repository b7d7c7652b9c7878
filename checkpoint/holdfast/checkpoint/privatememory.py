"""Memory of this process for a snapshot that has no arena."""

import ctypes
import mmap


class PrivateMemory:
    """Page-aligned, and touched once when it is made, so that no copy into it waits for a page."""

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.image = memoryview(mmap.mmap(-1, max(capacity_bytes, 1)))
        # ctypes gives the interpreter's lock back meanwhile: another thread may do this.
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(self.image)), 0, capacity_bytes)
