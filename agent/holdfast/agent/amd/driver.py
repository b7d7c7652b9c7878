"""Calls into AMD's system management library: what went wrong as one of the errors of every GPU driver.

Unlike NVIDIA's, the bindings load the library when they are imported, and cannot be imported without it. So they
are imported when a session begins, again and again while there is none.

Source: amdsmi_status_t, https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html
"""

import contextlib
import io
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any, Final

from holdfast.agent.gpufailure import CallFailed, DriverAbsent, GpuFailure, GpuLost, NotTold

# By the number of their amdsmi_status_t. What is not here says nothing about the GPU: busy, interrupted.
_FAILURES: Final[Mapping[int, type[GpuFailure]]] = MappingProxyType(
    {
        1: NotTold,  # INVAL
        2: NotTold,  # NOT_SUPPORTED
        3: NotTold,  # NOT_YET_IMPLEMENTED
        4: DriverAbsent,  # FAIL_LOAD_MODULE
        5: NotTold,  # FAIL_LOAD_SYMBOL
        6: GpuLost,  # DRM_ERROR
        10: NotTold,  # NO_PERM: also of a GPU that is being reset
        12: GpuLost,  # IO
        14: NotTold,  # FILE_ERROR: the kernel's driver has no such file
        18: DriverAbsent,  # INIT_ERROR
        31: GpuLost,  # NOT_FOUND
        32: DriverAbsent,  # NOT_INIT
        34: DriverAbsent,  # DRIVER_NOT_LOADED
        40: NotTold,  # NO_DATA
        51: DriverAbsent,  # NO_DRV
        52: NotTold,  # FILE_NOT_FOUND
    }
)


@dataclass(frozen=True, slots=True)
class Running:
    """A call that has not returned yet, and since when (CLOCK_MONOTONIC, seconds)."""

    function: str
    since: float


class AmdDriver:
    """The library in this process, used from one thread; `running` may be asked from any."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._bindings: ModuleType | None = None

    @property
    def bindings(self) -> Any:
        """The bindings, imported now if they were not yet. Raises DriverAbsent."""
        if self._bindings is None:
            heard = io.StringIO()  # they print what they miss
            try:
                with contextlib.redirect_stdout(heard):
                    import amdsmi  # type: ignore[import-untyped, import-not-found, unused-ignore]
            except ImportError as error:
                says = f"the package amdsmi is not installed: pip install holdfast[amd] ({error})"
                raise DriverAbsent(says) from error
            except (OSError, AttributeError, KeyError) as error:  # no library, or one that lacks what they bind
                said = heard.getvalue().splitlines()
                raise DriverAbsent(f"libamd_smi.so cannot be used: {said[0] if said else repr(error)}") from error
            self._bindings = amdsmi
        return self._bindings

    def call(self, function: str, *arguments: Any) -> Any:
        """Call the binding of that name. Raises GpuFailure; its text has AMD's own word for what went wrong."""
        bindings = self.bindings
        with self._lock:
            self._running = Running(function, self._clock())
        try:
            asked = getattr(bindings, function, None)
            if asked is None:
                raise NotTold(f"{function}: unknown to these bindings")
            return asked(*arguments)
        except bindings.AmdSmiLibraryException as error:
            says = str(error.get_error_info())
            raise _FAILURES.get(error.get_error_code(), CallFailed)(f"{function}: {says}") from error
        except bindings.AmdSmiException as error:
            raise CallFailed(f"{function}: {error}") from error
        finally:
            with self._lock:
                self._running = None

    def running(self) -> Running | None:
        """The call that has not returned."""
        with self._lock:
            return self._running
