"""One file per fault class; all pure. `detectors_for` makes those of one job."""

from holdfast.api.policy import Policy
from holdfast.watchdog.detectors.batches import BatchDetector
from holdfast.watchdog.detectors.collective_failed import CollectiveFailedDetector
from holdfast.watchdog.detectors.condition import ConditionDetector
from holdfast.watchdog.detectors.detector import Detector
from holdfast.watchdog.detectors.device_vote import DeviceVoteDetector
from holdfast.watchdog.detectors.divergence import DivergenceDetector
from holdfast.watchdog.detectors.gpu_fault import GpuFaultDetector
from holdfast.watchdog.detectors.hang import HangDetector
from holdfast.watchdog.detectors.late_start import LateStartDetector
from holdfast.watchdog.detectors.member_lost import MemberLostDetector
from holdfast.watchdog.detectors.node_condition import NodeConditionDetector
from holdfast.watchdog.detectors.non_finite import NonFiniteDetector
from holdfast.watchdog.detectors.preemption import PreemptionDetector
from holdfast.watchdog.detectors.process_exit import ProcessExitDetector
from holdfast.watchdog.detectors.replica_vote import ReplicaVoteDetector
from holdfast.watchdog.detectors.straggler import StragglerDetector
from holdfast.watchdog.detectors.thermal import ThermalDetector
from holdfast.watchdog.detectors.user_code import EarlyExitDetector, OwnProcessesDetector
from holdfast.watchdog.detectors.workload import WorkloadDetector


def detectors_for(policy: Policy) -> tuple[Detector, ...]:
    """One of each, fresh. What explains more comes first: of two findings on one sample it is heard first."""
    return (
        PreemptionDetector(),
        GpuFaultDetector(policy),
        ConditionDetector(policy),
        NodeConditionDetector(policy),
        ThermalDetector(policy),
        ReplicaVoteDetector(policy),
        NonFiniteDetector(policy),
        DivergenceDetector(policy),
        StragglerDetector(policy),
        DeviceVoteDetector(policy),
        MemberLostDetector(policy),
        EarlyExitDetector(policy),
        OwnProcessesDetector(policy),
        ProcessExitDetector(policy),
        HangDetector(policy),
        LateStartDetector(policy),
        CollectiveFailedDetector(policy),
        BatchDetector(policy),
        WorkloadDetector(policy),
    )
