"""What the log tells of a job's decisions: each that does something, and each finding that nothing is done about.

A finding that is ignored is told once for its cause and subject, and again when the reason is another one or
something was done about it meanwhile: detectors repeat what lasts.
"""

import logging
from typing import Final

from holdfast.api.event import FindingMade, Journaled
from holdfast.watchdog.brain.selftests import GIVEN_UP
from holdfast.watchdog.brain.step import FAILED_RULE, IGNORED_RULE, Step

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
        if isinstance(line.event, FindingMade):
            finding = line.event.finding
            fault = finding.cause, str(finding.subject)
            told = self._ignored.pop(fault, None)
            if reason.rule == IGNORED_RULE:
                self._ignored[fault] = reason.says
                while len(self._ignored) > IGNORED_KEPT:
                    del self._ignored[next(iter(self._ignored))]
                if told != reason.says:
                    logger.info(
                        "finding ignored job=%s offset=%d kind=%s cause=%s subject=%s reason=%s",
                        *(self._job, line.offset, finding.kind.value, finding.cause, finding.subject, reason.says),
                    )
                    return
        if reason.rule == FAILED_RULE:
            logger.error("brain failed job=%s offset=%d reason=%s", self._job, line.offset, reason.says)
        elif step.effects or reason.rule == GIVEN_UP:
            logger.info(
                "decided job=%s offset=%d event=%s effects=%s reason=%s",
                *(self._job, line.offset, event, ",".join(type(each).__name__ for each in step.effects)),
                reason.says,
            )
        else:
            logger.debug("applied job=%s offset=%d event=%s reason=%s", self._job, line.offset, event, reason.says)
