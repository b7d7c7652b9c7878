"""The frameworks that the bench runs and that an installation for development lacks, in a folder of their own.

It is `~/.cache/holdfast/frameworks-HASH`, named after what is in it, and filled once. Transformers, Accelerate and
Lightning come with `make install`. Every package is pinned, and installed without what it asks for: torchtitan
asks for a nightly torch, and DeepSpeed for a compiler of CUDA unless it is told to build nothing.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

PINNED: Final[Mapping[str, Sequence[str]]] = {
    "torchtitan": (
        *("torchtitan==0.3.0", "torch_checkpointing==0.1.1", "spmd_types==0.2.3", "tyro==1.0.17", "shtab==1.13.0"),
        *("typeguard==4.6.1", "docstring_parser==0.18.0", "einops==0.8.2", "datasets==4.7.0", "dill==0.4.1"),
        *("multiprocess==0.70.19", "pandas==3.1.1", "pyarrow==26.0.1", "python_dateutil==4.0.0"),
        *("pytz==2026.6", "six==1.17.0", "tzdata==2026.6"),
        "triton==3.9.0",  # torch for a CPU comes without, and torchtitan imports it; 1 GB
    ),
    "deepspeed": (
        *("deepspeed==0.19.8", "hjson==3.1.0", "msgpack==1.2.4", "ninja==1.13.2", "py-cpuinfo==9.0.0"),
        "einops==0.8.2",
    ),
    "megatron.core": ("megatron_core==0.16.1",),
    "ray": (
        *("ray==2.60.0", "jsonschema==4.26.0", "jsonschema-specifications==2025.9.1", "referencing==0.37.0"),
        *("rpds-py==2026.9.1", "attrs==26.1.0", "msgpack==1.2.4"),
    ),
}
TRIED: Final[Mapping[str, str]] = {
    "torchtitan": "torchtitan.models.llama3.config_registry",
    "deepspeed": "deepspeed",
    "megatron.core": "megatron.core.models.gpt.gpt_model",
    "ray": "ray",
}
"""What its script imports of a framework: that can be, or it is not installed."""
# Peers, each in a folder of its own.
PEERS: Final[Mapping[str, str]] = {"torchft": "0.2.0"}
_WITHIN_S: Final = 900.0


def installed() -> tuple[Path, Mapping[str, str]]:
    """The folder for PYTHONPATH, and why a framework cannot be imported from there, by its name.

    What is not there yet is installed, which takes a minute or two and a package index. Raises OSError when the
    folder cannot be written.
    """
    base = Path(os.environ.get("HOLDFAST_CACHE") or Path.home() / ".cache" / "holdfast")
    folder = base / f"frameworks-{_name()}" / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    # That of an installation for development raises KeyError without its library, which Ray does not expect.
    (folder / "amdsmi.py").write_text('raise ImportError("there is no AMD GPU here")\n')
    lacking = {name: _lacking(folder, name, packages) for name, packages in PINNED.items()}
    return folder, {name: why for name, why in lacking.items() if why}


def peer(name: str) -> tuple[Path, str]:
    """The folder for PYTHONPATH of a peer, `~/.cache/holdfast/NAME-VERSION`, filled once; and why it cannot be
    imported from there, or nothing. Raises OSError when the folder cannot be written.
    """
    base = Path(os.environ.get("HOLDFAST_CACHE") or Path.home() / ".cache" / "holdfast")
    folder = base / f"{name}-{PEERS[name]}" / "site-packages"
    folder.mkdir(parents=True, exist_ok=True)
    return folder, _lacking(folder, name, (f"{name}=={PEERS[name]}",))


def on_path(folder: Path) -> dict[str, str]:
    """The environment of a process that finds what is in the folder, and whatever this one does."""
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    programs = os.pathsep.join((os.environ.get("PATH", os.defpath), str(folder / "bin")))
    return {**os.environ, "PATH": programs, "PYTHONPATH": path, "DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu"}


def _name() -> str:
    whole = repr((sys.version_info[:2], sorted(PINNED.items())))
    return hashlib.blake2b(whole.encode(), digest_size=4).hexdigest()


def _lacking(folder: Path, name: str, packages: Sequence[str]) -> str:
    """Install it where it cannot be imported; why it cannot even then, or nothing."""
    trial = (sys.executable, "-c", f"import {TRIED.get(name, name)}")
    if not _problem(folder, *trial):
        return ""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--upgrade")
    install = (sys.executable, "-m", "pip", "install", *options, "--target", str(folder), *packages)
    return _problem(folder, *install) or _problem(folder, *trial)


def _problem(folder: Path, *command: str) -> str:
    """The last line of what a command says that fails, pip's warnings aside, or nothing."""
    try:
        ran = subprocess.run(
            command, env=on_path(folder), capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"not done within {_WITHIN_S:.0f} s"
    if ran.returncode == 0:
        return ""
    said = [line for line in (ran.stderr or ran.stdout).splitlines() if line.strip() and "WARNING" not in line]
    return said[-1] if said else f"exit code {ran.returncode}"


if __name__ == "__main__":
    there, reasons = installed()
    print(there)
    for framework in PINNED:
        print(f"{framework}: {reasons.get(framework, 'installed')}")
