"""What the exit code of every command means. Scripts rely on it, so a code never changes its meaning."""

from enum import IntEnum

from holdfast.api.errors import HoldfastError, InvalidInput, Unavailable


class ExitCode(IntEnum):
    """0 to 3, and 130 for Ctrl-C as shells have it."""

    OK = 0
    FAILED = 1  # the job failed, or the answer to the question is no
    INVALID = 2  # a flag or a file is wrong
    UNAVAILABLE = 3  # something needed is not there now: the watchdog, a port, space on the disk
    INTERRUPTED = 130


def exit_code_of(error: HoldfastError) -> ExitCode:
    """The exit code an error ends the program with."""
    if isinstance(error, InvalidInput):
        return ExitCode.INVALID
    return ExitCode.UNAVAILABLE if isinstance(error, Unavailable) else ExitCode.FAILED
