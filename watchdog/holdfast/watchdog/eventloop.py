"""The event loop that the watchdog runs on, and how rarely Python looks for cycles meanwhile.

With uvloop, where it is installed, a message costs half: 25-37 us for a node's report and its launcher's beat,
where asyncio's own loop took 58-81 us in the same minutes. It is an accelerator and no more.
"""

import asyncio
import gc
import importlib
from collections.abc import Callable

# Objects made and not freed again before cycles are looked for among the new ones. With the default of 700 Python
# walks through everything that 25,000 connections hold, again and again, while they are made.
NEW_OBJECTS = 50_000


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """What makes the loop: uvloop's where there is one."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop
    made: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return made


def collect_rarely() -> None:
    """Take what is loaded by now for permanent, and look for cycles among the rest less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, 20, 50)
