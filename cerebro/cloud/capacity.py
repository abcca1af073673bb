"""Instance types, availability zones and quotas: has AWS what the file asks for, and may one have it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import data

_LEAST_CONTROL_MIB = 7 * 1024
"""Pods of the control plane, of drivers and of the name service ask for about 4 GiB; TensorBoard grows."""
_ASK = "ask for more: https://console.aws.amazon.com/servicequotas/home/services/{service}/quotas/{code}"


class Verdict(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"  # works, but not as one may expect
    UNKNOWN = "?"  # could not be looked up
    FAIL = "FAIL"  # nothing is made


@dataclass(frozen=True)
class Finding:
    """The result of one check: what was looked at, what is so, and what to do about it."""

    verdict: Verdict
    name: str
    message: str
    mend: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What EC2 says of an instance type."""

    vcpus: int
    memory_mib: int
    gpus: int = 0
    """NVIDIA's."""
    gpu_name: str = ""
    architectures: tuple[str, ...] = ("x86_64",)


def look_up(aws: Aws, types: Sequence[str]) -> dict[str, Machine]:
    """The types that exist in the region; the others are not in the answer.

    Raises:
        AwsError: refused, or no answer.
    """
    filters = [{"Name": "instance-type", "Values": list(types)}]
    found: dict[str, Machine] = {}
    for each in aws.find("ec2", "describe_instance_types", "InstanceTypes[]", Filters=filters):
        cards = [card for card in each.get("GpuInfo", {}).get("Gpus", []) if card["Manufacturer"] == "NVIDIA"]
        found[each["InstanceType"]] = Machine(
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
        machine, of_gpus = machines.get(kind), field.replace("instance_type", "gpus")
        if machine is None:
            where = "https://aws.amazon.com/ec2/instance-types/"
            yield Finding(Verdict.FAIL, field, f"{kind} does not exist in {file.region}", where)
        elif "x86_64" not in machine.architectures:
            message = f"{kind} is {'/'.join(machine.architectures)}, the images are built for x86_64"
            yield Finding(Verdict.FAIL, field, message)
        elif gpus > machine.gpus:
            has = f"has {machine.gpus} NVIDIA GPUs" if machine.gpus else "has no NVIDIA GPU"
            yield Finding(Verdict.FAIL, of_gpus, f"{gpus} asked for, {kind} {has}")
        elif machine.gpus > gpus and gpus:
            message = f"{gpus} of the {machine.gpus} GPUs of {kind} are used, all are paid for"
            yield Finding(Verdict.WARN, of_gpus, message)
        elif machine.gpus > gpus:
            mend = f"write `gpus: {machine.gpus}`" if field.startswith("workers") else "take a type without"
            yield Finding(Verdict.WARN, field, f"{kind} has {machine.gpus} GPUs, none is used", mend)
        elif field.startswith("controller") and machine.memory_mib < _LEAST_CONTROL_MIB:
            message = f"{kind} has {machine.memory_mib / 1024:.1f} GiB of memory, the control plane needs 8"
            yield Finding(Verdict.FAIL, field, message, "take m6i.large or larger")
        else:
            cards = f", {machine.gpus} x {machine.gpu_name}" if machine.gpus else ""
            message = f"{kind}: {machine.vcpus} vCPUs, {machine.memory_mib / 1024:g} GiB{cards}"
            yield Finding(Verdict.OK, field, message)


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
        message = f"cannot be looked up ({problem}); {', '.join(zones)} taken"
        return zones, Finding(Verdict.UNKNOWN, "zones", message)
    suited, all_zones = sorted(set.intersection(*offered.values())), ", ".join(sorted(usable))
    if known:
        outside = ", ".join(zone for zone in known if zone not in usable)
        lacking = ", ".join(kind for kind, zones in offered.items() if known[0] not in zones)
        finding = Finding(Verdict.OK, "zones", f"nodes in {known[0]}")
        if outside:
            message = f"{outside} cannot hold a control plane of EKS"
            finding = Finding(Verdict.FAIL, "zones", message, f"EKS can be in {all_zones}")
        elif lacking:
            mend = (
                f"these zones offer all types: {', '.join(suited)}" if suited else "take other instance types"
            )
            finding = Finding(Verdict.FAIL, "zones", f"{known[0]} does not offer {lacking}", mend)
        return tuple(known), finding
    if not suited or len(usable) < 2:
        places = {kind: ", ".join(sorted(zones)) or "nowhere" for kind, zones in offered.items()}
        where = "; ".join(f"{kind}: {place}" for kind, place in places.items())
        message = f"no zone of {file.region} offers all instance types ({where})"
        return (), Finding(Verdict.FAIL, "zones", message, "take other types")
    first, second = suited[0], min(usable - {suited[0]})
    message = f"nodes in {first}, control plane in {first} and {second}"
    return (first, second), Finding(Verdict.OK, "zones", message)


def _usable_zones(aws: Aws) -> set[str]:
    """Zones that a control plane can be in: no local zones, none where EKS is not."""
    without = data("checks.yaml")["zones_without_eks"]
    return {
        zone["ZoneName"]
        for zone in aws.find("ec2", "describe_availability_zones", "AvailabilityZones[?State == 'available']")
        if zone.get("ZoneType", "availability-zone") == "availability-zone" and zone["ZoneId"] not in without
    }


def _offers(aws: Aws, types: Sequence[str]) -> dict[str, set[str]]:
    filters = [{"Name": "instance-type", "Values": list(types)}]
    expression, where = "InstanceTypeOfferings[].[InstanceType, Location]", "availability-zone"
    offered: dict[str, set[str]] = {kind: set() for kind in types}
    for kind, zone in aws.find(
        "ec2", "describe_instance_type_offerings", expression, LocationType=where, Filters=filters
    ):
        offered[kind].add(zone)
    return offered


def class_of(instance_type: str) -> str | None:
    """The name of the class that AWS counts an instance type in; None: not one of those checked here."""
    letters = re.match(r"[a-z]*", instance_type)
    classes = data("checks.yaml")["quotas"].items()
    return next(
        (name for name, each in classes if letters and re.fullmatch(each["families"], letters[0])), None
    )


def check_quotas(
    aws: Aws, needed: Mapping[tuple[str, bool], int], vcpus: Mapping[str, int], *, has_network: bool
) -> Iterator[Finding]:
    """Findings on vCPUs, and for a cluster without a network yet on VPCs and addresses.

    Args:
        aws: asked for quotas and for what is used already.
        needed: instances that are still to be started, by (instance type, spot).
        vcpus: of each instance type.
        has_network: whether the cluster has its VPC already.
    """
    codes, wanted = data("checks.yaml"), Counter[tuple[str, bool]]()
    for (kind, spot), count in needed.items():
        name = class_of(kind)
        if name is None:
            message = f"no quota is known for {kind}; see the Service Quotas console"
            yield Finding(Verdict.UNKNOWN, "quota", message)
        else:
            wanted[name, spot] += count * vcpus.get(kind, 0)
    used = _used_vcpus(aws, vcpus) if wanted else Counter()
    for (name, spot), count in sorted(wanted.items()):
        market, code = ("spot", "spot") if spot else ("on demand", "on_demand")
        quota = ("ec2", codes["quotas"][name][code])
        yield _quota(aws, quota, f"vCPUs {name}, {market}", count, used[name, spot])
    if not has_network:
        vpcs = len(aws.find("ec2", "describe_vpcs", "Vpcs[].VpcId"))
        yield _quota(aws, ("vpc", codes["VPCs"]), "VPCs", 1, vpcs)
        addresses = len(aws.find("ec2", "describe_addresses", "Addresses"))
        yield _quota(aws, ("ec2", codes["addresses"]), "elastic addresses", 1, addresses)


def _quota(aws: Aws, quota: tuple[str, str], what: str, needed: int, used: int) -> Finding:
    service, code = quota
    asked = {"ServiceCode": service, "QuotaCode": code}
    try:
        try:
            found = aws.look("service-quotas", "get_service_quota", **asked)
        except AwsError as problem:
            if not problem.is_absence:
                raise
            # An account that never asked for more has only AWS's default.
            found = aws.look("service-quotas", "get_aws_default_service_quota", **asked)
    except AwsError as problem:
        message = f"cannot be looked up ({problem}); {needed} are needed"
        return Finding(Verdict.UNKNOWN, f"quota {what}", message)
    allowed = float(found["Quota"]["Value"])
    message = f"{needed} needed, {used} used of {allowed:g}"
    if needed + used <= allowed:
        return Finding(Verdict.OK, f"quota {what}", message)
    return Finding(Verdict.FAIL, f"quota {what}", message, _ASK.format(service=service, code=code))


def _used_vcpus(aws: Aws, known: Mapping[str, int]) -> Counter[tuple[str, bool]]:
    used: Counter[tuple[str, bool]] = Counter()
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for instance in aws.find("ec2", "describe_instances", "Reservations[].Instances[]", Filters=alive):
        kind, options = instance["InstanceType"], instance.get("CpuOptions") or {}
        count = options.get("CoreCount", 0) * options.get("ThreadsPerCore", 1) or known.get(kind, 0)
        if name := class_of(kind):
            used[name, instance.get("InstanceLifecycle") == "spot"] += count
    return used
