"""What tokens of a model cost that is asked and not trained: a teacher that scores them, or samples them.

Sources: https://arxiv.org/abs/2001.08361 (2 FLOP a parameter and token forward), https://arxiv.org/abs/2211.05102
(sampling is bound by reading weights and keys with values)
"""

from typing import Final

from holdfast.planner.model import Model

SOURCE: Final = "https://arxiv.org/abs/2211.05102"
BYTES: Final = 2.0


def forward_flops(model: Model, sequence: int) -> float:
    """Of one token: a third of what training it takes where all of it trains."""
    return 2.0 * model.matmul_parameters + model.layers * model.attention_flops(sequence, causal=True)


def scored_per_s(model: Model, sequence: int, flops: float) -> float:
    """Tokens that a GPU scores in a second with `flops` that it reaches: a teacher's logits, or a prompt read."""
    return flops / forward_flops(model, sequence)


def cached_bytes(model: Model) -> float:
    """Keys and values of one token in all layers, or what they are compressed to, in 16 bits."""
    if (latent := model.latent) is not None:
        return BYTES * model.layers * (latent.kv_rank + latent.rope)
    return BYTES * model.layers * 2.0 * (model.kv_heads or model.heads) * model.head_width


def sampled_per_s(model: Model, context: int, batch: int, memory_rate: float) -> float:
    """Tokens that each GPU of those that share the model samples in a second, `batch` sequences of `context`
    tokens at a time on all of them: each token waits until all weights, and the sequences' keys and values, are
    read at `memory_rate` bytes a second a GPU.
    """
    read = BYTES * model.parameters + batch * context * cached_bytes(model)
    return batch * memory_rate / read


def price_of_a_million(per_s: float, gpu_hour: float) -> float:
    """What a million tokens cost of which a GPU makes so many in a second, at a price of a GPU and hour."""
    return gpu_hour / 3600.0 / per_s * 1e6
