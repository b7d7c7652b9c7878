"""Training against inference: log-probabilities of the same tokens by two implementations of one model.

What generates and what trains are often two programs. Where they disagree, a policy that is thought to learn from
its own samples learns from another's, and an evaluation is of a model that was not trained.
Source: https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor, nn

from holdfast.api.audit import Probe, ProbeAnswer, Soundness
from holdfast.trainer.probes.activations import ModuleCall, TimeLayout, recorded
from holdfast.trainer.probes.rounding import coarsest, moved, tolerance
from holdfast.trainer.probes.subject import Subject, kept_as_found, logits_of, without_dropout

UNIT: Final = "nats per token"


def agreement(subject: Subject) -> ProbeAnswer:
    """Whether `subject.reference` gives the tokens the same log-probabilities as the model in training.

    The model runs in training mode, without dropout, the reference in eval mode. The tokens are the targets when
    these are integers of the sequence's shape (those below 0 are left out), else the next ones of the sequence.
    The figure is the mean distance of log-probabilities. Logits may lie one rounding of their dtype apart, times
    their own root mean square; `where` is the first module of that name in both whose outputs differ by more than
    rounding while its inputs do not. Unknown without a reference, and when the outputs are not logits.
    """
    if subject.reference is None:
        return ProbeAnswer.unknown(
            Probe.AGREEMENT,
            "no second implementation is given",
            "say Subject(reference=...): a module or a function",
        )
    tokens = _next_tokens(subject)
    if tokens is None:
        return ProbeAnswer.unknown(
            Probe.AGREEMENT, "there are no tokens to compare", "give integer targets of the shape of the sequence"
        )
    other = [subject.reference] if isinstance(subject.reference, nn.Module) else []
    with torch.no_grad(), kept_as_found(subject.model, *other) as renew, without_dropout():
        subject.model.train()
        with recorded(subject.model) as ours:
            trained = logits_of(subject.outputs())
        renew()
        theirs: list[ModuleCall] = []
        if isinstance(subject.reference, nn.Module):
            subject.reference.eval()
            with recorded(subject.reference) as theirs:
                inferred = logits_of(subject.reference_outputs())
        else:
            inferred = logits_of(subject.reference_outputs())
    layout = TimeLayout(subject.samples, subject.steps, subject.time_dim)
    pair = [_logprobs(each, tokens, layout) for each in (trained, inferred)]
    if pair[0] is None or pair[1] is None:
        fix = f"return logits of {subject.samples} x {subject.steps} x vocabulary from both"
        return ProbeAnswer.unknown(Probe.AGREEMENT, "the outputs are no logits of these tokens", fix)
    apart = (pair[0] - pair[1]).abs()
    figure = float(apart.mean())
    dtype = coarsest(
        (*trained, *inferred, *subject.model.parameters(), *(p for o in other for p in o.parameters())),
        (each.dtype for call in (*ours, *theirs) for each in call.outputs),
    )
    narrow = torch.finfo(dtype).eps if dtype.itemsize < 4 else tolerance(dtype)
    limit = narrow * max(1.0, float(trained[0].double().square().mean().sqrt()))
    says = (
        f"{apart.numel()} log-probabilities lie {figure:.2g} apart on the mean, {float(apart.max()):.2g} at most"
    )
    if figure <= limit:
        return ProbeAnswer(probe=Probe.AGREEMENT, verdict=Soundness.SOUND, figure=figure, unit=UNIT, says=says)
    begun = _first_to_diverge(ours, theirs, tolerance(dtype))
    if begun is not None:
        place = f"; first in {begun.name or 'the model'} ({begun.kind})"
    else:
        place = "; no module of the same name in both differs" if theirs else "; a function shows no layers"
    return ProbeAnswer(
        probe=Probe.AGREEMENT,
        verdict=Soundness.SUSPECT,
        figure=figure,
        unit=UNIT,
        says=f"{says}, where {limit:.2g} is rounding{place}",
        where="" if begun is None else begun.name,
        change="make both compute this module alike: weights, dtype, epsilon, positions, mask, training mode; "
        "else weight each sample by the ratio of the two probabilities",
    )


def _next_tokens(subject: Subject) -> Tensor | None:
    """T x B of integers, negative where there is none; None when nothing is known to be predicted."""
    shape = subject.tokens.shape[:2]
    found = subject.targets
    if isinstance(found, Tensor) and found.shape == shape and not found.is_floating_point():
        tokens = found
    elif not subject.tokens.is_floating_point() and subject.tokens.ndim == 2:
        last = torch.full_like(subject.tokens.narrow(subject.time_dim, 0, 1), -1)
        later = subject.tokens.narrow(subject.time_dim, 1, subject.steps - 1)
        tokens = torch.cat([later, last], subject.time_dim)
    else:
        return None
    return tokens.movedim(subject.time_dim, 0) if bool((tokens >= 0).any()) else None


def _logprobs(outputs: Sequence[Tensor], tokens: Tensor, layout: TimeLayout) -> Tensor | None:
    """Of each token, in float64; None when no output is a table of logits for all of them."""
    for each in outputs:
        timed = layout.by_time(each)
        if timed is None:
            continue
        table = timed.reshape(layout.steps, layout.samples, -1).double().log_softmax(-1)
        if table.shape[-1] <= int(tokens.max()) or table.shape[-1] < 2:
            continue
        chosen = table.gather(-1, tokens.clamp(min=0)[..., None].to(table.device))[..., 0]
        return chosen[(tokens >= 0).to(table.device)].cpu()
    return None


def _first_to_diverge(ours: Sequence[ModuleCall], theirs: Sequence[ModuleCall], limit: float) -> ModuleCall | None:
    """The first of our calls whose outputs are not those of the same module there, though its inputs are."""
    there = {call.key: call for call in theirs}

    def differs(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
        pairs = [(a, b) for a, b in zip(one, other, strict=False) if a.shape == b.shape and a.is_floating_point()]
        return any(not moved(a.cpu(), b.cpu()) <= limit for a, b in pairs)

    late = [call for call in ours if call.key in there and differs(call.outputs, there[call.key].outputs)]
    begun = [call for call in late if not differs(call.inputs, there[call.key].inputs)]
    return next(iter([*begun, *late]), None)
