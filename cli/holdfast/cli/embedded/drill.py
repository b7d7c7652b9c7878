"""What goes wrong in the processes of a node themselves, as a fault script asks for it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from holdfast.agent.sensors.simulated_gpu import gpu_uuid
from holdfast.api.bitflip import CORRUPTIBLE_VARIABLE
from holdfast.api.disturbance import Ailment, Disturbance
from holdfast.api.drill import Drill
from holdfast.cli.embedded.faultscript import Deed, ScriptedFault

# How rarely known bad parts went wrong: one run of fifty. Source: AEGIS-SDC (OSDI 2026).
PROBABILITY: Final = 0.02
SEED: Final = 7
AILMENTS: Final[Mapping[Deed, Ailment]] = MappingProxyType({Deed(each.value): each for each in Ailment})
_CORRUPTING: Final = frozenset({Deed.FLIP_BIT, Deed.NAN, Deed.COMPUTE_WRONG, *AILMENTS})
# How many steps each lasts unasked. A disk is full for long enough that three saves in a row meet it.
_STEPS: Final = MappingProxyType({Deed.SLOW: 10, Deed.FULL_DISK: 50})


def variables_of(faults: Sequence[ScriptedFault]) -> Mapping[str, str]:
    """What the processes of all nodes need in their environment, so that corruption reaches them on request."""
    return {CORRUPTIBLE_VARIABLE: "1"} if any(fault.do in _CORRUPTING for fault in faults) else {}


def disturbance_of(fault: ScriptedFault) -> Disturbance:
    """What a rank is asked to suffer for the fault, which is one of `AILMENTS`."""
    return Disturbance(
        ailment=AILMENTS[fault.do],
        rank=fault.rank or 0,
        steps=fault.steps or _STEPS.get(fault.do, 1),
        seconds=fault.seconds or 1.0,
        times=fault.times or 100.0,
    )


def is_relayed(faults: Sequence[ScriptedFault]) -> bool:
    """Whether nodes must be started so that they can be cut off."""
    return any(fault.do is Deed.PARTITION for fault in faults)


def drills_of(faults: Sequence[ScriptedFault], *, gpus: int) -> Mapping[str, Drill]:
    """What each node that computes wrong is started with; `gpus` is how many it has."""
    wrong: dict[str, list[int]] = {}
    for fault in faults:
        if fault.do is Deed.COMPUTE_WRONG and fault.node is not None:
            wrong.setdefault(fault.node, []).append(fault.gpu or 0)
    return {node: _drill(node, indices, gpus) for node, indices in wrong.items()}


def _drill(node: str, wrong: Sequence[int], gpus: int) -> Drill:
    names = tuple(gpu_uuid(node, index) for index in range(gpus))
    inject = (f"flip:probability={PROBABILITY}:seed={SEED}:device={gpu_uuid(node, index)}" for index in wrong)
    return Drill(names, tuple(inject))
