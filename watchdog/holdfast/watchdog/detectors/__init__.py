"""One file per fault class; all pure."""

from holdfast.watchdog.detectors.panel import detectors_for

__all__ = ["detectors_for"]
