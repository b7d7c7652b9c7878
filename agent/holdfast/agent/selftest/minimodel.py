"""A small transformer, forward and backward on fixed input: attention, softmax, norm, GELU and their gradients.

Written so that every step is deterministic: rows are looked up by a product with one-hot rows, not by scattering.
Shapes: B batch, T tokens, D width, H heads, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn import functional

from holdfast.agent.selftest.arithmetic import numbers, values
from holdfast.agent.selftest.device import Device
from holdfast.agent.selftest.product import Kernel

_WEIGHTS_A_LAYER: Final = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the model is."""

    batch: int
    tokens: int
    width: int
    heads: int
    layers: int
    vocabulary: int


def minimodel(device: Device, shape: Shape, seed: int, dtype: torch.dtype) -> Kernel:
    """One run is a loss and all gradients."""
    weights = [weight.to(device.torch, dtype).requires_grad_() for weight in _weights(shape, seed)]
    ids_BT = numbers((shape.batch, shape.tokens + 1), seed).to(torch.int64).remainder(shape.vocabulary)
    rows_BTV = functional.one_hot(ids_BT, shape.vocabulary).to(device.torch, dtype)
    given, wanted = rows_BTV[:, :-1].contiguous(), rows_BTV[:, 1:].contiguous()

    def run() -> Sequence[torch.Tensor]:
        loss = _loss(weights, given, wanted, shape)
        return (loss, *torch.autograd.grad(loss, weights))

    return run


def _weights(shape: Shape, seed: int) -> list[torch.Tensor]:
    width = shape.width
    shapes = [(shape.vocabulary, width)]
    for _ in range(shape.layers):
        shapes += [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    return [values(each, seed + place) / math.sqrt(each[0]) for place, each in enumerate(shapes, start=10)]


def _loss(
    weights: Sequence[torch.Tensor], given_BTV: torch.Tensor, wanted_BTV: torch.Tensor, shape: Shape
) -> torch.Tensor:
    embedding_VD, layers = weights[0], weights[1:]
    hidden_BTD = given_BTV @ embedding_VD
    mask_TT = torch.ones(shape.tokens, shape.tokens, device=given_BTV.device, dtype=torch.bool).tril()
    for first in range(0, len(layers), _WEIGHTS_A_LAYER):
        mixing, output, widen, narrow = layers[first : first + _WEIGHTS_A_LAYER]
        hidden_BTD = hidden_BTD + _attention(_norm(hidden_BTD), mixing, mask_TT, shape.heads) @ output
        hidden_BTD = hidden_BTD + functional.gelu(_norm(hidden_BTD) @ widen) @ narrow
    scores_BTV = _norm(hidden_BTD) @ embedding_VD.t()
    return -(functional.log_softmax(scores_BTV.float(), dim=-1) * wanted_BTV).sum()


def _attention(hidden_BTD: torch.Tensor, mixing: torch.Tensor, mask_TT: torch.Tensor, heads: int) -> torch.Tensor:
    batch, tokens, width = hidden_BTD.shape
    mixed = (hidden_BTD @ mixing).view(batch, tokens, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    query, key, value = mixed[0], mixed[1], mixed[2]
    scores = (query @ key.transpose(-2, -1)) / math.sqrt(width // heads)
    weights = torch.softmax(scores.masked_fill(~mask_TT, -math.inf), dim=-1)
    return (weights @ value).transpose(1, 2).reshape(batch, tokens, width)


def _norm(hidden_BTD: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden_BTD, hidden_BTD.shape[-1:])
