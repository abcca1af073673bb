"""What a user may ask for: create, delete, pause, resume, status.

No plan is kept: each command looks at the world, goes through the steps, and takes those that are needed, looking
again after each. So a command can be interrupted or fail anywhere, and the next one begins where the world is. A dry
run goes through the same steps with hands that only show.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from cerebro.cloud.capacity import Verdict
from cerebro.cloud.manifests import releases
from cerebro.cloud.names import (
    CONTROL_GROUP,
    MONITORING,
    MONITORING_NAMESPACE,
    NAMESPACE,
    PLATFORM,
    cluster_stack,
)
from cerebro.cloud.preflight import check, check_credentials
from cerebro.cloud.removing import removal
from cerebro.cloud.site import Site, Step
from cerebro.cloud.steps import creation, make_node_groups, scale, write_kubeconfig
from cerebro.cloud.world import (
    Cluster,
    FileSystem,
    Kube,
    Release,
    World,
    conflicts,
    known_zones,
    surplus_groups,
)
from cerebro.errors import ProvisionError


def create(site: Site) -> None:
    """Make what is missing of the cluster; nothing at all if a check fails.

    Raises:
        ProvisionError: a check failed, or a step; the message says which, and what to do.
    """
    site.show(f"Checking what {site.file.name} in {site.file.region} needs ...")
    found = check(site)
    for finding in found.findings:
        site.show(f"  {finding.verdict:<4}  {finding.name}: {finding.message}")
        if finding.mend and finding.verdict is not Verdict.OK:
            site.show(f"        -> {finding.mend}")
    site.zones = found.zones
    site.aws.is_offline = site.is_dry and not found.has_account
    if site.aws.is_offline:
        site.show("Without an answer from AWS, nothing is taken to exist yet.")
    if found.failed and not site.is_dry:
        raise ProvisionError(
            f"{len(found.failed)} of {len(found.findings)} checks failed (FAIL above). Nothing has been made or changed"
        )
    world = _take_steps(site, found.world)
    if site.is_dry and found.mistakes:
        raise ProvisionError(f"{len(found.mistakes)} checks failed: without --dry-run nothing would be made")
    if not site.is_dry:
        _tell(site, world)


def _take_steps(site: Site, world: World) -> World:
    steps, num_taken = creation(site.file, site.chart), 0
    is_new = site.is_dry and world.cluster is None
    for number, step in enumerate(steps, 1):
        if not step.is_needed(world) or (is_new and step.comes_with_cluster):
            continue
        num_taken += 1
        site.show(f"[{number}/{len(steps)}] {step.name}")
        try:
            world = site.settled(world)
            if step.is_needed(world):
                step.take(site, world)
                world = world if site.is_dry else site.observe()
        except ProvisionError as problem:
            raise ProvisionError(
                f"step `{step.name}` failed: {problem}\n"
                f"  The log: {site.folder / 'cluster.log'}; infra/eksctl/README.md names known causes.\n"
                "  When it is mended, give the same command again: it goes on from this step. `cerebro cluster "
                "delete` removes what there is."
            ) from problem
        except KeyboardInterrupt:
            site.show(
                f"Interrupted in step `{step.name}`. What AWS has begun goes on there; give the same command again "
                "to go on from here, or `cerebro cluster delete` to remove it."
            )
            raise
    left = [step.name for step in steps if step.is_needed(world)]
    if site.is_dry:
        counted = f"{num_taken} of {len(steps)} steps would be taken"
        site.show(f"{counted}. This was a dry run: nothing has been made or changed.")
    elif left:
        raise ProvisionError(f"not as in the file after all: {', '.join(left)}; give the same command again")
    return world


def _tell(site: Site, world: World) -> None:
    """How to reach the cluster, and what costs."""
    for name in surplus_groups(site.file, world):
        site.show(f"Node group {name} is not in the file; it is kept, and costs. To remove it:")
        site.show(f"  eksctl delete nodegroup {' '.join(site.place)} --name {name}")
    forward = f"kubectl -n {NAMESPACE} port-forward service/{PLATFORM}"
    secret = f"kubectl -n {NAMESPACE} get secret {PLATFORM}-auth -o jsonpath='{{.data.token}}' | base64 -d"
    lines = [
        f"{site.file.name} runs.",
        f"  kubectl and helm   export KUBECONFIG={site.kubeconfig}",
        f"  token              {secret}",
        f"  web page           {forward}-dispatcher 7080:80     then http://localhost:7080",
        f"  JupyterLab         {forward}-notebook 8888:80       then http://localhost:8888",
        *(f"  from outside       http://{host} ({name})" for name, host in _addresses(site)),
    ]
    if site.file.install.monitoring:
        grafana = f"kubectl -n {MONITORING_NAMESPACE} port-forward service/{MONITORING}-grafana 3000:80"
        lines.append(f"  Grafana            {grafana}     then http://localhost:3000")
    lines.append(
        "It costs money while it runs: `cerebro cluster pause` ends the nodes, `cerebro cluster delete` all."
    )
    for line in lines:
        site.show(line)


def _addresses(site: Site) -> Iterator[tuple[str, str]]:
    asked = ("--kubeconfig", str(site.kubeconfig), "--request-timeout=15s", "-n", NAMESPACE)
    answer = site.runner.look("kubectl", *asked, "get", "services,ingresses", "-o", "json")
    for item in json.loads(answer.output).get("items", []) if answer.status == 0 else ():
        for entry in item.get("status", {}).get("loadBalancer", {}).get("ingress") or ():
            yield item["metadata"]["name"], entry.get("hostname") or entry.get("ip", "")


def pause(site: Site) -> None:
    """Scale all node groups to none; data and addresses stay. Runs in flight go on after `resume`; twice is once.

    Raises:
        ProvisionError: there is no cluster, or EKS refuses.
    """
    world = _existing(site)
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
    if world.has_kubeconfig:
        site.kubectl("wait", "--for=condition=Ready", "nodes", "--all", "--timeout=15m")
    site.show(f"{site.file.name} has its nodes again; its pods follow: kubectl -n cerebro get pods")


def _existing(site: Site) -> World:
    world = site.observe()
    if world.cluster is None:
        where = f"{site.file.name} in {site.file.region}"
        raise ProvisionError(f"there is no cluster {where}: `cerebro cluster create` makes it")
    return world


def status_lines(site: Site) -> Iterator[str]:
    """What there is, in which state, and what of it costs money; reads only.

    Raises:
        AwsError: AWS refused, or did not answer.
    """
    file, world = site.file, site.observe(with_resources=True)
    cluster, system = world.cluster, world.file_system
    if cluster is None and not world.resources and not world.stacks:
        yield f"There is nothing of {file.name} in {file.region}."
        return
    yield f"{file.name} in {file.region}"
    paused = ", paused" if world.is_paused else ""
    about = "none" if cluster is None else f"{cluster.status}, Kubernetes {cluster.version}{paused}"
    yield f"  control plane    {about}"
    yield from (
        f"  addon            {name}: {is_}" for name, is_ in sorted(world.addons.items()) if is_ != "ACTIVE"
    )
    if system is not None:
        yield f"  file system      {system.id}: {system.state}"
    stacks = sorted(world.stacks.items())
    yield from (
        f"  stack            {name}: {status}" for name, status in stacks if status != "CREATE_COMPLETE"
    )
    if world.kube is None:
        yield "  inside           not looked at (no kubeconfig here, or no answer)"
    else:
        yield from (
            f"  release          {name}: {each.status}" for name, each in sorted(world.kube.releases.items())
        )
    wanted = {CONTROL_GROUP: 1, **{group.name: group.count for group in file.workers}}
    for name, group in sorted(world.groups.items()):
        kind = "/".join(group.instance_types) + (" spot" if group.is_spot else "")
        note = "" if name in wanted else "  (not in the file)"
        yield f"  nodes {name:<16} {group.desired} of {wanted.get(name, 0)}  {kind}  {group.status}{note}"
        yield from (f"      {problem}" for problem in group.problems)
    left = [step.name for step in creation(file, site.chart) if step.is_needed(world)]
    if left and not world.is_paused:
        yield f"  not as in the file: {', '.join(left)}; `cerebro cluster create` makes it so"
    yield "What costs money:"
    by_kind: dict[str, list[str]] = defaultdict(list)
    for resource in world.resources:
        by_kind[resource.kind].append(f"{resource.id} {resource.about}".strip())
    yield from (f"  {kind} x {len(each)}: {', '.join(each)}" for kind, each in sorted(by_kind.items()))


def delete(site: Site, confirm: Callable[[str], bool]) -> None:
    """Remove the cluster and everything that bears its name, and prove that it has gone.

    A part that cannot be removed does not keep the others: what is left at the end is named, with the command that
    removes it. Safe to give again, after a half-made creation as after a half-made deletion.

    Args:
        site: of the cluster.
        confirm: given what will be removed, says whether to go on.

    Raises:
        ProvisionError: something is left, or AWS cannot be asked; the message says what to do.
    """
    world, parts = _seen(site), removal()
    if not any(part.is_needed(world) for part in parts) and not world.resources:
        site.show(f"Nothing of {site.file.name} is left in {site.file.region}.")
        return
    if world.is_foreign:
        raise ProvisionError(f"{conflicts(site.file, world)[0]}. Nothing has been removed")
    if not site.is_dry and not confirm(_summary(site, world)):
        site.show("Nothing has been removed.")
        return
    problems: dict[str, ProvisionError] = {}
    removed: list[str] = []
    if world.cluster is not None and world.cluster.status == "ACTIVE" and not world.has_kubeconfig:
        # What is inside is removed from inside, if possible.
        parts.insert(0, Step(name="kubeconfig", is_needed=lambda _: True, take=write_kubeconfig))
    for part in parts:
        if not part.is_needed(world):
            continue
        site.show(f"Removing: {part.name}" if part.name != "kubeconfig" else "Getting access to the cluster")
        try:
            part.take(site, world)
            removed.append(part.name)
        except ProvisionError as problem:
            site.show(f"  {part.name}: {problem}")
            problems[part.name] = problem
        except KeyboardInterrupt:
            again = "Give the same command again to go on: what is left costs money."
            site.show(f"Interrupted while removing {part.name}. {again}")
            raise
        if not site.is_dry:
            world = site.observe(with_resources=True)  # what one removes, others may have held
    if site.is_dry:
        site.show("This was a dry run: nothing has been removed.")
        return
    site.show("Removed: " + (", ".join(name for name in removed if name != "kubeconfig") or "nothing"))
    _prove(site, world, problems)


def _seen(site: Site) -> World:
    account = check_credentials(site.aws)
    if account.verdict is Verdict.OK:
        return site.observe(with_resources=True)
    if not site.is_dry:
        raise ProvisionError(f"{account.name}: {account.message}\n  {account.mend}")
    site.show(f"{account.message}: shown is what would be removed if all of it existed.")
    site.aws.is_offline = True
    installed = {name: Release(namespace="", status="deployed", mark="") for name in releases(site.file)}
    return World(
        name=site.file.name,
        cluster=Cluster(status="ACTIVE", tags=site.file.all_tags),
        stacks={cluster_stack(site.file.name): "CREATE_COMPLETE"},
        file_system=FileSystem(id="<file system>", state="available"),
        has_kubeconfig=True,
        kube=Kube(releases=installed, claims=1),
    )


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
    left = left or [part.name for part in removal() if part.is_needed(world)]
    where = f"{site.file.name} is left in {site.file.region}"
    if not left:
        site.kubeconfig.unlink(missing_ok=True)
        site.show(f"Looked again: nothing of {where} that costs money.")
        return
    why = "".join(f"\n  {name}: {problem}" for name, problem in problems.items())
    raise ProvisionError(
        "this is left, and may cost money; give the same command again, or remove it by hand:"
        + "".join(f"\n  {line}" for line in left)
        + (f"\nWhat went wrong:{why}" if why else "")
        + f"\nThe log: {site.folder / 'cluster.log'}"
    )
