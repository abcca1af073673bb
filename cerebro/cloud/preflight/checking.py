"""All checks, in the order in which they are worth reading. Reads only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from cerebro.cloud.aws import AwsError
from cerebro.cloud.names import CONTROL_GROUP
from cerebro.cloud.planning import conflicts, known_zones
from cerebro.cloud.preflight.account import check_credentials, check_kubernetes, check_region
from cerebro.cloud.preflight.finding import Finding, Verdict, fail, ok, unknown
from cerebro.cloud.preflight.machines import check_machines, choose_zones, look_up
from cerebro.cloud.preflight.quotas import check_quotas
from cerebro.cloud.preflight.tools import check_tools
from cerebro.cloud.site import Site
from cerebro.cloud.world import World

_OF_THE_MACHINE = ("eksctl", "kubectl", "helm", "aws", "credentials")


@dataclass(kw_only=True)
class Preflight:
    """What the checks have found."""

    findings: list[Finding] = field(default_factory=list)
    zones: tuple[str, ...] = ()
    """Availability zones, the one of the nodes first."""
    world: World = field(default_factory=World)
    """As observed; empty if AWS could not be asked."""

    @property
    def has_account(self) -> bool:
        """Whether AWS was asked; if not, nothing is known of what exists."""
        return any(
            finding.name == "credentials" and finding.verdict is Verdict.OK for finding in self.findings
        )

    @property
    def mistakes(self) -> list[Finding]:
        """What failed because of the file, not because of the machine the command runs on."""
        return [finding for finding in self.failed if finding.name not in _OF_THE_MACHINE]

    @property
    def failed(self) -> list[Finding]:
        """What has to be mended before anything is made."""
        return [finding for finding in self.findings if finding.verdict is Verdict.FAIL]


def check(site: Site, chart_problem: str | None) -> Preflight:
    """Check everything; what depends on AWS is left out where its answer to who we are is no.

    Args:
        site: of the cluster.
        chart_problem: why the platform's chart cannot be used, if so.
    """
    file = site.file
    found = Preflight(zones=tuple(file.zones or (f"{file.region}a", f"{file.region}b")))
    found.findings += check_tools(site.runner, file.kubernetes)
    if chart_problem is not None:
        found.findings.append(fail("install.chart.path", chart_problem))
    found.findings.append(check_region(site.aws, file))
    found.findings.append(check_credentials(site.aws))
    if found.findings[-1].verdict is not Verdict.OK or found.findings[-2].verdict is Verdict.FAIL:
        skipped = "not looked up: instance types, zones, Kubernetes version, quotas, what exists already"
        found.findings.append(unknown("AWS", skipped))
        return found
    try:
        found.world = site.observe()
        _check_account(site, found)
    except AwsError as problem:
        found.findings.append(fail("AWS", str(problem), "the user or role needs rights to look this up"))
    return found


def _check_account(site: Site, found: Preflight) -> None:
    file, aws, world = site.file, site.aws, found.world
    found.findings += check_kubernetes(aws, file) if world.cluster is None else ()
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
    clashes = conflicts(file, world)
    for clash in clashes:
        name, _, message = clash.partition(": ")
        found.findings.append(fail(name, message))
    if world.cluster is not None and not clashes:
        found.findings.append(
            ok("cluster", f"{file.name} exists ({world.cluster.status}); what is missing is made")
        )
