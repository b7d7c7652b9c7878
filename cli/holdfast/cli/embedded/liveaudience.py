"""Watching a run on a terminal that is redrawn in place."""

from collections import deque
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.api.incident import IncidentState
from holdfast.api.status import JobPhase
from holdfast.api.telemetry import ProcessState
from holdfast.cli.embedded.audience import Picture, news, progress
from holdfast.cli.incidentview import culprit_text, in_one_line, rung_text
from holdfast.cli.output import UNKNOWN, ago, number, seconds

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
MESSAGES_SHOWN = 8


class LiveAudience:
    """Draws the newest picture. `live` owns the terminal from when it is entered until it is left."""

    def __init__(self, clock: Callable[[], float], steps: int) -> None:
        self._clock = clock
        self._started_at = clock()
        self._steps = steps
        self._picture: Picture | None = None
        self._messages: deque[str] = deque(maxlen=MESSAGES_SHOWN)
        self.live = Live(console=Console(stderr=True), auto_refresh=False)

    def say(self, text: str) -> None:
        self._messages.append(f"{self._clock() - self._started_at:6.1f}s  {text}")
        self._draw()

    def look(self, picture: Picture) -> None:
        for line in news(self._picture, picture):
            self._messages.append(f"{self._clock() - self._started_at:6.1f}s  {line}")
        self._picture = picture
        self._draw()

    def _draw(self) -> None:
        elapsed_s = self._clock() - self._started_at
        drawn = screen(self._picture, tuple(self._messages), elapsed_s=elapsed_s, steps=self._steps)
        self.live.update(drawn, refresh=True)


def screen(picture: Picture | None, messages: Sequence[str], *, elapsed_s: float, steps: int) -> RenderableType:
    """The whole view; pure. `steps` is where the run ends, for the bar; zero hides it."""
    told = Text("\n".join(messages), style="dim", no_wrap=True, overflow="ellipsis")
    if picture is None:
        return Panel(told, title=f"starting  {elapsed_s:.0f} s", title_align="left")
    parts: list[RenderableType] = [Text(progress(picture))]
    if steps:
        # A bar ends without a line break; the padding of nothing gives it a line of its own.
        parts.append(Padding(ProgressBar(total=steps, completed=picture.status.step or 0), 0))
    ranks = _table("rank", "node", "process", "phase", "step", "loss", "progress")
    for rank in picture.ranks:
        ranks.add_row(
            str(rank.rank),
            rank.node,
            Text(rank.process.value, style="" if rank.process is ProcessState.RUNNING else "yellow"),
            UNKNOWN if rank.phase is None else rank.phase.name.lower(),
            number(rank.step),
            number(rank.loss),
            ago(rank.progress_age_s),
        )
    incidents = _table("incident", "culprit", "cause", "answer", "first new step", "state")
    for incident in picture.incidents[-INCIDENTS_SHOWN:]:
        incidents.add_row(
            f"{incident.id} {incident.kind}",
            culprit_text(incident),
            in_one_line(incident.cause),
            rung_text(incident),
            seconds(incident.time_to_recover_s),
            Text(incident.state.value, style=STATE_STYLES[incident.state]),
        )
    parts += [ranks, incidents, told]
    status = picture.status
    title = Text.assemble(
        status.job, "  ", (str(status.phase), PHASE_STYLES.get(status.phase, "bold")), f"  {elapsed_s:.0f} s"
    )
    return Panel(Group(*parts), title=title, title_align="left")


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, expand=True)
    for header in headers:
        table.add_column(header)
    return table
