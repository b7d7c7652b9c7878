"""What the kernel says of its own clock: adjtimex, asking without changing anything.

Source: https://man7.org/linux/man-pages/man2/adjtimex.2.html
"""

import ctypes
import os
from typing import Final

from holdfast.agent.sensors.node_detail import ClockDetail

_STA_UNSYNC: Final = 0x0040
_STA_NANO: Final = 0x2000
_TIME_ERROR: Final = 5


class _Timex(ctypes.Structure):
    """struct timex of 64-bit Linux; `modes` 0 asks."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def kernel_clock() -> ClockDetail:
    """The clock's state. Raises OSError where the kernel refuses to tell."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return clock_detail(state, timex.status, offset=timex.offset, maxerror_us=timex.maxerror)


def clock_detail(state: int, status: int, *, offset: int, maxerror_us: int) -> ClockDetail:
    """adjtimex's answer in seconds: its offset is in nanoseconds or microseconds, as `status` says."""
    return ClockDetail(
        offset_s=offset * (1e-9 if status & _STA_NANO else 1e-6),
        error_s_max=maxerror_us * 1e-6,
        unsynchronised=state == _TIME_ERROR or bool(status & _STA_UNSYNC),
    )
