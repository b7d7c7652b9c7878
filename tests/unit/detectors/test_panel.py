"""All detectors of one job."""

from collections import Counter

from signals import broke, exited, policy, started

from holdfast.api.finding import FindingKind
from holdfast.api.policy import Policy
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.batches import BatchDetector
from holdfast.watchdog.detectors.collective_failed import CollectiveFailedDetector
from holdfast.watchdog.detectors.condition import ConditionDetector
from holdfast.watchdog.detectors.detector import Detector, Disconnected
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


def on(policy: Policy) -> tuple[Detector, ...]:
    detectors = detectors_for(policy)
    for detector in detectors:
        detector.observe(started(1), 0.0)
    return detectors


def test_there_is_one_detector_of_each_class() -> None:
    assert Counter(type(each) for each in detectors_for(policy())) == Counter(
        (
            PreemptionDetector,
            GpuFaultDetector,
            ConditionDetector,
            NodeConditionDetector,
            ThermalDetector,
            ReplicaVoteDetector,
            NonFiniteDetector,
            DivergenceDetector,
            StragglerDetector,
            DeviceVoteDetector,
            MemberLostDetector,
            EarlyExitDetector,
            OwnProcessesDetector,
            ProcessExitDetector,
            HangDetector,
            LateStartDetector,
            CollectiveFailedDetector,
            BatchDetector,
            WorkloadDetector,
        )
    )


def test_a_killed_worker_whose_peers_collectives_fail_is_one_finding() -> None:
    detectors = on(policy())
    samples = [(broke(0), 1.0), (exited(3, signal=9), 1.01), (broke(1), 1.02), (broke(2), 1.03)]
    found = [finding for sample, at in samples for each in detectors for finding in each.observe(sample, at)]
    found += [finding for each in detectors for finding in each.elapse(2.5)]
    assert [finding.kind for finding in found] == [FindingKind.PROCESS_EXIT]


def test_a_lost_node_whose_peers_collectives_fail_is_one_finding() -> None:
    detectors = on(policy(lost_after_s=60.0))
    samples = [(broke(0), 1.0), (Disconnected("m1"), 1.01), (broke(1), 1.02)]
    found = [finding for sample, at in samples for each in detectors for finding in each.observe(sample, at)]
    found += [finding for each in detectors for finding in each.elapse(2.5)]
    assert [finding.kind for finding in found] == [FindingKind.MEMBER_LOST]
