"""Collects how this run was started, once, beside the training thread. See `holdfast.api.runmanifest`.

The switches that a script sets are read when its model is ready for the first step: by then they are set. What
takes time (git, the list of packages, the driver) is asked for by a thread of its own; a checkpoint that comes
before it is done waits for it in the background, `PATIENCE_S` at the most, and once.
"""

import logging
import os
import platform
import re
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from holdfast.api import runmanifest
from holdfast.api.control import Assignment
from holdfast.api.runmanifest import Code, RunManifest, Section, bounded, is_recorded, section_of
from holdfast.api.secrecy import LEFT_OUT, is_secret, without_secrets, words_without_secrets
from holdfast.trainer.sourcecode import code_of

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 5.0
_WORDS_MAX: Final = 1024
_DEPTH_MAX: Final = 8
_DRIVER_FILE: Final = Path("/proc/driver/nvidia/version")
# What changes what is computed, or how. Everything else of the environment is nobody's business.
# Sources: https://docs.pytorch.org/docs/stable/notes/randomness.html,
# https://docs.pytorch.org/docs/stable/torch_environment_variables.html,
# https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html,
# https://docs.nvidia.com/cuda/cublas/index.html#results-reproducibility


class Description:
    """One process's manifests, one a round. `configure` and `begin` belong to the training thread; `wait` to any.

    What is found out once holds for every round: the process runs the code that it has loaded.
    """

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._found: tuple[Code, Mapping[Section, Mapping[str, str]]] | None = None
        self._thread: threading.Thread | None = None
        self._made: RunManifest | None = None
        self._has_waited = False

    def configure(self, settings: Mapping[str, object]) -> None:
        """What the script says of itself. Of what is said when training has begun the next round is the first to
        know.
        """
        self._said.update(flat(settings))

    def begin(self, part: Assignment, *, told: Callable[[RunManifest], object]) -> None:
        """Collect that of the round, and hand it to `told` when it is there. Takes a fraction of a millisecond."""
        quick = {
            Section.CONFIGURATION: section_of(self._said),
            Section.SEEDS: section_of(_read(_seeds(self._said))),
            Section.DETERMINISM: section_of(_read(_switches())),
            Section.TOPOLOGY: section_of(_read(_topology(part))),
            Section.ENVIRONMENT: section_of(environment_of(os.environ)),
        }

        def collect() -> None:
            try:
                if self._found is None:
                    slow = {
                        Section.VERSIONS: section_of(_read(_versions())),
                        Section.PACKAGES: section_of(packages()),
                    }
                    self._found = code_of(Path.cwd(), script_path()), slow
                code, found = self._found
                self._made = _manifest(part.round, code, {**quick, **found})
                told(self._made)
            except Exception:  # training goes on; the manifest is missing, and a comparison says so
                logger.exception("how this run was started is not known")

        self._thread = threading.Thread(target=collect, name="holdfast-description", daemon=True)
        self._thread.start()

    def wait(self) -> RunManifest | None:
        """The manifest; None where it is not there. Waits for it the first time; not for the training thread."""
        if self._thread is not None and not self._has_waited:
            self._thread.join(PATIENCE_S)
            self._has_waited = True
        return self._made


def _manifest(round: int, code: Code, found: Mapping[Section, Mapping[str, str]]) -> RunManifest:
    words = words_without_secrets(command()[:_WORDS_MAX])
    settings = {section.value: dict(found[section]) for section in Section}
    return RunManifest(
        format=runmanifest.FORMAT, round=round, command=tuple(map(bounded, words)), code=code, settings=settings
    )


def command() -> list[str]:
    """How to start this program again, the program first. A worker of a warm parent has a command line of its own
    in `sys.argv` alone.
    """
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return [sys.executable, "-m", spec.name.removesuffix(".__main__"), *sys.argv[1:]]
    return [sys.executable, *sys.argv]


def script_path() -> Path | None:
    """The file of the program, None where there is none."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).absolute() if isinstance(file, str) else None


def flat(settings: Mapping[str, object]) -> dict[str, str]:
    """One line for each value, nested ones by `outer.inner`; values of secrets left out."""
    found: dict[str, str] = {}

    def add(name: str, value: object, depth: int) -> None:
        if len(found) >= runmanifest.ENTRIES_MAX:
            return
        if isinstance(value, Mapping) and depth < _DEPTH_MAX:
            for key, each in value.items():
                add(f"{name}.{key}" if name else str(key), each, depth + 1)
        else:
            found[name] = LEFT_OUT if is_secret(name) else without_secrets(bounded(value))

    add("", settings, 0)
    return found


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that matter to what is computed, those that are set."""
    return {name: without_secrets(value) for name, value in environment.items() if is_recorded(name)}


def packages() -> dict[str, str]:
    """Every installed distribution and its version."""
    found = {}
    for each in metadata.distributions():
        name = each.metadata["Name"]
        if name:
            found[re.sub(r"[-_.]+", "-", name).lower()] = each.version or "?"
    return found


_Questions = Mapping[str, Callable[[], object]]


def _read(questions: _Questions) -> dict[str, object]:
    """The answers. What cannot be told is Unknown, and says so by a question mark."""
    answers: dict[str, object] = {}
    for name, ask in questions.items():
        try:
            answers[name] = ask()
        except Exception:  # a version of torch without that switch
            answers[name] = "?"
    return answers


def _seeds(said: Mapping[str, str]) -> _Questions:
    told = {name: value for name, value in said.items() if "seed" in name.lower()}
    asked: dict[str, Callable[[], object]] = {name: partial(str, value) for name, value in told.items()}
    asked["torch"] = torch.initial_seed
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        asked["torch.cuda"] = torch.cuda.initial_seed
    return asked


def _switches() -> _Questions:
    backends: Any = torch.backends
    return {
        "torch.deterministic_algorithms": torch.are_deterministic_algorithms_enabled,
        "torch.deterministic_algorithms.warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "torch.float32_matmul_precision": torch.get_float32_matmul_precision,
        "torch.default_dtype": torch.get_default_dtype,
        "torch.num_threads": torch.get_num_threads,
        "cudnn.deterministic": lambda: backends.cudnn.deterministic,
        "cudnn.benchmark": lambda: backends.cudnn.benchmark,
        "cudnn.allow_tf32": lambda: backends.cudnn.allow_tf32,
        "cuda.matmul.allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "cuda.matmul.bf16_reduced_precision": lambda: backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cuda.matmul.fp16_reduced_precision": lambda: backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "sdp.flash": backends.cuda.flash_sdp_enabled,
        "sdp.memory_efficient": backends.cuda.mem_efficient_sdp_enabled,
        "sdp.math": backends.cuda.math_sdp_enabled,
        "sdp.cudnn": backends.cuda.cudnn_sdp_enabled,
        "mkldnn": lambda: backends.mkldnn.enabled,
    }


def _topology(part: Assignment) -> _Questions:
    return {
        "world_size": lambda: part.world_size,
        "local_size": lambda: part.local_size,
        "members": lambda: part.members,
        "backend": torch.distributed.get_backend,
        "cuda.devices": torch.cuda.device_count,
    }


def _versions() -> _Questions:
    version: Any = torch.version
    questions: dict[str, Callable[[], object]] = {
        "python": platform.python_version,
        "torch": lambda: torch.__version__,
        "torch.git": lambda: version.git_version,
        "cuda": lambda: version.cuda,
        "hip": lambda: version.hip,
        "cudnn": torch.backends.cudnn.version,
        "system": platform.platform,
        "processor": _processor,
        "libc": lambda: " ".join(platform.libc_ver()),
    }
    if image := os.environ.get(runmanifest.IMAGE_VARIABLE):
        questions[runmanifest.IMAGE] = lambda: image
    if torch.cuda.is_available():
        questions["nccl"] = torch.cuda.nccl.version
        questions["device"] = torch.cuda.get_device_name
        questions["driver"] = lambda: _DRIVER_FILE.read_text().splitlines()[0]
    return questions


def _processor() -> str:
    """As the kernel names it. Source: https://man7.org/linux/man-pages/man5/proc_cpuinfo.5.html"""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
