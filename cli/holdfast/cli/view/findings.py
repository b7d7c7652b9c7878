"""What the doctor found, as text."""

from collections.abc import Sequence

from holdfast.cli.doctor.finding import Finding, Level


def findings_text(findings: Sequence[Finding]) -> str:
    """One line per finding, what to do about it below it."""
    width = max((len(each.what) for each in findings), default=0)
    lines = []
    for each in findings:
        lines.append(f"{each.level.value:<4}  {each.what.ljust(width)}  {each.says}".rstrip())
        if each.fix and each.level is not Level.OK:
            lines.append(f"      {' ' * width}  -> {each.fix}")
    return "\n".join(lines)
