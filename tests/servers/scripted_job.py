"""A training job that follows a script, as a console shows it: its document, its series, its ranks.

Everything follows from the seed and from what a test does to it. Incidents are the watchdog's own type, so that
they look as the watchdog's do.
"""

import struct
import time
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
import numpy as np

from holdfast.api.finding import Confidence, Evidence, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Moment, Rung
from holdfast.api.rankrecord import Phase

PER_NODE = 8
POINTS = 1500
STEP_S = 2.0
FINE, SUSPECT, FAULTY = 1, 2, 3


def incident_of_a_lost_gpu(job: str, node: str, began_at: float, **changes: Any) -> Incident:
    """A GPU that fell off the bus, healed by a swap."""
    gpu = "GPU-3f2a9c41-77b0-4a5e-9d0c-5a1f0e6b2c11"
    fields: dict[str, Any] = {
        "id": "incident-7",
        "job": job,
        "kind": FindingKind.GPU_LOST,
        "culprit": Subject(job=job, node=node, gpu=gpu),
        "confidence": Confidence.CERTAIN,
        "cause": "xid 79",
        "state": IncidentState.RECOVERED,
        "began_at": began_at,
        "detected_at": began_at + 0.31,
        "evidence": (
            Evidence(f"agent {node}", "Xid 79 on PCI:0000:3b:00: GPU has fallen off the bus", began_at + 0.02),
            Evidence(f"agent {node}", f"{gpu} answers no more", began_at + 0.28),
        ),
        "actions": (
            Action(
                Rung.SWAP,
                began_at + 0.32,
                f"round 13 with a spare in the place of {node}; {node} is cordoned",
                "XID 79 asks for another node, a spare is there and 1 of 4 evictions a day is used",
                13,
            ),
        ),
        "timeline": (
            Moment(began_at + 0.33, "round 13 was shown to 64 members"),
            Moment(began_at + 1.9, "all members entered round 13, restoring step 41200 from the nodes' memory"),
        ),
        "round": 12,
        "recovered_round": 13,
        "recovered_at": began_at + 8.4,
        "lost_steps": 3,
        "error": "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', GPU has fallen off the bus.",
    }
    return Incident(**{**fields, **changes})


@dataclass
class ScriptedJob:
    """One job. `told` counts the changes of its ranks. Times are unix seconds."""

    name: str
    nodes: list[str]
    racks: list[str | None]
    random: np.random.Generator
    step: int = 41200
    told: int = 1
    heard_at: float = 0.0
    is_silent: bool = False
    phase: str = "Running"
    reason: str = "every rank trains"
    incidents: list[Incident] = field(default_factory=list)
    points: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = len(self.nodes) * PER_NODE
        self.node = np.repeat(np.arange(len(self.nodes), dtype=np.uint32), PER_NODE)
        self.health = np.full(self.world, FINE, np.uint8)
        self.move()

    @classmethod
    def of(
        cls, *, nodes: int, racks: int = 0, name: str = "ml/llm-70b", seed: int = 1, points: int = POINTS
    ) -> Self:
        """`nodes` of eight ranks each in so many racks (0: nobody knows of racks), with a history of `points`."""
        names = [f"node-{i:04d}" for i in range(nodes)]
        domains = [f"r{i * racks // nodes:03d}" if racks else None for i in range(nodes)]
        job = cls(name, names, domains, np.random.default_rng(seed))
        start = time.time() - points * STEP_S
        job.step -= points
        for i in range(points):
            job.advance(at=start + i * STEP_S)
        return job

    def advance(self, at: float | None = None) -> dict[str, float]:
        """One more step; returns its point of the series."""
        self.step += 1
        self.heard_at = time.time() if at is None else at
        drawn = self.random
        loss = 1.7 + 6.0 * np.exp(-self.step / 9000) + 0.01 * drawn.standard_normal()
        step_s = STEP_S + 0.02 * drawn.standard_normal()
        point = {
            "at": self.heard_at,
            "step": self.step,
            "tokens_s": 4_194_304 / step_s,
            "mfu": 0.86 / step_s,
            "loss_min": loss - 0.12,
            "loss_median": loss,
            "loss_max": loss + 0.15 + 0.05 * abs(drawn.standard_normal()),
            "grad_norm": 0.4 + 0.05 * abs(drawn.standard_normal()),
            "step_s": step_s,
            "wait_share": 0.06 + 0.01 * drawn.random(),
        }
        self.points = [
            *self.points[-POINTS:],
            {**{name: float(value) for name, value in point.items()}, "step": self.step},
        ]
        if at is None:
            self.move()
        return self.points[-1]

    def move(self) -> None:
        """Ranks are elsewhere in their step, and took other times."""
        self.told += 1
        n, drawn = self.world, self.random
        self.phases = drawn.choice(np.array([2, 3, 4], np.uint8), n, p=[0.35, 0.55, 0.1])
        self.step_s = (1.95 + 0.05 * drawn.random(n)).astype(np.float32)
        self.loss = (1.9 + 0.1 * drawn.standard_normal(n)).astype(np.float32)

    def break_node(self, index: int, state: IncidentState = IncidentState.OPEN) -> Incident:
        """A GPU of this node is lost now: its ranks are faulty, and an incident is open."""
        self.health[self.node == index] = FAULTY
        self.told += 1
        now = time.time()
        changes: dict[str, Any] = {"id": f"incident-{len(self.incidents) + 1}", "state": state}
        if state is IncidentState.OPEN:
            changes |= {"recovered_at": None, "recovered_round": None, "lost_steps": None}
            self.phase, self.reason = "Recovering", "round 13 was shown; no step has been completed in it yet"
        self.incidents.append(incident_of_a_lost_gpu(self.name, self.nodes[index], now - 1.0, **changes))
        return self.incidents[-1]

    # What a console shows of it.

    def summary(self) -> dict[str, Any]:
        namespace, _, name = self.name.partition("/")
        count = sum(each.state is IncidentState.OPEN for each in self.incidents)
        return {
            "namespace": namespace,
            "name": name,
            "phase": self.phase,
            "step": self.step,
            "ettr": 0.973,
            "open_incidents": count,
        }

    def document(self) -> dict[str, Any]:
        now = time.time()
        if not self.is_silent:
            self.heard_at = now
        newest = self.points[-1] if self.points else {}
        saved = {"step": self.step - 200, "uri": "/checkpoints/llm", "round": 12, "at": self.heard_at - 400.0}
        return {
            "heard_at": self.heard_at,
            "stale_s": now - self.heard_at,
            "status": {
                "job": self.name,
                "phase": self.phase,
                "reason": self.reason,
                "members": {"wanted": len(self.nodes), "ready": len(self.nodes), "spares": 2},
                "loss": newest.get("loss_median"),
                "restarts": 3,
                "last_checkpoint": saved,
                "verified_step": self.step - 200,
                "now": self.heard_at,
            },
            "line": {
                "phase": self.phase,
                "step": self.step,
                "target_steps": 100_000,
                "tokens_s": newest.get("tokens_s"),
                "mfu": newest.get("mfu"),
                "ettr": 0.973,
                "left_s": (100_000 - self.step) * STEP_S,
                "money_h": 1536.0,
                "currency": "USD",
            },
            "incidents": msgspec.to_builtins(self.incidents[::-1]),
            "nodes": [self._node(i) for i in range(min(len(self.nodes), 1000))],
            "round": 13 if self.incidents else 12,
            "world": self.world,
        }

    def _node(self, index: int) -> dict[str, Any]:
        ranks = range(index * PER_NODE, (index + 1) * PER_NODE)
        is_broken = bool(self.health[ranks[0]] == FAULTY)
        return {
            "name": self.nodes[index],
            "rack": self.racks[index],
            "state": "avoided" if is_broken else "heard",
            "why": "xid 79" if is_broken else None,
            "ranks": list(ranks),
            "gpus": [
                {
                    "uuid": f"GPU-{index:04d}-{i}",
                    "state": "failed" if is_broken and i == 3 else "healthy",
                    "temperature_c": None if is_broken and i == 3 else 58.0 + (7 * i + index) % 9,
                    "why": "xid 79: fell off the bus" if is_broken and i == 3 else None,
                }
                for i in range(PER_NODE)
            ],
        }

    def series(self, points: int) -> dict[str, Any]:
        stride = max(1, -(-len(self.points) // points))
        shown = self.points[::stride]
        columns = {name: [each[name] for each in shown] for name in (self.points[0] if self.points else {})}
        marks = [
            {"at": each.began_at, "incident": each.id, "kind": each.kind, "state": each.state}
            for each in self.incidents
        ]
        return {**columns, "marks": marks}

    def columns(self) -> bytes:
        steps = np.full(self.world, self.step, np.uint32)
        small = self.phases.tobytes() + self.health.tobytes()
        head = struct.pack("<II", 1, self.world) + self.node.tobytes() + steps.tobytes() + small
        return bytes(head + bytes(-len(head) % 4) + self.step_s.tobytes() + self.loss.tobytes())

    def names(self) -> dict[str, Any]:
        return {"nodes": self.nodes, "racks": self.racks, "phases": [each.name.lower() for each in Phase]}

    def forecast(self, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["action"] == "Resume":
            return {"state": "Refused", "outcome": "the job is not paused", "effects": []}
        effects = [
            f"round 14: {len(self.nodes)} members (in: spare-1, out: {asked.get('node')})",
            "the workers re-enter in their processes",
            f"it restores step {self.step} from the memory of the nodes",
        ]
        told = effects if asked["action"] == "Evict" else ["nothing else changes now"]
        return {"state": "Done", "outcome": f"{asked['action']} is done at once", "effects": told}
