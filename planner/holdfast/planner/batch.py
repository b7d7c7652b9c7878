"""How small a batch may be, and how large it should be.

Small: each GPU needs tokens enough to compute for as long as its parameters are on their way. Large: beyond the
critical batch size more sequences in a step save hardly any steps.
"""

import math
from typing import Final

from holdfast.planner.layout import Recompute
from holdfast.planner.model import Model

HIDES: Final = "https://jax-ml.github.io/scaling-book/gpus/"
NOISE: Final = "https://arxiv.org/abs/1812.06162"
KAPLAN: Final = "https://arxiv.org/abs/2001.08361"
DEEPSEEK: Final = "https://arxiv.org/abs/2401.02954"


def fsdp_tokens(
    flops: float, rate: float, ranks: int, recompute: Recompute = Recompute.NONE, passes: int = 3
) -> float:
    """Tokens of a micro-batch on a GPU from which on FSDP hides behind computing, whatever the model's size.

    Of each parameter 6 bytes move in a step: gathered forward and backward, its gradient scattered, in 16 bits
    each; and each token takes 6 FLOP, 8 where everything is computed again. Of frozen parameters (two `passes` in
    place of three) no gradient moves or is computed. `flops` are those reached in a second,
    `rate` is what a member of a ring of `ranks` sends in one.

    Source: https://jax-ml.github.io/scaling-book/gpus/ (batch per GPU above C / W: 2,475 tokens on H100)
    """
    of_a_token = passes + 1.0 if recompute is Recompute.FULL else float(passes)
    return passes / of_a_token * flops / rate * (ranks - 1) / ranks


def critical_tokens(loss: float) -> float:
    """Tokens of a step beyond which a step gains little, at a loss (nats a token) that is reached.

    Source: https://arxiv.org/abs/2001.08361 (equation 1.4: 2 x 10^8 tokens over L^(1 / 0.21))
    """
    return 2e8 / math.pow(loss, 1.0 / 0.21)


def best_tokens(model: Model, sequence: int, tokens: float) -> float:
    """Tokens of a step that trained best at the compute of a whole run: 0.292 C^0.3271, embeddings left out.

    Source: https://arxiv.org/abs/2401.02954 (section 3.1, for C from 10^17 to 2 x 10^19 FLOP and tried far beyond)
    """
    layers = 6.0 * model.layers * model.layer_parameters(active=True)
    compute = (layers + 3.0 * model.layers * model.attention_flops(sequence)) * tokens
    return 0.2920 * math.pow(compute, 0.3271)


def steps_needed(batch: float, critical: float) -> float:
    """In multiples of the fewest that any batch needs: 1 + B_crit / B.

    Source: https://arxiv.org/abs/1812.06162 (equations 2.11 and 5.1: (S / S_min - 1) (E / E_min - 1) = 1)
    """
    return 1.0 + critical / batch


def samples_needed(batch: float, critical: float) -> float:
    """In multiples of the fewest that any batch needs: 1 + B / B_crit. Source as `steps_needed`."""
    return 1.0 + batch / critical
