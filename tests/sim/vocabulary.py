"""What a schedule may contain: faults, planned changes, what people ask for, and a cluster that misbehaves.

Each function does one thing to the world, drawn with the world's own random numbers.
"""

from collections.abc import Callable

import msgspec
from smallworld import JOB, SmallWorld

from holdfast.api.condition import ConditionKind
from holdfast.api.event import FindingMade, InterventionRequested
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, SlowCause, Slowness, Subject
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import SlowAction, XidAction
from holdfast.api.selftest import TestLevel
from holdfast.api.telemetry import GpuDisappeared, PreemptionNoticed, ProcessKilledForMemory, XidRaised
from holdfast.simulator.world.member import SimulatedMember, Worker


def _member(world: SmallWorld) -> SimulatedMember | None:
    there = [member for member in world.members.values() if member.alive]
    return world.draw.choice(sorted(there, key=lambda each: each.name)) if there else None


def kill_worker(world: SmallWorld) -> None:
    if (member := _member(world)) is not None and member.workers:
        error = world.draw.choice(("", "", "ValueError: bad batch"))
        member.kill_worker(world.draw.randrange(len(member.workers)), error)


def stop_worker(world: SmallWorld) -> None:
    if (member := _member(world)) is not None and member.workers:
        member.stop_worker(world.draw.randrange(len(member.workers)))


def kill_node(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        world.remove_node(member, "power")


def restart_launcher(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.restart_launcher()


def break_connection(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.line.disconnect(told=True)


def partition(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.partition(world.draw.uniform(0.5, 8.0))


def freeze_launcher(world: SmallWorld) -> None:
    """As SIGSTOP does, or a node that is busy with something else."""
    if (member := _member(world)) is not None:
        member.freeze(world.draw.choice((2.0, 4.0, 6.0, 30.0)))


def raise_xid(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        code = world.draw.choice((13, 31, 43, 45, 48, 63, 79, 94, 95))
        member.report((XidRaised(f"GPU-{member.name}", code, 0.01),))


def lose_gpu(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.report((GpuDisappeared(f"GPU-{member.name}", 0.01),))


def flip_bit(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.flip_bit()


def nan_once(world: SmallWorld) -> None:
    """The next step of one member's ranks gives a NaN; done again it does not."""
    if (member := _member(world)) is not None:
        world.training.nan_on = member


def nan_always(world: SmallWorld) -> None:
    """A batch that comes soon gives a NaN, whenever it is trained."""
    if reached := [member.step for member in world.members.values() if member.step is not None]:
        world.training.nan_at.add(max(reached) + world.draw.randint(1, 12))


def kill_watchdog(world: SmallWorld) -> None:
    world.kill_watchdog(world.draw.uniform(0.1, 5.0))


def leave(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.leave()


def drain(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        world.drain(member)
        if world.draw.random() < 0.3:
            world.after(world.draw.uniform(0.5, 30.0), lambda: world.call_off(member.node))


def end_pod(world: SmallWorld) -> None:
    if (member := _member(world)) is not None:
        member.told_to_end(world.draw.uniform(1.0, 30.0))


def suspend_for_a_while(world: SmallWorld) -> None:
    policy = world.policy
    if policy.suspend:
        return
    world.submit(msgspec.structs.replace(policy, suspend=True, generation=policy.generation + 1))
    resumed = msgspec.structs.replace(policy, generation=policy.generation + 2)
    world.after(world.draw.uniform(0.5, 25.0), lambda: world.submit(resumed))


def ask_for_a_checkpoint(world: SmallWorld) -> None:
    _ask(world, InterventionAction.CHECKPOINT)


def _ask(world: SmallWorld, action: InterventionAction) -> None:
    """One request as an engineer may make it, with good values or bad ones; now and then it is made twice."""
    draw = world.draw
    steps = [each.step for each in world.job.state.checkpoints]
    nodes = [member.node for member in world.members.values()] + list(world.job.state.avoided_nodes)
    request = InterventionRequest(
        f"request-{len(world.asked)}",
        JOB,
        action,
        "test",
        node=draw.choice([*sorted(nodes), "node-of-another-job", None]),
        nodes=draw.choice((None, 0, 1, 2, 3, 4)),
        to_step=draw.choice([*steps, None, 0, 10**6]),
        skip_batches=draw.choice((0, 3)),
        level=draw.choice((None, *TestLevel)),
    )
    world.asked[request.id] = request
    world.tell(InterventionRequested(request))
    if draw.random() < 0.2:
        world.after(world.draw.uniform(0.0, 5.0), lambda: world.tell(InterventionRequested(request)))


def intervene(world: SmallWorld) -> None:
    """Any intervention; what was paused is resumed a little later."""
    action = world.draw.choice(tuple(InterventionAction))
    world.note(f"asked for {action.value}")
    _ask(world, action)
    if action is InterventionAction.PAUSE:
        world.after(world.draw.uniform(0.5, 25.0), lambda: _ask(world, InterventionAction.RESUME))


def hold_condition(world: SmallWorld) -> None:
    """Something is wrong with a node for a while."""
    if (member := _member(world)) is not None:
        kind = world.draw.choice(tuple(ConditionKind))
        member.agent.hold(kind, world.now, world.draw.uniform(1.0, 40.0))


def flap_condition(world: SmallWorld) -> None:
    """The same thing is wrong again and again."""
    if (member := _member(world)) is not None:
        kind = world.draw.choice(tuple(ConditionKind))
        for again in range(4):
            begins = again * 5.0
            world.after(begins, lambda: member.agent.hold(kind, world.now, 2.0))


def heat_gpu(world: SmallWorld) -> None:
    """A GPU is too hot for a while."""
    if (member := _member(world)) is not None:
        member.agent.heat(world.now + world.draw.uniform(5.0, 60.0))


def find_slow(world: SmallWorld) -> None:
    """A detector is played that finds a member's ranks slow, whatever the reason."""
    member, round_ = _member(world), world.job.state.round
    if member is None or round_ is None or (share := round_.share_of(member.name)) is None:
        return
    slow = Slowness(world.draw.choice(tuple(SlowCause)), 1.0, 0.3)
    may_act = world.policy.straggler.action is not SlowAction.REPORT
    world.tell(
        FindingMade(
            Finding(
                kind=FindingKind.STRAGGLER,
                subject=Subject(JOB, node=member.node, member=member.name, rank=share.first_rank),
                cause=f"slow: {slow.cause.value.lower()}",
                evidence=(Evidence("rank records", "busy longer than its peers", world.now),),
                confidence=Confidence.PROBABLE,
                began_at=world.now - 5.0,
                round=round_.number,
                asks=None if may_act else XidAction.WATCH,
                step=world.job.state.step,
                slow=slow,
            )
        )
    )


def heat_rack(world: SmallWorld) -> None:
    """The cooling of all nodes fails for a while."""
    for member in world.members.values():
        member.agent.heat(world.now + 30.0)


def fail_script(world: SmallWorld) -> None:
    """The script raises the same on every rank."""
    for member in list(world.members.values()):
        for local in range(len(member.workers)):
            member.kill_worker(local, "KeyError: 'lr'")


def run_out_of_memory(world: SmallWorld) -> None:
    """The kernel kills a worker because the node's memory is used up, and says so."""
    if (member := _member(world)) is not None and Worker.RUNNING in member.workers:
        member.kill_worker(0)
        member.report((ProcessKilledForMemory(4711, "python", 0.01),))


def notice_preemption(world: SmallWorld) -> None:
    """The owner of a machine takes it away."""
    if (member := _member(world)) is not None:
        within_s = world.draw.uniform(2.0, 40.0)
        member.report((PreemptionNoticed("cloud", within_s, 0.01),))
        world.after(within_s, lambda: world.lose(member, "preempted"))


def lose_operator(world: SmallWorld) -> None:
    """Nobody carries out the plan, and nobody tells of nodes and pods."""
    world.lose_operator(world.draw.uniform(1.0, 20.0))


PLANNED: tuple[Callable[[SmallWorld], None], ...] = (
    drain,
    end_pod,
    suspend_for_a_while,
    ask_for_a_checkpoint,
)
FAULTS: tuple[Callable[[SmallWorld], None], ...] = (
    kill_worker,
    kill_worker,
    stop_worker,
    kill_node,
    restart_launcher,
    break_connection,
    partition,
    freeze_launcher,
    raise_xid,
    lose_gpu,
    flip_bit,
    nan_once,
    nan_always,
    kill_watchdog,
    leave,
    intervene,
    intervene,
    intervene,
    hold_condition,
    hold_condition,
    flap_condition,
    heat_gpu,
    heat_rack,
    find_slow,
    find_slow,
    fail_script,
    run_out_of_memory,
    notice_preemption,
    lose_operator,
    *PLANNED,
)
