"""Whether the account may have as much as the file asks for: AWS's service quotas.

EC2 counts vCPUs per class of instance families, on demand and spot apart. Codes are those of the Service Quotas
console; a class without a code here is not checked, and the finding says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.preflight.finding import Finding, fail, ok, unknown


@dataclass(frozen=True, kw_only=True)
class _Class:
    name: str
    families: str
    """Pattern of the letters before the generation."""
    on_demand: str
    spot: str


_CLASSES = (
    _Class(name="Inf", families="inf", on_demand="L-1945791B", spot="L-B5D1601B"),
    _Class(name="Trn", families="trn", on_demand="L-2C3B7624", spot="L-6B0D517C"),
    _Class(name="DL", families="dl", on_demand="L-6E869C2A", spot="L-85EED4F7"),
    _Class(name="G and VT", families="g|gr|vt", on_demand="L-DB2E81BA", spot="L-3819A6DF"),
    _Class(name="P", families="p", on_demand="L-417A185B", spot="L-7212CCBC"),
    _Class(name="F", families="f", on_demand="L-74FC7D96", spot="L-88CF9481"),
    _Class(name="X", families="x", on_demand="L-7295265B", spot="L-E3A00192"),
    _Class(
        name="Standard (A, C, D, H, I, M, R, T, Z)",
        families="a|c|d|h|i|is|im|m|r|t|z",
        on_demand="L-1216C47A",
        spot="L-34B43A08",
    ),
)

_VPCS = ("vpc", "L-F678F1CE")
_ADDRESSES = ("ec2", "L-0263D0A3")
_ASK = "ask for more: https://console.aws.amazon.com/servicequotas/home/services/{service}/quotas/{code}"

Need = Mapping[tuple[str, bool], int]
"""Instances by (instance type, spot)."""


def class_of(instance_type: str) -> str | None:
    """The name of the class that AWS counts an instance type in; None: not one of those checked here."""
    found = _class(instance_type)
    return None if found is None else found.name


def check_quotas(aws: Aws, needed: Need, vcpus: Mapping[str, int], *, has_network: bool) -> Iterator[Finding]:
    """Findings on vCPUs, and for a cluster without a network yet on VPCs and addresses.

    Args:
        aws: asked for quotas and for what is used already.
        needed: instances that are still to be started.
        vcpus: of each instance type.
        has_network: whether the cluster has its VPC already.
    """
    wanted: Counter[tuple[str, bool]] = Counter()
    for (kind, spot), count in needed.items():
        name = class_of(kind)
        if name is None:
            yield unknown("quota", f"no quota is known for {kind}; see the Service Quotas console")
        else:
            wanted[name, spot] += count * vcpus.get(kind, 0)
    used = _used_vcpus(aws, vcpus) if wanted else Counter()
    for (name, spot), count in sorted(wanted.items()):
        one = next(each for each in _CLASSES if each.name == name)
        market, code = ("spot", one.spot) if spot else ("on demand", one.on_demand)
        yield _finding(aws, ("ec2", code), f"vCPUs {name}, {market}", count, used[name, spot])
    if not has_network:
        try:
            vpcs = sum(1 for _ in aws.pages("ec2", "describe_vpcs", "Vpcs"))
            addresses = len(aws.look("ec2", "describe_addresses")["Addresses"])
        except AwsError as problem:
            yield unknown("quota", str(problem))
            return
        yield _finding(aws, _VPCS, "VPCs", 1, vpcs)
        yield _finding(aws, _ADDRESSES, "elastic addresses", 1, addresses)


def _finding(aws: Aws, quota: tuple[str, str], what: str, needed: int, used: int) -> Finding:
    service, code = quota
    try:
        allowed = float(_value(aws, service, code))
    except AwsError as problem:
        return unknown(f"quota {what}", f"cannot be looked up ({problem}); {needed:g} are needed")
    message = f"{needed} needed, {used} used of {allowed:g}"
    if needed + used <= allowed:
        return ok(f"quota {what}", message)
    return fail(f"quota {what}", message, _ASK.format(service=service, code=code))


def _value(aws: Aws, service: str, code: str) -> float:
    try:
        found = aws.look("service-quotas", "get_service_quota", ServiceCode=service, QuotaCode=code)
    except AwsError as problem:
        if not problem.is_absence:
            raise
        # An account that never asked for more has only AWS's default.
        found = aws.look(
            "service-quotas", "get_aws_default_service_quota", ServiceCode=service, QuotaCode=code
        )
    return float(found["Quota"]["Value"])


def _used_vcpus(aws: Aws, known: Mapping[str, int]) -> Counter[tuple[str, bool]]:
    used: Counter[tuple[str, bool]] = Counter()
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    for reservation in aws.pages("ec2", "describe_instances", "Reservations", Filters=alive):
        for instance in reservation["Instances"]:
            name = class_of(instance["InstanceType"])
            if name is not None:
                options = instance.get("CpuOptions") or {}
                count = options.get("CoreCount", 0) * options.get("ThreadsPerCore", 1)
                is_spot = instance.get("InstanceLifecycle") == "spot"
                used[name, is_spot] += count or known.get(instance["InstanceType"], 0)
    return used


def _class(instance_type: str) -> _Class | None:
    letters = re.match(r"[a-z]+", instance_type)
    if letters is None:
        return None
    return next((each for each in _CLASSES if re.fullmatch(each.families, letters[0])), None)
