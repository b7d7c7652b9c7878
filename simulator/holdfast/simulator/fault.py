"""What fails in a fleet: how often, what it looks like to sensors, whose fault it is, how long a repair takes."""

import math
import random
from enum import StrEnum

import msgspec


class Symptom(StrEnum):
    """What a fault looks like from outside: what sensors, launchers and ranks can see of it."""

    PROCESS_EXIT = "ProcessExit"  # a worker ends with a signal or a traceback
    XID = "Xid"  # the driver logs a code, and the worker dies or hangs behind it
    GPU_LOST = "GpuLost"
    NODE_LOST = "NodeLost"  # nobody hears of the node again
    NODE_NOT_READY = "NodeNotReady"  # the cluster says so; its processes may still run
    HANG = "Hang"  # nothing fails, and no step is made
    LINK_FLAP = "LinkFlap"  # a port or switch is down for a while; collectives fail or stall
    NAN = "Nan"  # a loss or gradient norm that is not finite
    CORRUPTION = "Corruption"  # a device computes wrong, and nothing says so
    SLOW = "Slow"  # a rank that all others wait for
    HOT = "Hot"
    STORAGE_SLOW = "StorageSlow"  # checkpoints and restores take longer
    PREEMPTION = "Preemption"  # the machine is taken away, with notice
    FALSE_ALARM = "FalseAlarm"  # a sensor says that something is wrong, and nothing is


class Reach(StrEnum):
    """Who is hit by one fault: one machine, or what runs on it, as the symptom is; or all behind a place."""

    NODE = "Node"
    SWITCH = "Switch"
    RACK = "Rack"
    JOB = "Job"


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time that is drawn anew each time: lognormal, half of all draws are below `median_s`.

    `sigma` is the standard deviation of its logarithm: 0 is always `median_s`; of 1.5 the mean is three times
    the median.
    """

    median_s: float
    sigma: float = 0.0

    def drawn(self, draw: random.Random) -> float:
        """One such time, in seconds."""
        return self.median_s * math.exp(self.sigma * draw.gauss(0.0, 1.0)) if self.sigma else self.median_s


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of fault.

    Each hits `reach`. `infrastructure` is the share that is the machine's doing: it comes again on that node (or
    whatever `reach` says) until it is repaired; the rest is user code or chance, which no eviction mends. `again`
    is how long until it does. `repair` is how long the machine is away once it was taken out; `lasts` how long it
    holds by itself, None: until somebody acts. `factor` is how many times longer a step, a save or a restore takes
    meanwhile. `code` is the driver's, of an XID; or the signal that ends a worker, whoever is to blame (without it
    SIGBUS where that is the machine, else an exception). `source` is the public place that it is from.
    """

    name: str
    symptom: Symptom
    reach: Reach = Reach.NODE
    infrastructure: float = 1.0
    repair: Spread = Spread(86_400.0, 1.0)
    lasts: Spread | None = None
    again: Spread = Spread(3600.0, 1.0)
    factor: float = 1.5
    code: int | None = None
    source: str = ""


class FaultRate(Fault, frozen=True, kw_only=True):
    """A kind of fault, and how many there are for 1,000 node-days."""

    rate: float


class Happening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault that is given, and not drawn: `at_s` after the begin, on the machine numbered `node` of those that
    there are (0 .. nodes + spares + free - 1; None: drawn among those with ranks).

    It does not come again by itself: what came again is given again. Its `infrastructure` only says whether an
    eviction for it is right. On a machine without ranks nothing happens.
    """

    at_s: float
    fault: Fault
    node: int | None = None
