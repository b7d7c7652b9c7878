"""The fixed block: a layer of a transformer, forward and backward, on an input that is always the same.

It is what training does most, on the device that trains, between two steps: products of matrices in the number
formats of the training, softmax, norms, GELU and their gradients. All operations are deterministic and there is no
random number in it, so it comes to the same bits on every sound device of a kind, at any time.

Shapes: B batch, T tokens, D width, H heads.
"""

import ctypes
import hashlib
import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from holdfast.api.drill import Spoiler

CHECK: Final = "training-block"
"""Its name in a drill."""

_VERSION: Final = 1  # of the arithmetic below: answers of different versions are not compared
# Source: the constants of SplitMix64's finaliser, https://prng.di.unimi.it/splitmix64.c, as signed words.
_GAMMA: Final = 0x9E3779B97F4A7C15 - 2**64
_FACTOR: Final = 0xBF58476D1CE4E5B9 - 2**64


@dataclass(frozen=True, slots=True)
class BlockShape:
    """How large the block is."""

    batch: int
    tokens: int
    width: int
    heads: int


# What the libraries that compute it read, and choose their kernels by.
# Source: https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility and #environment-variables,
# https://docs.pytorch.org/docs/stable/cuda_environment_variables.html,
# https://www.intel.com/content/www/us/en/docs/onemkl/developer-guide-linux/current/specifying-code-branches.html,
# https://uxlfoundation.github.io/oneDNN/dev_guide_cpu_dispatcher_control.html
_VARIABLES: Final = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "NVIDIA_TF32_OVERRIDE",
    "DISABLE_ADDMM_CUDA_LT",
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
)

# On an H100 some 40 GFLOP a format, a fraction of a millisecond, and 40 MB while it runs: each of its products
# fills the device. On a CPU it is a drill, and small.
SHAPE_ON_DEVICE: Final = BlockShape(batch=2, tokens=512, width=1024, heads=8)
SHAPE_ON_CPU: Final = BlockShape(batch=1, tokens=16, width=32, heads=2)


class FixedBlock:
    """The block on one device in some number formats."""

    def __init__(
        self, device: torch.device, dtypes: Sequence[torch.dtype], *, spoiler: Spoiler | None = None
    ) -> None:
        """`spoiler` makes the device a broken one, for drills."""
        self._device = device
        self._dtypes = tuple(dtypes)
        self._shape = SHAPE_ON_CPU if device.type == "cpu" else SHAPE_ON_DEVICE
        self._spoiler = spoiler

    def likeness(self) -> int:
        """The unsigned 64-bit name of all that the result may depend on, but for the device being sound."""
        said = (_VERSION, self._shape, self._dtypes, _make_of(self._device), _settings(self._device))
        return int.from_bytes(hashlib.blake2b(repr(said).encode(), digest_size=8).digest(), "little")

    def run(self) -> dict[str, Tensor]:
        """Queue it; returns losses and gradients, on the device. Takes no random number and leaves no gradient."""
        results: dict[str, Tensor] = {}
        with (
            torch.inference_mode(mode=False),
            torch.enable_grad(),
            torch.autocast(self._device.type, enabled=False),
        ):
            for dtype in self._dtypes:
                for place, result in enumerate(_layer(self._shape, self._device, dtype)):
                    results[f"{dtype} {place}"] = result.detach()
        if self._spoiler is not None:  # Bits of the last result flip, as of a broken device.
            octets = next(reversed(results.values())).view(-1).view(torch.uint8)
            for bit in self._spoiler.flipped_bits(8 * octets.numel()):
                octets[bit // 8] ^= 1 << bit % 8
        return results


def dtypes_of(parameters: Sequence[Tensor], device: torch.device) -> tuple[torch.dtype, ...]:
    """The formats to run the block in: those of the parameters, and bfloat16, which most computing is done in."""
    known = (torch.float32, torch.bfloat16, torch.float16)
    held = {parameter.dtype for parameter in parameters}
    if device.type != "cpu":
        held.add(torch.bfloat16)
    return tuple(dtype for dtype in known if dtype in held) or (torch.float32,)


def _layer(shape: BlockShape, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The loss and the gradients of all that goes in."""
    width, heads = shape.width, shape.heads
    weights = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width))
    sizes: tuple[tuple[int, ...], ...] = ((shape.batch, shape.tokens, width), *weights)
    inputs = tuple(_values(size, seed, device, dtype).requires_grad_() for seed, size in enumerate(sizes))
    given_BTD, mixing, output, widen, narrow = inputs
    # Attention is written out: the backward pass of the fused kernels adds up in no fixed order.
    mixed = (_norm(given_BTD) @ mixing).view(shape.batch, shape.tokens, 3, heads, width // heads)
    mixed = mixed.permute(2, 0, 3, 1, 4)
    query, key, value = mixed[0], mixed[1], mixed[2]
    scores = (query @ key.transpose(-2, -1)) / math.sqrt(query.shape[-1])
    attention_BTD = (torch.softmax(scores, dim=-1) @ value).transpose(1, 2).flatten(-2)
    hidden_BTD = given_BTD + attention_BTD @ output
    hidden_BTD = hidden_BTD + functional.gelu(_norm(hidden_BTD) @ widen) @ narrow
    chances_BTD = functional.log_softmax(_norm(hidden_BTD).float(), dim=-1)
    loss = -(chances_BTD * given_BTD.detach().float()).sum()
    return (loss, *torch.autograd.grad(loss, inputs))


def _norm(hidden_BTD: Tensor) -> Tensor:
    return functional.layer_norm(hidden_BTD, hidden_BTD.shape[-1:])


def _values(size: Sequence[int], seed: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """128ths between -1 and 127/128 that look random, by integer arithmetic alone: exact in every format.

    Made anew each time, so that nothing is held between two runs.
    """
    count = math.prod(size)
    words = torch.arange(count * seed + 1, count * (seed + 1) + 1, device=device, dtype=torch.int64) * _GAMMA
    words = (words ^ (words >> 30)) * _FACTOR
    octets = (words >> 40) & 0xFF
    # Weights are small enough that the sum over a row is about one.
    scale = 128.0 * (1 << (int(math.log2(size[0])) // 2) if len(size) == 2 else 1)
    return ((octets - 128).to(torch.float32) / scale).to(dtype).reshape(tuple(size))


@cache
def _make_of(device: torch.device) -> tuple[object, ...]:
    """The kind of device, and the software that chooses its kernels."""
    software = (torch.__version__, torch.version.cuda, torch.version.hip, platform.machine())
    if device.type != "cuda":
        return (device.type, *software, *_cpu(), torch.backends.cpu.get_cpu_capability())
    made = torch.cuda.get_device_properties(device)
    kind = (made.name, made.major, made.minor, made.multi_processor_count, made.total_memory)
    try:  # The driver compiles what no library brings ready.
        driver = Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        driver = ""  # It does not say.
    return (*kind, *software, driver, _cublas())


def _cpu() -> tuple[str, ...]:
    """What the kernel calls the processor, and what it can do: a virtual one may not do all that its model can.
    Libraries choose their kernels by it.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return (platform.processor(),)
    names = ("model name", "flags", "Features")
    return tuple(next((line.partition(":")[2] for line in lines if line.startswith(name)), "") for name in names)


def _cublas() -> int | None:
    """The version of the cuBLAS that this process has loaded, which need not be that of torch's own package; None
    where none is.
    """
    major = (torch.version.cuda or "").partition(".")[0]
    try:
        version = ctypes.CDLL(f"libcublasLt.so.{major}", mode=os.RTLD_NOLOAD).cublasLtGetVersion
    except (OSError, AttributeError):
        return None
    version.restype = ctypes.c_size_t
    return int(version())


def _settings(device: torch.device) -> tuple[object, ...]:
    """What a script or a node's environment may set. Raises RuntimeError where answers cannot be compared."""
    read = tuple(os.environ.get(name) for name in _VARIABLES)
    if device.type != "cuda":
        return (torch.get_num_threads(), torch.get_float32_matmul_precision(), *read)
    if torch.cuda.tunable.is_enabled():
        raise RuntimeError("TunableOp chooses kernels by how fast they were: no two answers can be compared")
    matmul = torch.backends.cuda.matmul
    return (
        *read,
        getattr(matmul, "allow_fp16_accumulation", None),
        matmul.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        str(torch.backends.cuda.preferred_blas_library()),
    )
