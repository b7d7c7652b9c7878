"""The random state of a rank as tensors, and what becomes of it when the world changes size.

The rule: in a world of the same size every rank gets back exactly its own state. In another size the rank r
takes the saved state of rank (r mod saved size), hashes it together with r and the new size, and seeds every
source from the hash: reproducible, and different on every rank.
"""

import random
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping

import torch
import xxhash

PYTHON, PYTHON_GAUSS = "python", "python_gauss"
NUMPY, NUMPY_GAUSS = "numpy", "numpy_gauss"
TORCH, CUDA = "torch", "cuda"
_PYTHON_VERSION = 3  # of random.getstate(); the only one since Python 2.4


def capture() -> dict[str, torch.Tensor]:
    """The state of Python's, NumPy's (if it is imported), torch's and the current CUDA device's generators."""
    _, words, gauss = random.getstate()
    state = {
        PYTHON: _integers(words),
        PYTHON_GAUSS: torch.tensor([float("nan") if gauss is None else gauss], dtype=torch.float64),
        TORCH: torch.get_rng_state(),
    }
    if "numpy" in sys.modules:
        import numpy

        _, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
        state[NUMPY] = _integers([*numpy.asarray(keys).tolist(), int(position), int(has_gauss)])
        state[NUMPY_GAUSS] = torch.tensor([cached], dtype=torch.float64)
    if torch.cuda.is_available():
        state[CUDA] = torch.cuda.get_rng_state()
    return state


def generator_of(source: str) -> str:
    """Of which generator a source is: Python's and NumPy's have two each."""
    return {PYTHON_GAUSS: PYTHON, NUMPY_GAUSS: NUMPY}.get(source, source)


def _integers(numbers: Iterable[int]) -> torch.Tensor:
    """`torch.tensor` takes most of a millisecond for as many as there are."""
    return torch.frombuffer(array("q", numbers), dtype=torch.int64)


def reinstate(state: Mapping[str, torch.Tensor]) -> None:
    """Put back what `capture` returned; sources that it did not have are left alone."""
    words = tuple(int(word) for word in state[PYTHON].tolist())
    gauss = float(state[PYTHON_GAUSS])
    random.setstate((_PYTHON_VERSION, words, None if gauss != gauss else gauss))
    torch.set_rng_state(state[TORCH])
    if NUMPY in state:
        import numpy

        *keys, position, has_gauss = state[NUMPY].tolist()
        cached = float(state[NUMPY_GAUSS])
        numpy.random.set_state(("MT19937", numpy.array(keys, dtype="uint32"), position, has_gauss, cached))
    if CUDA in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state[CUDA])


def source_rank(rank: int, saved_world_size: int) -> int:
    """Whose saved state a rank starts from."""
    return rank % saved_world_size


def derive_seed(state: Mapping[str, torch.Tensor], *, rank: int, world_size: int) -> int:
    """A seed of 64 bits for `rank` of a world of another size than the saved one."""
    digest = xxhash.xxh3_64(struct.pack("<qq", rank, world_size))
    for name in sorted(state):
        digest.update(state[name].numpy().tobytes())
    return digest.intdigest()


def continue_from(state: Mapping[str, torch.Tensor], saved_world_size: int, *, rank: int, world_size: int) -> None:
    """Apply the rule above to what `rank` follows; a state of no sources changes nothing."""
    if state and saved_world_size == world_size:
        reinstate(state)
    elif state:
        reseed(derive_seed(state, rank=rank, world_size=world_size))


def reseed(seed: int) -> None:
    """Seed every source from one number."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        import numpy

        numpy.random.seed(seed & 0xFFFF_FFFF)
