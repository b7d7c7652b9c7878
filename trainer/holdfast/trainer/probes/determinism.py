"""Determinism: the same step twice is the same bit for bit, and at another world size the same up to rounding.

The first is what a replay, a vote of replicas and a bisection need. The second is what a shrink or a growth of the
job relies on: a batch that is cut into more pieces must lead to the same gradient.
Source: https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast.api.audit import Probe, ProbeAnswer, Soundness
from holdfast.trainer.probes.activations import ModuleCall, dtypes_met, recorded
from holdfast.trainer.probes.rounding import coarsest, tolerance
from holdfast.trainer.probes.subject import Subject, kept_as_found, local, logits_of, without_dropout

NO_LOSS: Final = ("no loss is given", "say Subject(loss=...), so that there is a step to take")
SMALL: Final = 0.1
"""Of the root mean square of all gradients: a parameter whose own is below that is compared with it instead. The
gradient of a key's bias is 0 but for rounding, and rounding has no direction."""


@dataclass(frozen=True, slots=True)
class _Step:
    loss: Tensor
    gradients: Mapping[str, Tensor]
    calls: Sequence[ModuleCall]


def same_step_twice(subject: Subject) -> ProbeAnswer:
    """Whether a step from the same state and seed gives the same loss, outputs and gradients, bit for bit.

    In training mode, dropout included. The figure is the share of parameters whose gradient differs; `where` is
    the first module whose output differs while its inputs do not, or, when all outputs are equal, the parameter
    whose gradient is the first to differ on the way back.
    """
    if subject.loss is None:
        return ProbeAnswer.unknown(Probe.DETERMINISM, *NO_LOSS)
    steps = []
    with kept_as_found(subject.model) as renew:
        subject.model.train()
        for _ in range(2):
            renew()
            for parameter in subject.model.parameters():
                parameter.grad = None
            with recorded(subject.model) as calls:
                loss = local(subject.step()).clone()
            named = subject.model.named_parameters()
            held = {name: local(each.grad).clone() for name, each in named if each.grad is not None}
            steps.append(_Step(loss, held, calls))
    first, second = steps
    if not first.gradients:
        return ProbeAnswer.unknown(
            Probe.DETERMINISM, "no parameter gets a gradient", "let the loss depend on parameters that require one"
        )
    names = [*dict.fromkeys((*first.gradients, *second.gradients))]
    differ = [name for name in names if not _same(first.gradients.get(name), second.gradients.get(name))]
    call = _first_to_differ(first.calls, second.calls)
    share = len(differ) / len(names)
    if call is None and not differ and _same(first.loss, second.loss):
        says = f"loss, outputs and the gradients of {len(names)} parameters are equal bit for bit"
        return ProbeAnswer(
            probe=Probe.DETERMINISM, verdict=Soundness.SOUND, figure=0.0, unit="of parameters", says=says
        )
    forward = call is not None
    where = call.name if call is not None else _first_on_the_way_back(differ, first.calls)
    place = f"in the forward pass of {where or 'the model'}" if forward else f"in the backward pass, at {where}"
    if not forward and not differ:
        place = "in the loss alone"
    return ProbeAnswer(
        probe=Probe.DETERMINISM,
        verdict=Soundness.SUSPECT,
        figure=share,
        unit="of parameters",
        says=f"the same step gave other bits: {len(differ)} of {len(names)} gradients, first {place}",
        where=where,
        change="torch.use_deterministic_algorithms(True) names the operation, with "
        "CUBLAS_WORKSPACE_CONFIG=:4096:8 and torch.backends.cudnn.benchmark = False; on a CPU look for state or "
        "random numbers kept outside of torch",
    )


def another_world_size(subject: Subject, *, pieces: int = 2) -> ProbeAnswer:
    """Whether the batch in `pieces`, as so many times the ranks take it, gives the gradient of the whole.

    Gradients of pieces are averaged when the loss is a mean, else added. In training mode without dropout, which
    would differ rightly. The figure is the largest distance of a parameter's gradient, of its norm; `where` is
    that parameter. A model that draws random numbers by itself differs, too.
    """
    if subject.loss is None:
        return ProbeAnswer.unknown(Probe.DETERMINISM, *NO_LOSS)
    sizes = [each for each in range(min(pieces, subject.samples), 1, -1) if subject.samples % each == 0]
    if not sizes:
        return ProbeAnswer.unknown(
            Probe.DETERMINISM,
            f"{subject.samples} samples cannot be cut into {pieces} equal parts",
            "give 4 samples or more",
        )
    pieces = sizes[0]
    with kept_as_found(subject.model) as renew, without_dropout():
        subject.model.train()
        whole = subject.gradients()
        size = subject.samples // pieces
        summed: dict[str, Tensor] = {}
        for first in range(0, subject.samples, size):
            renew()
            for name, grad in subject.part(first, first + size).gradients().items():
                weighted = grad.double() / (pieces if subject.loss_is_mean else 1)
                summed[name] = summed[name] + weighted if name in summed else weighted
        renew()
        with torch.no_grad(), dtypes_met(subject.model) as met:
            logits = logits_of(subject.outputs())
    if not whole or not any(bool((each != 0).any()) for each in whole.values()):
        return ProbeAnswer.unknown(
            Probe.DETERMINISM, "every gradient is 0", "let the loss depend on parameters that require one"
        )
    limit = tolerance(coarsest((*whole.values(), *logits), met))
    return _compared(whole, summed, pieces, limit)


def _compared(whole: Mapping[str, Tensor], summed: Mapping[str, Tensor], pieces: int, limit: float) -> ProbeAnswer:
    usual = math.sqrt(sum(float(each.double().square().sum()) for each in whole.values()))
    usual /= math.sqrt(sum(each.numel() for each in whole.values()))
    away, floors = {}, {}
    for name in dict.fromkeys((*whole, *summed)):
        zero = torch.zeros_like((whole if name in whole else summed)[name], dtype=torch.float64)
        one, other = whole.get(name, zero).double(), summed.get(name, zero).double()
        floors[name] = max(float(one.norm()), SMALL * usual * math.sqrt(one.numel()))
        away[name] = float((other - one).norm()) / floors[name]
    where, figure = max(away.items(), key=lambda item: math.inf if math.isnan(item[1]) else item[1])
    unit = "of the gradient's norm"
    if figure <= limit:
        says = f"{pieces} parts of the batch give the gradient of the whole, in all {len(away)} parameters"
        return ProbeAnswer(probe=Probe.DETERMINISM, verdict=Soundness.SOUND, figure=figure, unit=unit, says=says)
    factor = _factor(whole, summed, limit)
    if factor is not None:
        says = f"{pieces} parts of the batch give {factor:.4g} times the gradient of the whole, in every parameter"
        change = "scale the loss by the whole batch; of a loss that is a sum say Subject(loss_is_mean=False)"
        where = ""
    else:
        count = sum(not each <= limit for each in away.values())
        says = f"{pieces} parts of the batch give another gradient, in {count} of {len(away)} parameters"
        change = (
            "divide by the number of targets of the whole batch, not of each part, and let no sample see another: "
            "batch statistics (SyncBatchNorm spans ranks, not parts), capacity, a loss over the batch"
        )
    return ProbeAnswer(
        probe=Probe.DETERMINISM,
        verdict=Soundness.SUSPECT,
        figure=figure,
        unit=unit,
        says=says,
        where=where,
        change=change,
    )


def _factor(whole: Mapping[str, Tensor], summed: Mapping[str, Tensor], limit: float) -> float | None:
    """The one factor between the two, when there is one."""
    if whole.keys() != summed.keys():
        return None
    one = torch.cat([each.double().reshape(-1) for each in whole.values()])
    other = torch.cat([summed[name].double().reshape(-1) for name in whole])
    factor = float(one @ other / (one @ one))
    return factor if float((other - factor * one).norm()) <= limit * float(other.norm()) else None


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Bit for bit, NaNs included."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    words = [each.contiguous().reshape(-1).view(torch.uint8) for each in (one, other)]
    return torch.equal(*words)


def _all_same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(_same, one, other))


def _first_to_differ(first: Sequence[ModuleCall], second: Sequence[ModuleCall]) -> ModuleCall | None:
    """The first call whose outputs differ while its inputs do not; else the first whose outputs differ."""
    then = {call.key: call for call in first}
    differ = [
        call for call in second if call.key not in then or not _all_same(call.outputs, then[call.key].outputs)
    ]
    begun = [call for call in differ if call.key in then and _all_same(call.inputs, then[call.key].inputs)]
    return next(iter([*begun, *differ]), None)


def _first_on_the_way_back(names: Sequence[str], calls: Sequence[ModuleCall]) -> str:
    """Of the parameters the one whose module ended last on the way forward."""
    ended = {call.name: at for at, call in enumerate(calls)}
    return max(names, key=lambda each: ended.get(each.rpartition(".")[0], -1), default="")
