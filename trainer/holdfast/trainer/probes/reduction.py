"""Reductions in low precision: what a sum over the ranks loses when every partial sum is stored in 16 bits.

A gradient that is much smaller than the sum it is added to leaves no trace in it: it is swamped. Where ranks agree
in sign, the sum then stops growing, and is too small by the same share at every step: a bias, which no average
over steps takes away.
Source: https://arxiv.org/abs/1812.08011 (swamping); https://arxiv.org/abs/1812.06162 (signal and noise).
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from holdfast.api.audit import Probe, ProbeAnswer, Soundness
from holdfast.api.errors import InvalidInput, Problem
from holdfast.trainer.probes.subject import SEED, Subject, kept_as_found

ELEMENTS_MAX: Final = 1 << 23
"""Of all ranks and layers together: 64 MiB in float64, and a second or two of one core."""
PER_LAYER_MAX: Final = 4096
SWAMPED_MAX: Final = 0.1
"""Share of additions. Gradients that are independent lose 4 % in bfloat16 at 1024 ranks, measured here; where one
in ten is lost, the bias follows at twice as many ranks."""

SIGMAS: Final = 5.0
"""Standard errors that a bias is from 0, at least: with thousands of parameters none gets there by chance."""
ELEMENTS_MIN: Final = 16
"""Of fewer elements no bias is told from an error."""


@dataclass(frozen=True, slots=True)
class ReductionLoss:
    """What a reduction lost: `bias` is signed (below 0: too small), of the sum of magnitudes, and `doubt` its
    standard error; `error` the relative error in the Euclidean norm; `swamped` a share of the additions;
    `overflowed` a share of the elements."""

    bias: float
    doubt: float
    error: float
    swamped: float
    overflowed: float


def ring(addends: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The sum over dimension 0 as a ring forms it, and for each element how many additions changed nothing.

    N x n in, n and n out. Each chunk of elements begins at another rank and passes through all, N - 1 additions
    one after the other, each stored in `dtype`. Source: https://arxiv.org/abs/1802.05799 (ring all-reduce).
    """
    ranks, elements = addends.shape
    start = torch.arange(elements, device=addends.device) * ranks // max(elements, 1)
    total = addends.gather(0, start[None])[0].to(dtype)
    lost = ((total == 0) & (addends.gather(0, start[None])[0] != 0)).long()
    for hop in range(1, ranks):
        given = addends.gather(0, ((start + hop) % ranks)[None])[0]
        total, nothing = _added(total, given.to(dtype), dtype)
        lost += nothing & (given != 0)
    return total, lost


def tree(addends: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As `ring`, but in pairs, pairs of pairs and so on: log2 N additions one after the other."""
    sums = addends.to(dtype)
    lost = ((sums == 0) & (addends != 0)).sum(0)
    while len(sums) > 1:
        half = len(sums) // 2
        both, nothing = _added(sums[:half], sums[half : 2 * half], dtype)
        lost += (nothing & (sums[half : 2 * half] != 0)).sum(0)
        sums = torch.cat([both, sums[2 * half :]])
    return sums[0], lost


ALGORITHMS: Mapping[str, Callable[[Tensor, torch.dtype], tuple[Tensor, Tensor]]] = {"ring": ring, "tree": tree}


def _added(total: Tensor, given: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """One addition, rounded once, and where it changed nothing."""
    wide = torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32
    found = (total.to(wide) + given.to(wide)).to(dtype)
    return found, found == total


def measured(addends: Tensor, dtype: torch.dtype, algorithm: str) -> ReductionLoss:
    """What the sum of N x n `addends` over N loses in `dtype`, against the same sum in float64."""
    found, lost = ALGORITHMS[algorithm](addends, dtype)
    exact, got = addends.double().sum(0), found.double()
    finite = got.isfinite()
    size, away = exact[finite].abs(), (got - exact)[finite]
    magnitude = float(size.sum())
    grown = away * exact[finite].sign()
    bias = float(grown.sum()) / magnitude if magnitude else 0.0
    return ReductionLoss(
        bias=bias,
        doubt=float((grown - bias * size).norm()) / magnitude
        if len(size) >= ELEMENTS_MIN and magnitude
        else math.inf,
        error=float(away.norm() / size.norm()) if magnitude else 0.0,
        swamped=float(lost.sum()) / max(int((addends != 0).sum()), 1),
        overflowed=float((~finite & exact.isfinite()).sum()) / max(found.numel(), 1),
    )


def reduction(
    gradients: Mapping[str, Tensor] | None, *, world_size: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[ProbeAnswer, ...]:
    """What an all-reduce in `dtype` over `world_size` ranks loses: an answer for a ring, and one for a tree.

    `gradients` holds for each parameter those of some ranks, ranks x the parameter's shape, not averaged; of fewer
    ranks than `world_size` they are drawn again and again with a fixed seed, which makes ranks agree more than
    they do. None: made up, a signal as large as the noise of one rank, which is much. The figure is the bias
    of the parameter it is largest in. Sums are formed first and divided afterwards.

    Suspect: a bias beyond half a unit in the last place of `dtype`, which rounding the result alone never has,
    and beyond chance; more than `SWAMPED_MAX` of the additions lost; a sum that overflows.

    Raises InvalidInput when the world has fewer than 2 ranks or a tensor has no ranks.
    """
    if world_size < 2:
        raise InvalidInput(Problem("world_size", world_size, "write 2 or more"))
    for name, each in (gradients or {}).items():
        if each.ndim < 1 or len(each) < 1:
            raise InvalidInput(Problem(name, tuple(each.shape), "stack the gradients of the ranks: ranks x shape"))
    layers = _drawn(gradients, world_size)
    if not any(bool((each != 0).any()) for each in layers.values()):
        return (
            ProbeAnswer.unknown(
                Probe.REDUCTION, "every gradient is 0", "give a batch with a loss that depends on the parameters"
            ),
        )
    if not all(bool(each.isfinite().all()) for each in layers.values()):
        return (
            ProbeAnswer.unknown(Probe.REDUCTION, "a gradient is not finite", "give a batch whose gradients are"),
        )
    return tuple(_answer(layers, world_size, dtype, each, gradients is None) for each in ALGORITHMS)


def reduction_of(subject: Subject) -> tuple[ProbeAnswer, ...]:
    """The same for the gradients of a subject: its samples are taken for ranks, one sample each.

    Unknown without a world size or a loss.
    """
    if subject.world_size is None:
        return (
            ProbeAnswer.unknown(
                Probe.REDUCTION,
                "no world size is given",
                "say Subject(world_size=...), of the run that is planned",
            ),
        )
    if subject.loss is None:
        return (
            ProbeAnswer.unknown(
                Probe.REDUCTION, "no loss is given", "say Subject(loss=...), so that there are gradients"
            ),
        )
    found: dict[str, list[Tensor]] = {}
    with kept_as_found(subject.model) as renew:
        subject.model.train()
        for at in range(subject.samples):
            renew()
            for name, grad in subject.part(at, at + 1).gradients().items():
                found.setdefault(name, []).append(grad.float().cpu())
    # A parameter that some samples do not reach has gradients of fewer ranks, as a router leads to.
    stacked = {name: torch.stack(each) for name, each in found.items()}
    return reduction(stacked, world_size=subject.world_size, dtype=subject.reduce_dtype)


def _drawn(gradients: Mapping[str, Tensor] | None, world_size: int) -> dict[str, Tensor]:
    """World size x some elements for each parameter, in float32."""
    generator = torch.Generator().manual_seed(SEED)
    if gradients is None:
        signal = torch.randn(1, PER_LAYER_MAX, generator=generator)
        return {"": signal + torch.randn(world_size, PER_LAYER_MAX, generator=generator)}
    per_layer = max(16, min(PER_LAYER_MAX, ELEMENTS_MAX // (world_size * max(len(gradients), 1))))
    drawn = {}
    for name, each in gradients.items():
        flat = each.detach().float().cpu().reshape(len(each), -1)
        elements = torch.randperm(flat.shape[1], generator=generator)[:per_layer]
        if len(flat) >= world_size:
            ranks = torch.arange(world_size)
        else:
            ranks = torch.randint(len(flat), (world_size,), generator=generator)
        drawn[name] = flat[:, elements][ranks]
    return drawn


def _answer(
    layers: Mapping[str, Tensor], world_size: int, dtype: torch.dtype, algorithm: str, made_up: bool
) -> ProbeAnswer:
    losses = {name: measured(each, dtype, algorithm) for name, each in layers.items() if bool((each != 0).any())}
    rounding = torch.finfo(dtype).eps / 2
    bad = {
        name: each
        for name, each in losses.items()
        if abs(each.bias) > max(rounding, SIGMAS * each.doubt) or each.swamped > SWAMPED_MAX or each.overflowed
    }
    where, worst = max((bad or losses).items(), key=lambda item: (item[1].overflowed, abs(item[1].bias)))
    kind = str(dtype).removeprefix("torch.")
    source = "made-up gradients" if made_up else f"{len(losses)} parameters"
    says = (
        f"a {algorithm} of {world_size} ranks in {kind}, {source}: error {worst.error:.2g}, "
        f"{worst.swamped:.2%} of the additions swamped, {worst.overflowed:.2%} of the sums overflowed"
    )
    return ProbeAnswer(
        probe=Probe.REDUCTION,
        verdict=Soundness.SUSPECT if bad else Soundness.SOUND,
        figure=worst.bias,
        unit="relative bias",
        says=f"{says}; {len(bad)} parameters beyond the limits" if len(bad) > 1 else says,
        where=where,
        change=_change(worst, dtype) if bad else "",
    )


def _change(worst: ReductionLoss, dtype: torch.dtype) -> str:
    if worst.overflowed:
        return "divide by the world size before the sum, or reduce in float32 (reduce_dtype of FSDP)"
    if dtype in (torch.float32, torch.float64):
        return "reduce in stages, within a node first"
    return "reduce in float32 (FSDP: MixedPrecisionPolicy(reduce_dtype=torch.float32)), or within a node first"
