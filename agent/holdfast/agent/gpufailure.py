"""What can go wrong with a call into a GPU driver's management library, whoever made the GPU.

GpuFailure
  NotTold        not supported here, unknown to this driver, or not permitted
  NothingYet     no event came in time
  GpuLost        the GPU is not to be reached
  ResetRequired  it answers nothing before it is reset
  DriverAbsent   there is no library or no driver
  CallFailed     it failed in a way that says nothing about the GPU
"""


class GpuFailure(Exception):
    """A call failed. Its text says which and why."""


class NotTold(GpuFailure):
    """Not supported here, unknown to this driver, or not permitted. Asking again gives the same."""


class NothingYet(GpuFailure):
    """No event came in time."""


class GpuLost(GpuFailure):
    """The GPU has fallen off the bus or is otherwise not to be reached."""


class ResetRequired(GpuFailure):
    """The GPU answers nothing before it is reset."""


class DriverAbsent(GpuFailure):
    """There is no library or no driver, or it does not know this session any more."""


class CallFailed(GpuFailure):
    """It failed in a way that says nothing about the GPU."""
