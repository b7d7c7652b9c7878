"""Spoils what this rank computes when a drill or a test asks for it; see `holdfast.api.bitflip`."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils._pytree import (
    tree_map,
)  # what torch itself takes apart a model's output with; it has no other name

from holdfast.api.bitflip import BitFlip, NanOutput, bit_flip_file, nan_file, request_nan
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.trainer.fingerprint import local_part

logger = logging.getLogger(__name__)


class Corruption:
    """What was asked of one rank. Every request is carried out once, whatever becomes of the process after it."""

    def __init__(self, run_directory: Path, rank: int, model: torch.nn.Module) -> None:
        self._file = bit_flip_file(run_directory, rank)
        self._model = model

    def completed(self, step: int) -> None:
        """Step `step` is complete: do what is asked for by now. A request that cannot be read is removed."""
        try:
            flip = decode_json(self._file.read_bytes(), BitFlip)
            if step < flip.step:
                return
            self._file.unlink()
        except FileNotFoundError:
            return
        except Malformed as error:
            logger.warning("bit flip is not understood file=%s error=%s", self._file, error)
            self._file.unlink(missing_ok=True)
            return
        try:
            name = flip_bit(self._model, flip)
        except LookupError as error:
            logger.warning("no bit was flipped step=%d reason=%s", step, error)
            return
        logger.warning("bit flipped on request step=%d parameter=%s bit=%d", step, name, flip.bit)


class NanOutputs:
    """Makes the model's output NaN on one rank, so that its loss is, and the gradients that all ranks share."""

    def __init__(self, run_directory: Path, rank: int, model: torch.nn.Module) -> None:
        self._run_directory = run_directory
        self._file = nan_file(run_directory, rank)
        self._active = False
        model.register_forward_hook(self._spoil)

    def completed(self, step: int) -> None:
        """Step `step` is complete: whether the next one is spoilt. A request that cannot be read is removed."""
        self._active = False
        try:
            wanted = decode_json(self._file.read_bytes(), NanOutput)
            if step + 1 < wanted.step:
                return
            self._file.unlink()
        except FileNotFoundError:
            return
        except Malformed as error:
            logger.warning("request for NaN is not understood file=%s error=%s", self._file, error)
            self._file.unlink(missing_ok=True)
            return
        if wanted.steps > 1:
            request_nan(self._run_directory, msgspec.structs.replace(wanted, steps=wanted.steps - 1))
        self._active = True
        logger.warning("output is NaN on request step=%d", step + 1)

    def _spoil(self, module: torch.nn.Module, given: object, output: Any) -> Any:
        return tree_map(_nan_like, output) if self._active and module.training else output


def _nan_like(part: Any) -> Any:
    floating = isinstance(part, torch.Tensor) and part.is_floating_point()
    return part * float("nan") if floating else part


@torch.no_grad()
def flip_bit(model: torch.nn.Module, flip: BitFlip) -> str:
    """Do it, in the memory of this process; returns the parameter's name. Raises LookupError if there is none."""
    held = {name: local_part(parameter) for name, parameter in model.named_parameters()}
    held = {name: values for name, values in held.items() if values.numel() and flip.parameter in (None, name)}
    if not held:
        raise LookupError(f"this rank holds no parameter {flip.parameter or ''}".rstrip())
    name, values = next(reversed(held.items()))
    values = values.data  # torch does not count this as written, no more than what hardware does
    place = torch.unravel_index(torch.tensor(flip.element % values.numel()), values.shape)
    element = values[tuple(int(index) for index in place)].view(1).view(torch.uint8)
    octet, bit = divmod(flip.bit % (8 * values.element_size()), 8)
    element[octet] ^= 1 << bit
    return name
