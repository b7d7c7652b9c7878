"""Checkpoints as text."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.cli.output import UNKNOWN, pairs, table

Shown = Mapping[str, Any]


def catalogue_text(entries: Sequence[Shown]) -> str:
    """One line a checkpoint, and why one is unreadable."""
    if not entries:
        return "no checkpoints"
    headers = ("STEP", "ROUND", "WORLD", "SIZE", "COMMITTED", "PARENT", "HEALTHY", "VERIFIED", "STANDING", "KEPT")
    return table(headers, [_entry(each) for each in entries])


def checkpoint_text(shown: Shown) -> str:
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
        ("kept", kept_text(shown)),
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


def tensor_text(shown: Shown) -> str:
    """One tensor, chunk by chunk."""
    head = [("tensor", shown["name"]), ("dtype", shown["dtype"]), ("shape", _shape(shown["shape"]))]
    rows = [
        (each["file"], str(each["payload"]), _shape(each["offsets"]), _shape(each["sizes"]))
        for each in shown["chunks"]
    ]
    return f"{pairs(head)}\n\n{table(('FILE', 'PAYLOAD AT', 'OFFSETS', 'SIZES'), rows)}"


def verification_text(looked: Sequence[Shown]) -> str:
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


def compared_text(compared: Shown) -> str:
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


def _entry(entry: Shown) -> tuple[str, ...]:
    standing = entry["standing"]
    return (
        str(entry["step"]),
        _or(entry["round"]),
        _or(entry["worldSize"]),
        size(entry["sizeBytes"]),
        moment(entry["committedAt"]),
        "-" if entry["parent"] is None else str(entry["parent"]),
        _answer(entry["healthy"]),
        _answer(entry["verified"]),
        f"{standing}: {entry['reason']}" if entry["reason"] else standing,
        kept_text(entry),
    )


def kept_text(shown: Shown) -> str:
    """Every reason for which the job's next deletion leaves it."""
    if shown["kept"]:
        return ", ".join(_WHYS[why].format(keep=shown["keep"]) for why in shown["kept"])
    return "-" if shown["keep"] else UNKNOWN


_WHYS = {
    "Newest": "newest of keep {keep}",
    "NewestHealthy": "newest healthy",
    "NewestUnknown": "newest that may be healthy",
    "NewestVerified": "newest verified",
    "UntilCompared": "may be needed until compared",
    "Evidence": "unreadable, kept as evidence",
}


def _answer(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "no"


def moment(at: float | None) -> str:
    """Unix time as people write it, in UTC."""
    return UNKNOWN if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _shape(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _or(value: object, otherwise: str = UNKNOWN) -> str:
    return otherwise if value is None else str(value)
