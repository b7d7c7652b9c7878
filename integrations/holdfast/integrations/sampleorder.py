"""In which order an epoch's samples come out of a loader that Accelerate has prepared: kept, and set again.

Accelerate lets `RandomSampler` draw from a generator of its own where there are several processes, and from
torch's global one where there is only one. Kept is the state of the generator that the permutation comes from, so
that an epoch begun in a world of one size goes on in one of another size. So it is of torchdata's sampler, which
has a generator in any world. A sampler that knows its seed and epoch (Accelerate's `use_seedable_sampler`) needs
nothing kept.

Source: https://github.com/huggingface/accelerate/blob/main/src/accelerate/data_loader.py,
https://github.com/pytorch/pytorch/blob/main/torch/utils/data/sampler.py
"""

import base64
from typing import Any

import torch
from torch.utils.data import RandomSampler

from holdfast.checkpoint.capture import dataparts


class SampleOrder:
    """That of one loader, over its epochs."""

    def __init__(self, loader: Any) -> None:
        """`loader` is a torch DataLoader, its batch sampler shared out among processes or not."""
        shared = getattr(loader, "batch_sampler", None)
        sampler = getattr(getattr(shared, "batch_sampler", shared), "sampler", None)
        has_own = isinstance(getattr(sampler, "generator", None), torch.Generator)
        self._loader = loader
        self._sampler: Any = sampler if has_own or isinstance(sampler, RandomSampler) else None
        self._is_lent = False  # the sampler has a generator for this epoch only

    def kept(self) -> str:
        """That of the epoch about to begin, as text; empty when there is nothing to keep. Draws nothing."""
        if self._sampler is None:
            return ""
        return base64.b64encode(bytes(self._generator(self._sampler).get_state().tolist())).decode()

    def again(self, kept: str) -> None:
        """The next epoch has the order that was `kept`. It is not the first, or has been begun: a loader that
        keeps its workers has them. Draws random numbers where there are none yet.
        """
        dataparts.start_workers(self._loader)
        if self._sampler is None or not kept:
            return
        if self._sampler.generator is None:
            self._sampler.generator, self._is_lent = torch.Generator(), True
        state = torch.tensor(list(base64.b64decode(kept)), dtype=torch.uint8)
        self._sampler.generator.set_state(state)

    def ended(self) -> None:
        """The epoch is over: the next one is drawn as it would have been."""
        if self._sampler is not None and self._is_lent:
            self._sampler.generator, self._is_lent = None, False

    def _generator(self, sampler: Any) -> torch.Generator:
        """What the sampler draws its permutation from: its own, or the one that it will seed."""
        own: torch.Generator | None = sampler.generator
        if own is not None:
            return own
        before = torch.get_rng_state()
        try:
            if not dataparts.keeps_workers(self._loader):
                _draw()  # the loader's, for its workers
            return torch.Generator().manual_seed(_draw())
        finally:
            torch.set_rng_state(before)


def _draw() -> int:
    return int(torch.empty((), dtype=torch.int64).random_().item())
