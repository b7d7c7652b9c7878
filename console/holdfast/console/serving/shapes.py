"""The answers' shapes, for the OpenAPI document and for whoever reads them with pydantic."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Right = Literal["view", "logs", "operate"]
Column = list[float | None]


class Shape(BaseModel):
    """An answer. `None` is Unknown."""

    model_config = ConfigDict(frozen=True)


class Caller(Shape):
    """Who holds the token, and what that allows: of the job asked about, or of all."""

    name: str = Field(examples=["alice@example.com"])
    may: list[Right] = Field(examples=[["view", "logs"]])


class JobSummary(Shape):
    """One job of a list."""

    namespace: str = Field(examples=["research"])
    name: str = Field(examples=["gpt-70b"])
    phase: str = Field(examples=["Running"])
    step: int | None = Field(examples=[41200])
    ettr: float | None = Field(examples=[0.973])
    open_incidents: int = Field(examples=[0])


class Jobs(Shape):
    """The jobs that the caller may list."""

    jobs: list[JobSummary]


class JobLine(Shape):
    """The job in one line. `mfu` and `ettr` are ratios, `money_h` is money an hour in `currency`.

    `target_steps` is the last step that the script means to make, null where it does not say. `left_s` is how
    long that takes at the pace of the last ten minutes, heals included.
    """

    phase: str = Field(examples=["Running"])
    step: int | None = Field(examples=[41200])
    target_steps: int | None = Field(examples=[100000])
    tokens_s: float | None = Field(examples=[1.2e6])
    mfu: float | None = Field(examples=[0.41])
    ettr: float | None = Field(examples=[0.973])
    left_s: float | None = Field(examples=[86400.0])
    money_h: float | None = Field(examples=[1536.0])
    currency: str | None = Field(examples=["USD"])


class Gpu(Shape):
    """One GPU: healthy, failed or unknown, and why."""

    uuid: str = Field(examples=["GPU-8c1f2e5a-0000-4000-8000-000000000000"])
    state: str = Field(examples=["healthy"])
    temperature_c: float | None = Field(examples=[61.0])
    why: str | None = Field(examples=[None])


class Node(Shape):
    """One node: heard, silent, avoided, tested or suspect, and why."""

    name: str = Field(examples=["node-0007"])
    rack: str | None = Field(examples=["r002"])
    state: str = Field(examples=["heard"])
    why: str | None = Field(examples=[None])
    ranks: list[int] = Field(examples=[[56, 57, 58, 59, 60, 61, 62, 63]])
    gpus: list[Gpu]


class Document(Shape):
    """One job. Times are seconds since 1970 by the watchdog's clock; `stale_s` is for how long it has been silent.

    `status` is the watchdog's; `incidents` are its own too, the newest hundred, newest first; of the nodes those
    with something to say come first, a thousand at most. In events a part that is as it was is null.
    """

    heard_at: float = Field(examples=[1795584475.2])
    stale_s: float | None = Field(examples=[0.4])
    status: dict[str, Any]
    line: JobLine
    incidents: list[dict[str, Any]] | None
    nodes: list[Node] | None
    round: int | None = Field(examples=[12])
    world: int = Field(examples=[64])


class Mark(Shape):
    """An incident among the figures."""

    at: float = Field(examples=[1795584400.0])
    incident: str = Field(examples=["inc-7"])
    kind: str = Field(examples=["GpuLost"])
    state: str = Field(examples=["Recovered"])


class SeriesShape(Shape):
    """Figures over time, a column each, as long as `at`. Losses and the gradient norm are over all ranks."""

    at: list[float] = Field(examples=[[1795584474.0, 1795584475.0]])
    step: list[int | None] = Field(examples=[[41199, 41200]])
    tokens_s: Column
    mfu: Column
    loss_min: Column
    loss_median: Column
    loss_max: Column
    grad_norm: Column
    step_s: Column
    wait_share: Column
    marks: list[Mark]


class Names(Shape):
    """What the numbers in the columns of ranks stand for; `racks` has one for each node."""

    nodes: list[str] = Field(examples=[["node-0007"]])
    racks: list[str | None] = Field(examples=[["r002"]])
    phases: list[str] = Field(examples=[["startup", "data", "forward"]])


class Check(Shape):
    """One check. `proved`: what its title names is certain; `next` is the command to run."""

    id: str = Field(examples=["absent-rank"])
    title: str = Field(examples=["One rank does not come to the collective that all others wait in"])
    verdict: Literal["fine", "suspect", "unknown"]
    proved: bool
    evidence: str = Field(examples=["rank 4 on c is in data after step 100 for 70 s, 7 others are elsewhere"])
    next: str = Field(examples=["kubectl holdfast logs --rank 4 --tail 50 gpt-70b -n research"])


class Checks(Shape):
    """All checks of a symptom: suspects first, then what is unknown, then what is fine, the likelier first."""

    symptom: str = Field(examples=["hung"])
    checks: list[Check]


class Trouble(Shape):
    """Why there is no other answer."""

    error: str = Field(examples=["this needs a valid token"])


class Health(Shape):
    """`stale_s`: for how long the watchdog has said nothing; null when it never spoke."""

    status: Literal["ok", "waiting"]
    stale_s: float | None = Field(examples=[0.4])


class Intervention(Shape):
    """As the watchdog takes it; who shows the token is who asked."""

    model_config = ConfigDict(extra="allow", frozen=True)

    id: str = Field(examples=["2f1c9e"])
    job: str = Field(examples=["research/gpt-70b"])
    action: str = Field(examples=["Checkpoint"])
    reason: str = Field(examples=["before the maintenance"])
