"""How a session with a GPU driver begins, whoever made the GPU."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from holdfast.agent.gpufailure import DriverAbsent, GpuFailure

Handle = TypeVar("Handle")
Gpu = TypeVar("Gpu")


def begin_session(
    begin: Callable[[], object],
    handles: Callable[[], Iterable[Handle]],
    identify: Callable[[int, Handle], Gpu],
    end: Callable[[], None],
) -> tuple[list[Gpu], dict[int, GpuFailure]]:
    """Begin, and identify every GPU. One that does not answer gives no UUID: why it does not, by its number.

    Raises DriverAbsent when there is no session; what had begun is ended then.
    """
    gpus: list[Gpu] = []
    unidentified: dict[int, GpuFailure] = {}
    try:
        begin()
        try:
            for index, handle in enumerate(handles()):
                try:
                    gpus.append(identify(index, handle))
                except DriverAbsent:
                    raise
                except GpuFailure as failure:
                    unidentified[index] = failure
        except BaseException:
            end()
            raise
    except GpuFailure as failure:
        raise DriverAbsent(str(failure)) from failure
    return gpus, unidentified
