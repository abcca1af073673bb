"""The instance types: do they exist, have they the GPUs asked for, and in which zones are they offered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.preflight.finding import Finding, fail, ok, unknown, warn

_LEAST_CONTROL_MIB = 7 * 1024
"""Pods of the control plane, of drivers and of the name service ask for about 4 GiB; TensorBoard grows."""

_ZONE = "availability-zone"
_WITHOUT_EKS = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Where EKS puts no control plane, by AWS's user guide; letters of zones differ between accounts, these ids do not."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What EC2 says of an instance type."""

    vcpus: int
    memory_mib: int
    gpus: int
    """NVIDIA's."""
    gpu_name: str
    architectures: tuple[str, ...]
    is_bare_metal: bool = False


def look_up(aws: Aws, types: Sequence[str]) -> dict[str, Machine]:
    """The types that exist in the region; the others are not in the answer.

    Raises:
        AwsError: refused, or no answer.
    """
    found: dict[str, Machine] = {}
    for name in types:  # one by one: an unknown type fails the whole call
        try:
            answer = aws.look("ec2", "describe_instance_types", InstanceTypes=[name])["InstanceTypes"]
        except AwsError as problem:
            if problem.code == "InvalidInstanceType" or problem.is_absence:
                continue
            raise
        for each in answer:
            cards = [
                card for card in each.get("GpuInfo", {}).get("Gpus", []) if card["Manufacturer"] == "NVIDIA"
            ]
            found[name] = Machine(
                vcpus=each["VCpuInfo"]["DefaultVCpus"],
                memory_mib=each["MemoryInfo"]["SizeInMiB"],
                gpus=sum(card["Count"] for card in cards),
                gpu_name=cards[0]["Name"] if cards else "",
                architectures=tuple(each.get("ProcessorInfo", {}).get("SupportedArchitectures", ())),
            )
    return found


def check_machines(file: ClusterFile, machines: Mapping[str, Machine]) -> Iterator[Finding]:
    """A finding for each instance type of the file, by the field that names it."""
    fields = {"controller.instance_type": (file.controller.instance_type, 0)}
    for index, group in enumerate(file.workers):
        fields[f"workers[{index}].instance_type"] = (group.instance_type, group.gpus)
    for field, (kind, gpus) in fields.items():
        machine = machines.get(kind)
        if machine is None:
            yield fail(
                field, f"{kind} does not exist in {file.region}", "https://aws.amazon.com/ec2/instance-types/"
            )
        elif "x86_64" not in machine.architectures:
            yield fail(field, f"{kind} is {'/'.join(machine.architectures)}, the images are built for x86_64")
        elif gpus > machine.gpus:
            has = f"has {machine.gpus} NVIDIA GPUs" if machine.gpus else "has no NVIDIA GPU"
            yield fail(field.replace("instance_type", "gpus"), f"{gpus} asked for, {kind} {has}")
        elif machine.gpus > gpus and gpus:
            message = f"{gpus} of the {machine.gpus} GPUs of {kind} are used, all are paid for"
            yield warn(field.replace("instance_type", "gpus"), message)
        elif machine.gpus > gpus:
            mend = f"write `gpus: {machine.gpus}`" if field.startswith("workers") else "take a type without"
            yield warn(field, f"{kind} has {machine.gpus} GPUs, none is used", mend)
        elif field.startswith("controller") and machine.memory_mib < _LEAST_CONTROL_MIB:
            memory = f"{machine.memory_mib / 1024:.1f} GiB of memory"
            yield fail(field, f"{kind} has {memory}, the control plane needs 8", "take m6i.large or larger")
        else:
            cards = f", {machine.gpus} x {machine.gpu_name}" if machine.gpus else ""
            yield ok(field, f"{kind}: {machine.vcpus} vCPUs, {machine.memory_mib / 1024:g} GiB{cards}")


def choose_zones(aws: Aws, file: ClusterFile, known: Sequence[str]) -> tuple[tuple[str, ...], Finding]:
    """Availability zones, the one of the nodes first, and what to say of them.

    Args:
        aws: asked which zones offer which types.
        file: names the types.
        known: zones that are decided already, by an existing cluster or by the file; may be empty.
    """
    try:
        usable = _usable_zones(aws)
        offered = {kind: zones & usable for kind, zones in _offers(aws, file.instance_types).items()}
    except AwsError as problem:
        zones = tuple(known) or (f"{file.region}a", f"{file.region}b")
        return zones, unknown("zones", f"cannot be looked up ({problem}); {', '.join(zones)} taken")
    suited = sorted(set.intersection(*offered.values())) if offered else []
    if known:
        outside = [zone for zone in known if zone not in usable]
        if outside:
            mend = f"EKS can be in {', '.join(sorted(usable))}"
            return tuple(known), fail(
                "zones", f"{', '.join(outside)} cannot hold a control plane of EKS", mend
            )
        lacking = [kind for kind, zones in offered.items() if known[0] not in zones]
        if lacking:
            mend = (
                f"these zones offer all types: {', '.join(suited)}" if suited else "take other instance types"
            )
            return tuple(known), fail("zones", f"{known[0]} does not offer {', '.join(lacking)}", mend)
        return tuple(known), ok("zones", f"nodes in {known[0]}")
    others = sorted(usable)
    if not suited or len(others) < 2:
        where = "; ".join(
            f"{kind}: {', '.join(sorted(zones)) or 'nowhere'}" for kind, zones in offered.items()
        )
        return (), fail(
            "zones", f"no zone of {file.region} offers all instance types ({where})", "take other types"
        )
    second = next(zone for zone in others if zone != suited[0])
    return (suited[0], second), ok(
        "zones", f"nodes in {suited[0]}, control plane in {suited[0]} and {second}"
    )


def _usable_zones(aws: Aws) -> set[str]:
    """Zones that a control plane can be in: no local zones, none where EKS is not."""
    found = aws.look("ec2", "describe_availability_zones")["AvailabilityZones"]
    return {
        zone["ZoneName"]
        for zone in found
        if zone.get("ZoneType", _ZONE) == _ZONE
        and zone["State"] == "available"
        and zone["ZoneId"] not in _WITHOUT_EKS
    }


def _offers(aws: Aws, types: Sequence[str]) -> dict[str, set[str]]:
    filters = [{"Name": "instance-type", "Values": list(types)}]
    offered: dict[str, set[str]] = {kind: set() for kind in types}
    pages = aws.pages(
        "ec2", "describe_instance_type_offerings", "InstanceTypeOfferings",
        LocationType="availability-zone", Filters=filters,
    )  # fmt: skip
    for offer in pages:
        offered.setdefault(offer["InstanceType"], set()).add(offer["Location"])
    return offered
