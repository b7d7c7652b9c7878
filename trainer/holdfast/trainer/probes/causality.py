"""Causality: change the tokens after position t, and nothing up to t may move.

It finds what looks ahead: a wrong mask, a norm or statistic over time, experts that choose their tokens, tokens
that are dropped because later ones took the places. Each makes a loss in training that no generation
reaches.
Source: https://arxiv.org/abs/2202.09368 (expert choice takes the top tokens of all);
https://arxiv.org/abs/2404.02258 (top-k over the sequence depends on future tokens).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from holdfast.api.audit import Probe, ProbeAnswer, Soundness
from holdfast.trainer.probes.activations import ModuleCall, TimeLayout, dtypes_met, recorded
from holdfast.trainer.probes.rounding import coarsest, distance, is_narrow, largest, moved, tolerance
from holdfast.trainer.probes.subject import SEED, Subject, kept_as_found, logits_of, without_dropout

TRIES: Final = 2
"""Other tokens for each position: one change may leave the choice of a router as it was."""
UNIT: Final = "of the largest output"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one change did to the outputs: `before` it and `after` it, relative to the largest; `reach` is how many
    positions up to `kept` moved. `unsure` is as `before`, of outputs in which another dimension may be time."""

    training: bool
    kept: int
    tokens: Tensor
    before: float = 0.0
    after: float = 0.0
    reach: int = 0
    unsure: float = 0.0


def causality(subject: Subject) -> ProbeAnswer:
    """Whether any output up to a position moves with the tokens after it, in eval and in training mode.

    The figure is the largest such move as a share of the largest output; `where` is the first module, in the order
    of the forward pass, whose output moved while its inputs had not. Same shapes are computed in the same order,
    so a sound model moves by exactly nothing as a rule; `tolerance` allows for sums whose order depends on the
    data. Dropout passes everything on meanwhile. Runs the model about 20 times, without gradients. Unknown where
    the same tokens move the outputs as well, or where it depends on which of two dimensions of one size is time.
    """
    if (obstacle := _obstacle(subject)) is not None:
        return obstacle
    layout = TimeLayout(subject.samples, subject.steps, subject.time_dim)
    looks: list[_Look] = []
    with (
        torch.no_grad(),
        kept_as_found(subject.model) as renew,
        without_dropout(),
        dtypes_met(subject.model) as met,
    ):
        for training in (False, True):
            subject.model.train(training)
            renew()
            logits = logits_of(subject.outputs())
            if (obstacle := _unreadable(logits, subject, layout)) is not None:
                return obstacle
            dtype = coarsest((*logits, *subject.model.parameters()), met)
            limit = tolerance(dtype)
            for kept, changed in _changes(subject):
                renew()
                look = _Look(training=training, kept=kept, tokens=changed.tokens)
                looks.append(_look(logits, logits_of(changed.outputs()), layout, look, limit))
            renew()
            # Last, so that what drifts from call to call has drifted the furthest.
            again = logits_of(subject.outputs())
            drift = max(moved(now, then) for now, then in zip(again, logits, strict=True))
            if drift > limit:
                return ProbeAnswer.unknown(
                    Probe.CAUSALITY,
                    f"the same tokens moved the outputs by {drift:.2g}: the model does not repeat itself",
                    "ask determinism first (same_step_twice): it names where",
                )
        worst = max(looks, key=lambda each: each.before)
        if worst.before <= limit:
            return _quiet(looks, limit, dtype)
        # Of what leaks in both modes the simpler is shown.
        shown = max(
            (each for each in looks if each.before > limit), key=lambda each: (not each.training, each.before)
        )
        subject.model.train(shown.training)
        origin = _origin(subject, shown, layout, limit, renew)
    return _leak(looks, shown, worst.before, origin, limit)


def _obstacle(subject: Subject) -> ProbeAnswer | None:
    """Why nothing can be asked with such a sequence."""
    tokens = subject.tokens
    if subject.steps < 2:
        return ProbeAnswer.unknown(
            Probe.CAUSALITY, f"the sequence has {subject.steps} position", "give one of 16 or more"
        )
    if not tokens.is_floating_point() and bool((tokens == tokens.flatten()[0]).all()):
        return ProbeAnswer.unknown(
            Probe.CAUSALITY,
            "all tokens are equal",
            "give a batch of text: tokens are changed to others of the batch",
        )
    return None


def _unreadable(logits: Sequence[Tensor], subject: Subject, layout: TimeLayout) -> ProbeAnswer | None:
    """Why nothing can be read from such outputs."""
    timed = [each for each in map(layout.by_time, logits) if each is not None]
    if not timed:
        shapes = ", ".join(str(tuple(each.shape)) for each in logits) or "no tensor"
        fix = f"return logits of {subject.samples} x {subject.steps} x ...; a loss alone tells no position"
        return ProbeAnswer.unknown(Probe.CAUSALITY, f"the model returns {shapes}", fix)
    if not all(bool(each.isfinite().any()) for each in timed):
        return ProbeAnswer.unknown(
            Probe.CAUSALITY, "no output is finite", "give a model and a batch with finite outputs"
        )
    return None


def _changes(subject: Subject) -> Iterator[tuple[int, Subject]]:
    """How many positions are kept, and the subject with other tokens after them.

    Not at multiples of a power of two alone: a mask by blocks is right at their ends. The last but one shows a
    mask that is off by one, as every other does.
    """
    steps = subject.steps
    for kept in sorted({1, steps // 3 + 1, steps // 2 + 1, steps - 1} & set(range(1, steps))):
        for number in range(TRIES):
            yield kept, subject.with_tokens(_others(subject.tokens, subject.time_dim, kept, SEED + number))


def _others(tokens: Tensor, time_dim: int, kept: int, number: int) -> Tensor:
    """A copy whose positions from `kept` on are other ones: of integers others of the batch, which are valid
    therefore; of numbers normal ones of the same mean and deviation."""
    drawn = torch.Generator().manual_seed(number)
    copy = tokens.clone()
    late = copy.narrow(time_dim, kept, copy.shape[time_dim] - kept)
    if tokens.is_floating_point():
        noise = torch.randn(late.shape, generator=drawn).to(tokens.device)
        deviation = tokens.double().std().clamp(min=1e-3)
        late.copy_(tokens.double().mean() + deviation * noise)
    else:
        known, at = torch.unique(tokens, return_inverse=True)
        away = torch.randint(1, known.numel(), late.shape, generator=drawn).to(tokens.device)
        late.copy_(known[(at.narrow(time_dim, kept, late.shape[time_dim]) + away) % known.numel()])
    return copy


def _look(then: Sequence[Tensor], now: Sequence[Tensor], layout: TimeLayout, look: _Look, limit: float) -> _Look:
    """`look` with what moved."""
    before = after = unsure = 0.0
    reach = 0
    for one, other in zip(then, now, strict=True):
        old, new = layout.by_time(one), layout.by_time(other)
        if old is None or new is None:
            continue
        scale, kept = max(largest(old), largest(new)), look.kept
        after = max(after, moved(new[kept:], old[kept:], scale))
        early = moved(new[:kept], old[:kept], scale)
        if not layout.is_plain(one):
            unsure = max(unsure, early)
            continue
        before = max(before, early)
        apart = distance(new[:kept], old[:kept]).amax(dim=1)
        reach = max(reach, int((apart > limit * scale).sum()))
    return replace(look, before=before, after=after, reach=reach, unsure=unsure)


def _quiet(looks: Sequence[_Look], limit: float, dtype: torch.dtype) -> ProbeAnswer:
    """Nothing moved beyond rounding where it is plain which dimension is time.

    What did not move in a dimension that is not time after all depends on no tokens: so quiet is sound there, too.
    """
    figure = max(max(each.before, each.unsure) for each in looks)
    if max(each.after for each in looks) == 0.0:
        return ProbeAnswer.unknown(
            Probe.CAUSALITY,
            "the outputs do not depend on the sequence",
            "say which input it is: Subject(sequence=...)",
        )
    if figure > limit:
        return ProbeAnswer.unknown(
            Probe.CAUSALITY,
            f"outputs moved by {figure:.2g} if the first of two dimensions of one size is time",
            "give a sequence whose length is no other size of the outputs",
        )
    if figure > 0.0 and is_narrow(dtype):
        says = f"outputs moved by {figure:.2g}, which in {_name(dtype)} may be rounding and may be a leak"
        return ProbeAnswer(
            probe=Probe.CAUSALITY,
            verdict=Soundness.UNKNOWN,
            figure=figure,
            unit=UNIT,
            says=says,
            change="give the model in float32, where a leak is told from rounding",
        )
    says = (
        f"{len(looks)} changes of later tokens moved no earlier output beyond rounding, in eval and training mode"
    )
    return ProbeAnswer(probe=Probe.CAUSALITY, verdict=Soundness.SOUND, figure=figure, unit=UNIT, says=says)


def _leak(
    looks: Sequence[_Look], shown: _Look, figure: float, origin: ModuleCall | None, limit: float
) -> ProbeAnswer:
    leaks = [each for each in looks if each.before > limit]
    modes = {each.training for each in leaks}
    mode = "" if len(modes) == 2 else " in training mode alone" if True in modes else " in eval mode alone"
    next_only = all(each.reach == 1 for each in leaks)
    reach = "the position just before them" if next_only else f"{shown.reach} of the {shown.kept} before them"
    kind = "" if origin is None else f"; first in {origin.name or 'the model'} ({origin.kind})"
    return ProbeAnswer(
        probe=Probe.CAUSALITY,
        verdict=Soundness.SUSPECT,
        figure=figure,
        unit=UNIT,
        says=f"{len(leaks)} of {len(looks)} changes of later tokens moved {reach}{mode}{kind}",
        where="" if origin is None else origin.name,
        change=_change(next_only, modes == {True}, "" if origin is None else origin.kind),
    )


def _change(next_only: bool, training_only: bool, kind: str) -> str:
    """What to do, by how far the leak reaches and the class of module it begins in."""
    low = kind.lower()
    if "norm" in low:
        return "take statistics over the features of one position (LayerNorm, RMSNorm), never over time or batch"
    if any(word in low for word in ("moe", "expert", "rout", "gate", "mixture")):
        return (
            "let tokens choose experts, and let no token lose its place to a later one (no capacity, or in order)"
        )
    if next_only:
        return "the mask is off by one: allow key j for query i when j <= i (torch.ones(T, T).tril(), diagonal 0)"
    if training_only:
        return "look for what differs in training: batch statistics, capacity, noise that depends on other tokens"
    return "look for what joins positions: a missing mask, a mean or norm over time, a top-k over the sequence"


def _origin(
    subject: Subject, shown: _Look, layout: TimeLayout, limit: float, renew: Callable[[], None]
) -> ModuleCall | None:
    """The first module whose output moved and whose inputs had not; else the first whose output moved."""
    renew()
    with recorded(subject.model) as before:
        subject.outputs()
    renew()
    with recorded(subject.model) as now:
        subject.with_tokens(shown.tokens).outputs()
    then = {call.key: call for call in before}

    def moves(found: Sequence[Tensor], old: Sequence[Tensor]) -> bool | None:
        """None: no dimension of these is time."""
        pairs = [(layout.by_time(one), layout.by_time(other)) for one, other in zip(found, old, strict=False)]
        timed = [(a, b) for a, b in pairs if a is not None and b is not None and a.shape == b.shape]
        if not timed:
            return None
        return any(moved(a[: shown.kept], b[: shown.kept], max(largest(a), largest(b))) > limit for a, b in timed)

    late = [call for call in now if call.key in then and moves(call.outputs, then[call.key].outputs)]
    guilty = [call for call in late if moves(call.inputs, then[call.key].inputs) is False]
    return next(iter([*guilty, *late]), None)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
