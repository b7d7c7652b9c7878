"""A decoder-only transformer as numbers: parameters, and floating point operations per token.

A matmul of a parameter with a token is 2 FLOP forward and 4 backward, so 6 N D for D tokens; attention between the
tokens of a sequence comes on top.

Sources: https://arxiv.org/abs/2001.08361 (6 N D), https://arxiv.org/abs/2204.02311 (appendix B: attention, and
model FLOPs utilization)
"""

from collections.abc import Iterator

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.planner.bounds import not_negative, positive


class Experts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mixture of experts: `count` of width `ffn` in each layer but the first `dense_layers`; a token uses
    `active` of them, and all `shared` ones. Those of a token are in at most `domains` NVLink domains (0:
    anywhere).
    """

    count: int
    active: int
    ffn: int
    shared: int = 0
    dense_layers: int = 0
    domains: int = 0


class Latent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Multi-head latent attention: the ranks that queries and keys with values are compressed to (of queries 0:
    they are not), and head widths.

    Source: https://arxiv.org/abs/2405.04434 (section 2.1)
    """

    query_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`gated`: the feed-forward part has three matrices, not two. `positions` are learned ones.

    `adapter_rank` is that of a low-rank adapter beside each matrix of the layers, and then nothing else trains; 0:
    everything does. Source: https://arxiv.org/abs/2106.09685 (LoRA)
    """

    name: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    kv_heads: int = 0  # 0: as many as heads
    head: int = 0  # 0: hidden / heads
    gated: bool = True
    tied: bool = False
    positions: int = 0
    experts: Experts | None = None
    latent: Latent | None = None
    adapter_rank: int = 0

    def __post_init__(self) -> None:
        """Raises InvalidInput."""
        wrong = [
            *positive(self, "model", ("layers", "hidden", "heads", "ffn", "vocab")),
            *not_negative(self, "model", ("kv_heads", "head", "positions", "adapter_rank")),
        ]
        if self.experts is not None:
            wrong += positive(self.experts, "model.experts", ("count", "active", "ffn"))
            wrong += not_negative(self.experts, "model.experts", ("shared", "dense_layers", "domains"))
            wrong += self._odd_experts(self.experts)
        if self.latent is not None:
            wrong += positive(self.latent, "model.latent", ("kv_rank", "rope", "nope", "value"))
            wrong += not_negative(self.latent, "model.latent", ("query_rank",))
        if self.adapter_rank and (self.experts is not None or self.latent is not None):
            fix = "leave it out: adapters of experts and of latent attention are not planned"
            wrong.append(Problem("model.adapter_rank", self.adapter_rank, fix))
        if not wrong and not self.head and self.hidden % self.heads:
            wrong.append(
                Problem("model.heads", self.heads, f"give a divisor of hidden ({self.hidden}), or `head`")
            )
        if not wrong and self.kv_heads and self.heads % self.kv_heads:
            wrong.append(Problem("model.kv_heads", self.kv_heads, f"give a divisor of heads ({self.heads})"))
        if wrong:
            raise InvalidInput(*wrong)

    @property
    def head_width(self) -> int:
        """Of one head's queries."""
        return self.head or self.hidden // self.heads

    @property
    def attention_parameters(self) -> int:
        """Of one layer's attention."""
        if (latent := self.latent) is not None:
            width = self.heads * (latent.nope + latent.rope)
            rank = latent.query_rank
            query = self.hidden * rank + rank * width if rank else self.hidden * width
            kv = self.hidden * (latent.kv_rank + latent.rope)
            kv += latent.kv_rank * self.heads * (latent.nope + latent.value)
            return query + kv + self.heads * latent.value * self.hidden
        kv_heads = self.kv_heads or self.heads
        return 2 * self.hidden * self.head_width * (self.heads + kv_heads)

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, of the head that gives the logits where it has its own, and of learned positions."""
        return self.vocab * self.hidden * (1 if self.tied else 2) + self.positions * self.hidden

    @property
    def parameters(self) -> int:
        """All of them, in matrices and norms; biases are left out."""
        return self._with(active=False)

    @property
    def adapter_parameters(self) -> int:
        """Of one layer's adapters: as many times the rank as each matrix is wide and high."""
        query, kv = self.heads * self.head_width, (self.kv_heads or self.heads) * self.head_width
        attention = 2 * (self.hidden + query) + 2 * (self.hidden + kv)
        return self.adapter_rank * (attention + (3 if self.gated else 2) * (self.hidden + self.ffn))

    @property
    def trained_parameters(self) -> int:
        """Those that have gradients and state of the optimizer, and are saved."""
        return self.layers * self.adapter_parameters if self.adapter_rank else self.parameters

    @property
    def active_parameters(self) -> int:
        """Those that one token is multiplied with, and the embedding."""
        return self._with(active=True)

    @property
    def matmul_parameters(self) -> int:
        """Those that one token is multiplied with: without the look-up of its embedding."""
        looked_up = (self.positions if self.tied else self.vocab + self.positions) * self.hidden
        return self.active_parameters - looked_up

    def layer_parameters(self, *, active: bool) -> float:
        """Of a layer, the mean of all of them."""
        return (self._with(active=active) - self.embedding_parameters) / self.layers

    @property
    def routed_parameters(self) -> float:
        """Of a layer's routed experts, the mean of all layers: what expert parallelism shares."""
        if (experts := self.experts) is None:
            return 0.0
        matrices = 3 if self.gated else 2
        return experts.count * matrices * self.hidden * experts.ffn * self.sparse_share

    @property
    def sparse_share(self) -> float:
        """Of the layers those that have experts."""
        if self.experts is None:
            return 0.0
        return (self.layers - self.experts.dense_layers) / self.layers

    @property
    def inner(self) -> int:
        """The width inside the feed-forward part, of all experts that a token uses."""
        if self.experts is None:
            return self.ffn
        return self.experts.ffn * (self.experts.active + self.experts.shared)

    def gathered_width(self, tensor: int) -> float:
        """Numbers of a token that context parallelism gathers: keys and values of the heads that one of `tensor`
        GPUs has. Of compressed ones those made from their latents, for every head.
        """
        if (latent := self.latent) is not None:
            return (latent.nope + latent.rope + latent.value) * max(1.0, self.heads / tensor)
        return 2 * self.head_width * max(1.0, (self.kv_heads or self.heads) / tensor)

    def attention_flops(self, sequence: int, *, causal: bool = False) -> float:
        """Forward, per token and layer: scores and their product with the values, among a sequence's tokens."""
        width = self.head_width
        values = width
        if self.latent is not None:
            width, values = self.latent.nope + self.latent.rope, self.latent.value
        return 2.0 * sequence * self.heads * (width + values) * (0.5 if causal else 1.0)

    def flops_per_token(self, sequence: int, *, causal: bool = False) -> float:
        """Forward and backward, as model FLOPs utilization counts them: nothing that is computed twice, and of
        frozen parameters no gradients.
        """
        attention = self.layers * self.attention_flops(sequence, causal=causal)
        adapters = 6.0 * self.layers * self.adapter_parameters
        return 2.0 * self.matmul_passes * self.matmul_parameters + adapters + 3.0 * attention

    @property
    def matmul_passes(self) -> int:
        """Products of each parameter and token: forward, with the gradient of what comes of it, and where the
        parameter trains with that of its input.
        """
        return 2 if self.adapter_rank else 3

    def _odd_experts(self, experts: Experts) -> Iterator[Problem]:
        if experts.active > experts.count:
            yield Problem("model.experts.active", experts.active, f"give at most the count ({experts.count})")
        if experts.dense_layers > self.layers:
            fix = f"give at most the model's layers ({self.layers})"
            yield Problem("model.experts.dense_layers", experts.dense_layers, fix)

    def _with(self, *, active: bool) -> int:
        matrices = 3 if self.gated else 2
        dense = matrices * self.hidden * self.ffn
        whole = self.layers * (self.attention_parameters + 2 * self.hidden) + self.embedding_parameters
        if (experts := self.experts) is None:
            return whole + self.layers * dense
        used = (experts.active if active else experts.count) + experts.shared
        sparse = used * matrices * self.hidden * experts.ffn + self.hidden * experts.count
        return whole + experts.dense_layers * dense + (self.layers - experts.dense_layers) * sparse
