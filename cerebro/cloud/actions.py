"""What a user may ask for: create, delete, pause, resume, status.

No plan is kept: each command looks at the world, goes through the steps, and each step makes what is missing. So a
command can be interrupted or fail anywhere, and the next one begins where the world is. A dry run goes through the same
steps, and the commands of each are only shown.
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
    """Make what is missing of the cluster; nothing at all if a check fails.

    Raises:
        ProvisionError: a check failed, or a step; the message says which, and what to do.
    """
    site.show(f"Checking what {site.file.name} in {site.file.region} needs ...")
    findings, world = check(site)
    for finding in findings:
        site.show(f"  {finding.verdict:<4}  {finding.name}: {finding.message}")
        if finding.mend and finding.verdict is not Verdict.OK:
            site.show(f"        -> {finding.mend}")
    failed = [finding for finding in findings if finding.verdict is Verdict.FAIL]
    if failed and not site.is_dry:
        raise ProvisionError(f"{len(failed)} checks failed (FAIL above). Nothing has been made or changed")
    world = _take_steps(site, world)
    mistakes = [finding for finding in failed if finding.name not in OF_THE_MACHINE]
    if site.is_dry and mistakes:
        raise ProvisionError(f"{len(mistakes)} checks failed: without --dry-run nothing would be made")
    if not site.is_dry:
        _tell(site, world)


def _take_steps(site: Site, world: World) -> World:
    steps, num_taken, runner = creation(site), 0, site.runner
    for number, (name, take) in enumerate(steps.items(), 1):
        before, runner.heading = runner.num_changes, f"[{number}/{len(steps)}] {name}"
        try:
            world = site.settled(world)
            take(site, world)
            if runner.num_changes > before:
                num_taken += 1
                world = site.observe()
        except ProvisionError as problem:
            raise ProvisionError(
                f"step `{name}` failed: {problem}\n"
                f"  The log: {site.folder / 'cluster.log'}; infra/eksctl/README.md names known causes.\n"
                "  When it is mended, give the same command again: it goes on from this step. `cerebro cluster "
                "delete` removes what there is."
            ) from problem
    if site.is_dry:
        site.show(
            f"{num_taken} of {len(steps)} steps would be taken. This was a dry run: nothing has been changed."
        )
    return world


def _tell(site: Site, world: World) -> None:
    """How to reach the cluster, and what costs."""
    for name in sorted(set(world.groups) - set(site.file.counts)):
        removal = f"--cluster {site.file.name} --region {site.file.region} --name {name}"
        site.show(f"Node group {name} is not in the file; it is kept, and costs. To remove it:")
        site.show(f"  eksctl delete nodegroup {removal}")
    site.show(f"{site.file.name} runs.")
    site.show(f"  kubectl and helm            export KUBECONFIG={site.kubeconfig}")
    site.show(f"  token, page and JupyterLab  helm get notes {PLATFORM} -n {NAMESPACE}")
    if site.file.install.monitoring:
        grafana = f"kubectl -n {MONITORING_NAMESPACE} port-forward service/{MONITORING}-grafana 3000:80"
        site.show(f"  Grafana                     {grafana}     then http://localhost:3000")
    site.show("It costs money while it runs: `cerebro cluster pause` ends the nodes, `delete` all.")


def pause(site: Site) -> None:
    """Scale all node groups to none; data and addresses stay. Runs in flight go on after `resume`; twice is once.

    Raises:
        ProvisionError: there is no cluster, or EKS refuses.
    """
    world = site.settled(_existing(site))
    # Workers first: they hand over while the store and the controller still run.
    scale(site, world, {name: 0 for name in sorted(world.groups) if name != CONTROL_GROUP})
    scale(site, world, {CONTROL_GROUP: 0})
    site.show(
        f"{site.file.name} is paused: its nodes end within minutes. The control plane of EKS, the NAT gateway, disks "
        "and the file system go on costing; `cerebro cluster resume` brings the nodes back."
    )


def resume(site: Site) -> None:
    """Scale all node groups to what the file says, and wait for the nodes.

    Raises:
        ProvisionError: there is no cluster, its groups differ from the file, or there is no capacity.
    """
    world = _existing(site)
    if clashes := conflicts(site.file, world):
        raise ProvisionError("\n".join(clashes))
    site.zones = known_zones(site.file, world)
    make_node_groups(site, site.settled(world))
    if site.has_kubeconfig(world):
        site.change("kubectl", "wait", "--for=condition=Ready", "nodes", "--all", "--timeout=15m")
    site.show(f"{site.file.name} has its nodes again; its pods follow: kubectl -n {NAMESPACE} get pods")


def _existing(site: Site) -> World:
    world = site.observe()
    if world.cluster is None:
        raise ProvisionError(f"there is no cluster {site.file.name}: `cerebro cluster create` makes it")
    return world


def status_lines(site: Site) -> Iterator[str]:
    """What there is, in which state, and what of it costs money; reads only.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    file, world = site.file, site.observe(with_resources=True)
    cluster = world.cluster
    if cluster is None and not world.resources and not world.stacks:
        yield f"There is nothing of {file.name} in {file.region}."
        return
    yield f"{file.name} in {file.region}"
    paused = ", paused" if world.is_paused else ""
    about = "none" if cluster is None else f"{cluster.status}, Kubernetes {cluster.version}{paused}"
    yield f"  control plane    {about}"
    states = sorted(world.addons.items())
    yield from (f"  addon            {name}: {status}" for name, status in states if status != "ACTIVE")
    broken = sorted(stack for stack in world.stacks if not world.is_stack_ready(stack))
    yield from (f"  stack            {stack}: {world.stacks[stack]}" for stack in broken)
    releases = site.inside(world, "helm", "list", "-A", "--all")
    if releases is None:
        yield "  inside           not looked at (no kubeconfig here, or no answer)"
    yield from (f"  release          {each['name']}: {each['status']}" for each in releases or ())
    for name, group in sorted(world.groups.items()):
        kind = "/".join(group.instance_types) + (" spot" if group.market == "SPOT" else "")
        note = "" if name in file.counts else "  (not in the file)"
        yield f"  nodes {name:<16} {group.desired} of {file.counts.get(name, 0)}  {kind}  {group.status}{note}"
        yield from (f"      {problem}" for problem in group.problems)
    yield "  what is not as in the file: `cerebro cluster create --dry-run` shows it"
    yield "What costs money:"
    by_kind: dict[str, list[str]] = defaultdict(list)
    for resource in world.resources:
        by_kind[resource.kind].append(f"{resource.id} {resource.about}".strip())
    yield from (f"  {kind} x {len(each)}: {', '.join(each)}" for kind, each in sorted(by_kind.items()))


def delete(site: Site, confirm: Callable[[str], bool]) -> None:
    """Remove the cluster and everything that bears its name, and prove that it has gone.

    A part that cannot be removed does not keep the others: what is left at the end is named, with the command that
    removes it. Safe to give again, after a half-made creation as after a half-made deletion. `confirm` is given what
    will be removed, and says whether to go on.

    Raises:
        ProvisionError: something is left, or AWS cannot be asked; the message says what to do.
    """
    account, where = check_credentials(site.aws), f"{site.file.name} is left in {site.file.region}"
    if account.verdict is not Verdict.OK:
        raise ProvisionError(f"{account.name}: {account.message}\n  {account.mend}")
    world, runner = site.observe(with_resources=True), site.runner
    if world.cluster is None and not world.stacks and not world.resources:
        site.show(f"Nothing of {where}.")
        return
    if world.is_foreign:
        raise ProvisionError(f"{conflicts(site.file, world)[0]}. Nothing has been removed")
    if not site.is_dry and not confirm(_summary(site, world)):
        site.show("Nothing has been removed.")
        return
    problems: dict[str, ProvisionError] = {}
    for name, remove in removal().items():
        before, runner.heading = runner.num_changes, f"Removing: {name}"
        try:
            remove(site, world)
        except ProvisionError as problem:
            site.show(f"  {name}: {problem}")
            problems[name] = problem
        if runner.num_changes > before and not site.is_dry:
            world = site.observe(with_resources=True)  # what one removes, others may have held
    if site.is_dry:
        site.show("This was a dry run: nothing has been removed.")
        return
    _prove(site, world, problems)
    site.kubeconfig.unlink(missing_ok=True)
    site.show(f"Looked again: nothing of {where} that costs money.")


def _summary(site: Site, world: World) -> str:
    kinds = Counter(resource.kind for resource in world.resources)
    kinds["CloudFormation stack"] = len(world.stacks)
    found = "".join(f"\n  {count} x {kind}" for kind, count in sorted((+kinds).items()))
    return (
        f"{site.file.name} in {site.file.region}, to be removed:{found}\n"
        "With it go all its data: checkpoints, metrics, shards, notebooks, the log of all experiments."
    )


def _prove(site: Site, world: World, problems: dict[str, ProvisionError]) -> None:
    left = [f"{each.kind} {each.id} ({each.about}): {each.remove}" for each in world.resources]
    delete_stack = f"aws cloudformation delete-stack --region {site.file.region} --stack-name"
    left += [f"stack {name} ({status}): {delete_stack} {name}" for name, status in world.stacks.items()]
    if left:
        why = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
        raise ProvisionError(
            "this is left, and may cost money; give the same command again, or remove it by hand:"
            + "".join(f"\n  {line}" for line in left)
            + (f"\nWhat went wrong:{why}" if why else "")
            + f"\nThe log: {site.folder / 'cluster.log'}"
        )
