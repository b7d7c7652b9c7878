"""How a run was started: what has to be the same for another run to compute the same.

Rank 0 collects it once (`holdfast.trainer.description`); it lies in each checkpoint as the file `run.json`, and in
the job's journal. Everything in it is text, so that a comparison needs to know nothing of what it compares.
Values of secrets are left out (`api.secrecy`); of the environment only what is known to matter is in it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from holdfast.api.bounds import LINE_LENGTH_MAX, NAME_LENGTH_MAX, Few, Line, Many, Name, Text, Whole
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed
from holdfast.api.secrecy import is_secret

FORMAT: Final = 1
FILE_NAME: Final = "run.json"
BYTES_MAX: Final = 4 << 20
"""Of the file. What does not fit is cut."""
DIFF_BYTES_MAX: Final = 64 * 1024 - 1024
"""Of the diff: a `Text` holds it, with the line that says what was cut."""
TOLD_BYTES_MAX: Final = 48 * 1024
"""Of what is told to the watchdog: a frame of a launcher holds it."""
FILES_MAX: Final = 512
ENTRIES_MAX: Final = 4096  # of a section
# Whatever the user's settings say of how a diff looks.
_APPLICABLE: Final = ("--src-prefix=a/", "--dst-prefix=b/", "-U3", "--submodule=short", "--no-relative")
_DIFF: Final = (
    "diff",
    "--no-ext-diff",
    "--no-textconv",
    "--no-color",
    "--binary",
    "--full-index",
    *_APPLICABLE,
    "HEAD",
    "--",
)
_HIDDEN: Final = (
    ":/",
    *(f":(exclude,top,glob)**/{name}" for name in (".env*", "*.pem", "*.key", "*.p12", ".netrc")),
)
GIT_DIFF: Final = (*_DIFF, *_HIDDEN)
"""What git is asked for the diff of a work tree."""
_VARIABLES: Final = frozenset(
    [
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "CUDA_VISIBLE_DEVICES",
        "NVIDIA_TF32_OVERRIDE",
        "OMP_NUM_THREADS",
        "MKL_NUM_THREADS",
        "MKL_CBWR",
        "OPENBLAS_NUM_THREADS",
        "PYTHONHASHSEED",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_MAX_CPU_ISA",
        "GLOO_SOCKET_IFNAME",
    ]
)
_PREFIXES: Final = ("NCCL_", "TORCH_", "PYTORCH_", "TORCHINDUCTOR_", "CUDNN_", "NVTE_", "TRITON_", "UCX_")
_PLACES: Final = ("_DIR", "_PATH", "_FILE", "_HOME")  # where something lies changes nothing that is computed


IMAGE_VARIABLE: Final = "HOLDFAST_IMAGE"
"""Set in a pod by whoever makes it: the image that the training container is of, as it was asked for."""
IMAGE: Final = "image"
"""The setting of `Section.VERSIONS` that says so."""


class Section(StrEnum):
    """What a setting is about. The order is the order in which differences are shown."""

    CONFIGURATION = "configuration"  # what the script says of itself, by `run.configure`
    SEEDS = "seeds"
    DETERMINISM = "determinism"  # switches of torch and its libraries that change bits
    TOPOLOGY = "topology"
    ENVIRONMENT = "environment"
    VERSIONS = "versions"  # Python, torch, driver, libraries, hardware
    PACKAGES = "packages"


Settings = Annotated[dict[Name, Line], Many]


class Code(msgspec.Struct, frozen=True, omit_defaults=True):
    """What ran. `directory` is where the command was started, `root` the top of its git work tree, "" without one.

    `diff` is that of tracked files against `commit`, with `left_out` saying why it is not the whole diff, "" where
    it is. `files` has the SHA-256 of the program's own source files (those that it had imported from the script's
    folder), by path below `directory`. `unknown` is why the commit is not known.
    """

    directory: Line = ""
    root: Line = ""
    commit: Line = ""
    diff: Text = ""
    left_out: Line = ""
    files: Annotated[dict[Line, Name], Many] = {}
    unknown: Line = ""


class RunManifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One run as it was started. `command` has the program first; `settings` are by section, then by name.

    `round` is the round it was collected in; `cut` says what did not fit.
    """

    format: Whole
    round: Whole = 0
    command: Annotated[tuple[Line, ...], Many] = ()
    code: Code = Code()
    settings: Annotated[dict[Name, Settings], Few] = {}
    cut: Annotated[tuple[Line, ...], Few] = ()

    def of(self, section: Section) -> Mapping[str, str]:
        return self.settings.get(section.value, {})


def bounded(text: object, limit: int = LINE_LENGTH_MAX) -> str:
    """`text` as it may stand in a manifest: cut, with its length, where it is longer than `limit` characters, and
    with escapes for what is no character.
    """
    said = str(text).encode(errors="backslashreplace").decode()  # a path may be no UTF-8
    if len(said) <= limit:
        return said
    end = f"... ({len(said)} characters)"
    return said[: limit - len(end)] + end


def is_recorded(variable: str) -> bool:
    """Whether an environment variable of this name matters to what is computed, and may be told."""
    is_of_a_library = variable.startswith(_PREFIXES) and not variable.endswith(_PLACES)
    return variable in _VARIABLES or (is_of_a_library and not is_secret(variable))


def section_of(values: Mapping[str, object]) -> dict[str, str]:
    """The first `ENTRIES_MAX` of `values` by name, each bounded."""
    first = sorted(values.items())[:ENTRIES_MAX]
    return {bounded(name, NAME_LENGTH_MAX): bounded(value) for name, value in first}


def encode(manifest: RunManifest) -> bytes:
    return msgspec.json.encode(manifest)


def decode(document: bytes) -> RunManifest:
    """Raises Damaged when the bytes are none, or of a format that this version cannot read."""
    if len(document) > BYTES_MAX:
        raise Damaged(f"the run's manifest has {len(document)} bytes, more than the {BYTES_MAX} that one may have")
    try:
        found = decode_json(document, RunManifest)
    except Malformed as error:
        raise Damaged(f"the run's manifest cannot be read: {error}") from error
    if found.format != FORMAT:
        raise Damaged(f"the run's manifest is of format {found.format}, this version reads {FORMAT}")
    return found


def fitted(manifest: RunManifest, limit: int = TOLD_BYTES_MAX) -> RunManifest:
    """As much of it as fits into `limit` bytes: the diff goes first, then the hashes of files, then packages."""
    replace = msgspec.structs.replace
    fitting = manifest
    smaller: list[tuple[str, Any]] = [
        ("the diff", lambda it: replace(it, code=replace(it.code, diff="", left_out="it did not fit"))),
        ("the hashes of files", lambda it: replace(it, code=replace(it.code, files={}))),
        ("packages", lambda it: replace(it, settings={**it.settings, Section.PACKAGES.value: {}})),
        ("all settings", lambda it: replace(it, settings={})),
        ("the command", lambda it: replace(it, command=())),
    ]
    for what, without in smaller:
        if len(encode(fitting)) <= limit:
            break
        fitting = without(fitting)
        fitting = replace(fitting, cut=(*fitting.cut, what))
    return fitting
