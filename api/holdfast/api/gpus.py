"""How many GPUs a job's trainer gets, and so how many workers run on a node where nobody says it.

GPUs are asked for by the name of a resource, or by a claim (dynamic resource allocation). Only the trainer's
container counts: the GPU of a sidecar that watches them runs no worker. What a claim holds is known in its cluster
alone; what cannot be known at all is `Uncounted`, and never taken for one.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

TRAINER: Final = "trainer"
"""The container that runs the launcher is the one of this name, else the first."""

# Resources of which one is one device that a process can have, as regular expressions for the whole name.
# Sources: https://github.com/NVIDIA/k8s-device-plugin, with MIG
# https://docs.nvidia.com/datacenter/cloud-native/kubernetes/latest/index.html, and replicas (".shared");
# https://github.com/ROCm/k8s-device-plugin (with partitions, such as cpx_nps4);
# https://github.com/intel/intel-device-plugins-for-kubernetes/blob/main/cmd/gpu_plugin/README.md;
# https://docs.habana.ai/en/latest/Installation_Guide/Additional_Installation/Kubernetes_Installation/
NAMED: Final = re.compile(
    r"nvidia\.com/(gpu|mig-[0-9]+g\.[0-9]+gb[a-z0-9.+-]*)(\.shared)?"
    r"|amd\.com/(gpu|[a-z]+_nps[0-9])"
    r"|gpu\.intel\.com/(i915|xe)"
    r"|habana\.ai/gaudi"
)
# Names with a GPU in them that are no device: they let a container watch all of them, or are a share of one.
NO_DEVICE: Final = re.compile(r"gpu\.intel\.com/((i915|xe)_monitoring|millicores|memory\.max|tiles)")
LOOKS_LIKE: Final = re.compile(r"gpu|gaudi|nvidia\.com/mig-", re.IGNORECASE)

# A resource by which devices of a class are asked for without a claim.
# Source: https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/#extended-resource
BY_CLASS: Final = "deviceclass.resource.kubernetes.io/"
# Drivers of devices, as classes select them, and the classes that come with them: True where a device is a GPU.
# Sources: https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, https://github.com/ROCm/k8s-gpu-dra-driver,
# https://github.com/intel/intel-resource-drivers-for-kubernetes,
# https://github.com/kubernetes-sigs/dra-example-driver, https://github.com/kubernetes-sigs/dranet
DRIVERS: Final[Mapping[str, bool]] = {
    "gpu.nvidia.com": True,
    "gpu.amd.com": True,
    "gpu.intel.com": True,
    "gaudi.intel.com": True,
    "gpu.example.com": True,
    "compute-domain.nvidia.com": False,
    "dra.net": False,
}
CLASSES: Final[Mapping[str, bool]] = {
    "gpu.nvidia.com": True,
    "mig.nvidia.com": True,
    "gpu.amd.com": True,
    "gpu.intel.com": True,
    "gaudi.intel.com": True,
    "gpu.example.com": True,
    "compute-domain-default-channel.nvidia.com": False,
    "compute-domain-daemon.nvidia.com": False,
}
EXACT_COUNT: Final = ("", "ExactCount")
_DRIVER = re.compile(r"device\.driver\s*==\s*['\"]([^'\"]+)['\"]")
_WHOLE = re.compile(r"[0-9]{1,9}")
_COUNT_MAX: Final = 10**9


class _Shape(msgspec.Struct, frozen=True, rename="camel"):
    """Base of what is read here, of a pod template and of the objects that it names."""


class _ClaimUse(_Shape, frozen=True):
    name: str = ""
    request: str = ""


class _Resources(_Shape, frozen=True):
    limits: dict[str, int | float | str | None] | None = None  # null is a quantity of none
    claims: tuple[_ClaimUse, ...] | None = None


class _Container(_Shape, frozen=True):
    name: str = ""
    resources: _Resources | None = None


class _PodClaim(_Shape, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class _Spec(_Shape, frozen=True):
    containers: tuple[_Container, ...] = ()
    resource_claims: tuple[_PodClaim, ...] | None = None


class _Template(_Shape, frozen=True):
    spec: _Spec


class DeviceRequest(_Shape, frozen=True):
    """So many devices of a class."""

    device_class_name: str = ""
    allocation_mode: str = ""
    count: int = 1
    admin_access: bool | None = None


class NamedRequest(_Shape, frozen=True):
    """A request of a claim: what it wants, or what it would take, the best first."""

    name: str = ""
    exactly: DeviceRequest | None = None
    first_available: tuple[DeviceRequest, ...] = ()


class Devices(_Shape, frozen=True):
    requests: tuple[NamedRequest, ...] = ()


class Claim(_Shape, frozen=True):
    """The spec of a ResourceClaim, as far as it is read."""

    devices: Devices = Devices()


class _Expression(_Shape, frozen=True):
    expression: str = ""


class _Selector(_Shape, frozen=True):
    cel: _Expression | None = None


class DeviceClass(_Shape, frozen=True):
    """The spec of a DeviceClass, as far as it is read."""

    selectors: tuple[_Selector, ...] = ()
    extended_resource_name: str = ""

    def is_gpu(self) -> bool | None:
        """Whether its devices are GPUs by the drivers that it selects; None where that does not tell."""
        text = "\n".join(each.cel.expression for each in self.selectors if each.cel is not None)
        found = {DRIVERS.get(driver) for driver in _DRIVER.findall(text)}
        return next(iter(found)) if len(found) == 1 else None


@dataclass(frozen=True, slots=True, order=True)
class ClaimRef:
    """An object that a pod's claim names: a ResourceClaimTemplate, or a ResourceClaim that is there already."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Uncounted:
    """`why` the number of GPUs is not known, in words that follow a colon.

    `perhaps_none`: nor is it known whether they are GPUs at all.
    """

    why: str
    perhaps_none: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a cluster says of claims, None for one that is not there, and of its device classes, by name."""

    claims: Mapping[ClaimRef, Claim | None] = field(default_factory=dict)
    classes: Mapping[str, DeviceClass] = field(default_factory=dict)


def gpus_of(template: object, cluster: Cluster | None = None) -> int | Uncounted:
    """GPUs of the trainer's container, 0 where it asks for none, or where nothing of the template can be read.

    Without a `cluster` what a claim holds is not known. Who asks for GPUs by a known name gets them by that alone:
    what else it asks for, such as network devices by a claim, or a share of a GPU's memory, are none.
    """
    named, counts = _counts(template, cluster)
    unknown = next(
        (each for each in counts if isinstance(each, Uncounted) and not (named and each.perhaps_none)), None
    )
    return unknown or sum(each for each in counts if isinstance(each, int))


def most_gpus_of(template: object) -> int | None:
    """More the trainer's container certainly does not get; None where nothing says, or it asks for none."""
    _, counts = _counts(template, None)
    numbers = [each for each in counts if isinstance(each, int)]
    return sum(numbers) or None if len(numbers) == len(counts) else None


def _counts(template: object, cluster: Cluster | None) -> tuple[bool, list[int | Uncounted]]:
    """What is asked for, one by one, and whether there are GPUs by a known name."""
    if (read := _read(template)) is None:
        return False, []
    spec, trainer = read
    named = list(_by_name(trainer, cluster))
    return any(isinstance(each, int) and each for each in named), [*named, *_by_claim(spec, trainer, cluster)]


def asks_cluster(template: object) -> tuple[frozenset[ClaimRef], bool]:
    """What has to be read of a cluster to count: objects of claims, and whether the device classes."""
    if (read := _read(template)) is None:
        return frozenset(), False
    spec, trainer = read
    refs = frozenset(ref for _, _, ref in _uses(spec, trainer) if isinstance(ref, ClaimRef))
    limits = (trainer.resources.limits if trainer.resources is not None else None) or {}
    odd = any("/" in name and not NAMED.fullmatch(name) and not NO_DEVICE.fullmatch(name) for name in limits)
    return refs, bool(refs) or odd


def _read(template: object) -> tuple[_Spec, _Container] | None:
    try:
        spec = msgspec.convert(template, _Template).spec
    except (msgspec.ValidationError, RecursionError, OverflowError):
        return None  # whoever reads the template says what is wrong with it
    named = next((each for each in spec.containers if each.name == TRAINER), None)
    trainer = named or next(iter(spec.containers), None)
    return None if trainer is None else (spec, trainer)


def _by_name(trainer: _Container, cluster: Cluster | None) -> Iterator[int | Uncounted]:
    limits = (trainer.resources.limits if trainer.resources is not None else None) or {}
    extended = {each.extended_resource_name: name for name, each in (cluster or Cluster()).classes.items()}
    extended.pop("", None)
    for name, value in limits.items():
        if "/" not in name or NO_DEVICE.fullmatch(name):
            continue
        class_ = name.removeprefix(BY_CLASS) if name.startswith(BY_CLASS) else extended.get(name)
        is_gpu: bool | None = NAMED.fullmatch(name) is not None
        if not is_gpu and class_ is not None:
            is_gpu = _is_gpu(class_, cluster)
        elif not is_gpu and LOOKS_LIKE.search(name):
            is_gpu = None
        if is_gpu is None:
            yield Uncounted(f"whether one {name} is one GPU is not known here", perhaps_none=True)
        elif is_gpu and not _WHOLE.fullmatch(text := str(value or 0)):
            yield Uncounted(f"{text[:20]} of {name} is no whole number")
        elif is_gpu:
            yield int(value or 0)


def _uses(spec: _Spec, trainer: _Container) -> Iterator[tuple[str, str, ClaimRef | Uncounted]]:
    """Which claim the container uses, which request of it (empty: all of them), and what the pod says of it."""
    there = {each.name: each for each in spec.resource_claims or ()}
    for use in (trainer.resources.claims if trainer.resources is not None else None) or ():
        claim = there.get(use.name)
        if claim is not None and claim.resource_claim_template_name:
            ref: ClaimRef | Uncounted = ClaimRef("ResourceClaimTemplate", claim.resource_claim_template_name)
        elif claim is not None and claim.resource_claim_name:
            ref = ClaimRef("ResourceClaim", claim.resource_claim_name)
        else:
            why = f"spec.template.spec.resourceClaims names no object for the claim {use.name}"
            ref = Uncounted(why, perhaps_none=True)
        yield use.name, use.request, ref


def _by_claim(spec: _Spec, trainer: _Container, cluster: Cluster | None) -> Iterator[int | Uncounted]:
    """Of each request that is used, once, however often it is named."""
    counted: set[tuple[str, str]] = set()
    for use, wanted, ref in _uses(spec, trainer):
        if isinstance(ref, Uncounted):
            yield ref
            continue
        if cluster is None:
            yield Uncounted(f"what {ref.kind} {ref.name} holds is known in its cluster alone", perhaps_none=True)
            continue
        claim = cluster.claims.get(ref)
        if claim is None:
            yield Uncounted(f"there is no {ref.kind} {ref.name} in the job's namespace", perhaps_none=True)
            continue
        requests = [each for each in claim.devices.requests if wanted in ("", each.name)]
        if not requests:
            yield Uncounted(f"{ref.kind} {ref.name} has no request {wanted or 'at all'}", perhaps_none=True)
        for request in requests:
            if (use, request.name) not in counted:
                counted.add((use, request.name))
                yield _devices(request, f"request {request.name} of {ref.kind} {ref.name}", cluster)


def _devices(request: NamedRequest, where: str, cluster: Cluster) -> int | Uncounted:
    """GPUs of one request, whichever of its alternatives is taken."""
    found: set[int] = set()
    for wish in (request.exactly,) if request.exactly is not None else request.first_available:
        is_gpu = _is_gpu(wish.device_class_name, cluster)
        if is_gpu is False:
            found.add(0)
        elif is_gpu is None:
            why = f"whether {where} is for GPUs is not known: its class is {wish.device_class_name}"
            return Uncounted(why, perhaps_none=True)
        elif wish.allocation_mode not in EXACT_COUNT:
            return Uncounted(f"{where} has the allocationMode {wish.allocation_mode}: a node's devices decide")
        elif wish.admin_access:
            return Uncounted(f"{where} has adminAccess, which is for watching what others use")
        elif not 0 < wish.count < _COUNT_MAX:
            return Uncounted(f"{where} has the count {wish.count}")
        else:
            found.add(wish.count)
    if len(found) == 1:
        return found.pop()
    many = ", ".join(map(str, sorted(found)))
    return Uncounted(f"{where} takes what is first available: {many} GPUs" if found else f"{where} wants nothing")


def _is_gpu(name: str, cluster: Cluster | None) -> bool | None:
    """Whether devices of that class are GPUs, None where nobody knows."""
    if name in CLASSES:
        return CLASSES[name]
    known = cluster.classes.get(name) if cluster is not None else None
    return known.is_gpu() if known is not None else None
