"""What each kind of fault does to the world: what breaks, and what sensors, launchers and ranks then say.

Each is told which machine, and whether it is the machine's doing. What follows is for the watchdog to find out.
"""

import random
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Final, Protocol

from holdfast.api.condition import ConditionKind
from holdfast.api.event import NodeChanged
from holdfast.api.plan import NodeState
from holdfast.api.telemetry import GpuDisappeared, PreemptionNoticed, XidRaised
from holdfast.simulator.fault import Fault, Reach, Spread, Symptom
from holdfast.simulator.fleet.fleetworld import FleetWorld
from holdfast.simulator.fleet.machines import Machine
from holdfast.simulator.world.member import SimulatedMember

# A GPU that fell off the bus: what an error means where the fault does not say which it is.
# Source: https://docs.nvidia.com/deploy/xid-errors/index.html
OFF_THE_BUS: Final = 79
SIGBUS: Final = 7
# How long what lasts does so where the fault does not say.
LASTS: Final = Spread(60.0, 1.0)
SLOW_LASTS: Final = Spread(3600.0, 1.0)
NOTICE: Final = Spread(120.0)
# A driver logs an error, and the worker on that GPU ends so much later.
AFTER_XID_S: Final = 0.3
# A node that is not ready and does not come back is gone after so long.
UNREADY_S: Final = 30.0
# For so long at most what an agent says of a condition is listened to: by then it is acted upon or not.
SEEN_S: Final = 90.0


class Strike(Protocol):
    """One symptom's. `infrastructure`: it is the machine's doing."""

    def __call__(
        self, world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool
    ) -> None: ...


def _process_exit(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    local = world.draw.randrange(len(member.workers))
    world.blame(member, fault.name)
    if infrastructure or fault.code is not None:
        member.kill_worker(local, signal=fault.code or SIGBUS)
    else:
        member.kill_worker(local, "ValueError: bad batch")


def _xid(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    code = OFF_THE_BUS if fault.code is None else fault.code
    world.blame(member, fault.name)
    member.report((XidRaised(f"GPU-{member.name}", code, 0.01),))
    world.after(AFTER_XID_S, partial(_die, world, member, fault))


def _gpu_lost(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.blame(member, fault.name)
    member.report((GpuDisappeared(f"GPU-{member.name}", 0.01),))
    world.after(AFTER_XID_S, partial(_die, world, member, fault))


def _die(world: FleetWorld, member: SimulatedMember, fault: Fault) -> None:
    if member.workers and world.runs_workers(member):
        world.blame(member, fault.name)
        member.kill_worker(0, "RuntimeError: CUDA error: unspecified launch failure")


def _node_lost(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.blame(member, fault.name)
    world.harm.gone[member.node] = [fault]
    member.line.silent = True  # nobody closes the connections of a machine without power
    world.lose(member, fault.name)


def _node_not_ready(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.harm.struck[member.node] = fault.name
    world.tell(NodeChanged(member.node, NodeState.NOT_READY, fault.name))
    if infrastructure:
        world.watch((member.name,), UNREADY_S + 10.0)
        world.after(UNREADY_S, partial(_goes, world, member, fault))
    else:
        ready = NodeChanged(member.node, NodeState.READY, "")
        lasts_s = _lasts(world, member, fault, LASTS)
        world.after(lasts_s, lambda: world.tell(ready) if member.alive else None)


def _goes(world: FleetWorld, member: SimulatedMember, fault: Fault) -> None:
    if member.alive:
        _node_lost(world, member, fault, infrastructure=True)


def _hang(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.blame(member, fault.name)
    if infrastructure:
        member.block_worker(world.draw.randrange(len(member.workers)))
    else:
        world.hold_up(member, object(), fault.name)  # every rank waits, and none stands out


def _link_flap(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    flap = object()
    lasts_s = _lasts(world, member, fault, LASTS)
    world.blame(member, fault.name)
    world.harm.cut[flap] = frozenset((member.name,))
    if infrastructure:  # its own port; else what is between the nodes, which no agent sees
        member.agent.hold(ConditionKind.LINK_DOWN, world.now, lasts_s)
        world.watch((member.name,), min(lasts_s, SEEN_S))
    round = world.training.round
    world.hold_up(member, flap, fault.name)
    if round is not None:
        world.training.broke(round, member, for_all=True)

    def over() -> None:
        del world.harm.cut[flap]
        world.training.go_on(flap)

    world.after(lasts_s, over)


def _nan(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.harm.struck[member.node] = fault.name
    if world.trains(member):  # else nobody has its gradients
        world.training.turn_sick(member, fault.name)


def _corruption(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.harm.struck[member.node] = fault.name
    world.training.agree()
    world.harm.wrong[member.name] = fault.name
    world.training.ever_wrong.add(member.node)
    member.wrong.add(world.draw.randrange(len(member.workers)))
    world.training.expect_difference()


def _slow(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.harm.struck[member.node] = fault.name
    if not world.trains(member):
        return
    lasts_s, what = _lasts(world, member, fault, SLOW_LASTS), world.slow_by(member, infrastructure=infrastructure)
    world.training.slow_down(what, fault.name, fault.factor)
    world.after(lasts_s, lambda: world.training.speed_up(what))
    world.training.see_slow()


def _hot(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    lasts_s = _lasts(world, member, fault, SLOW_LASTS)
    _slow(world, member, fault, infrastructure=infrastructure)
    member.agent.heat(world.now + lasts_s)
    sustained_s = world.policy.thermal.sustained_s
    world.watch((member.name,), min(lasts_s, 3.0 * sustained_s) + 5.0)


def slow_storage(world: FleetWorld, fault: Fault, draw: random.Random) -> None:
    """Checkpoints and restores take longer for a while, whoever makes them."""
    spell = object()
    world.tempo.storage[spell] = fault.factor

    def over() -> None:
        del world.tempo.storage[spell]

    world.after((fault.lasts or SLOW_LASTS).drawn(draw), over)


def _preemption(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    within_s = _lasts(world, member, fault, NOTICE)
    world.harm.struck[member.node] = fault.name
    member.report((PreemptionNoticed("cloud", within_s, 0.01),))

    def taken() -> None:
        if world.members.get(member.name) is member:
            world.watch((member.name,), 6.0)
            if world.runs_workers(member):
                world.blame(member, fault.name)
            world.harm.gone[member.node] = [fault]
            world.lose(member, fault.name)

    world.after(within_s, taken)


def _false_alarm(world: FleetWorld, member: SimulatedMember, fault: Fault, *, infrastructure: bool) -> None:
    world.harm.struck[member.node] = fault.name
    code = OFF_THE_BUS if fault.code is None else fault.code
    member.report((XidRaised(f"GPU-{member.name}", code, 0.01),))


def _lasts(world: FleetWorld, member: SimulatedMember, fault: Fault, otherwise: Spread) -> float:
    """By the machine's own numbers: the same under every policy."""
    return (fault.lasts or otherwise).drawn(world.machine_of(member).draw)


STRIKES: Mapping[Symptom, Strike] = MappingProxyType(
    {
        Symptom.PROCESS_EXIT: _process_exit,
        Symptom.XID: _xid,
        Symptom.GPU_LOST: _gpu_lost,
        Symptom.NODE_LOST: _node_lost,
        Symptom.NODE_NOT_READY: _node_not_ready,
        Symptom.HANG: _hang,
        Symptom.LINK_FLAP: _link_flap,
        Symptom.NAN: _nan,
        Symptom.CORRUPTION: _corruption,
        Symptom.SLOW: _slow,
        Symptom.HOT: _hot,
        Symptom.PREEMPTION: _preemption,
        Symptom.FALSE_ALARM: _false_alarm,
    }
)
# What befalls workers that run: where they do not, it does as soon as they do.
OF_WORKERS: Final = (
    *(Symptom.PROCESS_EXIT, Symptom.XID, Symptom.GPU_LOST, Symptom.HANG, Symptom.LINK_FLAP),
    *(Symptom.NAN, Symptom.CORRUPTION),
)
# Nothing is wrong with any machine, whatever `infrastructure` says.
OF_NO_MACHINE: Final = (Symptom.STORAGE_SLOW, Symptom.FALSE_ALARM)


def behind(world: FleetWorld, machine: Machine, fault: Fault) -> list[Machine]:
    """The machines that the fault hits beside the one it was drawn for, and that one."""
    match fault.reach:
        case Reach.SWITCH:
            return world.cluster.behind(machine, switch=True)
        case Reach.RACK:
            return world.cluster.behind(machine, switch=False)
        case Reach.JOB:
            return [each for each in world.cluster.all if each.member is not None]
        case _:
            return [machine]
