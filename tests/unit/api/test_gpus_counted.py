"""How many GPUs a job's trainer gets: by names of resources, and by claims."""

from typing import Any

import msgspec
import pytest

from holdfast.api.errors import InvalidSpec
from holdfast.api.gpus import Claim, ClaimRef, Cluster, DeviceClass, Uncounted, asks_cluster, gpus_of
from holdfast.api.trainingjob import read_trainingjob


def container(name: str = "trainer", limits: dict[str, Any] | None = None, *claims: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"limits": limits or {}, "claims": list(claims)}}


def template(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"spec": {"containers": list(containers), **spec}}


@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"nvidia.com/gpu": 8}, 8),
        ({"nvidia.com/gpu": "4", "cpu": "96", "memory": "1Ti", "hugepages-2Mi": "8Gi"}, 4),
        ({"nvidia.com/gpu.shared": 2}, 2),
        ({"nvidia.com/mig-1g.10gb": 7}, 7),
        ({"nvidia.com/mig-1g.5gb": 2, "nvidia.com/mig-1g.5gb.me": 1}, 3),
        ({"amd.com/gpu": 8}, 8),
        ({"amd.com/cpx_nps4": 64}, 64),
        ({"gpu.intel.com/i915": 1}, 1),
        ({"gpu.intel.com/xe": "2"}, 2),
        ({"gpu.intel.com/xe": 2, "gpu.intel.com/xe_monitoring": 1, "gpu.intel.com/millicores": 500}, 2),
        ({"habana.ai/gaudi": 8}, 8),
        ({"deviceclass.resource.kubernetes.io/gpu.nvidia.com": 4}, 4),
        ({"nvidia.com/gpu": 8, "rdma/hca_shared_devices_a": 1, "vpc.amazonaws.com/efa": 32}, 8),
        ({"nvidia.com/gpu": 0}, 0),
        ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 40000, "nvidia.com/gpucores": 30}, 2),
        ({"nvidia.com/gpu": 8, "openshift.io/gpu0_rdma": 1}, 8),
        ({"nvidia.com/gpu": 8, "deviceclass.resource.kubernetes.io/nics": 4}, 8),
        ({"nvidia.com/gpu": 8, "cpu": None}, 8),
        ({"nvidia.com/gpu": None}, 0),
        ({"gpu.intel.com/i915_monitoring": 1}, 0),
        ({"rdma/hca": 1}, 0),
        ({"cpu": 4}, 0),
        ({}, 0),
    ],
)
def test_gpus_are_counted_by_the_names_of_all_vendors(limits: dict[str, Any], count: int) -> None:
    assert gpus_of(template(container(limits=limits))) == count


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"example.com/gpu": 8}, "example.com/gpu"),
        ({"nvidia.com/gpumem": 40000}, "nvidia.com/gpumem"),
        ({"nvidia.com/mig-odd": 1}, "nvidia.com/mig-odd"),
        ({"volcano.sh/vgpu-number": 2, "nvidia.com/gpu": 0}, "volcano.sh/vgpu-number"),
        ({"deviceclass.resource.kubernetes.io/h100": 8}, "deviceclass.resource.kubernetes.io/h100"),
        ({"amd.com/gpu": "1k"}, "1k of amd.com/gpu is no whole number"),
        ({"nvidia.com/gpu": 0.5}, "0.5 of nvidia.com/gpu is no whole number"),
    ],
)
def test_what_only_looks_like_a_gpu_is_not_taken_for_one_process(limits: dict[str, Any], says: str) -> None:
    counted = gpus_of(template(container(limits=limits)))
    assert isinstance(counted, Uncounted)
    assert says in counted.why


GPU = {"nvidia.com/gpu": 4}


@pytest.mark.parametrize(
    ("containers", "count"),
    [
        ((container(limits=GPU), container("monitor", {"nvidia.com/gpu": 1})), 4),
        ((container("dcgm", {"nvidia.com/gpu": 1}), container(limits=GPU)), 4),
        ((container("main", GPU), container("monitor", {"nvidia.com/gpu": 1})), 4),
        ((container(), container("monitor", {"nvidia.com/gpu": 1})), 0),
        ((container("main"), container("odd", {"example.com/gpu": 1})), 0),
    ],
)
def test_only_the_trainers_container_counts(containers: tuple[dict[str, Any], ...], count: int) -> None:
    init = [container("warmup", {"nvidia.com/gpu": 1}), container("mesh", {"nvidia.com/gpu": 1})]
    assert gpus_of(template(*containers, initContainers=init)) == count


@pytest.mark.parametrize(
    "odd", [None, {}, {"spec": 3}, {"spec": {"containers": "x"}}, {"spec": {"containers": []}}]
)
def test_a_template_that_is_none_asks_for_no_gpu(odd: Any) -> None:
    assert (gpus_of(odd), asks_cluster(odd)) == (0, (frozenset(), False))


# Claims.

TEMPLATE_REF = ClaimRef("ResourceClaimTemplate", "eight")
CLASSES = {
    "h100": msgspec.convert(
        {"selectors": [{"cel": {"expression": 'device.driver == "gpu.nvidia.com" && has(device.attributes)'}}]},
        DeviceClass,
    ),
    "nic": msgspec.convert({"selectors": [{"cel": {"expression": "device.driver == 'dra.net'"}}]}, DeviceClass),
    "secret": msgspec.convert(
        {"selectors": [{"cel": {"expression": "device.driver == 'x.example'"}}]}, DeviceClass
    ),
    "open": DeviceClass(),
    "named": msgspec.convert(
        {
            "selectors": [{"cel": {"expression": "device.driver == 'gpu.amd.com'"}}],
            "extendedResourceName": "example.com/mi300",
        },
        DeviceClass,
    ),
}


def claim(*requests: dict[str, Any]) -> Claim:
    return msgspec.convert({"devices": {"requests": list(requests)}}, Claim)


def exactly(name: str = "gpus", class_: str = "gpu.nvidia.com", **fields: Any) -> dict[str, Any]:
    return {"name": name, "exactly": {"deviceClassName": class_, **fields}}


def claiming(*uses: dict[str, Any], **pod: Any) -> dict[str, Any]:
    claims = [{"name": "devices", "resourceClaimTemplateName": "eight"}]
    return template(
        container("trainer", None, *(uses or ({"name": "devices"},))), **{"resourceClaims": claims, **pod}
    )


def counted(held: Claim | None, *uses: dict[str, Any], **pod: Any) -> int | str:
    found = gpus_of(claiming(*uses, **pod), Cluster({TEMPLATE_REF: held}, CLASSES))
    return found.why if isinstance(found, Uncounted) else found


@pytest.mark.parametrize(
    ("requests", "count"),
    [
        ([exactly(count=8)], 8),
        ([exactly()], 1),
        ([exactly(allocationMode="ExactCount", count=4)], 4),
        ([exactly(class_="mig.nvidia.com", count=7)], 7),
        ([exactly(class_="gpu.amd.com", count=2), exactly("more", "gpu.intel.com", count=1)], 3),
        ([exactly(class_="h100", count=8)], 8),
        ([exactly(count=8), exactly("nics", "nic", count=4)], 8),
        ([exactly(count=4), exactly("channel", "compute-domain-default-channel.nvidia.com")], 4),
        ([exactly("nics", "nic", allocationMode="All")], 0),
        (
            [
                {
                    "name": "gpus",
                    "firstAvailable": [
                        {"name": "best", "deviceClassName": "h100", "count": 4},
                        {"name": "next", "deviceClassName": "gpu.nvidia.com", "count": 4},
                    ],
                }
            ],
            4,
        ),
    ],
)
def test_devices_of_a_claim_are_counted_where_their_class_is_of_gpus(
    requests: list[dict[str, Any]], count: int
) -> None:
    assert counted(claim(*requests)) == count


@pytest.mark.parametrize(
    ("uses", "count"),
    [
        ([{"name": "devices"}], 9),
        ([{"name": "devices", "request": "big"}], 8),
        ([{"name": "devices", "request": "small"}], 1),
        ([{"name": "devices", "request": "big"}, {"name": "devices", "request": "small"}], 9),
        ([{"name": "devices", "request": "big"}, {"name": "devices"}], 9),
    ],
)
def test_of_a_claim_the_requests_count_that_the_container_uses_each_once(
    uses: list[dict[str, Any]], count: int
) -> None:
    assert counted(claim(exactly("big", count=8), exactly("small")), *uses) == count


def test_claims_that_only_another_container_uses_do_not_count() -> None:
    pod = template(
        container(limits=GPU),
        container("monitor", None, {"name": "devices"}),
        resourceClaims=[{"name": "devices", "resourceClaimTemplateName": "eight"}],
    )
    assert (gpus_of(pod, Cluster()), asks_cluster(pod)[0]) == (4, frozenset())


def test_a_claim_that_is_there_already_is_read_as_itself() -> None:
    pod = claiming(resourceClaims=[{"name": "devices", "resourceClaimName": "mine"}])
    ref = ClaimRef("ResourceClaim", "mine")
    assert asks_cluster(pod) == (frozenset((ref,)), True)
    assert gpus_of(pod, Cluster({ref: claim(exactly(count=2))})) == 2


@pytest.mark.parametrize(
    ("held", "says"),
    [
        (None, "there is no ResourceClaimTemplate eight in the job's namespace"),
        (claim(exactly(allocationMode="All")), "has the allocationMode All"),
        (claim(exactly(allocationMode="Some2031")), "has the allocationMode Some2031"),
        (claim(exactly(adminAccess=True)), "adminAccess"),
        (claim(exactly(class_="secret", count=8)), "its class is secret"),
        (claim(exactly(class_="open", count=8)), "its class is open"),
        (claim(exactly(class_="absent", count=8)), "its class is absent"),
        (claim(exactly(count=-1)), "the count -1"),
        (claim(), "has no request at all"),
        (claim({"name": "empty"}), "wants nothing"),
        (
            claim(
                {
                    "name": "gpus",
                    "firstAvailable": [
                        {"name": "a", "deviceClassName": "h100", "count": 4},
                        {"name": "b", "deviceClassName": "gpu.nvidia.com", "count": 8},
                    ],
                }
            ),
            "takes what is first available: 4, 8 GPUs",
        ),
    ],
)
def test_what_cannot_be_known_of_a_claim_is_said(held: Claim | None, says: str) -> None:
    why = counted(held)
    assert isinstance(why, str)
    assert says in why


def test_a_request_that_the_claim_does_not_have_is_said() -> None:
    assert counted(claim(exactly()), {"name": "devices", "request": "x"}) == (
        "ResourceClaimTemplate eight has no request x"
    )


def test_a_claim_that_the_pod_does_not_name_is_said() -> None:
    assert "resourceClaims names no object" in str(counted(claim(exactly()), {"name": "other"}))


def test_devices_of_a_class_that_has_a_resources_name_are_counted_by_it() -> None:
    pod = template(container(limits={"example.com/mi300": 8}))
    assert asks_cluster(pod) == (frozenset(), True)
    assert gpus_of(pod, Cluster(classes=CLASSES)) == 8
    assert (
        gpus_of(template(container(limits={"deviceclass.resource.kubernetes.io/h100": 4})), Cluster({}, CLASSES))
        == 4
    )
    assert (
        gpus_of(template(container(limits={"deviceclass.resource.kubernetes.io/nic": 4})), Cluster({}, CLASSES))
        == 0
    )


def job(spec: dict[str, Any]) -> dict[str, Any]:
    about = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "gpt"}}
    return {**about, "spec": {"entrypoint": ["train.py"], **spec}}


@pytest.mark.parametrize(
    "odd",
    [claiming(), template(container(limits={"example.com/gpu": 8})), claiming({"name": "other"})],
    ids=["claim", "name", "no object"],
)
def test_without_a_cluster_a_job_has_to_say_what_nobody_counts(odd: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.processesPerNode.* say how many workers a node runs"):
        read_trainingjob(job({"template": odd}))
    assert read_trainingjob(job({"template": odd, "processesPerNode": 8})).spec.local_size() == 8


NETWORK = template(
    container("trainer", {"nvidia.com/gpu": 8}, {"name": "nics"}),
    resourceClaims=[{"name": "nics", "resourceClaimTemplateName": "nics"}],
)


@pytest.mark.parametrize(
    "cluster",
    [
        None,
        Cluster(),
        Cluster({ClaimRef("ResourceClaimTemplate", "nics"): None}),
        Cluster(
            {
                ClaimRef("ResourceClaimTemplate", "nics"): msgspec.convert(
                    {"devices": {"requests": [{"name": "n", "exactly": {"deviceClassName": "sriov"}}]}}, Claim
                )
            }
        ),
    ],
)
def test_gpus_by_a_known_name_count_beside_a_claim_of_which_nobody_knows_what_it_is_for(
    cluster: Cluster | None,
) -> None:
    assert gpus_of(NETWORK, cluster) == 8


def test_gpus_by_name_and_by_claim_are_added_and_a_claim_that_a_node_decides_is_not_counted() -> None:
    ref = ClaimRef("ResourceClaimTemplate", "nics")
    four = {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 4}}
    every = {"name": "g", "exactly": {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"}}
    claims = [msgspec.convert({"devices": {"requests": [each]}}, Claim) for each in (four, every)]
    assert gpus_of(NETWORK, Cluster({ref: claims[0]})) == 12
    assert isinstance(gpus_of(NETWORK, Cluster({ref: claims[1]})), Uncounted)


def test_more_processes_than_gpus_by_name_are_taken_where_a_claim_may_hold_others() -> None:
    document = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "gpt"}}
    spec = {"entrypoint": ["train.py"], "template": NETWORK}
    assert read_trainingjob({**document, "spec": spec}).spec.local_size() == 8
    assert read_trainingjob({**document, "spec": {**spec, "processesPerNode": 12}}).spec.local_size() == 12
