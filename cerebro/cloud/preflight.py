"""Checks before ``cerebro cluster create``, all reported at once: mistakes that would cost an hour or money.

`actions.create` runs them and creates nothing if one fails. They read AWS and the versions of tools, and choose the
zones; nothing is changed. Mistakes that eksctl or AWS refuses within a minute are not checked.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cerebro.cloud.aws import Aws, AwsError
from cerebro.cloud.clusterfile import ClusterFile, WorkerGroup
from cerebro.cloud.manifests import data
from cerebro.cloud.runner import Runner
from cerebro.cloud.site import Site
from cerebro.cloud.world import World, conflicts, known_zones

_SIGN_IN = "sign in: `aws configure` (keys) or `aws sso login`, or set AWS_PROFILE; look at the network"
OF_THE_MACHINE = ("eksctl", "kubectl", "helm", "aws", "credentials")
"""Checks that are independent of the file."""
_LEAST_CONTROL_MIB = 7 * 1024
"""Pods of control plane, drivers and name service request about 4 GiB; TensorBoard grows."""
_RAISE_QUOTA = "ask for more: https://console.aws.amazon.com/servicequotas/home/services/ec2/quotas/"
MACHINES = """InstanceTypes[].{
    name: InstanceType, vcpus: VCpuInfo.DefaultVCpus, memory_mib: MemoryInfo.SizeInMiB,
    gpus: sum(GpuInfo.Gpus[?Manufacturer == 'NVIDIA'].Count || `[0]`),
    architectures: ProcessorInfo.SupportedArchitectures
}"""
"""Fields of EC2's instance types; GPUs are NVIDIA's, which CUDA needs."""
_ZONES = """AvailabilityZones[?State == 'available' && ZoneType != 'local-zone' && ZoneType != 'wavelength-zone']
    .[ZoneName, ZoneId]"""


class Verdict(StrEnum):
    """Result of a check."""

    OK = "ok"
    WARN = "warn"  # Works, with a risk.
    UNKNOWN = "?"  # Could not be read.
    FAIL = "FAIL"  # Nothing is created.


@dataclass(frozen=True)
class Finding:
    """Result of one check, with a remedy."""

    verdict: Verdict
    name: str
    message: str
    remedy: str = ""


def check(site: Site) -> tuple[list[Finding], World]:
    """Run all checks; return findings and the cluster's state, and set the zones of the site.

    Without valid credentials, checks on AWS are skipped; a dry run then assumes that no resource exists.
    """
    file = site.file
    site.zones = tuple(file.zones or (f"{file.region}a", f"{file.region}b"))
    region, account = _check_region(site.aws, file), check_credentials(site.aws)
    findings, world = [*_check_tools(site.runner), region, account], World(name=file.name)
    if site.chart_problem:
        findings.append(Finding(Verdict.FAIL, "install.chart.path", site.chart_problem))
    if Verdict.FAIL in (region.verdict, account.verdict):
        site.is_offline = site.is_dry
        skipped = "not checked: instance types, zones, versions, quotas; no resource is assumed to exist"
        return [*findings, Finding(Verdict.UNKNOWN, "AWS", skipped)], world
    try:
        world = site.observe()
        findings += _check_account(site, world)
    except AwsError as problem:
        remedy = "give the user or role the rights to read this"
        findings.append(Finding(Verdict.FAIL, "AWS", str(problem), remedy))
    return findings, world


def _check_account(site: Site, world: World) -> Iterator[Finding]:
    file, aws = site.file, site.aws
    if world.cluster is None:
        yield _check_kubernetes(aws, file)
    filters = [{"Name": "instance-type", "Values": file.instance_types}]
    known = aws.find("ec2", "describe_instance_types", MACHINES, Filters=filters)
    machines = {each["name"]: each for each in known}
    yield from check_machines(file, machines)
    if set(machines) == set(file.instance_types):
        yield _choose_zones(site, known_zones(file, world))
        vcpus: Counter[tuple[str | None, bool]] = Counter()
        for group in file.nodes.values():
            running = world.groups[group.name].desired if group.name in world.groups else 0
            started = max(0, group.count - running)
            # The worst case: each node is the largest of its class. Fallbacks of another class are rare.
            alike = [kind for kind in group.types if class_of(kind) == class_of(group.instance_type)]
            largest = max(machines[kind]["vcpus"] for kind in alike)
            vcpus[class_of(group.instance_type), group.spot] += started * largest
        yield from _check_quotas(aws, +vcpus)
    clashes = [clash.partition(": ") for clash in conflicts(file, world)]
    yield from (Finding(Verdict.FAIL, name, message) for name, _, message in clashes)
    if world.cluster is not None and not clashes:
        message = f"{file.name} exists ({world.cluster.status}); missing parts are created"
        yield Finding(Verdict.OK, "cluster", message)


def _check_tools(runner: Runner) -> Iterator[Finding]:
    for name, tool in data("checks.yaml")["tools"].items():
        answer = runner.read(name, *tool["asked"])
        version, wanted = parse_version(answer.stdout or answer.stderr), ".".join(map(str, tool["oldest"]))
        text = ".".join(map(str, version))
        if runner.find(name) is None:
            yield Finding(Verdict.FAIL, name, "is not on PATH", f"install it: {tool['install']}")
        elif answer.returncode != 0 or not version:
            yield Finding(Verdict.UNKNOWN, name, f"does not print its version; {wanted} or newer is needed")
        elif version < tuple(tool["oldest"]):
            message = f"{text} is too old: {wanted} or newer ({tool['because']})"
            yield Finding(Verdict.FAIL, name, message, tool["install"])
        else:
            yield Finding(Verdict.OK, name, text)


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first version number in a text, or an empty tuple."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return () if found is None else tuple(int(part) for part in found.groups(default="0"))


def _check_region(aws: Aws, file: ClusterFile) -> Finding:
    """Check the region; AWS is not asked, so only regions known to botocore pass."""
    known = aws.regions_known_offline()
    if file.region in known:
        return Finding(Verdict.OK, "region", file.region)
    close = difflib.get_close_matches(file.region, known, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return Finding(Verdict.FAIL, "region", f"boto3 knows no region {file.region} with EKS", remedy)


def check_credentials(aws: Aws) -> Finding:
    """Check the credentials and name their owner."""
    try:
        caller = aws.read("sts", "get_caller_identity")
    except AwsError as problem:
        return Finding(
            Verdict.FAIL, "credentials", f"AWS refuses them, or there are none ({problem})", _SIGN_IN
        )
    return Finding(Verdict.OK, "credentials", f"account {caller['Account']}, {caller['Arn']}")


def _check_kubernetes(aws: Aws, file: ClusterFile) -> Finding:
    """Check the version, which eksctl knows only up to its own; warn of additional costs."""
    expression = "clusterVersions[].[clusterVersion, versionStatus || status]"
    found = aws.find("eks", "describe_cluster_versions", expression, includeAll=True)
    offered = {version: state.upper() for version, state in found if state.upper() != "UNSUPPORTED"}
    if file.kubernetes not in offered:
        there = f"there are {', '.join(sorted(offered))}"
        return Finding(Verdict.FAIL, "kubernetes", f"EKS does not offer {file.kubernetes}", there)
    if offered[file.kubernetes].startswith("EXTENDED"):
        message = f"{file.kubernetes} is in extended support, which costs six times as much per hour"
        return Finding(Verdict.WARN, "kubernetes", message)
    return Finding(Verdict.OK, "kubernetes", file.kubernetes)


def check_machines(file: ClusterFile, machines: Mapping[str, Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield a finding for each instance type, by its field.

    Args:
        machines: instance type -> its description, as of `MACHINES`.
    """
    for part, group in file.nodes.items():
        for index, kind in enumerate(group.types):
            name = f"{part}.fallbacks[{index - 1}]" if index else f"{part}.instance_type"
            machine, first = machines.get(kind), machines.get(group.instance_type)
            if machine is None:
                yield Finding(Verdict.FAIL, name, f"{kind} does not exist in {file.region}")
            elif index and first is not None and (smaller := _smaller(machine, first)):
                message = f"{kind} has {smaller} than {group.instance_type}: what workers ask for must fit there, too"
                yield _check_machine(part, name, kind, group, machine) or Finding(Verdict.WARN, name, message)
            else:
                yield _check_machine(part, name, kind, group, machine) or _is_fit(name, kind, group, machine)


def _check_machine(
    part: str, name: str, kind: str, group: WorkerGroup, machine: Mapping[str, Any]
) -> Finding | None:
    """Return the problem of an instance type, or `None`."""
    num_gpus = int(machine["gpus"])
    if "x86_64" not in machine["architectures"]:
        message = f"{kind} is {'/'.join(machine['architectures'])}, the images are built for x86_64"
        return Finding(Verdict.FAIL, name, message)
    if part == "controller" and machine["memory_mib"] < _LEAST_CONTROL_MIB:
        message = f"{kind} has {_memory(machine)} of memory, the control plane needs 8"
        return Finding(Verdict.FAIL, name, message, "take m6i.large or larger")
    if group.gpus > num_gpus:
        return Finding(
            Verdict.FAIL, f"{part}.gpus", f"{group.gpus} asked for, {kind} has {num_gpus} of NVIDIA"
        )
    if group.gpus < num_gpus:
        message = f"{group.gpus} of the {num_gpus} GPUs of {kind} are used, all are paid for"
        return Finding(Verdict.WARN, f"{part}.gpus", message)
    return None


def _is_fit(name: str, kind: str, group: WorkerGroup, machine: Mapping[str, Any]) -> Finding:
    return Finding(
        Verdict.OK, name, f"{kind}: {machine['vcpus']} vCPUs, {_memory(machine)}, {group.gpus} GPUs"
    )


def _smaller(machine: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """Describe a fallback's smaller resources than the first type's."""
    words = {"vcpus": f"fewer vCPUs ({machine['vcpus']})", "memory_mib": f"less memory ({_memory(machine)})"}
    return " and ".join(text for field, text in words.items() if machine[field] < first[field])


def _memory(machine: Mapping[str, Any]) -> str:
    return f"{machine['memory_mib'] / 1024:g} GiB"


def _choose_zones(site: Site, known: Sequence[str]) -> Finding:
    """Choose the zones: the nodes' is the first decided zone, or a zone that offers all types."""
    types, without = site.file.instance_types, data("checks.yaml")["zones_without_eks"]
    zones = site.aws.find("ec2", "describe_availability_zones", _ZONES)
    usable = {name for name, id_ in zones if id_ not in without}
    request = {"LocationType": "availability-zone", "Filters": [{"Name": "instance-type", "Values": types}]}
    where = "InstanceTypeOfferings[].Location"
    offers = Counter(site.aws.find("ec2", "describe_instance_type_offerings", where, **request))
    suited = sorted(zone for zone in usable if offers[zone] == len(types))
    remedy = f"zones that do: {', '.join(suited) or 'none; take other instance types'}"
    if outside := ", ".join(zone for zone in known if zone not in usable):
        return Finding(Verdict.FAIL, "zones", f"{outside} cannot hold a control plane of EKS", remedy)
    if not suited or (known and known[0] not in suited):
        asker = known[0] if known else f"a single zone of {site.file.region}"
        return Finding(Verdict.FAIL, "zones", f"{asker} does not offer all instance types", remedy)
    site.zones = tuple(known) or (suited[0], min(usable - {suited[0]}))
    message = f"nodes in {site.zones[0]}, control plane in {' and '.join(site.zones)}"
    return Finding(Verdict.OK, "zones", message)


def class_of(instance_type: str) -> str | None:
    """Return AWS's quota class of an instance type, or `None` for a class without a check."""
    letters = re.split(r"\d", instance_type)[0]
    classes = data("checks.yaml")["quotas"].items()
    return next((name for name, each in classes if re.fullmatch(each["families"], letters)), None)


def _check_quotas(aws: Aws, needed: Mapping[tuple[str | None, bool], int]) -> Iterator[Finding]:
    """Check the quotas of vCPUs to start, by (class, is spot): new accounts have none for GPUs."""
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    used: Counter[tuple[str | None, bool]] = Counter()
    for instance in aws.find("ec2", "describe_instances", "Reservations[].Instances[]", Filters=alive):
        cores = {"CoreCount": 0, "ThreadsPerCore": 1, **instance.get("CpuOptions", {})}
        market = (class_of(instance["InstanceType"]), instance.get("InstanceLifecycle") == "spot")
        used[market] += cores["CoreCount"] * cores["ThreadsPerCore"]
    for market, count in sorted(needed.items(), key=str):
        quota = f"quota vCPUs {market[0]}, {'spot' if market[1] else 'on demand'}"
        try:
            code = data("checks.yaml")["quotas"][market[0]]["spot" if market[1] else "on_demand"]
            answer = aws.read("service-quotas", "get_service_quota", ServiceCode="ec2", QuotaCode=code)
        except (AwsError, KeyError) as problem:
            yield Finding(Verdict.UNKNOWN, quota, f"cannot be read ({problem}); {count} are needed")
            continue
        allowed = answer["Quota"]["Value"]
        verdict = Verdict.OK if count + used[market] <= allowed else Verdict.FAIL
        yield Finding(
            verdict, quota, f"{count} needed, {used[market]} used of {allowed:g}", f"{_RAISE_QUOTA}{code}"
        )
