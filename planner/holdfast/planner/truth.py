"""What a plan assumed beside what was measured: which assumption was wrong, by how much, what the plan becomes."""

import math
from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.planner.checkpoint import checkpoint_bytes, copied_s, written_s
from holdfast.planner.fleetrate import Failures
from holdfast.planner.layout import Layout
from holdfast.planner.memory import memory_of
from holdfast.planner.plan import Question, interval_of, plan
from holdfast.planner.quantity import shown
from holdfast.planner.reliability import DAY_S, effective_share, spares_for
from holdfast.planner.run import Efficiency, Run
from holdfast.planner.step import model_flops_utilization, step_time

replace = msgspec.structs.replace
NOISE: Final = 0.05
"""A figure that differs by less is as it was assumed."""
MATMUL_LEAST, MATMUL_MOST = 0.01, 1.0


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; None: nothing was. Rates are bytes a second.

    `memory_rate` of a GPU's memory, `nvlink` from a GPU to a neighbour, `host` to its node's memory, `tcp` from
    node to node by one connection. `memory` is the greatest of a GPU in bytes, `step_s` a step's time and `mfu`
    what it comes to. `save_s` is how long a checkpoint held training up, `written_s` until it was committed,
    `restart_s` from a failure until training went on, `effective` the share of the time that trained.
    """

    memory_rate: float | None = None
    nvlink: float | None = None
    host: float | None = None
    tcp: float | None = None
    memory: float | None = None
    step_s: float | None = None
    mfu: float | None = None
    failures: Failures | None = None
    save_s: float | None = None
    written_s: float | None = None
    restart_s: float | None = None
    effective: float | None = None


class Compared(msgspec.Struct, frozen=True):
    """One assumption. `off` is how far the measured value is from it, as a share of it; `becomes` what the plan is
    with the measured one, empty where that is no question.
    """

    name: str
    unit: str
    assumed: float
    measured: float
    is_wrong: bool
    is_worse: bool
    becomes: str = ""

    @property
    def off(self) -> float:
        """As a share of what was assumed."""
        return self.measured / self.assumed - 1.0 if self.assumed else math.inf


def compare(question: Question, layout: Layout, truth: Truth) -> tuple[Compared, ...]:
    """Every assumption of which anything was measured; last what explains a step's time that the others do not."""
    return tuple(_compared(question, layout, truth))


def with_measured(question: Question, layout: Layout, truth: Truth) -> Question:
    """The question with what was measured in place of what was assumed.

    What a step takes longer than the measured rates explain is taken for slower matmuls: nothing else is measured.
    """
    gpu, reached, given = question.cluster.gpu, question.reached, question.reliability
    if truth.memory_rate is not None:
        reached = replace(reached, memory=truth.memory_rate / gpu.memory_rate)
    if truth.nvlink is not None and gpu.nvlink:
        reached = replace(reached, links=truth.nvlink / question.cluster.peer_rate)
    if truth.save_s is not None:
        given = replace(given, save_s=truth.save_s)
    if truth.restart_s is not None:
        given = replace(given, restart_s=truth.restart_s)
    if truth.failures is not None:
        given = replace(given, rate=truth.failures.rate)
    if truth.step_s is not None:
        run = Run(question.model, layout, question.cluster, question.training)
        reached = replace(reached, matmul=_matmul(run, reached, truth.step_s))
    cluster = question.cluster
    if truth.host is not None:
        cluster = replace(cluster, host=truth.host)
    if truth.written_s and cluster.storage is not None:
        size = checkpoint_bytes(question.model, question.training)
        cluster = replace(cluster, storage=size / truth.written_s)
    return replace(question, cluster=cluster, reached=reached, reliability=given)


def best_now(question: Question, layout: Layout) -> str:
    """Whether the layout is the best there is under what the question assumes, in words."""
    found = plan(question)
    if not found.options:
        return "no layout fits"
    best, step_s = found.options[0], _step_s(question, layout)
    if best.step.value >= step_s * (1.0 - NOISE):
        return f"the layout is still within {NOISE:.0%} of the best"
    return f"{best.layout} would take {shown(best.step.value, 's')} a step in place of {shown(step_s, 's')}"


def _compared(question: Question, layout: Layout, truth: Truth) -> Iterator[Compared]:
    gpu, reached, cluster = question.cluster.gpu, question.reached, question.cluster
    if truth.memory_rate is not None:
        assumed = gpu.memory_rate * reached.memory
        only = with_measured(question, layout, Truth(memory_rate=truth.memory_rate))
        yield _rate("GPU memory's rate", assumed, truth.memory_rate, _becomes(question, only, layout))
    if truth.nvlink is not None and gpu.nvlink:
        only = with_measured(question, layout, Truth(nvlink=truth.nvlink))
        yield _rate(
            "NVLink's rate", cluster.peer_rate * reached.links, truth.nvlink, _becomes(question, only, layout)
        )
    if truth.host is not None:
        size = checkpoint_bytes(question.model, question.training)
        stalls = (shown(copied_s(size, cluster.gpus, rate), "s") for rate in (truth.host, cluster.host))
        says = "a checkpoint is copied there in {} in place of {}".format(*stalls)
        yield _rate("rate to host memory", cluster.host, truth.host, says)
    if truth.tcp is not None and cluster.nodes > 1:
        assumed = cluster.network * cluster.per_node
        slower = replace(question, cluster=replace(cluster, network=truth.tcp / cluster.per_node))
        becomes = _becomes(question, slower, layout)
        says = f"what RDMA reaches a test by TCP does not see; if NCCL goes over it, {becomes}"
        found = _rate("network of a node", assumed, truth.tcp, says)
        yield found if found.is_worse else replace(found, is_wrong=False, becomes="")
    if truth.memory is not None:
        planned = memory_of(question.model, layout, question.training).value
        left = f"{shown(gpu.memory - truth.memory, 'bytes')} of the GPU are left"
        if truth.memory >= gpu.memory:
            left = f"it is more than the {shown(gpu.memory, 'bytes')} of its data sheet, whose GB may be GiB"
        says = f"what an allocator has reserved and does not use is in it; {left}"
        yield _figure("memory of a GPU", "bytes", planned, truth.memory, truth.memory > planned, says)
    yield from _delayed(question, layout, truth)
    if truth.failures is not None:
        yield _failed(question, layout, truth.failures)
    if truth.effective is not None:
        interval = interval_of(question).value
        assumed = effective_share(cluster.nodes, question.reliability, interval).value
        yield _figure(
            "effective share of time", "share", assumed, truth.effective, is_worse=truth.effective < assumed
        )
    yield from _stepped(question, layout, truth)


def _delayed(question: Question, layout: Layout, truth: Truth) -> Iterator[Compared]:
    """How long checkpoints and restarts take."""
    given, storage = question.reliability, question.cluster.storage
    size = checkpoint_bytes(question.model, question.training)
    for name, assumed, measured, alone in (
        ("stall of a checkpoint", given.save_s, truth.save_s, Truth(save_s=truth.save_s)),
        (
            "time until a checkpoint is written",
            written_s(size, storage) if storage is not None else None,
            truth.written_s,
            Truth(written_s=truth.written_s),
        ),
        ("restart after a failure", given.restart_s, truth.restart_s, Truth(restart_s=truth.restart_s)),
    ):
        if assumed is not None and measured is not None:
            becomes = _reliable(question, with_measured(question, layout, alone))
            yield _figure(name, "s", assumed, measured, is_worse=measured > assumed, becomes=becomes)


def _stepped(question: Question, layout: Layout, truth: Truth) -> Iterator[Compared]:
    if truth.step_s is None:
        return
    planned = _step_s(question, layout)
    yield _figure("step time", "s", planned, truth.step_s, is_worse=truth.step_s > planned)
    run = Run(question.model, layout, question.cluster, question.training)
    reached = truth.mfu if truth.mfu is not None else model_flops_utilization(run, truth.step_s)
    wanted = model_flops_utilization(run, planned)
    yield _figure("MFU", "share", wanted, reached, is_worse=reached < wanted)
    told = with_measured(question, layout, truth).reached.matmul
    if told >= MATMUL_MOST or told <= MATMUL_LEAST:
        says = "matmuls alone do not explain the step time: is the batch, or the layout, another than planned?"
    else:
        says = f"set reached.matmul to {told:.3g}"
    assumed = question.reached.matmul
    yield _figure("share of the GPU's rate that matmuls reach", "share", assumed, told, told < assumed, says)


def _failed(question: Question, layout: Layout, found: Failures) -> Compared:
    """Wrong only where chance does not explain it."""
    assumed = question.reliability.rate
    only = with_measured(question, layout, Truth(failures=found))
    kinds = f"; most {', '.join(f'{kind} {rate:.3g}' for kind, rate in found.kinds)}" if found.kinds else ""
    return Compared(
        name="failures for 1,000 node-days",
        unit="",
        assumed=assumed,
        measured=found.rate,
        is_wrong=not found.low <= assumed <= found.high,
        is_worse=found.low > assumed,
        becomes=f"95 % from {found.low:.3g} to {found.high:.3g}{kinds}; {_reliable(question, only)}",
    )


def _rate(name: str, assumed: float, measured: float, becomes: str) -> Compared:
    return _figure(name, "bytes/s", assumed, measured, is_worse=measured < assumed, becomes=becomes)


def _figure(name: str, unit: str, assumed: float, measured: float, is_worse: bool, becomes: str = "") -> Compared:
    is_wrong = abs(measured - assumed) > NOISE * abs(assumed)
    return Compared(name, unit, assumed, measured, is_wrong, is_wrong and is_worse, becomes if is_wrong else "")


def _step_s(question: Question, layout: Layout) -> float:
    return step_time(Run(question.model, layout, question.cluster, question.training), question.reached).value


def _becomes(before: Question, after: Question, layout: Layout) -> str:
    """What a step takes, and all tokens, with the one and the other."""
    was, now = _step_s(before, layout), _step_s(after, layout)
    says = f"a step takes {shown(now, 's')} in place of {shown(was, 's')}"
    tokens = before.training.tokens / (before.training.batch * before.training.sequence)
    if tokens:
        says += f", all tokens {tokens * now / DAY_S:.1f} days in place of {tokens * was / DAY_S:.1f}"
    return says


def _reliable(before: Question, after: Question) -> str:
    """What failures make of the run, with the one and the other."""
    nodes = before.cluster.nodes
    every = [interval_of(each).value for each in (before, after)]
    shares = [
        effective_share(nodes, each.reliability, interval).value
        for each, interval in zip((before, after), every, strict=True)
    ]
    spares = [spares_for(nodes, each.reliability).value for each in (before, after)]
    was, now = ("never" if math.isinf(each) else f"every {shown(each, 's')}" for each in every)
    saves = f"a checkpoint {now} in place of {was}"
    says = f"{shares[1]:.1%} of the time trains in place of {shares[0]:.1%}, {saves}"
    return f"{says}, {spares[1]:.0f} spares in place of {spares[0]:.0f}"


def _matmul(run: Run, reached: Efficiency, step_s: float) -> float:
    """At which rate of matmuls a step takes so long; an end of the range where none does."""
    least, most = MATMUL_LEAST, MATMUL_MOST
    for _ in range(50):
        middle = (least + most) / 2.0
        if step_time(run, replace(reached, matmul=middle)).value > step_s:
            least = middle
        else:
            most = middle
    return most if most > MATMUL_LEAST * 1.001 else MATMUL_LEAST
