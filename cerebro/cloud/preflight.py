"""Everything that can be found wrong before anything is made. All of it is said at once, not one mistake per try."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from cerebro.cloud.aws import Aws, AwsError, NoCredentialsError
from cerebro.cloud.capacity import Finding, Verdict, check_machines, check_quotas, choose_zones, look_up
from cerebro.cloud.clusterfile import ClusterFile
from cerebro.cloud.manifests import data
from cerebro.cloud.names import CONTROL_GROUP
from cerebro.cloud.runner import Runner
from cerebro.cloud.site import Site
from cerebro.cloud.world import World, conflicts, known_zones

_SIGN_IN = "sign in: `aws configure` (keys) or `aws sso login`, or set AWS_PROFILE"
_OF_THE_MACHINE = ("eksctl", "kubectl", "helm", "aws", "credentials")


@dataclass(kw_only=True)
class Preflight:
    """What the checks have found."""

    world: World
    """As observed; empty if AWS could not be asked."""
    zones: tuple[str, ...]
    """Availability zones, the one of the nodes first."""
    findings: list[Finding] = field(default_factory=list)
    has_account: bool = False
    """Whether AWS was asked; if not, nothing is known of what exists."""

    @property
    def failed(self) -> list[Finding]:
        """What has to be mended before anything is made."""
        return [finding for finding in self.findings if finding.verdict is Verdict.FAIL]

    @property
    def mistakes(self) -> list[Finding]:
        """What failed because of the file, not because of the machine the command runs on."""
        return [finding for finding in self.failed if finding.name not in _OF_THE_MACHINE]


def check(site: Site) -> Preflight:
    """Check everything; what depends on AWS is left out where its answer to who we are is no."""
    file = site.file
    zones = tuple(file.zones or (f"{file.region}a", f"{file.region}b"))
    found = Preflight(world=World(name=file.name), zones=zones)
    found.findings += _check_tools(site.runner, file.kubernetes)
    if site.chart_problem is not None:
        found.findings.append(Finding(Verdict.FAIL, "install.chart.path", site.chart_problem))
    region, account = _check_region(site.aws, file), check_credentials(site.aws)
    found.findings += [region, account]
    found.has_account = account.verdict is Verdict.OK
    if not found.has_account or region.verdict is Verdict.FAIL:
        skipped = "not looked up: instance types, zones, Kubernetes version, quotas, what exists already"
        found.findings.append(Finding(Verdict.UNKNOWN, "AWS", skipped))
        return found
    try:
        found.world = site.observe()
        _check_account(site, found)
    except AwsError as problem:
        mend = "the user or role needs rights to look this up"
        found.findings.append(Finding(Verdict.FAIL, "AWS", str(problem), mend))
    return found


def _check_account(site: Site, found: Preflight) -> None:
    file, aws, world = site.file, site.aws, found.world
    found.findings += _check_kubernetes(aws, file) if world.cluster is None else ()
    machines = look_up(aws, file.instance_types)
    found.findings += check_machines(file, machines)
    if set(machines) == set(file.instance_types):
        found.zones, finding = choose_zones(aws, file, known_zones(file, world))
        found.findings.append(finding)
        needed: Counter[tuple[str, bool]] = Counter()
        wanted = {CONTROL_GROUP: (file.controller.instance_type, False, 1)}
        wanted |= {group.name: (group.instance_type, group.spot, group.count) for group in file.workers}
        for name, (kind, spot, count) in wanted.items():
            running = world.groups[name].desired if name in world.groups else 0
            needed[kind, spot] += max(0, count - running)
        vcpus = {kind: machine.vcpus for kind, machine in machines.items()}
        found.findings += check_quotas(aws, +needed, vcpus, has_network=bool(world.cluster or world.stacks))
    clashes = [clash.partition(": ") for clash in conflicts(file, world)]
    found.findings += [Finding(Verdict.FAIL, name, message) for name, _, message in clashes]
    if world.cluster is not None and not clashes:
        message = f"{file.name} exists ({world.cluster.status}); what is missing is made"
        found.findings.append(Finding(Verdict.OK, "cluster", message))


def check_credentials(aws: Aws) -> Finding:
    """Whether AWS takes the credentials, and whose they are."""
    if not aws.has_credentials:
        return Finding(Verdict.FAIL, "credentials", "there are none for AWS", _SIGN_IN)
    try:
        caller = aws.look("sts", "get_caller_identity")
    except NoCredentialsError as problem:
        return Finding(Verdict.FAIL, "credentials", f"AWS does not take them ({problem})", _SIGN_IN)
    except AwsError as problem:
        mend = "look at the network and AWS_PROFILE"
        return Finding(Verdict.FAIL, "credentials", f"AWS cannot be asked ({problem})", mend)
    return Finding(Verdict.OK, "credentials", f"account {caller['Account']}, {caller['Arn']}")


def _check_region(aws: Aws, file: ClusterFile) -> Finding:
    """Known without asking AWS, except for regions newer than the installed botocore."""
    known = aws.regions_known_offline()
    if file.region in known:
        return Finding(Verdict.OK, "region", file.region)
    close = difflib.get_close_matches(file.region, known, n=1)
    mend = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
    return Finding(Verdict.FAIL, "region", f"{file.region} is no region with EKS that boto3 knows", mend)


def _check_kubernetes(aws: Aws, file: ClusterFile) -> Iterator[Finding]:
    """Whether EKS offers the version, and whether it costs extra."""
    name, expression = "kubernetes", "clusterVersions[].[clusterVersion, versionStatus || status]"
    try:
        found = aws.find("eks", "describe_cluster_versions", expression, includeAll=True)
    except AwsError as problem:
        yield Finding(Verdict.UNKNOWN, name, f"versions cannot be looked up ({problem})")
        return
    offered = {version: str(state).upper() for version, state in found if str(state).upper() != "UNSUPPORTED"}
    usable = sorted(offered, key=parse_version)
    if file.kubernetes not in offered:
        mend = f"there are {', '.join(usable)}"
        yield Finding(Verdict.FAIL, name, f"EKS does not offer {file.kubernetes}", mend)
    elif offered[file.kubernetes] == "EXTENDED_SUPPORT":
        message = f"{file.kubernetes} is in extended support, which costs six times as much per hour"
        yield Finding(Verdict.WARN, name, message, f"newest: {usable[-1]}")
    else:
        yield Finding(Verdict.OK, name, file.kubernetes)


def _check_tools(runner: Runner, kubernetes: str) -> Iterator[Finding]:
    for name, tool in data("checks.yaml")["tools"].items():
        if runner.find(name) is None:
            yield Finding(Verdict.FAIL, name, "is not on PATH", f"install it: {tool['install']}")
            continue
        answer = runner.look(name, *tool["asked"])
        version = parse_version(answer.output or answer.errors)
        text = ".".join(map(str, version))
        if answer.status != 0 or not version:
            said = (answer.errors or answer.output).strip().splitlines()[-1:] or ["no output"]
            yield Finding(Verdict.UNKNOWN, name, f"does not tell its version: {said[0]}")
        elif version < tuple(tool["oldest"]):
            wanted = ".".join(map(str, tool["oldest"]))
            verdict = Verdict.WARN if name == "aws" else Verdict.FAIL
            message = f"{text} is too old: {wanted} or newer ({tool['because']})"
            yield Finding(verdict, name, message, tool["install"])
        elif name == "kubectl" and abs(version[1] - parse_version(kubernetes)[1]) > 1:
            message = f"{text} is more than one minor version from the cluster's {kubernetes}"
            yield Finding(Verdict.WARN, name, message)
        else:
            yield Finding(Verdict.OK, name, text)


def parse_version(text: str) -> tuple[int, ...]:
    """The first version number in what a tool says of itself; empty if there is none."""
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return () if found is None else tuple(int(part) for part in found.groups(default="0"))
