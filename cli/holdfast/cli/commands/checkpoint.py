"""`holdfast checkpoint`: ask a running job for one, and look after those that are in a directory.

`ls`, `show`, `verify` and `prune` need no torch; `diff`, `convert` and `fits` look at tensors, and do. The
checkpoint library is imported when a command is called that needs it.
"""

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.api.control import CONTROL_VARIABLE
from holdfast.api.decoding import decode_json
from holdfast.api.errors import InvalidInput, Problem, Unavailable
from holdfast.cli.commands.intervene import take
from holdfast.cli.output import UNKNOWN, ExitCode, Format, emit, format_option, pairs, remark, table
from holdfast.cli.target import Program

if TYPE_CHECKING:
    from holdfast.checkpoint.catalogue import Entry
    from holdfast.checkpoint.commit.retention import Need
    from holdfast.checkpoint.format.index import Stored
    from holdfast.checkpoint.storage.address import Address

_TAKE = "take"
_HELP = ("-h", "--help")
_SHOWN = 5
_WHYS = {
    "Newest": "newest of keep {keep}",
    "NewestHealthy": "newest healthy",
    "NewestUnknown": "newest that may be healthy",
    "NewestVerified": "newest verified",
    "UntilCompared": "may be needed until compared",
    "Evidence": "unreadable, kept as evidence",
}
Shown = Mapping[str, Any]
_step_option = click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step.")


class CheckpointGroup(click.Group):
    """Without the name of a subcommand it is `take`: what is needed most in a hurry needs the fewest words."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in (*self.list_commands(ctx), *_HELP))
        return super().parse_args(ctx, args if is_named else [_TAKE, *args])

    def list_commands(self, ctx: click.Context) -> list[str]:
        """kubectl's plugin reads no files of this machine."""
        return [_TAKE] if ctx.find_root().obj is Program.KUBECTL else list(self.commands)


@click.group(cls=CheckpointGroup)
def checkpoint() -> None:
    """Take a checkpoint of a job soon, or look after those in a directory.

    `holdfast checkpoint JOB` is `holdfast checkpoint take JOB`.
    """


@click.command()
@click.argument("uri")
@format_option
def ls(uri: str, form: Format) -> ExitCode:
    """Every checkpoint in the directory URI: committed, healthy, verified, and why each is kept."""
    address = _address(uri)
    from holdfast.checkpoint.catalogue import catalogue

    there = catalogue(address.storage)
    if there.trouble:
        remark(there.trouble)
    value = [
        {
            "name": each.name,
            "step": each.step,
            "standing": each.place.value,
            **_standing_shown(each, there.need),
            "round": each.round,
            "worldSize": each.world_size,
            "parent": each.parent,
            "sizeBytes": each.size_bytes,
            "committedAt": each.committed_at,
            "reason": each.reason,
        }
        for each in there.entries
    ]
    return emit(form, value, table=_catalogue_text, names=[each.name for each in there.entries])


def _catalogue_text(entries: Sequence[Shown]) -> str:
    """One line a checkpoint, and why one is unreadable."""
    if not entries:
        return "no checkpoints"
    headers = ("STEP", "ROUND", "WORLD", "SIZE", "COMMITTED", "PARENT", "HEALTHY", "VERIFIED", "STANDING", "KEPT")
    rows = []
    for each in entries:
        at = each["committedAt"]
        row = (
            str(each["step"]),
            _or(each["round"]),
            _or(each["worldSize"]),
            size(each["sizeBytes"]),
            UNKNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ"),
            _or(each["parent"], "-"),
            _answer(each["healthy"]),
            _answer(each["verified"]),
            f"{each['standing']}: {each['reason']}" if each["reason"] else each["standing"],
            _kept_text(each),
        )
        rows.append(row)
    return table(headers, rows)


@click.command()
@click.argument("uri")
@_step_option
@click.option("--tensor", metavar="NAME", help="Only this tensor, chunk by chunk.")
@format_option
def show(uri: str, step: int | None, tensor: str | None, form: Format) -> ExitCode:
    """What the checkpoint at URI holds: tensors, objects, files. Of a directory it is the newest."""
    address = _address(uri)
    from holdfast.checkpoint.catalogue import catalogue, choose, elements
    from holdfast.checkpoint.commit.discovery import read_index, read_manifest
    from holdfast.checkpoint.format.index import StoredObject, StoredTensor

    there = catalogue(address.storage)
    chosen = choose(there.entries, address.narrowed(step))
    name = chosen.name
    manifest = read_manifest(address.storage, name)
    index = read_index(address.storage, name, manifest)
    if tensor is not None:
        stored = index.entries.get(tensor)
        if not isinstance(stored, StoredTensor):
            near = [each for each in index.entries if tensor in each][:3]
            fix = (
                f"there are {', '.join(near)}" if near else "list them with `holdfast checkpoint show URI -o name`"
            )
            raise InvalidInput(Problem(field="--tensor", value=tensor, fix=fix))
        return emit(form, _tensor_shown(tensor, stored), table=_tensor_text, names=[tensor])
    objects = {each: stored for each, stored in index.entries.items() if isinstance(stored, StoredObject)}
    value = {
        "name": name,
        "step": manifest.step,
        "round": manifest.round,
        "parent": manifest.parent,
        "worldSize": manifest.world_size,
        "batches": manifest.batches,
        "elements": elements(index.entries),
        "sizeBytes": sum(record.size_bytes for record in manifest.files.values()),
        "tensors": [_tensor_shown(each, index.entries[each]) for each in index.entries if each not in objects],
        "objects": [
            {"name": each, "file": stored.file, "sizeBytes": stored.length_bytes}
            for each, stored in objects.items()
        ],
        "files": [
            {"name": file, "sizeBytes": record.size_bytes, "blocks": len(record.blocks)}
            for file, record in manifest.files.items()
        ],
        **_standing_shown(chosen, there.need),
    }
    return emit(form, value, table=_checkpoint_text, names=list(index.entries))


def _tensor_shown(name: str, stored: "Stored") -> dict[str, Any]:
    from holdfast.checkpoint.catalogue import size_of
    from holdfast.checkpoint.format.index import StoredTensor

    assert isinstance(stored, StoredTensor)
    return {
        "name": name,
        "dtype": stored.dtype,
        "shape": list(stored.shape),
        "sizeBytes": size_of(stored),
        "chunks": [
            {
                "file": each.file,
                "payload": each.payload,
                "offsets": list(each.box.offsets),
                "sizes": list(each.box.sizes),
            }
            for each in stored.chunks
        ],
    }


def _checkpoint_text(shown: Shown) -> str:
    """One checkpoint whole: its figures, then its tensors, objects and files."""
    head = [
        ("checkpoint", shown["name"]),
        ("step", str(shown["step"])),
        ("round", str(shown["round"])),
        ("parent", _or(shown["parent"], "none: it started afresh")),
        ("world size", str(shown["worldSize"])),
        ("batches", str(shown["batches"])),
        ("committed", _answer(shown["committed"])),
        ("healthy", _answer(shown["healthy"])),
        ("verified", _answer(shown["verified"])),
        ("kept", _kept_text(shown)),
        ("tensors", f"{len(shown['tensors'])} with {shown['elements']:,} numbers"),
        ("objects", str(len(shown["objects"]))),
        ("size", size(shown["sizeBytes"])),
    ]
    tensors = [
        (each["name"], each["dtype"], _shape(each["shape"]), str(len(each["chunks"])), size(each["sizeBytes"]))
        for each in shown["tensors"]
    ]
    objects = [(each["name"], size(each["sizeBytes"]), each["file"]) for each in shown["objects"]]
    files = [(each["name"], size(each["sizeBytes"]), str(each["blocks"])) for each in shown["files"]]
    tables = (
        table(("TENSOR", "DTYPE", "SHAPE", "CHUNKS", "SIZE"), tensors),
        table(("OBJECT", "SIZE", "FILE"), objects),
        table(("FILE", "SIZE", "BLOCKS"), files),
    )
    return "\n\n".join((pairs(head), *tables))


def _tensor_text(shown: Shown) -> str:
    """One tensor, chunk by chunk."""
    head = [("tensor", shown["name"]), ("dtype", shown["dtype"]), ("shape", _shape(shown["shape"]))]
    rows = [
        (each["file"], str(each["payload"]), _shape(each["offsets"]), _shape(each["sizes"]))
        for each in shown["chunks"]
    ]
    return f"{pairs(head)}\n\n{table(('FILE', 'PAYLOAD AT', 'OFFSETS', 'SIZES'), rows)}"


@click.command()
@click.argument("uri")
@_step_option
@click.option("--all", "everything", is_flag=True, help="Every checkpoint in the directory.")
@format_option
def verify(uri: str, step: int | None, everything: bool, form: Format) -> ExitCode:
    """Compare every block of a checkpoint with its hash: of URI, of --step, of --all, else of the newest.

    Exits with 1 when anything differs from what was written, and names file and block.
    """
    address = _address(uri)
    from holdfast.checkpoint.catalogue import catalogue, choose
    from holdfast.checkpoint.commit import verification

    if everything and address.narrowed(step) is not None:
        raise InvalidInput(Problem(field="--all", value=uri, fix="leave the step out, or --all"))
    entries: Sequence[Entry] = catalogue(address.storage).entries
    if not everything:
        entries = [choose(entries, address.narrowed(step))]
    progress = _Progress("verified", sum(each.size_bytes or 0 for each in entries))
    try:
        looked = [verification.verify(address.storage, each.name, progress=progress.add) for each in entries]
    finally:
        progress.end()
    value = [
        {
            "name": each.name,
            "intact": each.is_intact,
            "sizeBytes": each.size_bytes,
            "flaws": [{"file": flaw.file, "offset": flaw.offset, "reason": flaw.reason} for flaw in each.flaws],
        }
        for each in looked
    ]
    damaged = [each.name for each in looked if not each.is_intact]
    emit(form, value, table=_verification_text, names=damaged)
    return ExitCode.FAILED if damaged else ExitCode.OK


def _verification_text(looked: Sequence[Shown]) -> str:
    """What was verified: a line a checkpoint, and one for each flaw."""
    lines: list[str] = []
    for each in looked:
        state = "intact" if each["intact"] else f"DAMAGED in {len(each['flaws'])} place(s)"
        lines.append(f"{each['name']}  {size(each['sizeBytes'])}  {state}")
        for flaw in each["flaws"]:
            where = flaw["file"] or "the checkpoint"
            block = "" if not flaw["file"] or flaw["offset"] is None else f", block at {flaw['offset']}"
            lines.append(f"  {where}{block}: {flaw['reason']}")
    return "\n".join(lines)


@click.command()
@click.argument("uri")
@click.option("--keep", type=click.IntRange(min=1), required=True, help="How many of the newest stay.")
@click.option(
    "--compared-every",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Keep what a rewind needs where replicas are compared after so many steps (0: never).",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing: say what would go.")
@format_option
def prune(uri: str, keep: int, compared_every: int, dry_run: bool, form: Format) -> ExitCode:
    """Delete checkpoints that the newest --keep make superfluous, after verifying that one of those is intact.

    What the job last left as needed for a rewind stays as well. Refuses while a save is being written.
    """
    address = _address(uri)
    from holdfast.checkpoint.commit.pruning import plan
    from holdfast.checkpoint.commit.pruning import prune as carry_out
    from holdfast.checkpoint.commit.retention import Retention

    if address.step is not None:
        raise InvalidInput(Problem(field="uri", value=uri, fix="name the directory, not one checkpoint in it"))
    retention = Retention(keep, compared_every)
    planned = plan(address.storage, retention)
    if dry_run:
        doomed = list(planned.doomed)
        remark("nothing was deleted (--dry-run)")
    else:
        doomed = carry_out(address.storage, retention)
    if planned.spared:
        need = planned.need
        said = [f"compares replicas every {need.compared_every} steps"] if need.compared_every else []
        if need.verified is not None:
            said.append(f"has verified them after step {need.verified} last")
        if need.unhealthy_from is not None:
            said.append(f"found no step healthy from {need.unhealthy_from} on")
        why = " and ".join(said or ["needs the newest healthy one"])
        remark(f"kept for a rewind: {', '.join(planned.spared)} (the job {why})")
    return emit(form, doomed, table=lambda names: "\n".join(names) or "nothing to delete", names=doomed)


@click.command()
@click.argument("a")
@click.argument("b")
@format_option
def diff(a: str, b: str, form: Format) -> ExitCode:
    """Compare checkpoint A with B, value by value, whatever their formats and layouts.

    Exits with 1 when they differ in any bit.
    """
    with _library("torch is not installed"):
        from holdfast.checkpoint.convert.comparison import compare
        from holdfast.checkpoint.convert.conversion import open_source

    found = compare(open_source(a), open_source(b))
    value = {
        "equal": found.equal,
        "onlyInA": list(found.only_in_a),
        "onlyInB": list(found.only_in_b),
        "differences": [
            {**asdict(each), "first": None if each.first is None else list(each.first)}
            for each in found.differences
        ],
    }
    names = [*found.only_in_a, *found.only_in_b, *(each.name for each in found.differences)]
    emit(form, value, table=_compared_text, names=names)
    return ExitCode.OK if found.is_equal else ExitCode.FAILED


def _compared_text(compared: Shown) -> str:
    """A line for each name that differs, and how many do not."""
    lines = [f"only in A: {name}" for name in compared["onlyInA"]]
    lines += [f"only in B: {name}" for name in compared["onlyInB"]]
    for each in compared["differences"]:
        what = str(each["what"])
        if each["count"] is not None:
            largest = UNKNOWN if each["largest"] is None else f"{each['largest']:.6g}"
            what = f"{each['count']} element(s) differ by up to {largest}, the first at {each['first']}"
        lines.append(f"{each['name']}: {what}")
    return "\n".join([*lines, f"{compared['equal']} equal, bit for bit"])


@click.command()
@click.argument("source")
@click.argument("destination")
@click.option(
    "--to",
    "kind",
    type=click.Choice(["torch", "safetensors", "dcp", "holdfast"]),
    required=True,
    help="The format to write.",
)
@click.option(
    "--step", type=click.IntRange(min=0), help="Of a directory of checkpoints: this one, not the newest."
)
@click.option("--select", metavar="PREFIX", default="", help="Only names that begin so, without it: `model.`")
@click.option("--tensors-only", is_flag=True, help="Leave out what is no tensor, and say what that was.")
def convert(
    source: str, destination: str, kind: str, step: int | None, select: str, tensors_only: bool
) -> ExitCode:
    """Write checkpoint SOURCE of whatever format to DESTINATION, which must not exist.

    SOURCE is a directory of checkpoints or one step-… in it, a directory of torch.distributed.checkpoint,
    safetensors, or a file of torch.save. No code from it is run.
    """
    with _library("torch is not installed"):
        from holdfast.checkpoint.convert.conversion import Kind, open_source
        from holdfast.checkpoint.convert.conversion import convert as write
        from holdfast.checkpoint.storage.address import is_local
        from holdfast.checkpoint.storage.local import parse_uri

    if not is_local(destination):
        fix = "name a path of this machine: only from there can it appear whole or not at all"
        raise InvalidInput(Problem(field="destination", value=destination, fix=fix))
    written = write(
        open_source(source, step), parse_uri(destination), Kind(kind), prefix=select, tensors_only=tensors_only
    )
    for sentence in written.remarks:
        remark(sentence)
    if written.left_out:
        more = f" and {len(written.left_out) - _SHOWN} more" if len(written.left_out) > _SHOWN else ""
        remark(f"left out, as they are no tensors: {', '.join(written.left_out[:_SHOWN])}{more}")
    click.echo(
        f"{destination}: {written.tensors} tensors of {size(written.size_bytes)}, {written.objects} other objects"
    )
    return ExitCode.OK


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("uri")
@click.argument("script", type=click.Path())
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
@_step_option
@click.option(
    "--within", type=click.IntRange(min=1), default=300, show_default=True, help="Seconds until the script asks."
)
@format_option
def fits(uri: str, script: str, words: tuple[str, ...], step: int | None, within: int, form: Format) -> ExitCode:
    """Say what a restart of SCRIPT would restore of a checkpoint, before there is one.

    The script is run with its WORDS, as one process, up to the place where its Checkpointer would restore, and
    ended there: nothing is restored, trained or saved. Write options before URI. Exits with 1 when the checkpoint
    would be refused.
    """
    if not Path(script).is_file():
        raise InvalidInput(Problem("SCRIPT", script, "name a training script that exists"))
    address = _address(uri)
    with _library("torch is not installed"):
        from holdfast.checkpoint.catalogue import catalogue, choose
        from holdfast.checkpoint.fit import VARIABLE, Fit, Order
    chosen = choose(catalogue(address.storage).entries, address.narrowed(step))
    with tempfile.TemporaryDirectory() as folder:
        order = Order(address.storage.uri, chosen.name, str(Path(folder) / "answer"))
        environment = {key: value for key, value in os.environ.items() if key != CONTROL_VARIABLE}
        environment[VARIABLE] = msgspec.json.encode(order).decode()
        said = _run([sys.executable, script, *words], environment, within)
        if not Path(order.answer).exists():
            raise Unavailable(f"{script} did not come to the place where it restores: {said}")
        found = decode_json(Path(order.answer).read_bytes(), Fit)
    value = {"checkpoint": chosen.name, "fits": found.fits, **msgspec.structs.asdict(found)}
    names = [*found.missing, *found.left_over, *found.misfits]
    emit(form, value, table=_fit_text, names=names)
    return ExitCode.OK if found.fits else ExitCode.FAILED


def _run(command: Sequence[str], environment: Mapping[str, str], within_s: float) -> str:
    """How the script ended, and its last words."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired:
        return f"it still ran after {within_s:g} s (--within)"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-_SHOWN:]
    return "; ".join([f"it ended with {done.returncode}", *last])


def _fit_text(fit: Shown) -> str:
    """What would become of what, a line for each kind of names."""
    lines = [f"{fit['checkpoint']} {'fits' if fit['fits'] else 'does not fit'}"]
    if fit["refused"]:
        lines.append(f"refused: {fit['refused']}")
    told = (
        ("restored", "{count} names"),
        ("misfits", "not of the script's dtype or shape"),
        ("missing", "the script has it, the checkpoint has not (may_be_missing allows it)"),
        ("left_over", "the checkpoint has it, the script has not (may_be_left_over allows it)"),
        ("kept", "stays as the script makes it"),
        ("unused", "saved, and the script has none"),
    )
    for kind, says in told:
        if names := fit[kind]:
            lines.append(f"{kind.replace('_', ' ')}: {says.format(count=len(names))}")
            lines += [f"  {name}" for name in (() if kind == "restored" else names)]
    return "\n".join(lines)


for _command in (take, ls, show, verify, diff, convert, fits, prune):
    checkpoint.add_command(_command)


@contextmanager
def _library(missing: str) -> Iterator[None]:
    """Raises Unavailable when what is imported within is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise Unavailable(f"{missing} here ({error}); install it with pip install 'holdfast[torch]'") from error


def _address(uri: str) -> "Address":
    """Comes before every other use of the library: raises Unavailable when that is not installed."""
    with _library("the checkpoint library is not whole"):
        from holdfast.checkpoint.storage.address import read_address
    return read_address(uri)


def _standing_shown(entry: "Entry", need: "Need") -> dict[str, Any]:
    """How it stands, None where that is Unknown, and every reason to keep it."""
    from holdfast.api.checkpoint import Health

    return {
        "committed": entry.reason is None,
        "healthy": None if entry.health is Health.UNKNOWN else entry.health is Health.HEALTHY,
        "verified": entry.verified,
        "kept": [each.value for each in entry.kept],
        "keep": need.keep,
    }


def _kept_text(shown: Shown) -> str:
    """Every reason for which the job's next deletion leaves it."""
    if shown["kept"]:
        return ", ".join(_WHYS[why].format(keep=shown["keep"]) for why in shown["kept"])
    return "-" if shown["keep"] else UNKNOWN


def size(size_bytes: int | None) -> str:
    """Bytes in the largest unit that leaves a number above one."""
    if size_bytes is None:
        return UNKNOWN
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _answer(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "no"


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _or(value: object, otherwise: str = UNKNOWN) -> str:
    return otherwise if value is None else str(value)


class _Progress:
    """How far a long read is: on a terminal's stderr, a line rewritten for every hundredth of `total_bytes`."""

    def __init__(self, what: str, total_bytes: int) -> None:
        self._what = what
        self._total = max(total_bytes, 1)
        self._done = 0
        self._shown = -1
        self._lock = threading.Lock()
        self._is_watched = sys.stderr.isatty()

    def add(self, size_bytes: int) -> None:
        """From any thread."""
        with self._lock:
            self._done += size_bytes
            percent = min(100 * self._done // self._total, 100)
            if self._is_watched and percent != self._shown:
                self._shown = percent
                click.echo(f"\r{self._what}  {percent} %", nl=False, err=True)

    def end(self) -> None:
        """Leave the line to what is written next."""
        if self._is_watched and self._shown >= 0:
            click.echo("\r\033[K", nl=False, err=True)
