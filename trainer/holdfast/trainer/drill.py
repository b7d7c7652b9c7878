"""What this rank suffers because a drill or a test asks for it.

See `holdfast.api.disturbance`, and of what spoils its numbers `holdfast.api.bitflip`.
"""

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch

# What torch itself takes apart a model's output with; it has no other name.
from holdfast.api.bitflip import BitFlip, NanOutput, bit_flip_file, nan_file, request_nan
from holdfast.api.decoding import decode_json
from holdfast.api.disturbance import Ailment, Disturbance, take_disturbance
from holdfast.api.drill import DRILL_FILE, Spoiler, parse_injection, read_drill
from holdfast.api.errors import HoldfastError, Malformed
from holdfast.trainer.block import CHECK
from holdfast.trainer.fingerprint import local_part
from holdfast.trainer.hostcopy import Number
from holdfast.trainer.torchtensors import tree_map

logger = logging.getLogger(__name__)
Batch = TypeVar("Batch")
Request = TypeVar("Request", BitFlip, NanOutput)


class Drill:
    """One rank's stay in one round. `step` and `batch` belong to the training thread, `write` to any."""

    def __init__(self, run_directory: Path, rank: int, *, break_connections: Callable[[], object]) -> None:
        self._run_directory = run_directory
        self._rank = rank
        self._break_connections = break_connections
        self._suffered: dict[Ailment, Disturbance] = {}  # with the steps that are left of it
        self._last_batch: object = None
        self._saves = False

    def step(
        self, step: int, loss: Number | None, grad_norm: Number | None
    ) -> tuple[Number | None, Number | None]:
        """A step is complete: what is to be published of it. May take its time, or raise."""
        if (slow := self._due(Ailment.SLOW, step)) is not None:
            _keep_busy(slow.seconds)
        if self._due(Ailment.BREAK_COLLECTIVE, step) is not None:
            self._break_connections()
        if self._due(Ailment.RAISE, step) is not None:
            raise RuntimeError(f"raised on request after step {step}")
        if loss is not None and (spike := self._due(Ailment.SPIKE, step)) is not None:
            loss = float(loss) * spike.times
        if self._saves and self._take(Ailment.FULL_DISK) is not None:
            self._count_down(Ailment.FULL_DISK)
        return loss, grad_norm

    def batch(self, batch: Batch) -> Batch:
        """The batch that the loop is given in place of this one, which is of the same kind."""
        if self._due(Ailment.WRONG_DATA, None) is None or self._last_batch is None:
            self._last_batch = batch
        return self._last_batch  # type: ignore[return-value]

    def saves_here(self) -> None:
        """Checkpoints of this rank are written in this round, so that a disk can be full for it."""
        self._saves = True

    def write(self) -> None:
        """Something of a checkpoint is to be written. Raises OSError while the disk plays full."""
        if self._take(Ailment.FULL_DISK) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _due(self, ailment: Ailment, step: int | None) -> Disturbance | None:
        """What is suffered now; it counts as one of its steps."""
        known = self._take(ailment)
        if known is not None:
            logger.warning("disturbed on request ailment=%s step=%s", ailment, step)
            self._count_down(ailment)
        return known

    def _take(self, ailment: Ailment) -> Disturbance | None:
        wanted = take_disturbance(self._run_directory, ailment, self._rank)
        if wanted is not None:
            self._suffered[ailment] = wanted
        return self._suffered.get(ailment)

    def _count_down(self, ailment: Ailment) -> None:
        known = self._suffered.get(ailment)
        if known is not None and known.steps > 1:
            self._suffered[ailment] = msgspec.structs.replace(known, steps=known.steps - 1)
        else:
            self._suffered.pop(ailment, None)


class Corruption:
    """What was asked of one rank. Every request is carried out once, whatever becomes of the process after it."""

    def __init__(self, run_directory: Path, rank: int, model: torch.nn.Module) -> None:
        self._file = bit_flip_file(run_directory, rank)
        self._model = model

    def completed(self, step: int) -> None:
        """Step `step` is complete: do what is asked for by now."""
        flip = _due_by(step, self._file, BitFlip, "bit flip")
        if flip is None:
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
        """Step `step` is complete: whether the next one is spoilt."""
        wanted = _due_by(step + 1, self._file, NanOutput, "request for NaN")
        self._active = wanted is not None
        if wanted is None:
            return
        if wanted.steps > 1:
            request_nan(self._run_directory, msgspec.structs.replace(wanted, steps=wanted.steps - 1))
        logger.warning("output is NaN on request step=%d", step + 1)

    def _spoil(self, module: torch.nn.Module, given: object, output: Any) -> Any:
        def nan_like(part: Any) -> Any:
            is_floating = isinstance(part, torch.Tensor) and part.is_floating_point()
            return part * float("nan") if is_floating else part

        return tree_map(nan_like, output) if self._active and module.training else output


def _keep_busy(seconds: float) -> None:
    """As a slow machine is: who sleeps seems to wait for the others."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


def _due_by(step: int, file: Path, kind: type[Request], name: str) -> Request | None:
    """The request in `file` once its step is there, and it is removed; so is one that cannot be read."""
    try:
        wanted = decode_json(file.read_bytes(), kind)
        if step < wanted.step:
            return None
        file.unlink()
    except FileNotFoundError:
        return None
    except Malformed as error:
        logger.warning("%s is not understood file=%s error=%s", name, file, error)
        file.unlink(missing_ok=True)
        return None
    return wanted


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


def device_spoiler(run_directory: Path, local_rank: int) -> Spoiler | None:
    """How the device of a rank goes wrong in a drill; None: not at all."""
    file = run_directory / DRILL_FILE
    if not file.exists():
        return None
    try:
        drill = read_drill(file)
        injections = [parse_injection(text) for text in drill.inject]
    except HoldfastError as error:
        logger.warning("drill is not understood file=%s error=%s", file, error)
        return None
    device = drill.devices[local_rank] if local_rank < len(drill.devices) else ""
    spoiler = Spoiler(injections, CHECK, device)
    return None if spoiler.is_idle or spoiler.hangs else spoiler
