"""The live terminal view of a run. Pure: from a picture and the last messages to a renderable."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase, RankStatus
from holdfast.api.telemetry import ProcessState
from holdfast.cli.view.incident import culprit_text, in_one_line, rung_text
from holdfast.cli.view.news import progress
from holdfast.cli.view.picture import Picture
from holdfast.cli.view.table import ago, number, seconds

PHASE_STYLES = {
    JobPhase.RUNNING: "bold green",
    JobPhase.SUCCEEDED: "bold green",
    JobPhase.RECOVERING: "bold yellow",
    JobPhase.FAILED: "bold red",
}
STATE_STYLES = {
    IncidentState.OPEN: "yellow",
    IncidentState.RECOVERED: "green",
    IncidentState.PAGED: "red",
    IncidentState.OBSERVED: "cyan",
}
INCIDENTS_SHOWN = 8


def screen(picture: Picture | None, messages: Sequence[str], *, elapsed_s: float, steps: int) -> RenderableType:
    """The whole view. `steps` is where the run ends, for the bar; zero hides it."""
    told = Text("\n".join(messages), style="dim", no_wrap=True, overflow="ellipsis")
    if picture is None:
        return Panel(told, title=f"starting  {elapsed_s:.0f} s", title_align="left")
    parts: list[RenderableType] = [Text(progress(picture))]
    if steps:
        # A bar ends without a line break; the padding of nothing gives it a line of its own.
        parts.append(Padding(ProgressBar(total=steps, completed=picture.status.step or 0), 0))
    parts += [_ranks(picture.ranks), _incidents(picture.incidents), told]
    status = picture.status
    title = Text.assemble(
        status.job, "  ", (str(status.phase), PHASE_STYLES.get(status.phase, "bold")), f"  {elapsed_s:.0f} s"
    )
    return Panel(Group(*parts), title=title, title_align="left")


def _ranks(ranks: Sequence[RankStatus]) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    for header in ("rank", "node", "process", "phase", "step", "loss", "progress"):
        table.add_column(header)
    for rank in ranks:
        table.add_row(
            str(rank.rank),
            rank.node,
            Text(rank.process.value, style="" if rank.process is ProcessState.RUNNING else "yellow"),
            "?" if rank.phase is None else rank.phase.name.lower(),
            number(rank.step),
            number(rank.loss),
            ago(rank.progress_age_s),
        )
    return table


def _incidents(incidents: Sequence[Incident]) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    for header in ("incident", "culprit", "cause", "answer", "first new step", "state"):
        table.add_column(header)
    for incident in incidents[-INCIDENTS_SHOWN:]:
        table.add_row(
            f"{incident.id} {incident.kind}",
            culprit_text(incident),
            in_one_line(incident.cause),
            rung_text(incident),
            seconds(incident.time_to_recover_s),
            Text(incident.state.value, style=STATE_STYLES[incident.state]),
        )
    return table
