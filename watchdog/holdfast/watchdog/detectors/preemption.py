"""Whoever owns a machine gave notice that it takes it away.

An agent tells a notice once; one that is started again tells it anew. The same words of the same source about the
same node are one notice until the machine was due to go: a node that is there a while after that is another
machine of the same name.
"""

from collections import OrderedDict
from collections.abc import Sequence

from holdfast.api.event import NodeDeparting
from holdfast.api.telemetry import PreemptionNoticed
from holdfast.watchdog.detectors.detector import Detector, Reported, Sample

# Machines outstay their notice, and come back under their name no sooner than they take to boot.
OUTSTAY_S = 60.0
NOTICES_REMEMBERED = 4096


class PreemptionDetector(Detector):
    """Judges the events of `Reported`."""

    subscribes_to: tuple[type[Sample], ...] = (Reported,)

    def __init__(self) -> None:
        self._due: OrderedDict[tuple[str, str, str], float] = OrderedDict()  # by node, source and text

    def observe(self, sample: Sample, now: float) -> Sequence[NodeDeparting]:
        """One departure for each notice that is new."""
        if not isinstance(sample, Reported):
            return ()
        node = sample.report.node
        departures: list[NodeDeparting] = []
        for notice in sample.report.events:
            if not isinstance(notice, PreemptionNoticed):
                continue
            key, age_s = (node, notice.source, notice.text), max(0.0, notice.age_s)
            before = self._due.get(key)
            if before is not None and now <= before + OUTSTAY_S:
                continue
            self._due[key] = now - age_s + max(0.0, notice.within_s)
            self._due.move_to_end(key)
            if len(self._due) > NOTICES_REMEMBERED:
                self._due.popitem(last=False)
            reason = f"{notice.source}: {notice.text}" if notice.text else notice.source
            departures.append(NodeDeparting(node, reason, max(0.0, notice.within_s - age_s)))
        return departures
