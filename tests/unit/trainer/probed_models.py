"""Tiny models, right and broken, that the probes are tried on."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from holdfast.trainer.probes import Subject

SAMPLES, STEPS, WIDTH, WORDS = 2, 16, 8, 32


class Attention(nn.Module):
    """One head. `diagonal` 0 is causal; 1 lets each position see the next."""

    def __init__(self, diagonal: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.diagonal, self.dropout = diagonal, dropout

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, dim=-1)
        mask = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril(self.diagonal)
        dropout = self.dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
        return self.out(functional.dropout(found, self.dropout, self.training))


class TimeNorm(nn.Module):
    """Statistics of batch and time: in eval mode those it has learned, in training mode those of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden.transpose(1, 2)).transpose(1, 2)


class ExpertChoice(nn.Module):
    """Each of two experts takes the half of all positions that suits it best: the broken one."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        scores, result = self.router(tokens).softmax(-1), torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            weight, chosen = scores[:, number].topk(len(tokens) // 2)
            result = result.index_add(0, chosen, weight[:, None] * expert(tokens[chosen]))
        return result.view_as(hidden)


class TokenChoice(ExpertChoice):
    """Each token takes its best expert. With `capacity`, those that weigh least are dropped, which later tokens
    decide."""

    def __init__(self, capacity: int | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.capacity, self.dropout = capacity, nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        scores, result = self.router(tokens).softmax(-1), torch.zeros_like(tokens)
        weight, best = scores.max(-1)
        for number, expert in enumerate(self.experts):
            chosen = (best == number).nonzero()[:, 0]
            if self.capacity is not None:
                chosen = chosen[weight[chosen].argsort(descending=True)[: self.capacity]]
            result = result.index_add(0, chosen, weight[chosen, None] * self.dropout(expert(tokens[chosen])))
        return result.view_as(hidden)


class Counting(nn.Module):
    """Adds how often it was called: state that no seed and no buffer brings back."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return hidden * (1.0 + 1e-6 * self.calls)


class CountingBuffer(nn.Module):
    """Counts its calls in a buffer that it replaces each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return hidden * (1.0 + 1e-3 * self.calls)


class Noise(nn.Module):
    """Adds random numbers of NumPy's."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + 1e-3 * torch.from_numpy(np.random.randn(*hidden.shape)).float()


class Autocast(nn.Module):
    """Computes `model` in bfloat16, with parameters and outputs in float32."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            found: Tensor = self.model(tokens)
        return found.float()


class Model(nn.Module):
    """Embedding, a norm, attention, a mixer of the test's choice, and a head. `shape` makes the outputs."""

    def __init__(
        self,
        *,
        norm: nn.Module | None = None,
        attention: nn.Module | None = None,
        mixer: nn.Module | None = None,
        shape: Callable[[Tensor], Any] = lambda logits: logits,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.norm = norm or nn.LayerNorm(WIDTH)
        self.attention = attention or Attention()
        self.mixer = mixer or nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)
        self.shape = shape

    def forward(self, tokens: Tensor) -> Any:
        hidden = tokens if tokens.is_floating_point() else self.words(tokens)
        hidden = hidden + self.attention(self.norm(hidden))
        hidden = hidden + self.mixer(hidden)
        return self.shape(self.head(hidden))


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make()


def tokens(samples: int = SAMPLES, steps: int = STEPS) -> Tensor:
    return torch.randint(WORDS, (samples, steps), generator=torch.Generator().manual_seed(2))


def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def subject(model: nn.Module, **given: Any) -> Subject:
    """With a batch and next-token targets, unless others are given."""
    batch = given.pop("inputs", tokens())
    return Subject(model=model, inputs=batch, **given)


def trainable(model: nn.Module, samples: int = 4, **given: Any) -> Subject:
    """One that a step can be taken with."""
    batch = tokens(samples)
    return Subject(model=model, inputs=batch, targets=batch.roll(-1, 1), **{"loss": mean_loss, **given})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads cost more than they bring in models of this size, most of all beside other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
