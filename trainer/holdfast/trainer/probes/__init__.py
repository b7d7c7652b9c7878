"""Probes of a model: each answers with a figure, a verdict, where in the model, and what to change.

A script calls them by itself, or `holdfast audit SCRIPT` runs them on a small batch before the job starts
(docs/model-probes.md).
"""

from holdfast.api.audit import Audit, Probe, ProbeAnswer, Soundness
from holdfast.trainer.probes.agreement import agreement
from holdfast.trainer.probes.causality import causality
from holdfast.trainer.probes.determinism import another_world_size, same_step_twice
from holdfast.trainer.probes.reduction import reduction, reduction_of
from holdfast.trainer.probes.routing import RoutingWatch
from holdfast.trainer.probes.scaling import LossScaleWatch, ScalingWatch
from holdfast.trainer.probes.subject import Subject, Watch

__all__ = [
    "Subject",
    "causality",
    "reduction",
    "reduction_of",
    "same_step_twice",
    "another_world_size",
    "agreement",
    "ScalingWatch",
    "LossScaleWatch",
    "RoutingWatch",
    "Watch",
    "ProbeAnswer",
    "Audit",
    "Probe",
    "Soundness",
]
