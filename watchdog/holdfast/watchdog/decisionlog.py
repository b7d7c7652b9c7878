"""What the log tells of a job's decisions: each that does something, and each finding that nothing is done about.

A finding that is ignored is told once for its cause and subject, and again when the reason is another one or
something was done about it meanwhile: detectors repeat what lasts.
"""

import logging
from typing import Final

from holdfast.api.event import FindingMade, Journaled
from holdfast.api.finding import Finding
from holdfast.watchdog.brain.selftests import GIVEN_UP
from holdfast.watchdog.brain.step import FAILED_RULE, IGNORED_RULE, Reason, Step

logger = logging.getLogger(__name__)

IGNORED_KEPT: Final = 256


class DecisionLog:
    """One job's part of the log. A replay is not told to it."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._ignored: dict[tuple[str, str], str] = {}  # cause and subject of a finding: the reason that was told

    def note(self, line: Journaled, step: Step) -> None:
        """What the line led to."""
        event, reason = type(line.event).__name__, step.reason
        if isinstance(line.event, FindingMade) and self._is_ignored_anew(line.event.finding, reason):
            finding = line.event.finding
            logger.info(
                "finding ignored job=%s offset=%d kind=%s cause=%s subject=%s reason=%s",
                *(self._job, line.offset, finding.kind.value, finding.cause, finding.subject, reason.says),
            )
        elif reason.rule == FAILED_RULE:
            logger.error("brain failed job=%s offset=%d reason=%s", self._job, line.offset, reason.says)
        elif step.effects or reason.rule == GIVEN_UP:
            logger.info(
                "decided job=%s offset=%d event=%s effects=%s reason=%s",
                *(self._job, line.offset, event, ",".join(type(each).__name__ for each in step.effects)),
                reason.says,
            )
        else:
            logger.debug("applied job=%s offset=%d event=%s reason=%s", self._job, line.offset, event, reason.says)

    def _is_ignored_anew(self, finding: Finding, reason: Reason) -> bool:
        """Whether nothing is done about the finding, and why is not in the log yet."""
        fault = finding.cause, str(finding.subject)
        told = self._ignored.pop(fault, None)
        if reason.rule != IGNORED_RULE:
            return False
        self._ignored[fault] = reason.says
        while len(self._ignored) > IGNORED_KEPT:
            del self._ignored[next(iter(self._ignored))]
        return told != reason.says
