"""docs/xid.md says what the catalogue says. Run this file to write it anew."""

from itertools import groupby
from pathlib import Path

from holdfast.api.nvlink5 import LINK_RULES
from holdfast.api.xid import CATALOGUE, NVIDIA, XidEntry

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "xid.md"
HEAD = """# XIDs: what each means, and what a running job does

An XID is the NVIDIA driver's error number. What is done about one is decided in this order:

1. the job's own word: `faultPolicy.xid: {"63": Evict}`,
2. the cluster's: the watchdog's `--xid 63=Evict`, in the chart `watchdog.xidActions: {"63": Evict}`; a
   watchdog that starts with another word says it of the jobs that run, too,
3. the driver's, about this very GPU: any recovery that XID 154 or NVML asks for takes the node out of the job,
4. of 144 to 150 their status words, by the table below,
5. the catalogue's row. A number that is not in it is watched.

**Ignore** does nothing. **Watch** keeps it as evidence, and evicts when the same GPU raises it again within a day.
**Restart** starts new worker processes on the same node. **Evict** takes the node out of the job; a spare takes
its ranks. Nothing but a human's `holdfast return NODE`, or the finding that the software is suspect, ends that
eviction while the node exists: an XID that does not come again proves nothing.

The same number on the same GPU within 5 s is one error; what follows an error that closely is its symptom, unless
it asks for something worse. 45 is never a cause. When a number that does not blame hardware follows the job to
another node, the software is suspect and both nodes are returned. Recovery is what the GPU needs before it is used
again.

The rows follow [NVIDIA's catalogue][1], which lists 1 to 172 for Ampere and newer, except where another source is
named. Where published tables disagree, the milder action is the default and repetition makes up for it. 13, 31 and
79 evict whatever the run state.

| XID | meaning | default action | points at | recovery |
|---|---|---|---|---|
"""
LINKS = """
## Status words of NVLink 5

One status is an error bit of the unit (144 to 148) or its value (149, 150); of a link that went down,
NETIR_LINK_EVT, it is the reason in bits 20 to 25 of the first word. The worst of several counts. What is not
listed here evicts when the driver calls it Fatal, and else leaves it to the row.

| XID | unit | reset: evict | XID 154 will tell: watch | nothing: ignore |
|---|---|---|---|---|
"""


def written() -> str:
    """The whole document."""
    alike: dict[tuple[str, ...], list[XidEntry]] = {}
    for entry in CATALOGUE.values():
        alike.setdefault(_content(entry), []).append(entry)
    # What is only listed, never seen, stands last.
    groups = sorted(alike.values(), key=lambda entries: (entries[0].meaning == "unused", entries[0].xid))
    rows = "\n".join(_row(entries) for entries in groups)
    rules = "\n".join(
        f"| {rule.xid} | {rule.unit} | {_hex(rule.resets)} | {_hex(rule.waits)} | {_hex(rule.passes)} |"
        for rule in LINK_RULES
    )
    return f"{HEAD}{rows}\n{LINKS}{rules}\n\n[1]: {NVIDIA}\n"


def _content(entry: XidEntry) -> tuple[str, ...]:
    return entry.meaning, entry.action, entry.blames, entry.recovery, entry.source


def _row(alike: list[XidEntry]) -> str:
    first = alike[0]
    meaning = first.meaning if first.source == NVIDIA else f"{first.meaning} ([source]({first.source}))"
    numbers = _ranges([entry.xid for entry in alike])
    return f"| {numbers} | {meaning} | {first.action} | {first.blames} | {first.recovery} |"


def _ranges(numbers: list[int]) -> str:
    """Numbers in a row as first-last."""
    runs = [list(run) for _, run in groupby(numbers, key=lambda number: number - numbers.index(number))]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _hex(statuses: frozenset[int]) -> str:
    return " ".join(f"{status:#x}" for status in sorted(statuses)) or "-"


def test_the_document_says_what_the_catalogue_says() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == written(), f"run python {Path(__file__).name}"


if __name__ == "__main__":
    DOCUMENT.write_text(written(), encoding="utf-8")
