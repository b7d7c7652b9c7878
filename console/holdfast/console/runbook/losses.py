"""Checks of what is trained: losses, gradients, batches and what the ranks hold."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident, Rung
from holdfast.console.runbook.answer import Said, Verdict, fine, hint, named, unknown
from holdfast.console.runbook.byincident import ByIncident, no_values, same_step_again
from holdfast.console.runbook.check import Check
from holdfast.console.runbook.known import Known, listed
from holdfast.console.runbook.symptom import Symptom

LOSS, NAN, NODE, SLOW = Symptom.LOSS_SPIKED, Symptom.NAN, Symptom.NODE_SUSPECT, Symptom.SLOW
SHARE_APART: Final = 0.25
DEVIATIONS_APART: Final = 8.0
TO_SIGMA: Final = 1.4826  # of a normal distribution: its standard deviation over its median absolute deviation
RANKS_MIN: Final = 3
UNPROVED_STEPS: Final = 1000
LEARNED_S: Final = 120.0
"""So long, and some steps more, a detector of losses or of slow ranks looks before it judges."""
DETECTORS: Final = "the rule of docs/detectors.md"
# What detectors call it: incidents tell of it in these words.
ONE_RANK: Final = "the loss of one rank"
SAME: Final = "the same batch on two ranks"
AGAIN: Final = "a batch comes again"
OFFSET: Final = "restart at the wrong sample"
AMOUNTS: Final = "ranks have different amounts of work"


def rank_apart(known: Known) -> Said:
    """One rank's loss is beyond the others' by a quarter of their median, and by eight deviations."""
    found = _APART(known)
    if known.ranks is None:
        return unknown(known.why_unread("ranks"))
    if found.is_of_now:
        return found
    earlier = found if found.verdict is Verdict.SUSPECT else None
    told = [(rank, loss) for rank, loss in known.losses if math.isfinite(loss)]
    if len(told) < RANKS_MIN:
        return earlier or unknown(f"{len(told)} ranks tell a finite loss; {RANKS_MIN} are needed to compare")
    middle = median(loss for _, loss in told)
    spread = TO_SIGMA * median(abs(loss - middle) for _, loss in told)
    limit = max(SHARE_APART * abs(middle), DEVIATIONS_APART * spread)
    apart = [(rank, loss) for rank, loss in told if abs(loss - middle) > limit]
    if len(apart) == 1:
        ((rank, loss),) = apart
        says = f"rank {rank.rank} on {rank.node} has {loss:.4g}, the median of {len(told)} ranks is {middle:.4g}"
        return hint(says, rank=rank.rank, node=rank.node)
    if apart:
        says = f"{len(apart)} of {len(told)} ranks are apart from the median {middle:.4g}: no single one"
        return earlier or unknown(says)
    return earlier or fine(f"{len(told)} ranks are within {limit:.3g} of their median {middle:.4g}")


_APART: Final = ByIncident(
    frozenset({FindingKind.DIVERGENCE}),
    "no rank was found apart",
    like=lambda each: each.cause.startswith(ONE_RANK),
)


def no_loss_policy(known: Known) -> str:
    """Why nobody compares the loss with what was usual."""
    if known.policy is None:
        return "the job's spec is not known here, so neither is whether anybody watches the loss"
    if known.policy.loss is None:
        return "faultPolicy.loss is not set: nobody compares the loss with what was usual"
    return known.unheard or known.young(LEARNED_S)


def unproved(known: Known) -> str:
    """Why nobody can say that all ranks hold what is right."""
    status = known.status
    if status is None:
        return known.why_unread("status")
    if status.verified_step is None:
        return "nothing compares the replicas: faultPolicy.corruption.fingerprintEvery is not set, or no vote came"
    behind = (status.step or 0) - status.verified_step
    if behind > UNPROVED_STEPS:
        return f"what ranks hold was last proved equal after step {status.verified_step}, {behind} steps ago"
    return ""


def batches_unseen(known: Known) -> str:
    """Why nobody would have seen a wrong batch."""
    if known.ranks is None:
        return known.why_unread("ranks")
    mute = [each for each in known.ranks if each.batch_step is None]
    if mute or not known.ranks:
        return f"{len(mute)} of {len(known.ranks)} ranks do not tell what is in their batches"
    return ""


def amounts_unseen(known: Known) -> str:
    """Why nobody would have seen that ranks have different amounts of work."""
    if known.unheard:
        return known.unheard
    mute = [each for each in known.ranks or () if each.tokens is None]
    return f"{len(mute)} of {len(known.ranks or ())} ranks do not tell how many tokens they train" if mute else ""


def batches_unseen_since_restart(known: Known) -> str:
    """Why nobody would have seen that a round began at the wrong sample."""
    if known.journal is None:
        return known.why_unread("journal")
    begun = [each for each in known.restored if each.at >= known.since]
    if not known.is_whole:
        return f"the journal does not reach back over {known.span}"
    if not begun:
        return ""
    why = batches_unseen(known)
    last = begun[-1]
    return f"round {last.round} began {known.ago(last.at)} after step {last.step}, and {why}" if why else ""


def is_skip(incident: Incident) -> bool:
    return incident.rung is Rung.SKIP_STEP


def gradients(known: Known) -> Said:
    """Steps that were left out, and gradient norms that are not finite or far beyond the others'."""
    found = _SKIPPED(known)
    if found.is_of_now:
        return found
    if known.ranks is None:
        return unknown(known.why_unread("ranks"))
    norms = [(each, float(each.grad_norm)) for each in known.ranks if each.grad_norm is not None]
    if not norms:
        return found if found.verdict is Verdict.SUSPECT else unknown("no rank tells its gradient norm")
    bad = [each for each, norm in norms if not math.isfinite(norm)]
    if bad:
        return named(f"the gradient norm of {_ranks(bad)} is not finite now", rank=bad[0].rank, node=bad[0].node)
    if found.verdict is not Verdict.FINE:
        return found
    largest = max(norm for _, norm in norms)
    return fine(f"no step was left out, and the gradient norms of {len(norms)} ranks are {largest:.3g} at most")


_SKIPPED: Final = ByIncident(
    frozenset({FindingKind.NON_FINITE}), "no step was left out", like=is_skip, blind=no_values, proves=False
)


def not_finite(known: Known) -> Said:
    """What was not finite before: the history, and losses now."""
    found = _NAN(known)
    if found.is_of_now:
        return found
    bad = [rank for rank, loss in known.losses if not math.isfinite(loss)]
    if bad:
        return named(f"the loss of {_ranks(bad)} is not finite now", rank=bad[0].rank, node=bad[0].node)
    if known.status is not None and (step := known.status.unhealthy_from) is not None:
        return named(f"what was trained from step {step} on is not finite, and nothing went back yet", step=step)
    return found


def _ranks(ranks: Sequence[object]) -> str:
    numbers = [str(getattr(each, "rank", "?")) for each in ranks]
    return f"rank {numbers[0]}" if len(numbers) == 1 else f"ranks {listed(numbers)}"


_NAN: Final = ByIncident(
    frozenset({FindingKind.NON_FINITE}),
    "no loss or gradient norm was not finite",
    like=lambda each: not is_skip(each),
    blind=no_values,
    proves=False,
)
_DATA: Final = frozenset({FindingKind.DATA})
WHY = ("why {incident}", "incidents")

CHECKS: Final = (
    Check(
        "rank-apart",
        "The loss of one rank is apart from its peers'",
        {LOSS: 20, NAN: 5},
        rank_apart,
        ("why {incident}", "logs --rank {rank} --tail 100", "ranks"),
        DETECTORS,
    ),
    Check(
        "corruption",
        "One node computes or remembers wrong (silent corruption)",
        {LOSS: 12, NAN: 6, NODE: 12},
        ByIncident(
            frozenset({FindingKind.CORRUPTION}),
            "what all ranks hold was proved equal or right; a wrong gradient that all took over does not show",
            blind=unproved,
        ),
        WHY,
        "some loss spikes are: https://arxiv.org/abs/2502.12340; 1.4 % of interruptions: "
        "https://arxiv.org/abs/2407.21783, table 5",
    ),
    Check(
        "nan-before",
        "A value was not finite before",
        {LOSS: 10},
        not_finite,
        WHY,
    ),
    Check(
        "nan-of-one-rank",
        "The loss of one rank was not finite first",
        {NAN: 30},
        ByIncident(
            frozenset({FindingKind.NON_FINITE}),
            "no loss or gradient norm was not finite",
            like=lambda each: each.culprit.rank is not None and not is_skip(each),
            blind=no_values,
            proves=False,
        ),
        ("logs --rank {rank} --tail 100", "incidents"),
        "docs/detectors.md, a NaN",
    ),
    Check(
        "nan-of-all-ranks",
        "All ranks were not finite at once: nobody is named",
        {NAN: 25},
        ByIncident(
            frozenset({FindingKind.NON_FINITE}),
            "no loss or gradient norm was not finite",
            like=lambda each: each.culprit.rank is None and not is_skip(each),
            blind=no_values,
            proves=False,
        ),
        WHY,
        "docs/detectors.md, a NaN",
    ),
    Check(
        "nan-again",
        "The same step is not finite each time: data or code, no machine",
        {NAN: 40},
        same_step_again,
        ("why {incident}", "incidents"),
        "of silent corruptions 1 % show as a NaN: https://arxiv.org/abs/2605.04213",
    ),
    Check(
        "batches-wrong",
        "Two ranks have one batch, or a batch comes again",
        {LOSS: 10, NAN: 4},
        ByIncident(
            _DATA,
            "no batch came twice; whether what is in one is bad, nobody can tell",
            like=lambda each: each.cause in (SAME, AGAIN),
            blind=batches_unseen,
        ),
        WHY,
        "bad batches were skipped by hand: https://arxiv.org/abs/2204.02311, section 5.1",
    ),
    Check(
        "wrong-sample",
        "A restart went on at the wrong sample",
        {LOSS: 15},
        ByIncident(
            _DATA,
            "no round began, or the batches of those that did were compared",
            like=lambda each: each.cause == OFFSET,
            blind=batches_unseen_since_restart,
        ),
        WHY,
        "docs/detectors.md, wrong data",
    ),
    Check(
        "amounts",
        "Ranks have different amounts of work in a step",
        {LOSS: 3, SLOW: 15, Symptom.OUT_OF_MEMORY: 12},
        ByIncident(
            _DATA,
            "no rank was found to have more than others",
            like=lambda each: each.cause == AMOUNTS,
            blind=amounts_unseen,
            proves=False,
        ),
        WHY,
        "sequence lengths slow 21.4 % of jobs: https://arxiv.org/abs/2505.05713",
    ),
    Check(
        "gradients",
        "Steps are left out or gradients overflow (fp16 loss scale, clipping)",
        {LOSS: 8, NAN: 20},
        gradients,
        ("why {incident}", "ranks -o wide"),
        "docs/detectors.md, a NaN",
    ),
    Check(
        "diverged",
        "The loss of all ranks rose and stays: the model diverges, or bad data came",
        {LOSS: 30},
        ByIncident(
            frozenset({FindingKind.DIVERGENCE}),
            "the loss did not rise beyond what was usual for as long as faultPolicy.loss.rewindAfter",
            like=lambda each: not each.cause.startswith(ONE_RANK),
            blind=no_loss_policy,
            proves=False,
        ),
        ("why {incident}", "status"),
        "some 20 spikes in one run: https://arxiv.org/abs/2204.02311, section 5.1",
    ),
)
