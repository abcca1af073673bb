"""Actions of ``cerebro cluster``: create, delete, pause, resume, status. Each is one function that takes a `Site`.

No plan is stored. Each command reads the cluster's state and runs the steps, and each step makes what is missing. So a
command can be interrupted or fail at any point, and the next one continues. A dry run runs the same steps and shows
their commands.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from cerebro.cloud.names import CONTROL_GROUP, MONITORING, MONITORING_NAMESPACE, NAMESPACE, PLATFORM
from cerebro.cloud.preflight import OF_THE_MACHINE, Verdict, check, check_credentials
from cerebro.cloud.site import Site
from cerebro.cloud.steps import creation, make_node_groups, removal, scale
from cerebro.cloud.world import World, conflicts, known_zones
from cerebro.errors import ProvisionError


def create(site: Site) -> None:
    """Create the missing parts of the cluster; change nothing if a check fails.

    Raises:
        ProvisionError: a check or a step failed. The message has a remedy.
    """
    site.show(f"Checking what {site.file.name} in {site.file.region} needs ...")
    findings, world = check(site)
    for finding in findings:
        site.show(f"  {finding.verdict:<4}  {finding.name}: {finding.message}")
        if finding.remedy and finding.verdict is not Verdict.OK:
            site.show(f"        -> {finding.remedy}")
    failed = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    if failed and not site.is_dry:
        raise ProvisionError(
            f"{len(failed)} checks failed (FAIL above). Nothing was created or changed: fix them first"
        )
    world = _take_steps(site, world)
    mistakes = [finding for finding in failed if finding.name not in OF_THE_MACHINE]
    if site.is_dry and mistakes:
        raise ProvisionError(f"{len(mistakes)} checks failed: without --dry-run nothing would be created")
    if not site.is_dry:
        _show_access(site, world)


def _take_steps(site: Site, world: World) -> World:
    steps, num_taken, runner = creation(site), 0, site.runner
    for number, (name, take) in enumerate(steps.items(), 1):
        num_before, runner.heading = runner.num_changes, f"[{number}/{len(steps)}] {name}"
        try:
            world = site.settled(world)
            take(site, world)
            if runner.num_changes > num_before:
                num_taken += 1
                world = site.observe()
        except ProvisionError as problem:
            raise ProvisionError(
                f"step `{name}` failed: {problem}\n"
                f"  The log: {site.folder / 'cluster.log'}; infra/eksctl/README.md names known causes.\n"
                "  When it is fixed, give the same command again: it continues with this step. `cerebro cluster "
                "delete` removes all parts."
            ) from problem
    if site.is_dry:
        site.show(
            f"{num_taken} of {len(steps)} steps would be taken. This was a dry run: nothing was changed."
        )
    return world


def _show_access(site: Site, world: World) -> None:
    """Show how to reach the cluster, and that it is billed."""
    for name in sorted(set(world.groups) - set(site.file.counts)):
        removal = f"--cluster {site.file.name} --region {site.file.region} --name {name}"
        site.show(f"Node group {name} is not in the file; it stays, and is billed. To remove it:")
        site.show(f"  eksctl delete nodegroup {removal}")
    site.show(f"{site.file.name} runs.")
    site.show(f"  kubectl and helm            export KUBECONFIG={site.kubeconfig}")
    site.show(f"  token, page and JupyterLab  helm get notes {PLATFORM} -n {NAMESPACE}")
    if site.file.install.monitoring:
        grafana = f"kubectl -n {MONITORING_NAMESPACE} port-forward service/{MONITORING}-grafana 3000:80"
        site.show(f"  Grafana                     {grafana}     then http://localhost:3000")
    site.show("It is billed while it runs: `cerebro cluster pause` ends the nodes, `delete` everything.")


def pause(site: Site) -> None:
    """Scale all node groups to zero. Data and addresses stay, runs continue after `resume`.

    Raises:
        ProvisionError: the cluster does not exist, or EKS refuses.
    """
    world = site.settled(_observe_existing(site))
    # Workers first, so that they return their tasks while store and controller run.
    scale(site, world, {name: 0 for name in sorted(world.groups) if name != CONTROL_GROUP})
    scale(site, world, {CONTROL_GROUP: 0})
    site.show(
        f"{site.file.name} is paused: its nodes end within minutes. EKS's control plane, the NAT gateway, disks and "
        "the file system are still billed. `cerebro cluster resume` starts the nodes again."
    )


def resume(site: Site) -> None:
    """Scale all node groups to the file's sizes, and wait for the nodes.

    Raises:
        ProvisionError: the cluster does not exist, its groups differ from the file, or AWS has no capacity.
    """
    world = _observe_existing(site)
    if clashes := conflicts(site.file, world):
        raise ProvisionError("\n".join(clashes))
    site.zones = known_zones(site.file, world)
    make_node_groups(site, site.settled(world))
    if site.has_kubeconfig(world):
        site.change("kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=15m")
    site.show(f"{site.file.name} has its nodes again; its pods start: kubectl -n {NAMESPACE} get pods")


def _observe_existing(site: Site) -> World:
    world = site.observe()
    if world.cluster is None:
        raise ProvisionError(
            f"the cluster {site.file.name} does not exist: create it with `cerebro cluster create`"
        )
    return world


def status_lines(site: Site) -> Iterator[str]:
    """Yield the cluster's resources, their state, and which are billed. Reads only.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    file, world = site.file, site.observe(with_resources=True)
    cluster = world.cluster
    if cluster is None and not world.resources and not world.stacks:
        yield f"No resource of {file.name} exists in {file.region}."
        return
    yield f"{file.name} in {file.region}"
    paused = ", paused" if world.is_paused else ""
    about = "none" if cluster is None else f"{cluster.status}, Kubernetes {cluster.version}{paused}"
    yield f"  control plane    {about}"
    states = sorted(world.addons.items())
    yield from (f"  addon            {name}: {status}" for name, status in states if status != "ACTIVE")
    broken = sorted(stack for stack in world.stacks if not world.is_stack_ready(stack))
    yield from (f"  stack            {stack}: {world.stacks[stack]}" for stack in broken)
    releases = site.query_cluster(world, "helm", "list", "-A", "--all")
    if releases is None:
        yield "  inside           unknown (no kubeconfig here, or no answer)"
    yield from (f"  release          {each['name']}: {each['status']}" for each in releases or ())
    for name, group in sorted(world.groups.items()):
        kind = "/".join(group.instance_types) + (" spot" if group.market == "SPOT" else "")
        note = "" if name in file.counts else "  (not in the file)"
        yield f"  nodes {name:<16} {group.desired} of {file.counts.get(name, 0)}  {kind}  {group.status}{note}"
        yield from (f"      {problem}" for problem in group.problems)
    yield "  differences from the file: see `cerebro cluster create --dry-run`"
    yield "Billed:"
    by_kind: dict[str, list[str]] = defaultdict(list)
    for resource in world.resources:
        by_kind[resource.kind].append(f"{resource.id} {resource.about}".strip())
    yield from (f"  {kind} x {len(each)}: {', '.join(each)}" for kind, each in sorted(by_kind.items()))


def delete(site: Site, confirm: Callable[[str], bool]) -> None:
    """Remove the cluster and all resources with its name, and check that they are gone.

    A part that cannot be removed does not stop the others. The message names the remaining parts and the commands that
    remove them. Safe to repeat, also after a partial creation or deletion.

    Args:
        confirm: receives a summary of the deletion and returns True to continue.

    Raises:
        ProvisionError: a part remains, or AWS does not answer. The message has a remedy.
    """
    account, remaining_in = check_credentials(site.aws), f"{site.file.name} in {site.file.region}"
    if account.verdict is not Verdict.OK:
        raise ProvisionError(f"{account.name}: {account.message}\n  {account.remedy}")
    world, runner = site.observe(with_resources=True), site.runner
    if world.cluster is None and not world.stacks and not world.resources:
        site.show(f"No resource of {remaining_in} exists.")
        return
    if world.is_foreign:
        raise ProvisionError(f"{conflicts(site.file, world)[0]}. Nothing was removed")
    if not site.is_dry and not confirm(_summary(site, world)):
        site.show("Nothing was removed.")
        return
    problems: dict[str, ProvisionError] = {}
    for name, remove in removal().items():
        num_before, runner.heading = runner.num_changes, f"Removing: {name}"
        try:
            remove(site, world)
        except ProvisionError as problem:
            site.show(f"  {name}: {problem}")
            problems[name] = problem
        if runner.num_changes > num_before and not site.is_dry:
            world = site.observe(with_resources=True)  # A removed resource may have blocked others.
    if site.is_dry:
        site.show("This was a dry run: nothing was removed.")
        return
    _check_removed(site, world, problems)
    site.kubeconfig.unlink(missing_ok=True)
    site.show(f"Checked again: no billed resource of {remaining_in}.")


def _summary(site: Site, world: World) -> str:
    kinds = Counter(resource.kind for resource in world.resources)
    kinds["CloudFormation stack"] = len(world.stacks)
    found = "".join(f"\n  {count} x {kind}" for kind, count in sorted((+kinds).items()))
    return (
        f"{site.file.name} in {site.file.region}, to be removed:{found}\n"
        "With it go all its data: checkpoints, metrics, shards, notebooks, the log of all experiments."
    )


def _check_removed(site: Site, world: World, problems: dict[str, ProvisionError]) -> None:
    remaining = [f"{each.kind} {each.id} ({each.about}): {each.remove}" for each in world.resources]
    delete_stack = f"aws cloudformation delete-stack --region {site.file.region} --stack-name"
    remaining += [f"stack {name} ({status}): {delete_stack} {name}" for name, status in world.stacks.items()]
    if remaining:
        why = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
        raise ProvisionError(
            "these resources remain and may be billed; give the same command again, or remove them by hand:"
            + "".join(f"\n  {line}" for line in remaining)
            + (f"\nErrors:{why}" if why else "")
            + f"\nThe log: {site.folder / 'cluster.log'}"
        )
